"""Which engine processes a case needs, with the settings of each; starts them or says why one is absent.

Start at `list_contestants`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from suites import LLAMA_CPP, OPENVINO, PELTON, VLLM, Case
from worker_process import ROOT, WORKERS, Worker, WorkerError, make_command


@dataclass(frozen=True)
class Places:
    """Where things are: the folder of peer environments and logs, models made here, and Pelton's interpreter."""

    workdir: Path
    models: Path
    pelton_python: Path

    def peer_python(self, environment: str) -> Path:
        """Interpreter of a peer's environment, there or not."""
        return self.workdir / environment / "bin" / "python"


@dataclass(frozen=True)
class Contestant:
    """One engine with one file and one setting. Of those that share a `group`, only the fastest counts."""

    label: str
    peer: str
    group: str
    python: Path
    script: str
    model: Path
    options: Sequence[str] = ()
    is_same_file: bool = False
    env: dict[str, str] = field(default_factory=dict)

    def start(self, threads: int, workdir: Path) -> Worker:
        """Start the worker and wait until its model is loaded; raises `WorkerError`."""
        if not self.python.exists():
            raise WorkerError(f"no environment at {self.python.parent.parent}; --setup {self.peer} makes it")
        if not self.model.exists():
            raise WorkerError(f"no model at {self.model}; --setup {self.peer} makes it")
        log_path = workdir / "logs" / f"{self.label.replace(' ', '_')}.log"
        command = make_command(self.python, self.script, self.model, threads, self.options)
        env = {**os.environ, **self.env} if self.env else None
        return Worker(self.label, command, log_path=log_path, env=env)


def list_contestants(case: Case, model: Path, threads: int, places: Places) -> list[Contestant]:
    """Pelton first, then the peers of `case`, each with every setting that might be its best."""
    pelton_options = ["--isa", case.isa] if case.isa else []
    contestants = [
        Contestant(PELTON, PELTON, PELTON, places.pelton_python, "pelton_worker.py", model, pelton_options, True)
    ]
    for dtype in case.kv_cache_dtypes:
        label = f"{PELTON} kv={dtype}"
        options = [*pelton_options, "--kv-cache-dtype", dtype]
        contestants.append(
            Contestant(label, PELTON, label, places.pelton_python, "pelton_worker.py", model, options, True)
        )
    if LLAMA_CPP in case.peers:
        contestants += _list_llama_cpp(case, model, places)
    if OPENVINO in case.peers:
        python = places.peer_python("openvino")
        for file_format in case.formats:
            file = get_requantized_path(model, file_format, places)
            label = f"{OPENVINO} {file_format}"
            contestants.append(Contestant(label, OPENVINO, OPENVINO, python, "openvino_worker.py", file))
    if VLLM in case.peers:
        contestants.append(_make_vllm(get_checkpoint_path(model, places), threads, places))
    return contestants


def _make_vllm(folder: Path, threads: int, places: Places) -> Contestant:
    """vLLM with what its manual advises: Intel's OpenMP loaded first, a thread a core."""
    openmp = places.workdir / "vllm" / "lib" / "libiomp5.so"
    env = {"OMP_NUM_THREADS": str(threads)} | ({"LD_PRELOAD": str(openmp)} if openmp.exists() else {})
    python = places.peer_python("vllm")
    return Contestant(f"{VLLM} bf16", VLLM, VLLM, python, "vllm_worker.py", folder, env=env)


def _list_llama_cpp(case: Case, model: Path, places: Places) -> list[Contestant]:
    python = places.peer_python("llamacpp-avx2" if case.isa == "avx2" else "llamacpp")
    files = [(case.file_type, model, True)]
    files += [(name, get_requantized_path(model, name, places), False) for name in case.formats]
    return [
        Contestant(
            f"{LLAMA_CPP} {name} fa={'on' if options else 'off'}",
            LLAMA_CPP,
            f"{LLAMA_CPP} {'same file' if is_same_file else 'other formats'}",
            python,
            "llamacpp_worker.py",
            file,
            options,
            is_same_file,
        )
        for name, file, is_same_file in files
        for options in ([], ["--flash-attention"])
    ]


def get_requantized_path(model: Path, file_format: str, places: Places) -> Path:
    """Where the same weights in another llama.cpp format are kept."""
    return places.models / f"{model.stem}-{file_format.lower()}.gguf"


def get_checkpoint_path(model: Path, places: Places) -> Path:
    """Where the same weights as a bfloat16 checkpoint folder are kept."""
    return places.models / f"{model.stem}-bf16"


def start_contestants(
    contestants: Sequence[Contestant], threads: int, workdir: Path, stack: ExitStack
) -> tuple[dict[str, Worker], dict[str, str]]:
    """Return {label: worker} and {label: why it is absent}; only Pelton's own default must start."""
    workers: dict[str, Worker] = {}
    absent: dict[str, str] = {}
    for contestant in contestants:
        try:
            workers[contestant.label] = stack.enter_context(contestant.start(threads, workdir))
        except WorkerError as error:
            if contestant.label == PELTON:
                raise
            absent[contestant.label] = str(error)
            print(f"absent: {contestant.label}: {error}", flush=True)
    return workers, absent


def make_missing_files(case: Case, model: Path, places: Places) -> None:
    """Make the random model of `case`, and the other formats llama.cpp reads, where they are not there yet."""
    if not model.exists() and case.shape is not None:
        script = str(ROOT / "bench" / "make_random_model.py")
        options = ["--shape", case.shape, "--type", case.file_type]
        subprocess.run([str(places.pelton_python), script, str(model), *options], check=True)
    python = places.peer_python("llamacpp")
    for file_format in case.formats:
        path = get_requantized_path(model, file_format, places)
        if not path.exists() and python.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            script = str(WORKERS / "llamacpp_quantize.py")
            subprocess.run([str(python), script, str(model), str(path), file_format], check=True)
