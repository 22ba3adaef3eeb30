"""/tokenize and /detokenize: round trips, chats, refusals. The tokenizer has one token per byte."""

from __future__ import annotations

import pytest
from compat_engine import CompatServer

HI = [{"role": "user", "content": "hi"}]


def test_a_text_becomes_ids_and_back(hello: CompatServer) -> None:
    body = hello.client.post("/tokenize", json={"prompt": "a🦀", "return_token_strs": True}).json()
    assert body["tokens"] == [256, *"a🦀".encode()]
    assert body["count"] == 6
    assert body["max_model_len"] == hello.engine.context_length
    assert body["token_strs"][1:3] == ["a", "bytes:\\xf0"]
    assert hello.client.post("/detokenize", json={"tokens": body["tokens"][1:]}).json() == {"prompt": "a🦀"}


def test_special_tokens_may_be_left_out(hello: CompatServer) -> None:
    body = hello.client.post("/tokenize", json={"prompt": "ab", "add_special_tokens": False}).json()
    assert (body["tokens"], body["token_strs"]) == ([97, 98], None)


def test_a_chat_is_what_the_model_would_read(hello: CompatServer) -> None:
    body = hello.client.post("/tokenize", json={"model": "tiny", "messages": HI}).json()
    assert body["tokens"] == [256, *b"[user]hi"]


def test_a_long_text_may_be_counted(hello: CompatServer) -> None:
    assert hello.client.post("/tokenize", json={"prompt": "x" * 50_000}).json()["count"] == 50_001


@pytest.mark.parametrize(
    ("path", "body", "parameter", "status"),
    [
        ("/tokenize", {}, "prompt or messages", 400),
        ("/tokenize", {"prompt": "a", "messages": HI}, "prompt or messages", 400),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools", 400),
        ("/tokenize", {"messages": HI, "add_special_tokens": True}, "add_special_tokens", 400),
        ("/tokenize", {"prompt": "a", "model": "nobody"}, "nobody", 404),
        ("/tokenize", {"prompt": "a", "no_such": 1}, "no_such", 400),
        ("/detokenize", {}, "tokens", 400),
        ("/detokenize", {"tokens": [97, 10**6]}, "tokens[1]", 400),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]", 400),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]", 400),
    ],
)
def test_refusals_name_the_field(hello: CompatServer, path: str, body: dict, parameter: str, status: int) -> None:
    response = hello.client.post(path, json=body)
    assert response.status_code == status
    assert parameter in response.json()["error"]["message"]
