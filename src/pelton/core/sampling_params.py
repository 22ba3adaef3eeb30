"""`SamplingParams`: everything a request can ask of sampling, each field with range and disabling value.

Order of application (docs/sampling.md shows it with numbers): mask (constraint, allowed_token_ids, min_tokens,
bad_words), logit_bias, repetition_penalty, presence/frequency_penalty, DRY, temperature, top_k, top_p, min_p,
typical_p, XTC, mirostat, draw. Reported log-probabilities are those of the model's raw logits, before all of these
(the OpenAI "raw" convention), whatever the temperature. Rules over several fields are in `sampling_checks.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pelton.core.errors import InvalidParameterError
from pelton.core.fields import check_number_types, option, validate_options
from pelton.core.sampling_checks import (
    as_strings,
    as_token_ids,
    as_token_sequences,
    check_logit_bias,
    check_numbers_together,
)
from pelton.core.structure import Structure

MAX_SEED = 2**64 - 1
MAX_NUM_LOGPROBS = 128
MAX_NUM_CHOICES = 128
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
    min_tokens: int = option(
        0,
        "Rule out end-of-turn tokens and stop_token_ids until this many tokens came (stop strings still end).",
        minimum=0,
        maximum=MAX_TOKEN_COUNT,
        unit="tokens",
        disabled_by="0",
    )
    n: int = option(
        1, "Choices to generate; choice i is the request of its own with seed + i.", minimum=1, maximum=MAX_NUM_CHOICES
    )
    best_of: int | None = option(
        None,
        "Choices to compute, of which the n most likely per token are returned; unset computes n.",
        minimum=1,
        maximum=MAX_NUM_CHOICES,
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
    typical_p: float = option(
        1.0,
        "Keep the most typical tokens (log-probability nearest to its mean) whose probability reaches P.",
        minimum=0.0,
        exclusive_minimum=True,
        maximum=1.0,
        disabled_by="1",
    )
    xtc_probability: float = option(
        0.0,
        "Chance, for each token, that all but the least likely of those reaching xtc_threshold are dropped.",
        minimum=0.0,
        maximum=1.0,
        disabled_by="0",
    )
    xtc_threshold: float = option(
        0.1,
        "Probability from which XTC counts a token as a top choice; above 0.5 there are never two.",
        minimum=0.0,
        maximum=1.0,
    )
    mirostat: int = option(
        0, "2: drop tokens that surprise more than a bound steered towards mirostat_tau; 0 is off.", disabled_by="0"
    )
    mirostat_tau: float = option(
        5.0, "Surprise that mirostat aims at.", minimum=0.0, exclusive_minimum=True, maximum=100.0, unit="bits"
    )
    mirostat_eta: float = option(
        0.1, "How much of the last error moves mirostat's bound; 0 never moves it.", minimum=0.0, maximum=10.0
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
    dry_multiplier: float = option(
        0.0,
        "DRY: subtract this times dry_base^(L - dry_allowed_length) from a token that would repeat L tokens before it.",
        minimum=0.0,
        maximum=100.0,
        disabled_by="0",
    )
    dry_base: float = option(1.75, "Base of DRY's penalty.", minimum=1.0, maximum=100.0)
    dry_allowed_length: int = option(
        2, "Least number of repeated tokens that DRY penalises.", minimum=1, maximum=MAX_TOKEN_COUNT, unit="tokens"
    )
    dry_range: int = option(
        0,
        "Last tokens of prompt and output in which DRY looks for repeats; 0 or -1 looks at all.",
        minimum=-1,
        maximum=MAX_TOKEN_COUNT,
        unit="tokens",
    )
    dry_sequence_breakers: tuple[str, ...] = option(
        ("\n", ":", '"', "*"), "Texts whose tokens end a repeat for DRY and are never penalised by it."
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
    allowed_token_ids: tuple[int, ...] | None = option(
        None, "Only these token ids may be generated; unset allows all.", minimum=0, disabled_by="unset"
    )
    bad_words: tuple[str, ...] = option(
        (), "Words that must not be generated, with or without a space before: their last token is ruled out."
    )
    ignore_eos: bool = option(False, "Go on after the model's end-of-turn tokens; for benchmarks.")
    # Token ids of bad_words and dry_sequence_breakers, which ParamsResolver (sampling/resolve.py) puts in their place.
    bad_token_sequences: tuple[tuple[int, ...], ...] = ()
    dry_breaker_token_ids: tuple[int, ...] = ()
    # What the output must look like (docs/structured_output.md); None: anything. Not a number or text, so no option.
    structure: Structure | None = None

    def __post_init__(self) -> None:
        check_number_types(self, _INTEGERS, _NUMBERS)
        validate_options(self)
        check_numbers_together(self.min_tokens, self.max_tokens, self.n, self.best_of, self.mirostat)
        for name in ("stop", "bad_words", "dry_sequence_breakers"):
            object.__setattr__(self, name, as_strings(name, getattr(self, name)))
        for name in ("stop_token_ids", "dry_breaker_token_ids"):
            object.__setattr__(self, name, as_token_ids(name, getattr(self, name)))
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", as_token_ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise InvalidParameterError("allowed_token_ids", (), "at least one token id, or unset to allow all")
        object.__setattr__(
            self, "bad_token_sequences", as_token_sequences("bad_token_sequences", self.bad_token_sequences)
        )
        check_logit_bias(self.logit_bias)
        if self.structure is not None and not isinstance(self.structure, Structure):
            raise InvalidParameterError("structure", self.structure, "a Structure, or None")

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0

    @property
    def num_choices(self) -> int:
        """Choices to compute: best_of, or n if that is unset."""
        return self.n if self.best_of is None else self.best_of

    @property
    def needs_tokenizer(self) -> bool:
        """Whether strings are left that only `ParamsResolver` can turn into token ids."""
        return bool(self.bad_words) or (self.dry_multiplier != 0 and bool(self.dry_sequence_breakers))

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise `InvalidParameterError` if a token id lies outside 0..vocab_size-1."""
        for name, ids in (
            ("stop_token_ids", self.stop_token_ids),
            ("logit_bias", tuple(self.logit_bias)),
            ("allowed_token_ids", self.allowed_token_ids or ()),
            ("dry_breaker_token_ids", self.dry_breaker_token_ids),
            ("bad_token_sequences", tuple(i for sequence in self.bad_token_sequences for i in sequence)),
        ):
            for token_id in ids:
                if token_id >= vocab_size:
                    raise InvalidParameterError(name, token_id, f"token ids 0 to {vocab_size - 1}")


_INTEGERS = (
    "max_tokens",
    "min_tokens",
    "n",
    "best_of",
    "top_k",
    "mirostat",
    "dry_allowed_length",
    "dry_range",
    "seed",
    "logprobs",
    "prompt_logprobs",
)
_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "xtc_probability",
    "xtc_threshold",
    "mirostat_tau",
    "mirostat_eta",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
)
