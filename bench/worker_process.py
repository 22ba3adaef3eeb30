"""Start engine workers, each in its own environment, talk to them, and describe the machine they ran on.

Knows the protocol of `workers/protocol.py`, not what engines are compared. Start at `Worker`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORKERS = ROOT / "bench" / "workers"
DEFAULT_WORKDIR = ROOT / "build" / "peers"
_INTERESTING_FLAGS = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "amx_int8",
    "asimd", "asimddp", "i8mm", "sve",
)  # fmt: skip


class WorkerError(RuntimeError):
    """A worker that did not start, died or answered with an error."""


class Worker:
    """One engine in a process of its own, with its model loaded; use as a context manager."""

    def __init__(
        self, label: str, command: Sequence[str], *, log_path: Path, env: dict[str, str] | None = None
    ) -> None:
        self.label = label
        self.log_path = log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("w") as log:
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=env
            )
        try:
            self.description = self._read()
        except WorkerError:
            self.close()
            raise

    def ask(self, command: str, **arguments: object) -> dict[str, Any]:
        """Send one command and wait for its answer; raise `WorkerError` if it failed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise WorkerError(f"{self.label}: the worker has ended; its messages are in {self.log_path}") from error
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise WorkerError(f"{self.label}: the worker ended (status {status}); its messages are in {self.log_path}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{self.label}: {answer['error']}; more in {self.log_path}")
        return answer

    def close(self) -> None:
        """End the process: closing its standard input is the signal."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_llama_cpp(
    python: Path, model: Path, threads: int, *, flash_attention: bool, workdir: Path = DEFAULT_WORKDIR
) -> Worker:
    """Start llama.cpp with flash attention on or off."""
    label = f"llama.cpp fa={'on' if flash_attention else 'off'}"
    options = ["--flash-attention"] if flash_attention else []
    command = make_command(python, "llamacpp_worker.py", model, threads, options)
    return Worker(label, command, log_path=workdir / f"{label.replace(' ', '_')}.log")


def start_pelton(python: Path, model: Path, threads: int, *, workdir: Path = DEFAULT_WORKDIR) -> Worker:
    """Start Pelton from whatever environment `python` belongs to."""
    command = make_command(python, "pelton_worker.py", model, threads)
    return Worker("pelton", command, log_path=workdir / "pelton.log")


def make_command(python: Path, script: str, model: Path, threads: int, options: Sequence[str] = ()) -> list[str]:
    """Command line of a worker; every worker takes a model and a number of threads."""
    return [str(python), str(WORKERS / script), "--model", str(model), "--threads", str(threads), *options]


def find_peer_python(peer_python: Path | None, workdir: Path) -> Path:
    """Return the interpreter that has llama-cpp-python; exit with a hint when there is none."""
    python = peer_python or workdir / "llamacpp" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"no llama.cpp environment at {python}: run with --setup first, or give --peer-python PATH")
    return python


def count_physical_cores() -> int:
    """Physical cores this process may use, from the kernel's topology; all usable CPUs where that is not readable."""
    usable = os.sched_getaffinity(0)
    cores = set()
    for cpu in usable:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            package, core = ((topology / name).read_text().strip() for name in ("physical_package_id", "core_id"))
        except OSError:
            return len(usable)
        cores.add((package, core))
    return len(cores)


def describe_machine() -> dict[str, object]:
    """CPU model, the instruction sets that matter, cores, memory, system and load, for the record."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    fields = dict(line.split(":", 1) for line in info.split("\n\n")[0].splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return {
        "cpu": fields.get("model name", platform.processor() or platform.machine()),
        "flags": [f for f in _INTERESTING_FLAGS if f in flags],
        "physical_cores": count_physical_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load_average_at_start": os.getloadavg()[0],
    }


def get_commit() -> str:
    """Commit of this checkout, with `-dirty` when tracked files differ from it; `unknown` outside git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def default_pelton_python() -> Path:
    """The interpreter that runs the benchmark is expected to have Pelton."""
    return Path(sys.executable)
