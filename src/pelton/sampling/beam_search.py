"""Beam search: the likeliest continuations of a prompt, found over the engine's ordinary requests.

Every step asks for one token after each beam, with the log-probabilities of the most likely ones; the prefix cache
makes that one computed token per beam. Must not know schedulers or models. Entry point: `beam_search`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pelton.core.errors import ContextLengthError, InvalidParameterError
from pelton.core.fields import check_number_types, option, validate_options
from pelton.core.outputs import GenerationResult
from pelton.core.request import RequestStatus
from pelton.core.sampling_params import MAX_NUM_LOGPROBS, MAX_TOKEN_COUNT, SamplingParams
from pelton.text.tokenizer import Tokenizer


class Generator(Protocol):
    """What is needed of `LLM`; tests put a model with known probabilities in its place."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the model."""

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and output together."""

    def generate(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[GenerationResult]:
        """Generate for many prompts, given as token ids, in one batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """Options of a beam search, validated on construction (`InvalidParameterError`)."""

    # Twice as many log-probabilities are asked for, so that beams remain if as many end.
    beam_width: int = option(4, "Sequences kept after each token.", minimum=1, maximum=MAX_NUM_LOGPROBS // 2)
    max_tokens: int = option(16, "Most tokens of a sequence.", minimum=1, maximum=MAX_TOKEN_COUNT, unit="tokens")
    length_penalty: float = option(
        1.0,
        "Sequences rank by log-probability / length^X; 0 ranks by log-probability alone, more favours long ones.",
        minimum=-10.0,
        maximum=10.0,
        disabled_by="0",
    )

    def __post_init__(self) -> None:
        check_number_types(self, ("beam_width", "max_tokens"), ("length_penalty",))
        validate_options(self)


@dataclass(frozen=True, slots=True)
class BeamSequence:
    """One continuation; it ranks by `score`. finish_reason is "stop" (the last id is an end token) or "length"."""

    token_ids: tuple[int, ...]
    text: str
    cumulative_logprob: float
    score: float
    finish_reason: str


@dataclass(frozen=True, slots=True)
class _Beam:
    token_ids: tuple[int, ...]
    logprob: float

    def score(self, length_penalty: float) -> float:
        # Wu et al. 2016 (arXiv 1609.08144), section 7, without the constant: length^alpha.
        return self.logprob / math.pow(len(self.token_ids), length_penalty)


def beam_search(llm: Generator, prompt: str | Sequence[int], params: BeamSearchParams) -> list[BeamSequence]:
    """The best continuations of `prompt`, best first, at most `beam_width`; equal ones by token ids.

    A beam is followed by its 2 * beam_width most likely tokens; those that end it are set aside, and of the others the
    beam_width with the highest log-probability go on. It ends at `max_tokens`, or when no beam can still get among the
    best. Raises `ContextLengthError` if prompt and max_tokens exceed the context, else what `LLM.generate` raises.
    """
    prompt_ids = _encode(llm, prompt)
    if len(prompt_ids) + params.max_tokens > llm.context_length:
        total = len(prompt_ids) + params.max_tokens
        raise ContextLengthError("prompt tokens + max_tokens", total, f"at most {llm.context_length}, the context")
    step_params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=2 * params.beam_width)
    beams = [_Beam((), 0.0)]
    ended: list[_Beam] = []
    for _ in range(params.max_tokens):
        results = llm.generate([[*prompt_ids, *beam.token_ids] for beam in beams], step_params)
        candidates = _extend(beams, results)
        ended += [beam for beam in candidates if beam.token_ids[-1] in llm.tokenizer.eos_token_ids]
        going_on = [beam for beam in candidates if beam.token_ids[-1] not in llm.tokenizer.eos_token_ids]
        beams = sorted(going_on, key=lambda beam: (-beam.logprob, beam.token_ids))[: params.beam_width]
        ended = _rank(ended, params)
        if not beams or not _can_improve(beams[0], ended, params):
            break
    return [_finish(llm, beam, params) for beam in _rank([*ended, *beams], params)]


def _encode(llm: Generator, prompt: str | Sequence[int]) -> list[int]:
    token_ids = llm.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
    if not token_ids:
        raise InvalidParameterError("prompt", prompt, "at least one token")
    return token_ids


def _extend(beams: Sequence[_Beam], results: Sequence[GenerationResult]) -> list[_Beam]:
    extended: list[_Beam] = []
    for beam, result in zip(beams, results, strict=True):
        assert result.logprobs is not None
        top = result.logprobs[0].top if result.logprobs else ()
        extended += [_Beam((*beam.token_ids, token_id), beam.logprob + logprob) for token_id, logprob in top]
    return extended


def _rank(beams: Sequence[_Beam], params: BeamSearchParams) -> list[_Beam]:
    return sorted(beams, key=lambda b: (-b.score(params.length_penalty), b.token_ids))[: params.beam_width]


def _can_improve(best: _Beam, ended: Sequence[_Beam], params: BeamSearchParams) -> bool:
    """Whether the likeliest beam, or what follows it, may still rank among the best."""
    if len(ended) < params.beam_width:
        return True
    # Log-probabilities only fall. Their quotient is largest at the greatest length for a positive exponent, else now.
    length = params.max_tokens if params.length_penalty > 0 else len(best.token_ids)
    return best.logprob / math.pow(length, params.length_penalty) > ended[-1].score(params.length_penalty)


def _finish(llm: Generator, beam: _Beam, params: BeamSearchParams) -> BeamSequence:
    has_ended = beam.token_ids[-1] in llm.tokenizer.eos_token_ids
    text_ids = beam.token_ids[:-1] if has_ended else beam.token_ids
    status = RequestStatus.STOPPED if has_ended else RequestStatus.LENGTH_CAPPED
    return BeamSequence(
        token_ids=beam.token_ids,
        text=llm.tokenizer.decode(text_ids),
        cumulative_logprob=beam.logprob,
        score=beam.score(params.length_penalty),
        finish_reason=status.value,
    )
