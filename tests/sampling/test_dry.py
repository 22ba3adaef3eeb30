"""DRY on four tokens, against penalties computed by hand; native and reference alike."""

from __future__ import annotations

import numpy as np
import pytest

from pelton import _native
from pelton.core.errors import InvalidParameterError
from pelton.core.sampling_params import SamplingParams
from pelton.sampling import reference
from pelton.sampling.row import SamplingRow
from pelton.sampling.sampler import Sampler


def find_penalties(history: tuple[int, ...], num_prompt: int = 0, **values: object) -> list[float]:
    """What DRY takes off four logits of 0."""
    defaults = {"dry_multiplier": 0.8, "dry_sequence_breakers": ()}
    params = SamplingParams(**{**defaults, **values})  # type: ignore[arg-type]  # any field
    row = SamplingRow(params, 0, history[:num_prompt], history[num_prompt:], 0)
    logits = np.zeros(4, np.float32)
    expected = reference.adjust_logits(logits, row)
    assert _native.adjust_logits(logits, Sampler(4)._pack_row(row)) == 0
    assert logits.tolist() == expected.tolist()
    return [pytest.approx(-x, rel=1e-6) for x in logits.tolist()]


@pytest.mark.parametrize("num_prompt", [0, 3, 5])
def test_token_that_would_repeat_two_tokens_pays_the_multiplier(num_prompt: int) -> None:
    # ... 0 1 2 ... 0 1: token 2 followed 0 1 before.
    assert find_penalties((0, 1, 2, 0, 1), num_prompt) == [0, 0, 0.8, 0]


def test_penalty_grows_by_the_base_for_each_further_token() -> None:
    assert find_penalties((3, 0, 1, 2, 3, 0, 1)) == [0, 0, 0.8 * 1.75, 0]
    assert find_penalties((3, 0, 1, 2, 3, 0, 1), dry_base=3, dry_multiplier=1) == [0, 0, 3, 0]


def test_repeats_shorter_than_the_allowed_length_are_free() -> None:
    assert find_penalties((3, 0, 1, 2, 3, 0, 1), dry_allowed_length=3) == [0, 0, 0.8, 0]
    assert find_penalties((3, 0, 1, 2, 3, 0, 1), dry_allowed_length=4) == [0, 0, 0, 0]
    assert find_penalties((0, 1, 2, 3, 1), dry_allowed_length=1) == [0, 0, 0.8, 0]


def test_longest_of_several_repeats_counts() -> None:
    # 2 followed both 0 1 and 3 0 1; 3 followed 0 1 only.
    assert find_penalties((3, 0, 1, 2, 2, 0, 1, 3, 0, 1)) == [0, 0, 0.8 * 1.75, 0.8]


def test_copies_may_overlap_the_end() -> None:
    assert find_penalties((0, 0, 0)) == [0.8, 0, 0, 0]
    assert find_penalties((0, 0, 0, 0)) == [0.8 * 1.75, 0, 0, 0]


def test_range_limits_where_repeats_are_looked_for() -> None:
    history = (3, 0, 1, 2, 3, 0, 1)
    assert find_penalties(history, dry_range=4) == [0, 0, 0, 0]
    assert find_penalties(history, dry_range=6) == [0, 0, 0.8, 0]
    for everything in (0, -1, 7, 1000):
        assert find_penalties(history, dry_range=everything) == [0, 0, 0.8 * 1.75, 0]


def test_breaker_ends_a_repeat() -> None:
    history = (3, 0, 1, 2, 3, 0, 1)
    assert find_penalties(history, dry_breaker_token_ids=(3,)) == [0, 0, 0.8, 0]
    assert find_penalties(history, dry_breaker_token_ids=(0,)) == [0, 0, 0, 0]
    assert find_penalties(history, dry_breaker_token_ids=(0,), dry_allowed_length=1) == [0, 0, 0.8, 0]
    assert find_penalties(history, dry_breaker_token_ids=(1,), dry_allowed_length=1) == [0, 0, 0, 0]


def test_breaker_is_never_penalised() -> None:
    assert find_penalties((0, 1, 2, 0, 1), dry_breaker_token_ids=(2,)) == [0, 0, 0, 0]


def test_endless_repeat_rules_a_token_out_without_overflow() -> None:
    params = SamplingParams(
        dry_multiplier=100, dry_base=100, dry_sequence_breakers=(), temperature=0, logit_bias={0: 100}
    )
    row = SamplingRow(params, 0, (0,) * 5000, (), 0)
    token = Sampler(4).sample(np.zeros((1, 4), np.float32), [row])[0]
    assert token.token_id == reference.sample_reference(np.zeros(4, np.float32), row).token_id == 1


def test_short_histories_repeat_nothing() -> None:
    for history in ((), (1,), (1, 1)):
        assert find_penalties(history) == [0, 0, 0, 0]


def test_history_outside_the_vocabulary_is_refused() -> None:
    row = SamplingRow(SamplingParams(dry_multiplier=1, dry_sequence_breakers=()), 0, (7,), (), 0)
    with pytest.raises(InvalidParameterError, match=r"history.* is 7; .*0 to 3"):
        Sampler(4).sample(np.zeros((1, 4), np.float32), [row])


@pytest.mark.parametrize(
    "values", [{"dry_multiplier": -1}, {"dry_base": 0.9}, {"dry_allowed_length": 0}, {"dry_range": -2}]
)
def test_values_outside_their_range_are_refused(values: dict[str, float]) -> None:
    ((name, value),) = values.items()
    with pytest.raises(InvalidParameterError, match=f"{name} is {value}"):
        SamplingParams(**values)  # type: ignore[arg-type]  # any field
