"""`StepBudget`: how many prompt tokens a step may take so that those who are generating hardly notice.

While requests decode, a step should take about `max_step_s`, or two and a half times what a step of decodes alone
takes, or what a reader does not notice if that is more. While nobody does, it may take a quarter of a second, after
which newcomers are seen. What that buys is learned from the measured time of earlier steps: the time of a step without
prompt tokens, and the cost of a prompt token as a line over its depth (attention grows with the tokens before it). It
knows token counts and seconds only, and changes when tokens are computed, never which. Entry points: `start`, `limit`,
`observe`.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

# Prompts move by at least this much, or a slow machine would never finish one. 16 make steps 3.4 times as long as those
# of 8 decodes alone (SmolLM2-135M, 2 cores, 2026-11-29), 8 about twice.
MIN_PREFILL_TOKENS = 8
# As much while the cost of a prompt token is not known.
_FIRST_PREFILL_TOKENS = 16
# Steps of decodes alone in the default budget, and how many of them the estimate is the median of.
_DEFAULT_BUDGET = 2.5
# Fifty tokens a second are smooth whatever decodes alone would take: a step may always last this long.
_SMOOTH_STEP_S = 0.02
# Where nobody decodes, a step may be this long: newcomers and cancels wait for its end.
_LONE_STEP_S = 0.25
# But such a step gets this many tokens, or what a step costs whatever it computes would be paid too often (a machine
# with busy neighbours was seen at 20 tokens a step).
LONE_PREFILL_TOKENS = 128
_NUM_DECODE_STEPS = 9
# After this many steps with prompt tokens in a row, one without measures anew what decodes take (at most 3 % of steps).
_MEASURE_EVERY = 32
# The same when the number of decodes has doubled or halved, but not more often than this.
_MEASURE_GAP = 8
# Weight of what was known when a step of as many tokens as have been seen in a while is added.
_FORGETTING = 0.9
# A step may change the estimate by this factor: one that was interrupted says nothing.
_MAX_SURPRISE = 4.0


class _TokenCost:
    """Seconds per prompt token as base + slope * depth: weighted least squares that forgets, outliers held back."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    @property
    def is_known(self) -> bool:
        return self._weight > 0

    def predict(self, depth: float) -> float:
        """Seconds of one token with `depth` tokens before it."""
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - mean_x * mean_x
        slope = 0.0
        # Depths within 3 % of each other say nothing about a slope.
        if variance > (0.03 * mean_x) ** 2:
            slope = max((self._xy / self._weight - mean_x * mean_y) / variance, 0.0)
        # A line through clipped values may start below zero; deeper tokens never cost less.
        return max(mean_y + slope * (depth - mean_x), 0.1 * mean_y)

    def add(self, num_tokens: int, depth: float, seconds: float) -> None:
        """A step computed `num_tokens` at a mean depth in `seconds`."""
        cost = seconds / num_tokens
        if self.is_known:
            expected = self.predict(depth)
            cost = min(max(cost, expected / _MAX_SURPRISE), expected * _MAX_SURPRISE)
        # The root: a long chunk says more than a short one, but must not be all that is remembered.
        weight = num_tokens**0.5
        self._weight = _FORGETTING * self._weight + weight
        self._x = _FORGETTING * self._x + weight * depth
        self._y = _FORGETTING * self._y + weight * cost
        self._xx = _FORGETTING * self._xx + weight * depth * depth
        self._xy = _FORGETTING * self._xy + weight * depth * cost


class StepBudget:
    """Per step: `start`, then `limit` and `spend` for each request that gets prompt tokens, then `observe`.

    `max_step_s` of None is the default described above; infinity limits and measures nothing.
    """

    def __init__(self, max_step_s: float | None = None) -> None:
        self._max_step_s = max_step_s
        self._cost = _TokenCost()
        self._decode_steps: deque[float] = deque(maxlen=_NUM_DECODE_STEPS)
        self._num_measured_decodes = 0
        self._num_steps_since = 0
        self._has_measured = False
        self.start(0)

    def start(self, num_decodes: int) -> None:
        """Begin to plan a step in which `num_decodes` requests get one token each."""
        self._num_decodes = num_decodes
        self._num_tokens = 0
        self._depth_sum = 0.0
        self._left_s: float | None = None
        self._num_guaranteed = 0
        if self._max_step_s == math.inf:
            return
        if num_decodes == 0:
            if self._cost.is_known:
                self._left_s = max(_LONE_STEP_S, self._max_step_s or 0.0)
                self._num_guaranteed = LONE_PREFILL_TOKENS
            return
        if not self._has_measured:
            return
        if self._must_measure():
            self._left_s = 0.0
            return
        decode_s = statistics.median(self._decode_steps)
        budget_s = self._max_step_s
        if budget_s is None:
            budget_s = max(_DEFAULT_BUDGET * decode_s, _SMOOTH_STEP_S)
        self._left_s = max(budget_s - decode_s, 0.0)
        self._num_guaranteed = MIN_PREFILL_TOKENS if self._cost.is_known else _FIRST_PREFILL_TOKENS

    @property
    def is_used_up(self) -> bool:
        """Whether the step has no room for a single prompt token at the start of a sequence."""
        return self.limit(0, 1) == 0

    @property
    def decode_alone_s(self) -> float | None:
        """Seconds that the step's decodes would take without the prompt tokens beside them; None if not known."""
        if self._num_decodes == 0 or self._num_tokens == 0 or not self._decode_steps:
            return None
        return statistics.median(self._decode_steps)

    def limit(self, depth: int, num_wanted: int) -> int:
        """Of `num_wanted` prompt tokens after `depth` earlier ones, how many fit into what is left of the step."""
        if self._left_s is None:
            return num_wanted
        num_fitting = self._count_fitting(depth) if self._cost.is_known else 0
        return min(num_wanted, max(num_fitting, self._num_guaranteed - self._num_tokens, 0))

    def spend(self, depth: int, num_tokens: int) -> None:
        """The step gets `num_tokens` prompt tokens after `depth` earlier ones."""
        mean_depth = depth + 0.5 * num_tokens
        self._num_tokens += num_tokens
        self._depth_sum += mean_depth * num_tokens
        if self._left_s is not None and self._cost.is_known:
            self._left_s = max(self._left_s - self._cost.predict(mean_depth) * num_tokens, 0.0)

    def observe(self, model_s: float) -> None:
        """The step planned last took `model_s` seconds; zero or less says nothing (a runner without a clock)."""
        if model_s <= 0:
            return
        self._has_measured = True
        if self._num_tokens == 0:
            if self._is_other_load():
                self._decode_steps.clear()
            self._decode_steps.append(model_s)
            self._num_measured_decodes = self._num_decodes
            self._num_steps_since = 0
            return
        if self._num_decodes:
            self._num_steps_since += 1
        decode_s = statistics.median(self._decode_steps) if self._num_decodes and self._decode_steps else 0.0
        # Decodes without an estimate: the tokens' own share is not to be told.
        if self._num_decodes == 0 or self._decode_steps:
            seconds = max(model_s - decode_s, 0.02 * model_s)
            self._cost.add(self._num_tokens, self._depth_sum / self._num_tokens, seconds)

    def _must_measure(self) -> bool:
        if not self._decode_steps or self._num_steps_since >= _MEASURE_EVERY:
            return True
        return self._is_other_load() and self._num_steps_since >= _MEASURE_GAP

    def _is_other_load(self) -> bool:
        few, many = sorted((self._num_decodes, self._num_measured_decodes))
        return many >= 2 * few

    def _count_fitting(self, depth: int) -> int:
        assert self._left_s is not None
        # Twice, because the tokens themselves add to the depth of the later ones.
        num_tokens = self._left_s / self._cost.predict(depth)
        return int(self._left_s / self._cost.predict(depth + 0.5 * num_tokens))
