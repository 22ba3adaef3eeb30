"""Log-probabilities in OpenAI's two shapes: chat's list of objects, and the parallel lists of completions.

Values are the engine's: natural logarithms under the raw logits. It knows tokens, not requests.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TypedDict

from pelton.core.outputs import TokenLogprobs
from pelton.text.tokenizer import Tokenizer

# JSON has no minus infinity; this is what the field uses for a probability of zero.
MIN_LOGPROB = -9999.0


class TopLogprobBody(TypedDict):
    """One alternative; `bytes` are those of the token, which may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobBody(TopLogprobBody):
    """A token that was generated, and the most likely ones at its place."""

    top_logprobs: list[TopLogprobBody]


class CompletionLogprobsBody(TypedDict):
    """Four lists with one entry per token; `text_offset` counts characters from the start of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


def describe_token(tokenizer: Tokenizer, token_id: int) -> str:
    """The text of a token; a part of a character is written `bytes:\\xNN`, as the OpenAI API does."""
    data = tokenizer.token_bytes(token_id)
    if not data:
        return tokenizer.piece(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def make_chat_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
) -> list[TokenLogprobBody]:
    """`logprobs.content` of a chat choice or chunk."""
    return [
        {
            **_describe(tokenizer, token_id, entry.logprob),
            "top_logprobs": [_describe(tokenizer, other_id, value) for other_id, value in entry.top],
        }
        for token_id, entry in zip(token_ids, logprobs, strict=True)
    ]


def _describe(tokenizer: Tokenizer, token_id: int, logprob: float) -> TopLogprobBody:
    return {
        "token": describe_token(tokenizer, token_id),
        "logprob": max(logprob, MIN_LOGPROB),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def make_completion_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[TokenLogprobs | None],
    start_offset: int,
) -> CompletionLogprobsBody:
    """`logprobs` of a completions choice or chunk whose text begins at character `start_offset`.

    An entry that is None (the first token of a prompt, which nothing predicts) becomes null.
    """
    tokens = [describe_token(tokenizer, token_id) for token_id in token_ids]
    offsets = []
    # A character of several tokens begins, for all of them, where it begins in the text.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token_id in token_ids:
        offsets.append(start_offset)
        start_offset += len(decoder.decode(tokenizer.token_bytes(token_id)))
    return {
        "tokens": tokens,
        "token_logprobs": [None if entry is None else max(entry.logprob, MIN_LOGPROB) for entry in logprobs],
        "top_logprobs": [
            None
            if entry is None
            else {describe_token(tokenizer, other_id): max(value, MIN_LOGPROB) for other_id, value in entry.top}
            for entry in logprobs
        ],
        "text_offset": offsets,
    }
