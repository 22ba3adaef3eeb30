"""The JSON of TGI's API: whole answers, the events of a stream, errors. It knows shapes, not requests.

Start at `make_answer` and `StreamWriter`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pelton.core.outputs import Choice, GenerationResult, RequestOutput, TokenLogprobs
from pelton.server.answers import make_timings
from pelton.server.errors import ErrorInfo
from pelton.server.json_text import dump_json
from pelton.server.logprobs import MIN_LOGPROB, describe_token
from pelton.server.schema.tgi import (
    GenerateRequest,
    GenerateResponse,
    PrefillTokenBody,
    SequenceBody,
    StreamEvent,
    TokenBody,
)
from pelton.server.sse import make_frame
from pelton.text.tokenizer import Tokenizer


def make_error_body(info: ErrorInfo) -> Mapping[str, object]:
    """The error body of TGI's API; also the last event of a stream that fails."""
    if info.status in (429, 503):
        kind = "overloaded"
    elif info.status >= 500:
        kind = "generation"
    else:
        kind = "validation"
    return {"error": info.message, "error_type": kind}


def write_error(info: ErrorInfo) -> bytes:
    """The last event of a stream that fails."""
    return make_frame(dump_json(make_error_body(info)))


def make_answer(tokenizer: Tokenizer, body: GenerateRequest, result: GenerationResult) -> GenerateResponse:
    """The answer of a request that does not stream: the best choice, and in `details` all of them."""
    parameters = body.parameters
    prefix = body.inputs if parameters is not None and parameters.return_full_text else ""
    # With details all choices are there, in the order of their seeds; sorted() keeps it among equals.
    choices = sorted(result.choices, key=lambda choice: -_get_mean_logprob(choice))
    first = choices[0]
    answer: GenerateResponse = {
        "generated_text": prefix + first.text,
        "timings": make_timings(result.timings, result.usage),
    }
    if parameters is not None and parameters.details:
        shows_top = bool(parameters.top_n_tokens)
        prefill = _make_prefill(tokenizer, result)
        details = _make_sequence(tokenizer, first, prefill, shows_top=shows_top)
        if len(choices) > 1:
            details["best_of_sequences"] = [
                {
                    **_make_sequence(tokenizer, choice, prefill, shows_top=shows_top),
                    "generated_text": prefix + choice.text,
                }
                for choice in choices[1:]
            ]
        answer["details"] = details
    return answer


class StreamWriter:
    """Writes the events of one stream, one per token.

    The texts of all tokens joined are the generated text: text that is held back (half a character, the beginning of
    a stop string) comes with a later token.
    """

    def __init__(self, tokenizer: Tokenizer, body: GenerateRequest) -> None:
        parameters = body.parameters
        self._tokenizer = tokenizer
        self._prefix = body.inputs if parameters is not None and parameters.return_full_text else ""
        self._shows_top = parameters is not None and bool(parameters.top_n_tokens)
        self._num_tokens = 0

    def write(self, output: RequestOutput) -> bytes:
        """The events of one output; its text goes to the last of its tokens."""
        frames = b""
        last = len(output.new_token_ids) - 1
        for number, (token_id, entry) in enumerate(zip(output.new_token_ids, output.logprobs, strict=True)):
            self._num_tokens += 1
            text = output.text_delta if number == last else ""
            event: StreamEvent = {
                "index": self._num_tokens,
                "token": {**_make_token(self._tokenizer, token_id, entry.logprob), "text": text},
                "generated_text": None,
                "details": None,
            }
            if self._shows_top:
                event["top_tokens"] = _make_top(self._tokenizer, entry)
            if number == last:
                self._add_end(event, output)
            frames += make_frame(dump_json(event))
        return frames

    def _add_end(self, event: StreamEvent, output: RequestOutput) -> None:
        result = output.result
        if result is None:
            return
        choice = result.choices[0]
        event["generated_text"] = self._prefix + choice.text
        event["details"] = {
            "finish_reason": _get_finish_reason(choice),
            "generated_tokens": len(choice.token_ids),
            "input_length": len(result.prompt_token_ids),
            "seed": choice.seed,
        }
        event["timings"] = make_timings(result.timings, result.usage)


def _make_sequence(
    tokenizer: Tokenizer, choice: Choice, prefill: list[PrefillTokenBody], *, shows_top: bool
) -> SequenceBody:
    assert choice.logprobs is not None, "details ask for log-probabilities"
    pairs = list(zip(choice.token_ids, choice.logprobs, strict=True))
    body: SequenceBody = {
        "finish_reason": _get_finish_reason(choice),
        "generated_tokens": len(choice.token_ids),
        "seed": choice.seed,
        "prefill": prefill,
        "tokens": [_make_token(tokenizer, token_id, entry.logprob) for token_id, entry in pairs],
    }
    if shows_top:
        body["top_tokens"] = [_make_top(tokenizer, entry) for _, entry in pairs]
    return body


def _make_prefill(tokenizer: Tokenizer, result: GenerationResult) -> list[PrefillTokenBody]:
    """Tokens of the prompt, if their log-probabilities were asked for."""
    entries: Sequence[TokenLogprobs | None] | None = result.prompt_logprobs
    if entries is None:
        return []
    return [
        {
            "id": token_id,
            "text": describe_token(tokenizer, token_id),
            "logprob": None if entry is None else max(entry.logprob, MIN_LOGPROB),
        }
        for token_id, entry in zip(result.prompt_token_ids, entries, strict=True)
    ]


def _make_token(tokenizer: Tokenizer, token_id: int, logprob: float) -> TokenBody:
    return {
        "id": token_id,
        "text": describe_token(tokenizer, token_id),
        "logprob": max(logprob, MIN_LOGPROB),
        "special": tokenizer.is_special(token_id),
    }


def _make_top(tokenizer: Tokenizer, entry: TokenLogprobs) -> list[TokenBody]:
    return [_make_token(tokenizer, token_id, logprob) for token_id, logprob in entry.top]


def _get_mean_logprob(choice: Choice) -> float:
    return (choice.cumulative_logprob or 0.0) / max(len(choice.token_ids), 1)


def _get_finish_reason(choice: Choice) -> str:
    if choice.finish_reason == "length":
        return "length"
    return "stop_sequence" if choice.stop_reason is not None else "eos_token"
