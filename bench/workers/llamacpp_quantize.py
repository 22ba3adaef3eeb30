"""Write a GGUF file's weights in another format, with llama.cpp's own quantizer. Runs in llama.cpp's environment.

python llamacpp_quantize.py model.gguf model-q8_0.gguf Q8_0
"""

from __future__ import annotations

import sys
from pathlib import Path

import llama_cpp


def quantize(source: Path, target: Path, file_type: str) -> None:
    """Requantise `source`; a target that failed is removed. Raises RuntimeError with llama.cpp's status."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{file_type}")
    params.allow_requantize = True
    partial = target.with_suffix(".partial")
    status = llama_cpp.llama_model_quantize(str(source).encode(), str(partial).encode(), params)
    if status != 0:
        partial.unlink(missing_ok=True)
        raise RuntimeError(f"llama_model_quantize returned {status} for {source} as {file_type}")
    partial.replace(target)


if __name__ == "__main__":
    quantize(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
