"""What this machine and this build are: processor, memory, versions. For `pelton doctor` and benchmark results.

Knows the operating system's files, not models. Start at `describe_machine`.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from pelton import __version__

_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine. `num_cpus` are those this process may use; memory in bytes, 0 where it is not known.

    `commit` is the Git commit of the source tree the package runs from, None for an installed copy.
    """

    cpu: str
    num_cpus: int
    memory_bytes: int
    available_memory_bytes: int
    system: str
    python: str
    pelton: str
    commit: str | None


def describe_machine() -> Machine:
    """Look at the machine; never raises: what cannot be read is "unknown", 0 or None."""
    memory = _read_memory()
    return Machine(
        cpu=_read_cpu_model(),
        num_cpus=len(os.sched_getaffinity(0)),
        memory_bytes=memory.get("MemTotal", 0),
        available_memory_bytes=memory.get("MemAvailable", 0),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        pelton=__version__,
        commit=_read_commit(),
    )


def get_version(distribution: str) -> str:
    """Version of an installed distribution, "unknown" if there is none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return _UNKNOWN


def _read_lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _read_cpu_model() -> str:
    for line in _read_lines("/proc/cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "Hardware"):
            return value.strip()
    return platform.processor() or _UNKNOWN


def _read_memory() -> dict[str, int]:
    """MemTotal and MemAvailable in bytes (the file counts in units of 1024 bytes)."""
    values: dict[str, int] = {}
    for line in _read_lines("/proc/meminfo"):
        key, _, value = line.partition(":")
        number = value.split()
        if number and number[0].isdigit():
            values[key] = int(number[0]) * 1024
    return values


def _read_commit() -> str | None:
    """The commit of the checkout this very file belongs to, read from .git without running anything."""
    root = Path(__file__).resolve().parents[3]
    if Path(__file__).resolve() != root / "src" / "pelton" / "engine" / "machine.py":
        return None
    head = _read_lines(str(root / ".git" / "HEAD"))
    if not head:
        return None
    if not head[0].startswith("ref: "):
        return head[0]
    ref = head[0].removeprefix("ref: ")
    loose = _read_lines(str(root / ".git" / ref))
    if loose:
        return loose[0]
    packed = (line.split(" ") for line in _read_lines(str(root / ".git" / "packed-refs")))
    return next((parts[0] for parts in packed if len(parts) == 2 and parts[1] == ref), None)
