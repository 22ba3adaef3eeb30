"""`Explainer`: explanations of a running engine, from its traces. Start there.

`insight/` explains; this file gives it what the engine recorded, its model's file and what is stored of the machine. A
server measures nothing: limits are those that `pelton plan`, `bench` or `explain` left on disk, if any did.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pelton.core.config import read_environment
from pelton.core.errors import PeltonError
from pelton.core.trace import RequestTrace
from pelton.insight.explain_facts import RequestFacts
from pelton.insight.explain_history import History
from pelton.insight.explain_request import explain_request
from pelton.insight.explain_server import explain_server
from pelton.insight.explain_setup import Setup, make_setup
from pelton.insight.explain_text import write_text
from pelton.insight.explain_types import Json
from pelton.insight.machine_rates import MachineRates
from pelton.insight.model_source import read_planned
from pelton.insight.prediction import Planned
from pelton.insight.this_machine import estimate_machine, find_stored_limits, find_this_machine, list_needs

if TYPE_CHECKING:
    from pelton.engine.async_engine import AsyncEngine

# Somebody may measure the machine while the server runs; looking costs a small file.
_LOOK_AGAIN_S = 10.0


class Explainer:
    """Explains one engine. Its methods read files the first time, and may run in any thread.

    What does not change is read once; two threads at the same time may read it twice.
    """

    def __init__(self) -> None:
        self._setup: Setup | None = None
        self._looked_s: float | None = None

    def explain_request(self, engine: AsyncEngine, trace: RequestTrace) -> Json:
        """One request, whether it is finished or not."""
        explanation = explain_request(RequestFacts(trace, make_history(engine), self.get_setup(engine)))
        return explanation.describe(write_text(explanation))

    def explain_server(self, engine: AsyncEngine, window_s: float) -> Json:
        """What the engine did in the last `window_s` seconds."""
        explanation = explain_server(make_history(engine), self.get_setup(engine), window_s)
        return explanation.describe(write_text(explanation))

    def get_setup(self, engine: AsyncEngine) -> Setup:
        """The model as the cost model takes it, and what is stored of the machine."""
        now_s = time.monotonic()
        if self._setup is None:
            self._setup = make_setup(engine.config, engine.load_facts, _read_planned(engine))
        if self._setup.rates is None and (self._looked_s is None or now_s > self._looked_s + _LOOK_AGAIN_S):
            self._looked_s = now_s
            self._setup = _add_machine(self._setup, engine.isa)
        return self._setup


def make_history(engine: AsyncEngine) -> History:
    """All that the engine keeps, as of now."""
    log = engine.traces
    requests = [*log.list_finished(), *log.list_live()]
    return History(requests, log.list_steps(), log.list_samples(), now_s=time.perf_counter())


def _read_planned(engine: AsyncEngine) -> Planned | None:
    """The model as the cost model takes it; None if it has no file, or that has gone since it was loaded."""
    if engine.model_path is None:
        return None
    try:
        return read_planned(engine.model_path, engine.config.kv_cache_dtype)
    except PeltonError:
        return None


def _add_machine(setup: Setup, isa: str) -> Setup:
    """What is stored of this machine: the rates of its kernels, else its limits, from which they are estimated."""
    rates: MachineRates | None = None
    if setup.planned is not None:
        try:
            rates = find_this_machine(list_needs(setup.planned), isa, setup.num_threads, read_environment().cache_dir)
        except PeltonError:
            rates = None  # a model whose kernels are not measured
    if rates is None:
        stored = find_stored_limits(isa, setup.num_threads)
        rates = None if stored is None else estimate_machine(stored)
    return setup if rates is None else setup.on_machine(rates)
