"""The random models that have goldens: shapes, RoPE kinds and block types, and which token ids each one is fed.

Shared by the tests and by `tests/goldens/make_model_goldens.py`; knows nothing of Pelton. Start at `GOLDEN_CASES`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as GgmlType
from random_gguf import RandomLlama, RandomRope, make_tensors, random_words

GOLDENS_DIR = Path(__file__).resolve().parent.parent / "goldens"
TINY_GOLDENS = GOLDENS_DIR / "tiny_llama.npz"
SMOLLM2_GOLDENS = GOLDENS_DIR / "smollm2.json"


@dataclass(frozen=True)
class GoldenCase:
    """One model with its input length and the positions whose logits are stored."""

    model: RandomLlama
    num_tokens: int = 32
    position_step: int = 1
    num_greedy: int = 12

    @property
    def name(self) -> str:
        """Name of the model, the key of everything stored for it."""
        return self.model.name

    def get_token_ids(self) -> list[int]:
        """The input, uniformly random ids."""
        words = random_words(f"{self.name}/input", self.num_tokens)
        return (words % np.uint64(self.model.vocab_size)).astype(np.int64).tolist()

    def get_positions(self) -> list[int]:
        """Positions whose logits are stored; the last one always is."""
        return list(range(self.num_tokens - 1, -1, -self.position_step))[::-1]


def _quantised(ggml_type: GgmlType, **shape: int) -> GoldenCase:
    model = RandomLlama(name=f"blocks_{ggml_type.name.lower()}", weight_type=ggml_type, **shape)
    return GoldenCase(model, num_tokens=24, position_step=2, num_greedy=8)


_SUPER_BLOCK_SHAPE = {"hidden_size": 256, "num_heads": 8, "head_dim": 32, "intermediate_size": 256, "num_layers": 1}

GOLDEN_CASES: tuple[GoldenCase, ...] = (
    GoldenCase(RandomLlama(name="plain_gqa2")),
    GoldenCase(RandomLlama(name="tied_mqa", num_kv_heads=1, num_layers=3, intermediate_size=160, is_tied=True)),
    GoldenCase(
        RandomLlama(
            name="ragged_mha", num_kv_heads=4, head_dim=24, hidden_size=60, intermediate_size=100, vocab_size=101
        )
    ),
    GoldenCase(RandomLlama(name="one_head", num_heads=1, num_kv_heads=1, head_dim=64, vocab_size=97, norm_eps=1e-6)),
    GoldenCase(RandomLlama(name="rope_linear", rope=RandomRope(scaling="linear", factor=4.0))),
    GoldenCase(
        RandomLlama(
            name="rope_llama3",
            head_dim=24,
            rope=RandomRope(scaling="llama3", theta=500000.0, factor=8.0, original_context=64),
        ),
        num_tokens=40,
    ),
    GoldenCase(RandomLlama(name="rope_yarn", rope=RandomRope(scaling="yarn", factor=4.0, original_context=256))),
    GoldenCase(RandomLlama(name="long_context"), num_tokens=700, position_step=41, num_greedy=6),
    _quantised(GgmlType.F16),
    _quantised(GgmlType.BF16),
    _quantised(GgmlType.Q8_0),
    _quantised(GgmlType.Q4_0),
    _quantised(GgmlType.Q4_1),
    _quantised(GgmlType.Q5_0),
    _quantised(GgmlType.Q5_1),
    _quantised(GgmlType.Q2_K, **_SUPER_BLOCK_SHAPE),
    _quantised(GgmlType.Q3_K, **_SUPER_BLOCK_SHAPE),
    _quantised(GgmlType.Q4_K, **_SUPER_BLOCK_SHAPE),
    _quantised(GgmlType.Q5_K, **_SUPER_BLOCK_SHAPE),
    _quantised(GgmlType.Q6_K, **_SUPER_BLOCK_SHAPE),
)


def hash_weights(model: RandomLlama) -> str:
    """SHA-256 over names and bytes of all tensors: says whether a golden belongs to this very model."""
    digest = hashlib.sha256()
    for tensor in make_tensors(model):
        digest.update(tensor.name.encode())
        digest.update(tensor.data.tobytes())
    return digest.hexdigest()
