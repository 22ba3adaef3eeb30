"""`LLM.chat` and `LLM.stream_chat`: the template's text, one BOS, and what is refused."""

from __future__ import annotations

import pytest

from pelton.core.errors import ChatTemplateError, ContextLengthError, InvalidParameterError

MESSAGES = [{"role": "user", "content": "hey"}]


@pytest.mark.parametrize("add_bos", [True, False])
def test_template_that_prints_bos_gives_exactly_one(kit, add_bos: bool) -> None:
    llm = kit.make_llm([*b"ok", kit.EOS], tokenizer=kit.make_tokenizer(add_bos=add_bos))
    result = llm.chat(MESSAGES)
    assert result.text == "ok"
    assert result.prompt_token_ids == (kit.BOS, *b"[user]hey")
    assert result.usage.prompt_tokens == 10


def test_bos_is_added_where_the_model_wants_one_and_the_template_has_none(kit) -> None:
    llm = kit.make_llm([kit.EOS], template="{{ messages[0].content }}")
    assert llm.chat(MESSAGES).prompt_token_ids == (kit.BOS, *b"hey")
    llm = kit.make_llm([kit.EOS], template="{{ messages[0].content }}", tokenizer=kit.make_tokenizer(add_bos=False))
    assert llm.chat(MESSAGES).prompt_token_ids == tuple(b"hey")


def test_chat_streams_what_chat_returns(kit) -> None:
    llm = kit.make_llm([*b"ok", kit.EOS])
    outputs = list(llm.stream_chat(MESSAGES))
    assert "".join(o.text_delta for o in outputs) == llm.chat(MESSAGES).text
    assert outputs[-1].result.prompt_token_ids == (kit.BOS, *b"[user]hey")


@pytest.mark.parametrize("messages", [[], "hey", None, {"role": "user", "content": "hey"}])
def test_anything_but_a_list_of_messages_is_refused(kit, messages: object) -> None:
    """Also when there are no messages."""
    llm = kit.make_llm([*b"ok", kit.EOS])
    with pytest.raises(InvalidParameterError, match="messages is"):
        llm.chat(messages)
    assert llm.chat(MESSAGES).text == "ok"


def test_model_without_template_says_so(kit) -> None:
    with pytest.raises(ChatTemplateError, match="no chat template"):
        kit.make_llm([kit.EOS], template=None).chat(MESSAGES)


def test_conversation_longer_than_the_context_is_refused_with_both_numbers(kit) -> None:
    llm = kit.make_llm([kit.EOS], model_context=10)
    with pytest.raises(ContextLengthError, match=r"messages is 10; .*context is 10"):
        llm.chat(MESSAGES)
