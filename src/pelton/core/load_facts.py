"""`LoadFacts`: what a loaded model takes on this machine, counted or measured. Plain data for plans and reports.

Knows nothing about engines; `engine/parts.py` fills it in. Start at `LoadFacts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class LoadMemory:
    """Bytes: of the packed weights, and held by the process (resident) before and after loading, None if not known."""

    weight_bytes: int
    resident_before_bytes: int | None
    resident_after_bytes: int | None

    @property
    def program_bytes(self) -> int | None:
        """What loading added besides weights: libraries, code, tokenizer. The KV cache is not touched yet."""
        if self.resident_before_bytes is None or self.resident_after_bytes is None:
            return None
        return self.resident_after_bytes - self.resident_before_bytes - self.weight_bytes


@dataclass(frozen=True, slots=True)
class LoadFacts:
    """A loaded model: its file and memory (None where it came from no file), KV cache, threads, the largest step.

    `use_kv_cache` false means that every step computes whole sequences.
    """

    model_path: Path | None
    memory: LoadMemory | None
    num_kv_blocks: int
    block_size: int
    kv_bytes_per_block: int
    kv_cache_dtype: str
    context_length: int
    isa: str
    num_threads: int
    max_step_tokens: int
    use_kv_cache: bool


def read_resident_bytes(status: Path = _STATUS) -> int | None:
    """Memory that this process holds (VmRSS) in bytes; None where the system does not say."""
    try:
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
