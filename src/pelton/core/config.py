"""Engine options, and the only place that reads the environment. Start at `EngineConfig`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pelton.core.errors import InvalidParameterError
from pelton.core.fields import check_number_types, option, validate_options
from pelton.core.memory_size import parse_memory_size

# All that Pelton has kernels for; the native module says which of them this machine and this build have.
ISA_NAMES = ("scalar", "avx2", "avx_vnni", "avx512", "amx", "neon")
KV_CACHE_DTYPES = ("f16", "bf16", "f32", "int8", "int4")
SCHEDULING_POLICIES = ("fcfs", "fair")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of the engine, validated on construction (`InvalidParameterError`)."""

    threads: int | None = option(
        None, "Threads that compute; unset takes one per physical core this process may use.", minimum=1, maximum=1024
    )
    isa: str | None = option(
        None, "Instruction set of the kernels; unset takes the best this machine has.", choices=ISA_NAMES
    )
    max_context: int | None = option(
        None, "Longest context in tokens; unset takes the model's own.", minimum=1, maximum=2**31 - 1, unit="tokens"
    )
    prefill_chunk: int = option(
        2048, "Most prompt tokens computed in one step.", minimum=1, maximum=2**20, unit="tokens"
    )
    max_num_seqs: int = option(256, "Most requests computed in one step.", minimum=1, maximum=4096)
    max_step_ms: float | None = option(
        None,
        "While tokens are generated, prompts get as many tokens a step as keep it about this short; unset takes 2.5 "
        "times that of a step without prompts, at least 20, and no limit where a whole batch is waited for.",
        minimum=0.0,
        exclusive_minimum=True,
        maximum=3_600_000.0,
        unit="milliseconds",
    )
    scheduling_policy: str = option(
        "fcfs",
        "Who is served first: fcfs by priority, then arrival; fair shares tokens evenly between tenants.",
        choices=SCHEDULING_POLICIES,
    )
    kv_cache_dtype: str = option("f16", "Type of stored keys and values.", choices=KV_CACHE_DTYPES)
    kv_cache_memory: str | int | None = option(
        None,
        "Memory of the KV cache: bytes, bytes with a unit (4GiB) or a share of the free memory (50%); unset takes what "
        "max_context and max_num_seqs need, at most 50%.",
    )
    kv_cache_tokens: int | None = option(
        None,
        "Token slots of the KV cache, in place of kv_cache_memory.",
        minimum=1,
        maximum=2**40,
        unit="tokens",
    )
    max_queued_requests: int | None = option(
        1024,
        "Most requests that may wait for their first step; a server refuses more. None allows any number.",
        minimum=1,
        maximum=2**31 - 1,
    )
    max_queued_tokens: int | None = option(
        4_000_000,
        "Most prompt tokens that may wait for their first step; a server refuses more. None allows any number.",
        minimum=1,
        maximum=2**40,
        unit="tokens",
    )
    num_kept_traces: int = option(
        256,
        "Finished requests whose traces are kept, for explanations. No prompt and no answer is kept.",
        minimum=0,
        maximum=1_000_000,
    )
    use_prefix_cache: bool = option(True, "Reuse keys and values of prompts that begin like earlier ones.")
    use_kv_cache: bool = option(True, "Keep keys and values between steps; off recomputes everything each step.")

    def __post_init__(self) -> None:
        integers = ("threads", "max_context", "prefill_chunk", "max_num_seqs", "kv_cache_tokens", "num_kept_traces")
        queue_limits = ("max_queued_requests", "max_queued_tokens")
        check_number_types(self, (*integers, *queue_limits), ("max_step_ms",))
        validate_options(self)
        if self.kv_cache_memory is None:
            return
        parse_memory_size("kv_cache_memory", self.kv_cache_memory)
        if self.kv_cache_tokens is not None:
            raise InvalidParameterError("kv_cache_tokens", self.kv_cache_tokens, "unset beside kv_cache_memory")

    def get_max_step_s(self, is_interactive: bool) -> float | None:
        """Seconds of `max_step_ms`; if unset, None (the scheduler's own default) or, for a batch, infinity.

        With `is_interactive` callers see each token when it comes, so that a long prompt must not hold the others up;
        without, only the time to the last token counts, and prompts are computed in whole chunks.
        """
        if self.max_step_ms is not None:
            return self.max_step_ms / 1000
        return None if is_interactive else math.inf


@dataclass(frozen=True, slots=True)
class Environment:
    """What Pelton takes from environment variables."""

    isa: str | None
    is_debug: bool
    cache_dir: Path
    api_keys: str | None = field(default=None, repr=False)  # secrets: not for logs


def read_environment(variables: Mapping[str, str] | None = None) -> Environment:
    """Read PELTON_ISA, PELTON_DEBUG, PELTON_API_KEYS, and PELTON_CACHE, else XDG_CACHE_HOME/pelton, else
    ~/.cache/pelton.

    Raises `InvalidParameterError` for an unknown PELTON_ISA.
    """
    env = os.environ if variables is None else variables
    isa = env.get("PELTON_ISA") or None
    if isa is not None and isa not in ISA_NAMES:
        raise InvalidParameterError("PELTON_ISA", isa, "one of " + ", ".join(ISA_NAMES))
    if env.get("PELTON_CACHE"):
        cache_dir = Path(env["PELTON_CACHE"])
    elif env.get("XDG_CACHE_HOME"):
        cache_dir = Path(env["XDG_CACHE_HOME"]) / "pelton"
    else:
        cache_dir = Path.home() / ".cache" / "pelton"
    api_keys = env.get("PELTON_API_KEYS") or None
    return Environment(isa=isa, is_debug=read_is_debug(env), cache_dir=cache_dir, api_keys=api_keys)


def read_is_debug(variables: Mapping[str, str] | None = None) -> bool:
    """Whether PELTON_DEBUG asks for tracebacks; never raises, so that error handlers can use it."""
    env = os.environ if variables is None else variables
    return env.get("PELTON_DEBUG", "") not in ("", "0")


def read_wants_color(variables: Mapping[str, str] | None = None) -> bool:
    """Whether a terminal may be given colours: unless NO_COLOR is set (no-color.org), or TERM says it shows none."""
    env = os.environ if variables is None else variables
    return not env.get("NO_COLOR") and env.get("TERM") != "dumb"
