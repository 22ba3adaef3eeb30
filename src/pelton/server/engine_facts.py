"""What `/v1/engine` says: the model, the machine, the KV cache and counters, as JSON. Start at `EngineFacts.describe`.

Limits of the machine are looked up where `pelton plan` keeps them; a server measures nothing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pelton.core.config import EngineConfig, read_environment
from pelton.core.errors import PeltonError
from pelton.engine.stats import EngineStats
from pelton.insight.cost_model import count_weight_bytes
from pelton.insight.model_source import make_shape
from pelton.insight.plan_check import make_plan_check
from pelton.scheduling.stats import SchedulerStats

if TYPE_CHECKING:
    from pelton.engine.async_engine import AsyncEngine
    from pelton.insight.explain_setup import Setup

Json = dict[str, object]
_OPTIONS = ("max_num_seqs", "max_step_ms", "scheduling_policy", "prefill_chunk", "use_prefix_cache", "use_kv_cache")


class EngineFacts:
    """Facts of one engine. What does not change is read once; two threads at the same time read it twice."""

    def __init__(self) -> None:
        self._model: Json | None = None
        self._plan: tuple[Json | None] | None = None

    def describe(self, engine: AsyncEngine, setup: Setup) -> Json:
        """The whole answer, with the counters of this moment; `setup` is what is known of the model and the machine.

        Reads the model's file the first time.
        """
        facts, stats = engine.load_facts, engine.stats()
        return {
            "model": self._describe_model(engine, setup),
            "isa": engine.isa,
            "threads": facts.num_threads,
            "context_length": engine.context_length,
            "kv_cache": {
                "dtype": engine.config.kv_cache_dtype,
                "block_size": facts.block_size,
                "num_blocks": setup.num_blocks,
                "bytes_per_token": setup.kv_bytes_per_token,
                "tokens": setup.num_kv_tokens,
                **_count_blocks(setup.num_blocks, stats.scheduler),
            },
            "queue": _describe_queue(stats.scheduler),
            "prefix_cache": _describe_prefix_cache(stats.scheduler),
            "machine": _describe_machine(setup),
            "counters": _describe_counters(stats),
            "plan": self._describe_plan(engine),
            "options": _describe_options(engine.config),
        }

    def _describe_model(self, engine: AsyncEngine, setup: Setup) -> Json:
        if self._model is not None:
            return self._model
        config = engine.model_config
        shape = make_shape(config)
        model: Json = {
            "name": config.name,
            "type": config.model_type,
            "layers": config.num_layers,
            "hidden": config.hidden_size,
            "heads": config.num_heads,
            "kv_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "vocab": config.vocab_size,
            "parameters": shape.count_parameters(),
            "weight_bytes": None,
            "formats": None,
        }
        if setup.planned is not None:
            formats = setup.planned.formats
            model |= {"weight_bytes": count_weight_bytes(shape, formats), "formats": formats.describe()}
        self._model = model
        return model

    def _describe_plan(self, engine: AsyncEngine) -> Json | None:
        """Plan against actual; null for a model without a file, or whose file has changed since it was loaded."""
        if self._plan is None:
            try:
                check = make_plan_check(engine.load_facts, read_environment().cache_dir)
            except PeltonError:
                check = None
            self._plan = (None if check is None else check.make_dict(),)
        return self._plan[0]


def _describe_machine(setup: Setup) -> Json | None:
    if setup.rates is None:
        return None
    limits = setup.rates.limits
    return {
        "title": setup.rates.title,
        "read_gb_per_s": limits.read_bytes_per_s.best / 1e9,
        "int8_gop_per_s": limits.int8_ops_per_s.best / 1e9,
        "f32_gop_per_s": limits.f32_ops_per_s.best / 1e9,
    }


def _count_blocks(num_blocks: int, stats: SchedulerStats | None) -> Json:
    if stats is None:
        return {"used": 0, "cached": 0, "free": num_blocks}
    num_used = round(stats.kv_usage * num_blocks)
    num_cached = stats.num_cached_blocks
    return {"used": num_used, "cached": num_cached, "free": num_blocks - num_used - num_cached}


def _describe_queue(stats: SchedulerStats | None) -> Json:
    if stats is None:
        return {"running": 0, "waiting": 0, "by_reason": {}}
    return {
        "running": stats.num_running,
        "waiting": stats.num_waiting,
        "by_reason": dict(stats.num_waiting_by_reason),
    }


def _describe_prefix_cache(stats: SchedulerStats | None) -> Json:
    if stats is None:
        return {"query_tokens": 0, "hit_tokens": 0, "misses": {}}
    cache = stats.prefix_cache
    return {
        "query_tokens": cache.num_query_tokens,
        "hit_tokens": cache.num_hit_tokens,
        "misses": dict(cache.num_misses),
    }


def _describe_counters(stats: EngineStats) -> Json:
    return {
        "steps": stats.num_steps,
        "preemptions": 0 if stats.scheduler is None else stats.scheduler.num_preemptions,
        "new_tokens": stats.num_new_tokens,
        "prefill_s": stats.prefill_s,
        "decode_s": stats.decode_s,
        "sample_s": stats.sample_s,
        "python_s": stats.python_s,
    }


def _describe_options(config: EngineConfig) -> Json:
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {name: values[name] for name in _OPTIONS}
