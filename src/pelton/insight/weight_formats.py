"""`WeightFormat`: what weights take in memory, and what they are multiplied in, by the name of their format.

GGUF block types lie as the native program packs them (`native/quant/packed_weight.cc`), to the byte; the plain names
(int8, int4, fp8, mxfp4) are bits per weight, for models that no GGUF file holds. Start at `get_weight_format`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pelton.core.errors import InvalidParameterError
from pelton.quant.block_types import BLOCK_TYPES, BlockType

# What products are computed in: int8 dot products, float32 (bf16 on accelerators), or formats of published models.
NumberType = Literal["int8", "f32", "fp8", "fp4"]

_FLOAT_NAMES = ("F32", "F16", "BF16")
_TILE_ROWS = 16
_ALIGNMENT = 64
_SUPER_COLS = 256
# Inputs that share a scale in the K-quants; the other block types have groups of a whole block.
_K_QUANT_GROUPS = {"Q2_K": 16, "Q3_K": 16, "Q4_K": 32, "Q5_K": 32, "Q6_K": 16}
_HAS_MINIMUM = ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K")
# OCP microscaling formats v1.0, section 5.2: 4-bit elements with one byte of scale per 32.
_PLAIN_BITS: Mapping[str, tuple[float, NumberType]] = {
    "int8": (8.0, "int8"),
    "int4": (4.0, "int8"),
    "fp8": (8.0, "fp8"),
    "mxfp4": (4.25, "fp8"),
}


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A format by its name in lower case: of a GGUF block type (`block_type`), or of plain `bits` per weight."""

    name: str
    number_type: NumberType
    bits: float
    block_type: BlockType | None = None

    def count_bytes(self, rows: int, cols: int) -> int:
        """Bytes of a matrix in memory. `InvalidParameterError` if a row is not made of whole blocks."""
        if self.block_type is None:
            return -int(-rows * cols * self.bits // 8)
        if cols % self.block_type.block_size:
            raise InvalidParameterError(
                "weights", self.name, f"formats whose blocks divide rows of {cols}, such as q8_0, q4_0 or f16"
            )
        return _count_packed_bytes(self.block_type, rows, cols)


def _count_packed_bytes(block_type: BlockType, rows: int, cols: int) -> int:
    """Codes, scales and minima, each an array of whole tiles that ends on a cache line."""
    num_tiles = -(-rows // _TILE_ROWS)

    def count(num_bits_per_tile: float) -> int:
        num_bytes = int(num_bits_per_tile) * num_tiles // 8
        return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT

    name = block_type.name
    if name in _FLOAT_NAMES:
        return count(cols * _TILE_ROWS * block_type.block_bytes * 8)
    num_arrays = 2 if name in _HAS_MINIMUM else 1
    codes = count(cols * _TILE_ROWS * int(name[1]))
    if name not in _K_QUANT_GROUPS:
        return codes + num_arrays * count(cols // block_type.block_size * _TILE_ROWS * 16)
    scales = count(cols // _K_QUANT_GROUPS[name] * _TILE_ROWS * 8)
    return codes + num_arrays * (scales + count(cols // _SUPER_COLS * _TILE_ROWS * 16))


def _make_formats() -> dict[str, WeightFormat]:
    formats = {}
    for block_type in BLOCK_TYPES.values():
        bits = block_type.block_bytes * 8 / block_type.block_size
        number_type: NumberType = "f32" if block_type.name in _FLOAT_NAMES else "int8"
        formats[block_type.name.lower()] = WeightFormat(block_type.name.lower(), number_type, bits, block_type)
    for name, (plain_bits, plain_type) in _PLAIN_BITS.items():
        formats[name] = WeightFormat(name, plain_type, plain_bits)
    return formats


WEIGHT_FORMATS: Mapping[str, WeightFormat] = _make_formats()


def get_weight_format(name: str) -> WeightFormat:
    """Return the format called `name`, in whatever case. `InvalidParameterError` names the nearest for another."""
    found = WEIGHT_FORMATS.get(name.lower())
    if found is None:
        raise InvalidParameterError("weights", name, "one of " + ", ".join(WEIGHT_FORMATS))
    return found


@dataclass(frozen=True, slots=True)
class ModelFormats:
    """Which matrix has which format: by its name, else by its role, else `default`."""

    default: WeightFormat
    by_role: Mapping[str, WeightFormat]
    by_name: Mapping[str, WeightFormat]

    @classmethod
    def make_uniform(cls, name: str) -> ModelFormats:
        """Every matrix in one format."""
        return cls(get_weight_format(name), {}, {})

    @classmethod
    def from_names(cls, names: Mapping[str, str]) -> ModelFormats:
        """Formats by role, with "default" for the others."""
        by_role = {role: get_weight_format(name) for role, name in names.items() if role != "default"}
        return cls(get_weight_format(names["default"]), by_role, {})

    def get(self, name: str, role: str) -> WeightFormat:
        """The format of the matrix `name` with the role `role`."""
        found = self.by_name.get(name)
        return found if found is not None else self.by_role.get(role, self.default)

    def describe(self) -> str:
        """Names of the formats, the most usual first."""
        if self.by_name:
            counts: dict[str, int] = {}
            for each in self.by_name.values():
                counts[each.name] = counts.get(each.name, 0) + 1
            names = sorted(counts, key=lambda name: -counts[name])
            return names[0] + (f" (some {', '.join(names[1:])})" if len(names) > 1 else "")
        others = ", ".join(f"{role}: {each.name}" for role, each in self.by_role.items())
        return self.default.name + (f" ({others})" if others else "")
