"""`SamplingParams`: everything a request can ask of sampling, each field with range and disabling value.

Order of application (docs/sampling.md shows it with numbers): logit_bias, repetition_penalty,
presence/frequency_penalty, temperature, top_k, top_p, min_p, draw. Reported log-probabilities are those of the
model's raw logits, before all of these (the OpenAI "raw" convention), whatever the temperature.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pelton.core.errors import InvalidParameterError
from pelton.core.fields import check_number_types, option, validate_options
from pelton.core.structure import Structure

MAX_SEED = 2**64 - 1
MAX_NUM_LOGPROBS = 128
MAX_NUM_STOP_STRINGS = 64
MAX_TOKEN_COUNT = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to turn logits into tokens and when to stop. Immutable; validated on construction.

    Raises `InvalidParameterError` naming the field, the value and what is allowed.
    """

    max_tokens: int | None = option(
        None,
        "Most tokens to generate; the end of the context comes first if it is nearer.",
        minimum=1,
        maximum=MAX_TOKEN_COUNT,
        unit="tokens",
    )
    n: int = option(1, "Choices to generate; choice i is the request of its own with seed + i.", minimum=1, maximum=128)
    best_of: int | None = option(
        None,
        "Choices to compute, of which the n most likely per token are returned; unset computes n.",
        minimum=1,
        maximum=128,
        disabled_by="unset",
    )
    temperature: float = option(
        1.0,
        "Divides the logits; 0 always takes the most likely token (greedy).",
        minimum=0.0,
        maximum=100.0,
        disabled_by="1",
    )
    top_k: int = option(
        0,
        "Keep only the K most likely tokens; 0 or -1 keeps all.",
        minimum=-1,
        maximum=MAX_TOKEN_COUNT,
        disabled_by="0",
    )
    top_p: float = option(
        1.0,
        "Keep the smallest set of most likely tokens whose probability reaches P.",
        minimum=0.0,
        exclusive_minimum=True,
        maximum=1.0,
        disabled_by="1",
    )
    min_p: float = option(
        0.0, "Drop tokens less likely than P times the most likely one.", minimum=0.0, maximum=1.0, disabled_by="0"
    )
    repetition_penalty: float = option(
        1.0,
        "Divides positive (multiplies negative) logits of tokens seen in prompt or output.",
        minimum=0.0,
        exclusive_minimum=True,
        maximum=100.0,
        disabled_by="1",
    )
    presence_penalty: float = option(
        0.0,
        "Subtracted from the logit of every token already generated.",
        minimum=-100.0,
        maximum=100.0,
        disabled_by="0",
    )
    frequency_penalty: float = option(
        0.0,
        "Subtracted from a token's logit once per time it was generated.",
        minimum=-100.0,
        maximum=100.0,
        disabled_by="0",
    )
    seed: int | None = option(
        None, "Seed of the random numbers; unset picks one and reports it.", minimum=0, maximum=MAX_SEED
    )
    logprobs: int | None = option(
        None,
        "Report log-probabilities of the chosen token and this many most likely ones; unset reports none.",
        minimum=0,
        maximum=MAX_NUM_LOGPROBS,
        disabled_by="unset",
    )
    prompt_logprobs: int | None = option(
        None,
        "Report log-probabilities of the prompt's tokens and of this many most likely ones at each place.",
        minimum=0,
        maximum=MAX_NUM_LOGPROBS,
        disabled_by="unset",
    )
    stop: tuple[str, ...] = option((), "Stop before any of these strings would appear in the text.")
    stop_token_ids: tuple[int, ...] = option((), "Stop when one of these token ids is generated.")
    logit_bias: Mapping[int, float] = option({}, "Added to the logits of the given token ids, each from -100 to 100.")
    ignore_eos: bool = option(False, "Go on after the model's end-of-turn tokens; for benchmarks.")
    # What the output must look like (docs/structured_output.md); None: anything. Not a number or text, so no option.
    structure: Structure | None = None

    def __post_init__(self) -> None:
        check_number_types(
            self,
            ("max_tokens", "n", "best_of", "top_k", "seed", "logprobs", "prompt_logprobs"),
            ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
        )
        validate_options(self)
        if self.structure is not None and not isinstance(self.structure, Structure):
            raise InvalidParameterError("structure", self.structure, "a Structure, or None")
        object.__setattr__(self, "stop", _as_stop_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        for token_id in self.stop_token_ids:
            _check_token_id("stop_token_ids", token_id)
        for token_id, bias in self.logit_bias.items():
            _check_token_id("logit_bias", token_id)
            if (
                isinstance(bias, bool)
                or not isinstance(bias, (int, float))
                or not math.isfinite(bias)
                or not -100 <= bias <= 100
            ):
                raise InvalidParameterError(f"logit_bias[{token_id}]", bias, "a number from -100 to 100")

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0

    @property
    def num_choices(self) -> int:
        """Choices to compute: best_of, or n if that is unset."""
        return self.n if self.best_of is None else self.best_of

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise `InvalidParameterError` if a token id lies outside 0..vocab_size-1."""
        for name, ids in (("stop_token_ids", self.stop_token_ids), ("logit_bias", tuple(self.logit_bias))):
            for token_id in ids:
                if token_id >= vocab_size:
                    raise InvalidParameterError(name, token_id, f"token ids 0 to {vocab_size - 1}")


def _as_stop_strings(stop: str | Sequence[str]) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(strings) > MAX_NUM_STOP_STRINGS:
        raise InvalidParameterError("stop", f"{len(strings)} strings", f"at most {MAX_NUM_STOP_STRINGS} strings")
    for string in strings:
        if not isinstance(string, str) or not string:
            raise InvalidParameterError("stop", string, "non-empty strings")
    return strings


def _check_token_id(name: str, token_id: object) -> None:
    if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
        raise InvalidParameterError(name, token_id, "token ids, integers from 0")
