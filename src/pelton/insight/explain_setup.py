"""`Setup`: what an explanation must know of an engine and its machine besides what was recorded. Plain data.

It must not know an engine: the server and the command line give its facts to `make_setup`.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass

from pelton.core.config import EngineConfig
from pelton.core.load_facts import LoadFacts
from pelton.insight.machine_limits import ThreadLimits
from pelton.insight.machine_rates import MachineRates
from pelton.insight.prediction import Planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """An engine: its options, the threads and the KV cache it has, its model and its machine as far as they are known.

    Without `planned` nothing is said of costs, and without `rates` nothing of limits and predictions. `num_cpus` are
    those the process may use.
    """

    config: EngineConfig
    num_threads: int
    num_blocks: int
    block_size: int
    kv_bytes_per_block: int
    num_cpus: int | None = None
    planned: Planned | None = None
    rates: MachineRates | None = None

    def on_machine(self, rates: MachineRates) -> Setup:
        """The same on a machine that is known."""
        return dataclasses.replace(self, rates=rates)

    @property
    def limits(self) -> ThreadLimits | None:
        """What the machine could do at best."""
        return None if self.rates is None else self.rates.limits

    @property
    def num_kv_tokens(self) -> int:
        """Token slots of the KV cache."""
        return self.num_blocks * self.block_size

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of K and V that a token slot takes over all layers."""
        return self.kv_bytes_per_block / self.block_size


def make_setup(config: EngineConfig, facts: LoadFacts, planned: Planned | None) -> Setup:
    """A loaded engine, with its model as the cost model takes it; nothing is known of its machine yet."""
    return Setup(
        config=config,
        num_threads=facts.num_threads,
        num_blocks=facts.num_kv_blocks,
        block_size=facts.block_size,
        kv_bytes_per_block=facts.kv_bytes_per_block,
        num_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        planned=planned,
    )
