"""From what a caller passes as a prompt to checked token ids. Nothing is cut off or left out in silence.

It knows tokenizers and chat templates, not the engine. Entry point: `PromptEncoder.encode`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from pelton.core.errors import ChatTemplateError, ContextLengthError, InvalidParameterError
from pelton.text.chat_template import ChatTemplate
from pelton.text.reasoning import ReasoningStart, find_reasoning
from pelton.text.tokenizer import Tokenizer, encode_chat

Prompt = str | Sequence[int]
Message = Mapping[str, object]


class EncodedPrompt(NamedTuple):
    """Token ids of a prompt, when it arrived (`time.perf_counter()`) and the seconds it took to encode it.

    `reasoning` says how the answer to a chat may begin with thoughts.
    """

    token_ids: tuple[int, ...]
    arrival_s: float
    tokenize_s: float
    reasoning: ReasoningStart | None = None


@dataclass(frozen=True, slots=True)
class PromptEncoder:
    """Encodes text, token ids and chats for one model: token ids below `vocab_size`, `context_length` tokens at most.

    All methods take the name under which errors speak of the input. They raise `InvalidParameterError` for anything
    that is not a prompt and `ContextLengthError` for one that leaves no room for a token.
    """

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    vocab_size: int
    context_length: int

    def encode(self, prompt: Prompt, name: str) -> EncodedPrompt:
        """Encode a text with the model's special tokens, or check token ids, which are taken as they are."""
        start_s = time.perf_counter()
        if isinstance(prompt, str):
            token_ids = self._encode_text(self.tokenizer.encode, prompt, name)
            if not token_ids:
                raise InvalidParameterError(name, prompt, "a text that is not empty (this model adds no BOS token)")
        else:
            token_ids = check_token_ids(prompt, name, self.vocab_size)
        return self._finish(token_ids, name, start_s)

    def encode_chat(
        self,
        messages: Sequence[Message],
        name: str,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> EncodedPrompt:
        """Render messages through the model's chat template and encode the text; one BOS at most.

        `tools` and `variables` are given to the template.
        Raises `ChatTemplateError` for a model without a template, and for what the template refuses.
        """
        start_s = time.perf_counter()
        if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence) or not messages:
            raise InvalidParameterError(name, messages, 'a list of at least one {"role": ..., "content": ...}')
        if self.chat_template is None:
            raise ChatTemplateError("this model has no chat template; give the prompt as text (--raw, /v1/completions)")
        text = self.chat_template.render(messages, add_generation_prompt=True, tools=tools, variables=variables)
        token_ids = self._encode_text(partial(encode_chat, self.tokenizer), text, name)
        if not token_ids:
            raise InvalidParameterError(name, messages, "messages that the chat template does not render as nothing")
        reasoning = find_reasoning(self.chat_template.source, text)
        return self._finish(token_ids, name, start_s)._replace(reasoning=reasoning)

    def _encode_text(self, encode: Callable[[str], list[int]], text: str, name: str) -> tuple[int, ...]:
        if len(text) > self.context_length:
            num_least = self.tokenizer.count_least_tokens(text)
            if num_least >= self.context_length:
                raise self._make_length_error(name, num_least, "least possible number of tokens")
        try:
            return tuple(encode(text))
        except InvalidParameterError as error:
            # The tokenizer calls every input "text"; with many prompts that does not say which one.
            raise InvalidParameterError(name, error.value, error.allowed) from error

    def _finish(self, token_ids: tuple[int, ...], name: str, start_s: float) -> EncodedPrompt:
        if len(token_ids) >= self.context_length:
            raise self._make_length_error(name, len(token_ids), "number of tokens")
        return EncodedPrompt(token_ids, start_s, time.perf_counter() - start_s)

    def _make_length_error(self, name: str, num_tokens: int, measure: str) -> ContextLengthError:
        context = self.context_length
        allowed = f"at most {context - 1} (the context is {context} tokens, one must stay free)"
        return ContextLengthError(name, num_tokens, allowed, measure)


def check_token_ids(token_ids: Sequence[int], name: str, vocab_size: int) -> tuple[int, ...]:
    """Return token ids as a tuple; raise `InvalidParameterError` if there are none or one is not in the vocabulary."""
    if isinstance(token_ids, (str, bytes, bytearray)) or not isinstance(token_ids, Sequence):
        raise InvalidParameterError(name, token_ids, "a text, or a sequence of token ids")
    if not token_ids:
        raise InvalidParameterError(name, token_ids, "at least one token id")
    for position, token_id in enumerate(token_ids):
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
            raise InvalidParameterError(f"{name}[{position}]", token_id, f"token ids 0 to {vocab_size - 1}")
    return tuple(token_ids)


def list_prompts(prompts: str | Iterable[Prompt]) -> list[Prompt]:
    """Return the prompts of a call as a list; raise `InvalidParameterError` for none, or for bare token ids."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, (bytes, bytearray, Mapping)) or not isinstance(prompts, Sequence) or not prompts:
        raise InvalidParameterError("prompts", prompts, "a text, or a list of at least one text or list of token ids")
    if isinstance(prompts[0], int):
        raise InvalidParameterError("prompts[0]", prompts[0], "a text or a list of token ids; write [[1, 2, 3]]")
    return list(prompts)
