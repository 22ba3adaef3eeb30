"""Takes tensors out of an open GGUF file: matrices packed for the kernels, vectors as float32.

Checks every shape against what the model family asks for. Entry point: `GgufTensorSource`.
"""

from __future__ import annotations

import numpy as np

from pelton._native import PackedWeight, ThreadPool, pack_weight
from pelton.compute.ops import FloatArray
from pelton.core.errors import ModelFileError
from pelton.loading.gguf import GgufFile, GgufTensor
from pelton.quant.dequantize import dequantize

# The file's pages count as this process's memory until they are given back: do so each time this much was packed.
_RELEASE_BYTES = 16 << 20


class GgufTensorSource:
    """The tensors of one GGUF file. `num_weight_bytes` adds up what has been packed and kept so far."""

    def __init__(self, file: GgufFile, pool: ThreadPool) -> None:
        self._file = file
        self._pool = pool
        self._bytes_since_release = 0
        self.num_weight_bytes = 0

    def has(self, name: str) -> bool:
        """Whether the file holds a tensor of that name."""
        return name in self._file.tensors

    def get_matrix(self, name: str, rows: int, cols: int) -> PackedWeight:
        """Pack the matrix `name` on all threads. Raises `ModelFileError` if missing or not [rows, cols]."""
        tensor = self._get(name, (rows, cols))
        weight = pack_weight(tensor.type.ggml_type_id, rows, cols, tensor.data, self._pool)
        self.num_weight_bytes += weight.num_bytes
        self._bytes_since_release += tensor.data.nbytes
        if self._bytes_since_release >= _RELEASE_BYTES:
            self._file.release_pages()
            self._bytes_since_release = 0
        return weight

    def get_vector(self, name: str, size: int) -> FloatArray:
        """Return the vector `name` as float32 [size]. Raises `ModelFileError` if missing or of another size."""
        tensor = self._get(name, (size,))
        values = dequantize(tensor.data, tensor.type, tensor.shape)
        if not np.all(np.isfinite(values)):
            raise ModelFileError(f"{self._file.path}: tensor {name!r} holds NaN or infinity; allowed: finite numbers")
        self.num_weight_bytes += values.nbytes
        return values

    def _get(self, name: str, shape: tuple[int, ...]) -> GgufTensor:
        tensor = self._file.tensors.get(name)
        if tensor is None:
            raise ModelFileError(f"{self._file.path}: tensor {name!r} is missing; the model needs it as {list(shape)}")
        if tensor.shape != shape:
            raise ModelFileError(
                f"{self._file.path}: tensor {name!r} has shape {list(tensor.shape)}; the model needs {list(shape)}"
            )
        return tensor
