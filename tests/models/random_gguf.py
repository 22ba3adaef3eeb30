"""Random Llama models as GGUF files, the same bytes on every machine and in every NumPy release.

Weights come from a counter-based generator (splitmix64), so goldens need to store no weights, only results. Knows the
published GGUF layouts through the `gguf` package, and nothing of Pelton. Start at `RandomLlama` and `write_gguf`.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as GgmlType


@dataclass(frozen=True)
class RandomRope:
    """RoPE settings as GGUF metadata has them; `low`/`high` are llama3's frequency factors."""

    theta: float = 10000.0
    scaling: str = "none"  # none, linear, llama3, yarn
    factor: float = 1.0
    original_context: int = 0
    low: float = 1.0
    high: float = 4.0


@dataclass(frozen=True)
class RandomLlama:
    """Shape of a random model; `weight_type` holds for every matrix, norms are always F32.

    `tensor_types` names the matrices that differ from it.
    """

    name: str
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    intermediate_size: int = 96
    vocab_size: int = 96
    max_context: int = 1024
    is_tied: bool = False
    rope: RandomRope = field(default_factory=RandomRope)
    weight_type: GgmlType = GgmlType.F32
    embedding_type: GgmlType | None = None
    tensor_types: Mapping[str, GgmlType] = field(default_factory=dict)
    norm_eps: float = 1e-5
    seed: int = 1


@dataclass(frozen=True)
class BlockRecipe:
    """Where the f16 scale (and minimum) of a block lie, and how large its values are when the scale is 1."""

    scale_at: int
    minimum_at: int | None
    minimum_ratio: float
    std: float


# Offsets: the block structs of ggml-common.h. Minima are set so that weights have mean zero; `std` is the standard
# deviation of (scale codes x codes - minima) for uniformly random bytes.
_RECIPES: dict[GgmlType, BlockRecipe] = {
    GgmlType.Q8_0: BlockRecipe(0, None, 0.0, 73.9),
    GgmlType.Q4_0: BlockRecipe(0, None, 0.0, 4.61),
    GgmlType.Q4_1: BlockRecipe(0, 2, -7.5, 4.61),
    GgmlType.Q5_0: BlockRecipe(0, None, 0.0, 9.23),
    GgmlType.Q5_1: BlockRecipe(0, 2, -15.5, 9.23),
    GgmlType.Q2_K: BlockRecipe(80, 82, 1.5, 13.9),
    GgmlType.Q3_K: BlockRecipe(108, None, 0.0, 42.0),
    GgmlType.Q4_K: BlockRecipe(0, 2, 7.5, 258.0),
    GgmlType.Q5_K: BlockRecipe(0, 2, 15.5, 527.0),
    GgmlType.Q6_K: BlockRecipe(208, None, 0.0, 1366.0),
}


def random_words(key: str, count: int) -> np.ndarray:
    """Return [count] u64: splitmix64 (Steele, Lea, Flood 2014) started from the CRC of `key`."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(zlib.crc32(key.encode()) << 32)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def random_uniform(key: str, count: int) -> np.ndarray:
    """Return [count] f32, uniform in [-1, 1) on a grid of 2^-23."""
    return ((random_words(key, count) >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0).astype(np.float32)


def random_matrix(key: str, num_rows: int, num_cols: int, ggml_type: GgmlType, std: float) -> np.ndarray:
    """Return the raw bytes [num_rows, row_bytes] u8 of a random matrix whose values have about deviation `std`."""
    if ggml_type in (GgmlType.F32, GgmlType.F16, GgmlType.BF16):
        values = random_uniform(key, num_rows * num_cols).reshape(num_rows, num_cols) * np.float32(std * 3**0.5)
        if ggml_type == GgmlType.F16:
            return values.astype(np.float16).view(np.uint8)
        if ggml_type == GgmlType.BF16:
            return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(np.uint8)
        return values.view(np.uint8)
    recipe = _RECIPES[ggml_type]
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[ggml_type]
    if num_cols % block_size:
        raise ValueError(f"{key}: {num_cols} columns are not a multiple of {block_size}")
    num_blocks = num_rows * num_cols // block_size
    num_words = -(-num_blocks * block_bytes // 8)
    blocks = random_words(key, num_words).view(np.uint8)[: num_blocks * block_bytes].reshape(num_blocks, block_bytes)
    spread = random_uniform(key + ".scale", 2 * num_blocks).reshape(2, num_blocks).astype(np.float64)
    scale = std / recipe.std * (1.0 + 0.4 * spread[0])
    _put_f16(blocks, recipe.scale_at, scale)
    if recipe.minimum_at is not None:
        _put_f16(blocks, recipe.minimum_at, scale * recipe.minimum_ratio * (1.0 + 0.1 * spread[1]))
    return blocks.reshape(num_rows, -1)


def _put_f16(blocks: np.ndarray, offset: int, values: np.ndarray) -> None:
    blocks[:, offset : offset + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)


def llama3_factors(rope: RandomRope, head_dim: int) -> np.ndarray:
    """Return [head_dim/2] f32 divisors of the inverse frequencies, as in Meta's llama3 `apply_scaling`."""
    wavelength = 2 * np.pi * rope.theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    smooth = np.clip((rope.original_context / wavelength - rope.low) / (rope.high - rope.low), 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / rope.factor + smooth)).astype(np.float32)


@dataclass(frozen=True)
class RandomTensor:
    """One tensor of the file: GGUF name, type, shape (rows, columns) and raw bytes [rows, row_bytes]."""

    name: str
    ggml_type: GgmlType
    shape: tuple[int, ...]
    data: np.ndarray

    def dequantize(self) -> np.ndarray:
        """Return the values as f32 of `shape`, by the `gguf` package."""
        if self.ggml_type == GgmlType.F32:
            return self.data.view(np.float32).reshape(self.shape)
        return gguf.quants.dequantize(self.data, self.ggml_type).astype(np.float32).reshape(self.shape)


def make_tensors(model: RandomLlama) -> list[RandomTensor]:
    """Return all tensors of `model` in the order of a llama GGUF file; Q and K rows in GGUF's layout."""
    hidden, inner = model.hidden_size, model.intermediate_size
    width, kv_width = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    tensors: list[RandomTensor] = []

    def matrix(name: str, rows: int, cols: int, gain: float = 1.0, ggml_type: GgmlType | None = None) -> None:
        ggml_type = model.tensor_types.get(name, model.weight_type) if ggml_type is None else ggml_type
        key = f"{model.name}/{model.seed}/{name}"
        tensors.append(
            RandomTensor(name, ggml_type, (rows, cols), random_matrix(key, rows, cols, ggml_type, gain / cols**0.5))
        )

    def norm(name: str) -> None:
        values = 1.0 + 0.5 * random_uniform(f"{model.name}/{model.seed}/{name}", hidden)
        tensors.append(RandomTensor(name, GgmlType.F32, (hidden,), values.astype(np.float32).view(np.uint8)))

    matrix("token_embd.weight", model.vocab_size, hidden, 2.0, model.embedding_type)
    if model.rope.scaling == "llama3":
        factors = llama3_factors(model.rope, model.head_dim)
        tensors.append(RandomTensor("rope_freqs.weight", GgmlType.F32, factors.shape, factors.view(np.uint8)))
    for i in range(model.num_layers):
        norm(f"blk.{i}.attn_norm.weight")
        # Gains above 1 make attention peaked, so that a wrong position or a wrong head shows in the logits.
        matrix(f"blk.{i}.attn_q.weight", width, hidden, 1.4)
        matrix(f"blk.{i}.attn_k.weight", kv_width, hidden, 1.4)
        matrix(f"blk.{i}.attn_v.weight", kv_width, hidden)
        matrix(f"blk.{i}.attn_output.weight", hidden, width)
        norm(f"blk.{i}.ffn_norm.weight")
        matrix(f"blk.{i}.ffn_gate.weight", inner, hidden, 1.2)
        matrix(f"blk.{i}.ffn_up.weight", inner, hidden)
        matrix(f"blk.{i}.ffn_down.weight", hidden, inner)
    norm("output_norm.weight")
    if not model.is_tied:
        matrix("output.weight", model.vocab_size, hidden, 2.0, model.embedding_type)
    return tensors


def write_gguf(model: RandomLlama, path: Path) -> Path:
    """Write `model` as a complete GGUF v3 file with a byte-level vocabulary; return `path`."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(model.name)
    writer.add_block_count(model.num_layers)
    writer.add_context_length(model.max_context)
    writer.add_embedding_length(model.hidden_size)
    writer.add_feed_forward_length(model.intermediate_size)
    writer.add_head_count(model.num_heads)
    writer.add_head_count_kv(model.num_kv_heads)
    writer.add_layer_norm_rms_eps(model.norm_eps)
    writer.add_vocab_size(model.vocab_size)
    writer.add_rope_dimension_count(model.head_dim)
    if model.head_dim * model.num_heads != model.hidden_size:
        writer.add_key_length(model.head_dim)
        writer.add_value_length(model.head_dim)
    _add_rope(writer, model.rope)
    _add_vocabulary(writer, model.vocab_size)
    for tensor in make_tensors(model):
        if tensor.ggml_type == GgmlType.F32:
            writer.add_tensor(tensor.name, tensor.dequantize())
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.ggml_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_rope(writer: gguf.GGUFWriter, rope: RandomRope) -> None:
    writer.add_rope_freq_base(rope.theta)
    if rope.scaling in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope.scaling))
        writer.add_rope_scaling_factor(rope.factor)
    if rope.scaling == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope.original_context)


def _add_vocabulary(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    """Two control tokens, then single printable characters of the byte-level alphabet, then merged pairs."""
    control, normal = int(gguf.TokenType.CONTROL), int(gguf.TokenType.NORMAL)
    singles = ["Ġ", "Ċ", *(chr(c) for c in range(ord("a"), ord("z") + 1)), *(chr(c) for c in range(33, 97))]
    pairs = [(a, b) for a in "etaoinshrdlu" for b in "etaoinshrdlu"]
    tokens, types, merges = ["<|begin|>", "<|end|>"], [control, control], []
    for character in singles[: vocab_size - 2]:
        tokens.append(character)
        types.append(normal)
    for first, second in pairs[: max(vocab_size - len(tokens), 0)]:
        tokens.append(first + second)
        types.append(normal)
        merges.append(f"{first} {second}")
    for i in range(len(tokens), vocab_size):
        tokens.append(f"Ġunused{i}")
        types.append(normal)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)
