"""`History`: what an engine has recorded, at one moment, and the questions asked of it. Start there.

It must not know an engine; `TraceLog` (engine/trace_log.py) keeps the traces it is made of.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pelton.core.trace import LoadSample, RequestTrace, StepTrace, WaitCause


@dataclass(frozen=True, slots=True)
class StepSplit:
    """A step's model seconds: those of its decodes, and of prompt tokens by the number of the sequence.

    Prompt tokens are all that are computed again after a preemption, too.
    """

    decode_s: float
    prompt_s: float
    prompt_tokens: Counter[int]

    @property
    def num_prompt_tokens(self) -> int:
        """Of all sequences."""
        return sum(self.prompt_tokens.values())


class History:
    """Requests (oldest first, unfinished ones too), steps and readings of the load (oldest first) as of `now_s`.

    `by_number` finds the request that a sequence belongs to, if it is still kept.
    """

    def __init__(
        self,
        requests: Sequence[RequestTrace],
        steps: Sequence[StepTrace] = (),
        samples: Sequence[LoadSample] = (),
        *,
        now_s: float,
    ) -> None:
        self.requests = requests
        self.steps = steps
        self.samples = samples
        self.now_s = now_s
        self.by_number = {number: trace for trace in requests for number in trace.numbers}
        self._ends = [step.end_s for step in steps]

    def find_request(self, number: int) -> RequestTrace | None:
        """Whose sequence this is; None if it is no longer kept."""
        return self.by_number.get(number)

    def get_tenant(self, number: int) -> str:
        """Whose sequence this is, by tenant; "?" if it is no longer known."""
        trace = self.by_number.get(number)
        return "?" if trace is None else trace.tenant

    def find_steps(self, start_s: float, end_s: float) -> Iterator[StepTrace]:
        """Steps that ran at some time between the two."""
        for index in range(bisect_right(self._ends, start_s), len(self.steps)):
            step = self.steps[index]
            if step.start_s >= end_s:
                return
            yield step

    def find_cause(self, start_s: float, end_s: float) -> WaitCause:
        """What held requests up last in a span of time; what the recorder says only once a wait has ended."""
        causes = [step.held_up_by for step in self.find_steps(start_s, end_s) if step.held_up_by is not None]
        return causes[-1] if causes else WaitCause.STEP

    def split_step(self, step: StepTrace) -> StepSplit:
        """Who used a step."""
        tokens: Counter[int] = Counter()
        if step.num_prompt_tokens:
            for number, start, num_tokens in step.shares:
                trace = self.by_number.get(number)
                is_prompt = num_tokens > 1 if trace is None else start < trace.num_prompt_tokens or num_tokens > 1
                if is_prompt:
                    tokens[number] += num_tokens
        if not tokens:
            return StepSplit(step.model_s, 0.0, tokens)
        return StepSplit(step.decode_s, step.model_s - step.decode_s, tokens)


def count_sampled(step: StepTrace, traces: Mapping[int, RequestTrace]) -> int:
    """Sequences of a step that got logits: those that had no token left to compute. `traces` are by sequence."""
    num_sampled = step.num_decodes
    if step.num_prompt_tokens:
        for number, start, num_tokens in step.shares:
            trace = traces.get(number)
            if trace is not None and start < trace.num_prompt_tokens <= start + num_tokens:
                num_sampled += 1
    return num_sampled
