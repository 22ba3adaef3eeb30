"""What the KV cache saved a request: its operations and seconds beside those of computing everything again each step.

Costs and predictions only. Start at `compare_with_recomputing`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from pelton.insight.attention_cost import Work
from pelton.insight.explain_costs import StepCounter
from pelton.insight.explain_setup import Setup
from pelton.insight.prediction import predict_decode, predict_prefill

# Costs are smooth in the length of a sequence, so that a few lengths say what all of them cost.
_MAX_LENGTHS = 17


@dataclass(frozen=True, slots=True)
class Saved:
    """Operations of the tokens after the first one with K/V kept, and with the whole sequence computed each time.

    `with_s` and `without_s` are the predicted times of the two; None where nothing can be predicted.
    """

    with_ops: float
    without_ops: float
    with_s: float | None
    without_s: float | None


def compare_with_recomputing(setup: Setup, num_prompt: int, num_tokens: int) -> Saved | None:
    """For the `num_tokens` tokens after the first one; None if there are none, or the model is not known.

    The lengths between those that are computed are taken to lie on lines.
    """
    if setup.planned is None or num_tokens < 1:
        return None
    counter = StepCounter(setup.planned)
    first = num_prompt + 1
    lengths = _choose_lengths(first, num_tokens)
    with_ops = _sum_between([(n, counter.count([Work(n - 1, 1)], 1).num_ops) for n in lengths])
    without_ops = _sum_between([(n, counter.count([Work(0, n)], 1).num_ops) for n in lengths])
    planned, rates = setup.planned, setup.rates
    if rates is None:
        return Saved(with_ops, without_ops, None, None)
    chunk = setup.config.prefill_chunk
    with_s = _sum_between([(n, predict_decode(planned, rates, 1, n).total_s) for n in lengths])
    without_s = _sum_between([(n, predict_prefill(planned, rates, 1, n, 0, chunk).total_s) for n in lengths])
    return Saved(with_ops, without_ops, with_s, without_s)


def _choose_lengths(first: int, count: int) -> list[int]:
    """At most `_MAX_LENGTHS` of `count` lengths from `first` on, the first and the last one among them."""
    num = min(count, _MAX_LENGTHS)
    if num == 1:
        return [first]
    return sorted({first + round(index * (count - 1) / (num - 1)) for index in range(num)})


def _sum_between(points: list[tuple[int, float]]) -> float:
    """Sum over all whole x from the first to the last point of the line through them."""
    total = points[0][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        num = x1 - x0
        total += num * y0 + (y1 - y0) * (num + 1) / 2
    return total
