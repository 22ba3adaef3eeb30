"""`EngineParts`: the pieces an engine is put together from, and `load_parts`, which takes them from a model's files.

It must not run anything; tests put fakes into `EngineParts` instead of calling `load_parts`.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pelton.core.config import EngineConfig, read_environment
from pelton.core.errors import InvalidParameterError
from pelton.core.load_facts import LoadFacts, LoadMemory, read_resident_bytes
from pelton.core.model_config import ModelConfig
from pelton.engine.core import Runner
from pelton.text.chat_template import ChatTemplate
from pelton.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pelton.loading.pull import ProgressCallback


@dataclass(frozen=True, slots=True)
class EngineParts:
    """A loaded model: its shape, its text side and a runner that owns weights and KV cache.

    `load_ms`: what loading took; `model_path`: the file of the weights, None if there is none; `memory`: what it holds.
    """

    model_config: ModelConfig
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    runner: Runner
    load_ms: float = 0.0
    model_path: Path | None = None
    memory: LoadMemory | None = None


def make_config(config: EngineConfig | None, options: dict[str, object]) -> EngineConfig:
    """Return `config` (or the defaults) with `options` set; raise `InvalidParameterError` for an unknown option."""
    names = [field.name for field in dataclasses.fields(EngineConfig)]
    for name, value in options.items():
        if name not in names:
            raise InvalidParameterError(name, value, "one of the options " + ", ".join(names))
    if config is None:
        config = EngineConfig()
    # Any: replace() checks names and types only at run time, and EngineConfig does both.
    return dataclasses.replace(config, **options)  # type: ignore[arg-type]  # see the line above


def get_context_length(model_config: ModelConfig, config: EngineConfig, num_kv_slots: int | None = None) -> int:
    """Longest context of a request in tokens: `max_context` or else the model's own, within the KV cache if given.

    Raises `InvalidParameterError` if max_context is set to more than the model or the KV cache can hold.
    """
    limit = model_config.max_position_embeddings
    if config.max_context is not None:
        if config.max_context > limit:
            raise InvalidParameterError("max_context", config.max_context, f"1 to {limit}, the context of this model")
        limit = config.max_context
    if num_kv_slots is not None and num_kv_slots < limit:
        if config.max_context is not None:
            raise InvalidParameterError(
                "max_context", config.max_context, f"1 to {num_kv_slots}, the token slots of the KV cache"
            )
        limit = num_kv_slots
    return limit


def make_load_facts(parts: EngineParts, config: EngineConfig, context_length: int) -> LoadFacts:
    """What plans and reports need of a loaded model."""
    runner = parts.runner
    return LoadFacts(
        model_path=parts.model_path,
        memory=parts.memory,
        num_kv_blocks=runner.num_blocks,
        block_size=runner.block_size,
        kv_bytes_per_block=runner.kv_bytes_per_block,
        kv_cache_dtype=config.kv_cache_dtype,
        context_length=context_length,
        isa=runner.isa,
        num_threads=runner.num_threads,
        max_step_tokens=config.prefill_chunk,
        use_kv_cache=config.use_kv_cache,
    )


def load_parts(model: str | Path | None, config: EngineConfig, progress: ProgressCallback | None) -> EngineParts:
    """Find (if need be fetch) a model, read it and make its runner; raises what `loading` and `execution` raise."""
    before_bytes = read_resident_bytes()
    # Here and not above: these bring in the native module and more, which `import pelton` must not pay for.
    from pelton.execution.runner import ModelRunner
    from pelton.loading.model import load_model
    from pelton.loading.pull import resolve_model

    reference = None if model is None else str(model)
    path = resolve_model(reference, read_environment().cache_dir, progress)
    start_s = time.perf_counter()
    loaded = load_model(path, config)
    get_context_length(loaded.config, config)
    runner = ModelRunner(loaded, config)
    return EngineParts(
        model_config=loaded.config,
        tokenizer=loaded.tokenizer,
        chat_template=loaded.chat_template,
        runner=runner,
        load_ms=(time.perf_counter() - start_s) * 1e3,
        model_path=path,
        memory=LoadMemory(loaded.num_weight_bytes, before_bytes, read_resident_bytes()),
    )
