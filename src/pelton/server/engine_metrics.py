"""The engine's own counters as metrics, read when `/metrics` is asked for. Start at `EngineCollector`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pelton.engine.stats import EngineStats
from pelton.scheduling.stats import SchedulerStats

if TYPE_CHECKING:
    from pelton.engine.async_engine import AsyncEngine

WAITING_REASONS = ("capacity", "deferred", "preempted")


class EngineCollector(Collector):
    """Turns `AsyncEngine.stats()` into metric families; `model_name` is on every one."""

    def __init__(self, engine: AsyncEngine, model_name: str) -> None:
        self._engine = engine
        self._model_name = model_name

    def describe(self) -> list[Metric]:
        """Nothing: the registry would otherwise collect once at registration, before there is an engine."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families, with the values that the engine published last."""
        stats = self._engine.stats()
        yield from self._collect_engine(stats)
        if stats.scheduler is not None:
            yield from self._collect_scheduler(stats.scheduler)

    def _collect_engine(self, stats: EngineStats) -> Iterator[Metric]:
        yield self._gauge("num_unfinished_requests", "Requests that run or wait.", stats.num_unfinished)
        yield self._gauge("num_queued_tokens", "Prompt tokens that wait for their first step.", stats.num_queued_tokens)
        yield self._gauge("engine_ready", "1 while the engine takes requests.", float(self._engine.is_ready))
        yield self._counter("num_steps", "Steps of the engine.", stats.num_steps)
        yield self._labelled_counter(
            "step_seconds",
            "Seconds spent in steps: the model for prompts and for decodes, sampling, and everything around them.",
            "part",
            {
                "prefill": stats.prefill_s,
                "decode": stats.decode_s,
                "sample": stats.sample_s,
                "python": stats.python_s,
            },
        )

    def _collect_scheduler(self, stats: SchedulerStats) -> Iterator[Metric]:
        yield self._gauge("num_requests_running", "Sequences that own KV blocks.", stats.num_running)
        yield self._gauge("num_requests_waiting", "Sequences that wait.", stats.num_waiting)
        by_reason = GaugeMetricFamily(
            "pelton:num_requests_waiting_by_reason", "Sequences that wait, by reason.", labels=("model_name", "reason")
        )
        for reason in WAITING_REASONS:
            by_reason.add_metric((self._model_name, reason), stats.num_waiting_by_reason.get(reason, 0))
        yield by_reason
        yield self._gauge("kv_cache_usage_perc", "Share (0 to 1) of KV blocks in use.", stats.kv_usage)
        yield self._gauge("kv_cache_blocks", "KV blocks in all.", stats.num_blocks)
        yield self._gauge("kv_cache_cached_blocks", "Free KV blocks that may be reused.", stats.num_cached_blocks)
        yield self._counter("num_preemptions", "Sequences that had to give their blocks back.", stats.num_preemptions)
        cache = stats.prefix_cache
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up.", cache.num_query_tokens)
        yield self._counter("prefix_cache_hits", "Prompt tokens found.", cache.num_hit_tokens)
        yield self._labelled_counter(
            "prefix_cache_misses", "Requests by what ended their reuse of the cache.", "reason", cache.num_misses
        )

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"pelton:{name}", text, labels=("model_name",))
        family.add_metric((self._model_name,), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"pelton:{name}", text, labels=("model_name",))
        family.add_metric((self._model_name,), value)
        return family

    def _labelled_counter(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(f"pelton:{name}", text, labels=("model_name", label))
        for key, value in values.items():
            family.add_metric((self._model_name, key), value)
        return family
