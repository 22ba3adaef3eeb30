"""The clients people already use, against a live server: openai, huggingface_hub, LangChain's wire format, curl."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from live_server import LiveServer, run_live
from scripted import echo, make_engine, say

from pelton.server.auth import ApiKeys

openai = pytest.importorskip("openai")
KEY = "a-secret-for-tests"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with run_live(make_engine(echo), keys=ApiKeys.from_lines([KEY])) as live:
        yield live


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as opened:
        yield opened


MESSAGES = [{"role": "user", "content": "hi"}]


def test_openai_chat(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(
        model="tiny", messages=MESSAGES, n=2, logprobs=True, top_logprobs=1, max_completion_tokens=20, seed=1
    )
    assert [choice.message.content for choice in completion.choices] == ["[user]hi"] * 2
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == 9
    assert completion.usage.prompt_tokens_details.cached_tokens == 0
    assert len(completion.choices[0].logprobs.content) == 9
    assert completion.timings["predicted_n"] == 18


def test_openai_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "[user]hi"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.total_tokens == 18
    assert [c.usage for c in chunks[:-1]] == [None] * (len(chunks) - 1)


def test_openai_stream_helper_puts_a_message_together(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="tiny", messages=MESSAGES) as stream:
        for _ in stream:
            pass
        completion = stream.get_final_completion()
    assert completion.choices[0].message.content == "[user]hi"


def test_openai_completions_and_models(client: openai.OpenAI) -> None:
    completion = client.completions.create(model="tiny", prompt=["abc", "de"], logprobs=1)
    assert [choice.text for choice in completion.choices] == ["abc", "de"]
    assert completion.choices[0].logprobs.tokens[:3] == ["a", "b", "c"]
    assert [model.id for model in client.models.list()] == ["tiny", "alias"]
    assert client.models.retrieve("alias").id == "alias"
    assert (
        "".join(c.choices[0].text for c in client.completions.create(model="tiny", prompt="abc", stream=True)) == "abc"
    )


def test_openai_errors_are_of_the_right_class(client: openai.OpenAI, server: LiveServer) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body={"nope": 1})
    assert caught.value.param == "nope"
    assert caught.value.code == "unknown_parameter"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong-key", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_openai_tools(serve) -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    live = serve(make_engine(say(call), model_context=4096, num_blocks=2048))
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x") as client:
        fields = {"model": "tiny", "messages": MESSAGES, "tools": [tool], "max_tokens": 200}
        message = client.chat.completions.create(**fields).choices[0].message
        assert json.loads(message.tool_calls[0].function.arguments) == {"a": 1, "b": 2}
        with client.chat.completions.stream(**fields) as stream:
            streamed = stream.get_final_completion().choices[0].message
        assert streamed.tool_calls[0].function.name == "add"
        assert streamed.tool_calls[0].function.arguments == message.tool_calls[0].function.arguments


def test_openai_async_streams_at_once(server: LiveServer) -> None:
    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY) as client:

            async def ask(text: str) -> str:
                stream = await client.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": text}], stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*(ask(f"number {i}") for i in range(16)))

    assert asyncio.run(run()) == [f"[user]number {i}" for i in range(16)]


def test_huggingface_chat(server: LiveServer) -> None:
    hub = pytest.importorskip("huggingface_hub")
    client = hub.InferenceClient(base_url=f"{server.url}/v1", api_key=KEY)
    answer = client.chat_completion(MESSAGES, model="tiny", max_tokens=20)
    assert answer.choices[0].message.content == "[user]hi"
    chunks = client.chat_completion(MESSAGES, model="tiny", max_tokens=20, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "[user]hi"


def test_curl(server: LiveServer) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    command = ["curl", "-sN", f"{server.url}/v1/completions", "-H", f"Authorization: Bearer {KEY}"]
    answer = subprocess.run([*command, "-d", '{"prompt": "abc", "stream": true}'], capture_output=True, check=True)
    assert answer.stdout.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
def test_langchain(server: LiveServer, stream: bool) -> None:
    langchain = pytest.importorskip("langchain_openai")
    chat = langchain.ChatOpenAI(base_url=f"{server.url}/v1", api_key=KEY, model="tiny", max_retries=0)
    text = "".join(c.content for c in chat.stream("hi")) if stream else chat.invoke("hi").content
    assert text == "[user]hi"
    assert "langchain_openai" in sys.modules
