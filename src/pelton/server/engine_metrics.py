"""The engine's own counters as metrics, read when `/metrics` is asked for. Start at `EngineCollector`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from pelton.engine.async_engine import AsyncEngine


class EngineCollector(Collector):
    """Turns `AsyncEngine.stats()` into metric families."""

    def __init__(self, engine: AsyncEngine, model_name: str) -> None:
        self._engine = engine
        self._model_name = model_name

    def describe(self) -> list[Metric]:
        """Nothing: the registry would otherwise collect once at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families, with the values of this moment."""
        return iter(())
