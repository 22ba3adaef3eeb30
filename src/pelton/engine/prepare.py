"""`RequestPreparer`: all that is checked and computed of a request before the engine sees it.

Everything here is safe to call from any thread and touches no engine state, so that a long prompt holds nobody up.
Entry point: `RequestPreparer.prepare`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pelton.core.errors import InvalidParameterError
from pelton.core.request_options import DEFAULT_REQUEST_OPTIONS, RequestOptions
from pelton.core.sampling_params import SamplingParams
from pelton.engine.prompts import EncodedPrompt, Message, Prompt, PromptEncoder


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A checked request: `params` fit the model's vocabulary, `prompt` fits its context."""

    prompt: EncodedPrompt
    params: SamplingParams
    options: RequestOptions = DEFAULT_REQUEST_OPTIONS

    def arriving_at(self, arrival_s: float) -> PreparedRequest:
        """The same request with another time of arrival (`time.perf_counter()`)."""
        return dataclasses.replace(self, prompt=self.prompt._replace(arrival_s=arrival_s))


@dataclass(frozen=True, slots=True)
class RequestPreparer:
    """Prepares requests for one model."""

    encoder: PromptEncoder

    def check_params(self, params: SamplingParams | None) -> SamplingParams:
        """Return `params`, or the defaults; raise `InvalidParameterError` if they do not fit this model."""
        if params is None:
            return SamplingParams()
        if not isinstance(params, SamplingParams):
            raise InvalidParameterError("params", params, "SamplingParams")
        params.check_vocabulary(self.encoder.vocab_size)
        return params

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        options: RequestOptions | None = None,
        *,
        name: str = "prompt",
    ) -> PreparedRequest:
        """Check and encode a text or token ids; `name` is what errors call the prompt.

        Raises `InvalidParameterError`, or `ContextLengthError` for a prompt that leaves no room for a token.
        """
        checked = self.check_params(params)
        return self._finish(self.encoder.encode(prompt, name), checked, options)

    def prepare_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        options: RequestOptions | None = None,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> PreparedRequest:
        """Check, render and encode a conversation; `tools` and `variables` are given to the chat template.

        Raises as `prepare` does, and `ChatTemplateError`.
        """
        checked = self.check_params(params)
        prompt = self.encoder.encode_chat(messages, "messages", tools=tools, variables=variables)
        return self._finish(prompt, checked, options)

    def _finish(self, prompt: EncodedPrompt, params: SamplingParams, options: RequestOptions | None) -> PreparedRequest:
        if options is not None and not isinstance(options, RequestOptions):
            raise InvalidParameterError("options", options, "RequestOptions")
        return PreparedRequest(prompt, params, DEFAULT_REQUEST_OPTIONS if options is None else options)


def pair_params(
    prompts: Iterable[Prompt], params: SamplingParams | Iterable[SamplingParams] | None
) -> Iterator[tuple[Prompt, SamplingParams | None]]:
    """Pair every prompt with its parameters: the same for all, or one each.

    Raises `InvalidParameterError` at once for anything else and for numbers of prompts and params that are known to
    differ; for iterators when one of them ends first.
    """
    if params is None or isinstance(params, SamplingParams):
        return ((prompt, params) for prompt in prompts)
    if isinstance(params, str) or not isinstance(params, Iterable):
        raise InvalidParameterError("params", params, "SamplingParams, or a sequence of them")
    if isinstance(prompts, Sequence) and isinstance(params, Sequence) and len(prompts) != len(params):
        raise InvalidParameterError(
            "number of params", len(params), f"1, or one for each of the {len(prompts)} prompts"
        )
    return _zip_evenly(prompts, params)


def _zip_evenly(prompts: Iterable[Prompt], params: Iterable[SamplingParams]) -> Iterator[tuple[Prompt, SamplingParams]]:
    try:
        yield from zip(prompts, params, strict=True)
    except ValueError as error:
        raise InvalidParameterError("number of params", "not that of the prompts", "one for each prompt") from error
