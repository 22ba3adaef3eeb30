"""The JSON of /v1/completions: whole answers and the chunks of a stream, over one prompt or many.

Choice j of prompt i has index i * n + j. With `echo` a choice's text begins with its prompt. It knows shapes, not
requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pelton.core.outputs import Choice, GenerationResult, RequestOutput, TokenLogprobs, Usage
from pelton.server.answers import make_timings, make_usage
from pelton.server.chat_chunks import AnswerHead
from pelton.server.json_text import dump_json
from pelton.server.logprobs import MIN_LOGPROB, describe_token, make_completion_logprobs
from pelton.server.sse import make_frame
from pelton.text.tokenizer import Tokenizer

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionShape:
    """What the client asked to see besides the text. `num_choices` is n."""

    num_choices: int
    echo: bool
    has_logprobs: bool
    has_prompt_logprobs: bool


def join_usage(usages: Sequence[Usage]) -> Usage:
    """Token counts of several prompts together."""
    return Usage(
        prompt_tokens=sum(u.prompt_tokens for u in usages),
        completion_tokens=sum(u.completion_tokens for u in usages),
        cached_tokens=sum(u.cached_tokens for u in usages),
    )


def make_completion(
    head: AnswerHead,
    shape: CompletionShape,
    tokenizer: Tokenizer,
    results: Sequence[GenerationResult],
    prompt_texts: Sequence[str],
) -> Json:
    """The whole answer. `timings` are those of the prompt whose first token came last; counts are sums."""
    usage = join_usage([result.usage for result in results])
    slowest = max(results, key=lambda result: result.timings.ttft_ms)
    choices = []
    for number, (result, prompt_text) in enumerate(zip(results, prompt_texts, strict=True)):
        for choice in result.choices:
            body = _make_choice(head, shape, tokenizer, result, choice, prompt_text)
            choices.append({**body, "index": number * shape.num_choices + choice.index})
    return {
        **head.make("text_completion"),
        "choices": choices,
        "usage": make_usage(usage),
        "timings": make_timings(slowest.timings, usage),
    }


def _make_choice(
    head: AnswerHead,
    shape: CompletionShape,
    tokenizer: Tokenizer,
    result: GenerationResult,
    choice: Choice,
    prompt_text: str,
) -> Json:
    start = prompt_text if shape.echo else ""
    body: Json = {
        "index": choice.index,
        "text": start + choice.text,
        "logprobs": None,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "seed": choice.seed,
    }
    if shape.has_logprobs:
        token_ids: tuple[int, ...] = choice.token_ids
        logprobs: tuple[TokenLogprobs | None, ...] = choice.logprobs or ()
        if shape.echo:
            assert result.prompt_logprobs is not None, "an echo with log-probabilities asks for those of the prompt"
            token_ids = result.prompt_token_ids + token_ids
            logprobs = result.prompt_logprobs + logprobs
        body["logprobs"] = make_completion_logprobs(tokenizer, token_ids, logprobs, 0)
    if shape.has_prompt_logprobs and result.prompt_logprobs is not None:
        body["prompt_logprobs"] = make_prompt_logprobs(tokenizer, result.prompt_token_ids, result.prompt_logprobs)
    if head.return_token_ids:
        body |= {"prompt_token_ids": list(result.prompt_token_ids), "token_ids": list(choice.token_ids)}
    return body


def make_prompt_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]
) -> list[dict[str, Json] | None]:
    """vLLM's shape: per prompt token an object from token id to log-probability; null for the first token."""
    entries: list[dict[str, Json] | None] = []
    for token_id, entry in zip(token_ids, logprobs, strict=True):
        if entry is None:
            entries.append(None)
            continue
        values = {token_id: entry.logprob, **dict(entry.top)}
        entries.append(
            {
                str(id_): {"logprob": max(value, MIN_LOGPROB), "decoded_token": describe_token(tokenizer, id_)}
                for id_, value in values.items()
            }
        )
    return entries


class CompletionWriter:
    """Writes the frames of one streamed answer over `len(prompt_texts)` prompts."""

    def __init__(
        self, head: AnswerHead, shape: CompletionShape, tokenizer: Tokenizer, prompt_texts: Sequence[str]
    ) -> None:
        self._head = head
        self._shape = shape
        self._tokenizer = tokenizer
        self._fields = head.make("text_completion")
        self._prompt_texts = prompt_texts
        self._offsets: dict[int, int] = {}
        self._last_outputs: list[RequestOutput] = []

    def write(self, number: int, output: RequestOutput, prompt_token_ids: Sequence[int]) -> bytes:
        """The chunk of an output of prompt `number`; the last one of all prompts ends with usage and timings.

        The first one of each choice has `prompt_token_ids` if ids were asked for.
        """
        index = number * self._shape.num_choices + output.index
        is_first = index not in self._offsets
        start = self._prompt_texts[number] if is_first and self._shape.echo else ""
        offset = self._offsets.setdefault(index, len(start))
        text = start + output.text_delta
        self._offsets[index] += len(output.text_delta)
        if output.result is not None:
            self._last_outputs.append(output)
        if not text and not output.logprobs and output.finish_reason is None and not self._head.return_token_ids:
            return b""
        choice: Json = {"index": index, "text": text, "logprobs": None, "finish_reason": output.finish_reason}
        if self._shape.has_logprobs:
            choice["logprobs"] = make_completion_logprobs(
                self._tokenizer, output.new_token_ids, output.logprobs, offset
            )
        if output.finish_reason is not None:
            choice |= {"stop_reason": output.stop_reason, "seed": output.seed}
        if self._head.return_token_ids:
            choice["token_ids"] = list(output.new_token_ids)
            if is_first:
                choice["prompt_token_ids"] = list(prompt_token_ids)
        return self._finish({**self._fields, "choices": [choice]})

    def _finish(self, chunk: Json) -> bytes:
        if self._head.include_usage:
            chunk["usage"] = None
        if len(self._last_outputs) < len(self._prompt_texts):
            return make_frame(dump_json(chunk))
        usage = join_usage([output.usage for output in self._last_outputs if output.usage is not None])
        slowest = max(
            (output.timings for output in self._last_outputs if output.timings is not None), key=lambda t: t.ttft_ms
        )
        timings = make_timings(slowest, usage)
        if not self._head.include_usage:
            return make_frame(dump_json({**chunk, "timings": timings}))
        last = {**self._fields, "choices": [], "usage": make_usage(usage), "timings": timings}
        return make_frame(dump_json(chunk)) + make_frame(dump_json(last))
