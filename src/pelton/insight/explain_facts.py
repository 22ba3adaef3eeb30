"""`RequestFacts`: one request with everything that was measured around it; what stages, verdicts and advice look at.

Costs are counted when they are asked for, because only an explanation of a single request needs them. Start there.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from functools import cached_property

from pelton.core.cache_miss import CacheMissReason
from pelton.core.step_cost import StepCost
from pelton.core.trace import RequestTrace, StepTrace
from pelton.insight.attention_cost import Work
from pelton.insight.explain_costs import PhaseCost, StepCounter, make_phase
from pelton.insight.explain_history import History, count_sampled
from pelton.insight.explain_load import Load, estimate_neighbours_share, estimate_own_threads_share, measure_load
from pelton.insight.explain_setup import Setup
from pelton.insight.explain_times import RequestTimes, divide_times
from pelton.insight.roofline import Bound

# Prompts that part this near to each other part at the same place: a block may lie between.
SAME_PLACE_TOKENS = 16
# What is left of them is of the same length within this share: the same text, in other words.
_SAME_LENGTH = 0.25
# Steps whose costs are summed one by one; of more, as many are taken evenly.
_MAX_COUNTED_STEPS = 2000


class RequestFacts:
    """A request's `trace` and `times`, the `history` it lies in, and the engine it ran on."""

    def __init__(self, trace: RequestTrace, history: History, setup: Setup) -> None:
        self.trace = trace
        self.history = history
        self.setup = setup
        self.times: RequestTimes = divide_times(trace, history)

    @property
    def num_uncached(self) -> int:
        """Prompt tokens that had to be computed."""
        return self.trace.num_prompt_tokens - self.trace.num_cached_tokens

    @cached_property
    def prefill_steps(self) -> list[StepTrace]:
        """Steps up to the first token."""
        first_s = self.trace.first_token_s
        return [step for step in list(self.trace.steps) if first_s is None or step.start_s < first_s]

    @cached_property
    def decode_steps(self) -> list[StepTrace]:
        """Steps after the first token."""
        return list(self.trace.steps)[len(self.prefill_steps) :]

    @cached_property
    def mean_batch(self) -> float:
        """Sequences that decoded together with it, itself included; 1 where it did not decode."""
        return statistics.fmean(step.num_decodes or 1 for step in self.decode_steps) if self.decode_steps else 1.0

    @cached_property
    def prefill(self) -> PhaseCost | None:
        """What the steps up to the first token needed, others' share included; None if the model is not known."""
        return count_steps(self.prefill_steps, self.history, self.setup)

    @cached_property
    def decode(self) -> PhaseCost | None:
        """The same for the steps after the first token."""
        return count_steps(self.decode_steps, self.history, self.setup)

    @cached_property
    def load(self) -> Load | None:
        """Who used the CPUs meanwhile."""
        end_s = self.history.now_s if self.trace.end_s is None else self.trace.end_s
        return measure_load(self.history.samples, self.trace.arrival_s, end_s)

    @cached_property
    def neighbours_share(self) -> float:
        """Share of the request's computing time that was lost to other programs."""
        return estimate_neighbours_share(self.load, self.setup.num_threads)

    @cached_property
    def own_threads_share(self) -> float:
        """Share of the request's computing time that was lost to the engine's own threads."""
        return estimate_own_threads_share(self.load, self.setup.num_threads, self.setup.num_cpus)

    @property
    def machine_share(self) -> float:
        """Share of the computing time that the machine's state cost; it is nobody else's fault."""
        return min(self.neighbours_share + self.own_threads_share, 0.9)

    @property
    def own_prefill_s(self) -> float:
        """Seconds of its own prefill that the machine's state did not cost."""
        return self.times.own_prefill_s * (1.0 - self.machine_share)

    @property
    def own_decode_s(self) -> float:
        """Seconds of its own decode that the machine's state did not cost."""
        return self.times.own_decode_s * (1.0 - self.machine_share)

    @cached_property
    def same_place_misses(self) -> list[int]:
        """Where prompts of its tenant parted from cached ones, near to where this one did; with as much left over."""
        miss, num_left = self.trace.cache_miss, self.num_uncached
        if miss is None or miss.reason is not CacheMissReason.DIVERGED:
            return []
        positions = []
        for other in self.history.requests:
            if other.cache_miss is None or other.cache_miss.reason is not CacheMissReason.DIVERGED:
                continue
            position = other.cache_miss.position
            other_left = other.num_prompt_tokens - other.num_cached_tokens
            is_same = abs(position - miss.position) <= SAME_PLACE_TOKENS
            if is_same and other.tenant == self.trace.tenant and abs(other_left - num_left) <= _SAME_LENGTH * num_left:
                positions.append(position)
        return positions

    def get_bound(self, phase: PhaseCost | None) -> Bound | None:
        """Which limit of the machine rules a phase."""
        return None if phase is None or phase.roofline is None else phase.roofline.bound


def count_steps(steps: Iterable[StepTrace], history: History, setup: Setup) -> PhaseCost | None:
    """What steps needed, as the cost model has it, beside what they took; None without steps or a model.

    Of very many steps some are taken, evenly: rates and shares of limits are theirs.
    """
    chosen = list(steps)
    if not chosen or setup.planned is None or not setup.config.use_kv_cache:
        return None
    chosen = chosen[:: -(-len(chosen) // _MAX_COUNTED_STEPS)]
    counter = StepCounter(setup.planned)
    cost = StepCost()
    for step in chosen:
        works = [Work(share.start, share.num_tokens) for share in step.shares]
        cost += counter.count(works, count_sampled(step, history.by_number))
    return make_phase(cost, sum(step.model_s for step in chosen), len(chosen), setup.limits)
