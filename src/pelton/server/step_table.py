"""`StepTable`: the last steps of an engine as `/v1/steps` shows them. Start there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pelton.insight.explain_costs import StepCounter
from pelton.insight.request_story import Json, to_ms
from pelton.insight.step_rows import make_step_rows

if TYPE_CHECKING:
    from pelton.engine.async_engine import AsyncEngine
    from pelton.insight.explain_setup import Setup


class StepTable:
    """Keeps what counting steps needs; may be used by any thread."""

    def __init__(self) -> None:
        self._counter: StepCounter | None = None

    def describe(self, engine: AsyncEngine, setup: Setup, after: int, limit: int) -> Json:
        """Steps with numbers above `after`, the last `limit` of them, and which request each sequence belongs to."""
        if self._counter is None and setup.planned is not None:
            self._counter = StepCounter(setup.planned)
        log = engine.traces
        newest = log.list_steps(limit=1)
        steps = log.list_steps(after, limit)
        traces = {number: trace for trace in (*log.list_finished(), *log.list_live()) for number in trace.numbers}
        seen = sorted({number for step in steps for number in step.flat_shares[::3]})
        return {
            "next": (steps or newest)[-1].number if newest else 0,
            "now": to_ms(time.perf_counter()),
            "steps": make_step_rows(steps, traces, self._counter, setup.limits),
            "sequences": {str(number): traces[number].request_id for number in seen if number in traces},
        }
