"""`ModelConfig`: the shape of a model, whatever file it came from. Plain numbers, no weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pelton.core.errors import UnsupportedModelError

RopeScalingKind = Literal["none", "linear", "yarn", "factors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding.

    `num_dims` of each head are rotated with base `theta`. `pairing` says which two elements form a pair:
    "adjacent" (2i, 2i+1; GGUF's permuted llama layout) or "halves" (i, i+n/2; the Hugging Face layout).
    `scaling` "linear" divides positions by `factor`; "yarn" is Peng et al. 2023 with `original_context`;
    "factors" divides each inverse frequency by `frequency_factors` (GGUF's `rope_freqs.weight`, which is how
    llama3 scaling arrives).
    """

    num_dims: int
    theta: float = 10000.0
    pairing: Literal["adjacent", "halves"] = "adjacent"
    scaling: RopeScalingKind = "none"
    factor: float = 1.0
    original_context: int = 0
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    yarn_attention_factor: float | None = None
    frequency_factors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a decoder-only transformer; sizes in elements, `norm_eps` without unit."""

    model_type: str
    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    sliding_window: int | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "max_position_embeddings",
        ):
            value = getattr(self, name)
            if value < 1:
                raise UnsupportedModelError(f"{self.name}: {name} is {value}; allowed: at least 1")
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"{self.name}: num_heads is {self.num_heads}, not a multiple of num_kv_heads {self.num_kv_heads}"
            )

    @property
    def num_query_groups(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads
