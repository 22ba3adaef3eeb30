"""`RequestPreparer`: all that is checked and computed of a request before the engine sees it.

Everything here is safe to call from any thread and touches no engine state, so that a long prompt holds nobody up.
Entry point: `RequestPreparer.prepare`.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pelton.core.errors import ContextLengthError, InvalidParameterError
from pelton.core.request_options import DEFAULT_REQUEST_OPTIONS, RequestOptions
from pelton.core.sampling_params import SamplingParams
from pelton.core.token_constraint import TokenConstraint
from pelton.engine.prompts import EncodedPrompt, Message, Prompt, PromptEncoder
from pelton.sampling.resolve import ParamsResolver

if TYPE_CHECKING:
    from pelton.structure.compiler import StructureCompiler
    from pelton.text.reasoning import ReasoningStart


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A checked request: `params` fit the model's vocabulary, `prompt` fits its context.

    `constraints` has one entry per choice if `params.structure` asks for a structure, else none.
    """

    prompt: EncodedPrompt
    params: SamplingParams
    options: RequestOptions = DEFAULT_REQUEST_OPTIONS
    constraints: tuple[TokenConstraint, ...] = ()

    def arriving_at(self, arrival_s: float) -> PreparedRequest:
        """The same request with another time of arrival (`time.perf_counter()`)."""
        return dataclasses.replace(self, prompt=self.prompt._replace(arrival_s=arrival_s))


@dataclass(frozen=True, slots=True)
class RequestPreparer:
    """Prepares requests for one model."""

    encoder: PromptEncoder
    resolver: ParamsResolver = field(init=False)
    # The one compiler of this engine, made when the first structure is asked for.
    _compilers: list[StructureCompiler] = field(init=False, default_factory=list)
    _compiler_lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        object.__setattr__(self, "resolver", ParamsResolver(self.encoder.tokenizer))

    def check_params(self, params: SamplingParams | None) -> SamplingParams:
        """Return `params`, or the defaults, with token ids in place of strings.

        Raises `InvalidParameterError` if they do not fit this model.
        """
        if params is None:
            return SamplingParams()
        if not isinstance(params, SamplingParams):
            raise InvalidParameterError("params", params, "SamplingParams")
        params.check_vocabulary(self.encoder.vocab_size)
        return self.resolver.resolve(params)

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        options: RequestOptions | None = None,
        *,
        name: str = "prompt",
    ) -> PreparedRequest:
        """Check and encode a text or token ids; `name` is what errors call the prompt.

        Raises `InvalidParameterError`, `ContextLengthError` for a prompt that leaves no room for a token, or
        `StructureError` for a structure that cannot be used.
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
        num_free = self.encoder.context_length - len(prompt.token_ids)
        if params.min_tokens > num_free:
            raise ContextLengthError("min_tokens", params.min_tokens, f"at most {num_free}, what the context has left")
        constraints = self._compile(params, prompt.reasoning)
        return PreparedRequest(prompt, params, DEFAULT_REQUEST_OPTIONS if options is None else options, constraints)

    def _compile(self, params: SamplingParams, reasoning: ReasoningStart | None) -> tuple[TokenConstraint, ...]:
        """A constraint for every choice, each with a state of its own; it holds for what follows the thoughts."""
        if params.structure is None:
            return ()
        constraints = [self._get_compiler().compile(params.structure) for _ in range(params.num_choices)]
        if reasoning is None:
            return tuple(constraints)
        from pelton.structure.reasoning_gate import ReasoningGate  # late, as the compiler

        return tuple(ReasoningGate(constraint, self.encoder.tokenizer, reasoning) for constraint in constraints)

    def _get_compiler(self) -> StructureCompiler:
        with self._compiler_lock:
            if not self._compilers:
                # Here and not above: structured output is a library that most requests do without.
                from pelton.structure.compiler import StructureCompiler

                self._compilers.append(StructureCompiler(self.encoder.tokenizer))
            return self._compilers[0]


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
