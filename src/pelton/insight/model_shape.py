"""`ModelShape`: the matrices and the kinds of attention of a model, as far as its cost depends on them. No weights.

Wider than `ModelConfig`, which describes what Pelton can run: experts, latent attention and compressed caches are here
as well. Knows no format and no machine. Start at `ModelShape`; `shape_from_config.py` makes one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

# What a matrix is for: published checkpoints keep some roles in other formats ("kept": in bf16).
Role = Literal["embedding", "output", "attention", "mlp", "expert", "kept"]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight matrix [rows, cols] as the model file names it; `count` equal ones (experts)."""

    name: str
    rows: int
    cols: int
    role: Role
    count: int = 1

    @property
    def num_weights(self) -> int:
        """Weights of all `count`."""
        return self.rows * self.cols * self.count


@dataclass(frozen=True, slots=True)
class GroupedAttention:
    """Keys and values per head, shared by groups of query heads; `window` tokens at most are seen, if set."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    has_qk_norm: bool = False
    has_bias: bool = False

    def list_matrices(self, hidden: int) -> list[Matrix]:
        """Projections."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return [
            Matrix("attn_q", q, hidden, "attention"),
            Matrix("attn_k", kv, hidden, "attention"),
            Matrix("attn_v", kv, hidden, "attention"),
            Matrix("attn_output", hidden, q, "attention"),
        ]

    def count_vector_weights(self) -> int:
        """Weights that are not in matrices."""
        biases = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim if self.has_bias else 0
        return biases + (2 * self.head_dim if self.has_qk_norm else 0)


@dataclass(frozen=True, slots=True)
class Indexer:
    """The lightning indexer: `num_heads` query heads of `head_dim` score all keys, the best `top_k` are attended."""

    num_heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434), computed absorbed: one latent serves all heads."""

    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    indexer: Indexer | None = None

    def list_matrices(self, hidden: int) -> list[Matrix]:
        """Projections, those of the indexer included."""
        q_size = self.num_heads * (self.nope_dim + self.rope_dim)
        if self.q_lora_rank is None:
            queries = [Matrix("attn_q", q_size, hidden, "attention")]
        else:
            queries = [
                Matrix("attn_q_a", self.q_lora_rank, hidden, "attention"),
                Matrix("attn_q_b", q_size, self.q_lora_rank, "attention"),
            ]
        kv_size = self.num_heads * (self.nope_dim + self.value_dim)
        matrices = [
            *queries,
            Matrix("attn_kv_a", self.kv_lora_rank + self.rope_dim, hidden, "attention"),
            Matrix("attn_kv_b", kv_size, self.kv_lora_rank, "attention"),
            Matrix("attn_output", hidden, self.num_heads * self.value_dim, "attention"),
        ]
        if self.indexer is not None:
            index_size = self.indexer.num_heads * self.indexer.head_dim
            matrices += [
                Matrix("indexer_q_b", index_size, self.q_lora_rank or hidden, "attention"),
                Matrix("indexer_k", self.indexer.head_dim, hidden, "kept"),
                Matrix("indexer_weights", self.indexer.num_heads, hidden, "kept"),
            ]
        return matrices

    def count_vector_weights(self) -> int:
        """Norms of the latents."""
        return (self.q_lora_rank or 0) + self.kv_lora_rank + (2 * self.indexer.head_dim if self.indexer else 0)


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """DeepSeek-V4's attention over a window and entries that each pool `ratio` tokens (0: the window alone).

    One vector of `head_dim` is key and value of all heads. With an indexer, its `top_k` entries are attended, else all.
    """

    num_heads: int
    head_dim: int
    rope_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    window: int
    ratio: int
    indexer: Indexer | None = None

    @property
    def pool_factor(self) -> int:
        """Halves of a compressor's output: 2 where windows overlap, which those with an indexer do."""
        return 2 if self.indexer is not None else 1

    def list_matrices(self, hidden: int) -> list[Matrix]:
        """Projections, compressors and indexer."""
        q_size = self.num_heads * self.head_dim
        matrices = [
            Matrix("attn_q_a", self.q_lora_rank, hidden, "attention"),
            Matrix("attn_q_b", q_size, self.q_lora_rank, "attention"),
            Matrix("attn_kv", self.head_dim, hidden, "attention"),
            Matrix("attn_output_a", self.o_groups * self.o_lora_rank, q_size // self.o_groups, "attention"),
            Matrix("attn_output_b", hidden, self.o_groups * self.o_lora_rank, "attention"),
        ]
        if self.ratio:
            matrices.append(Matrix("compressor", 2 * self.pool_factor * self.head_dim, hidden, "kept"))
        if self.indexer is not None:
            index_size = self.indexer.num_heads * self.indexer.head_dim
            matrices += [
                Matrix("indexer_compressor", 4 * self.indexer.head_dim, hidden, "kept"),
                Matrix("indexer_q_b", index_size, self.q_lora_rank, "attention"),
                Matrix("indexer_weights", self.indexer.num_heads, hidden, "kept"),
            ]
        return matrices

    def count_vector_weights(self) -> int:
        """Norms, sinks, and the compressors' position biases."""
        count = self.q_lora_rank + self.head_dim + self.num_heads
        if self.ratio:
            count += self.head_dim + self.ratio * self.pool_factor * self.head_dim
        if self.indexer is not None:
            count += self.indexer.head_dim + self.ratio * 2 * self.indexer.head_dim
        return count


Attention = GroupedAttention | LatentAttention | CompressedAttention


@dataclass(frozen=True, slots=True)
class Mlp:
    """A gated feed-forward network of `size`; with `num_experts`, of which a token uses some, and shared ones.

    Without experts `size` is the dense width and the other numbers are 0.
    """

    size: int
    num_experts: int = 0
    num_experts_per_token: int = 0
    shared_size: int = 0

    def list_matrices(self, hidden: int) -> list[Matrix]:
        """Gate, up and down, of every expert, and the router."""
        if not self.num_experts:
            return _list_gated("ffn", self.size, hidden, "mlp", 1)
        matrices = [Matrix("ffn_router", self.num_experts, hidden, "kept")]
        if self.shared_size:
            matrices += _list_gated("ffn_shared", self.shared_size, hidden, "mlp", 1)
        return matrices + _list_gated("ffn_experts", self.size, hidden, "expert", self.num_experts)


def _list_gated(name: str, size: int, hidden: int, role: Role, count: int) -> list[Matrix]:
    return [
        Matrix(f"{name}_gate", size, hidden, role, count),
        Matrix(f"{name}_up", size, hidden, role, count),
        Matrix(f"{name}_down", hidden, size, role, count),
    ]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer."""

    attention: Attention
    mlp: Mlp
    num_norms: int = 2


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only model; sizes in elements, `max_context` in tokens.

    `num_streams` residual streams are mixed before and after every part (DeepSeek-V4's hyper-connections).
    """

    name: str
    model_type: str
    vocab_size: int
    hidden_size: int
    max_context: int
    tie_embeddings: bool
    layers: tuple[Layer, ...]
    num_streams: int = 1

    @property
    def output(self) -> Matrix:
        """The matrix that makes logits; the embedding itself where the two are tied."""
        role: Role = "embedding" if self.tie_embeddings else "output"
        return Matrix("token_embd" if self.tie_embeddings else "output", self.vocab_size, self.hidden_size, role)

    @property
    def embedding(self) -> Matrix:
        """The table of token vectors."""
        return Matrix("token_embd", self.vocab_size, self.hidden_size, "embedding")

    def list_layer_matrices(self, index: int) -> Iterator[Matrix]:
        """Matrices of one layer, named within it."""
        layer = self.layers[index]
        yield from layer.attention.list_matrices(self.hidden_size)
        yield from layer.mlp.list_matrices(self.hidden_size)
        if self.num_streams > 1:
            num_mixed = (2 + self.num_streams) * self.num_streams
            yield Matrix("streams_mix", num_mixed, self.num_streams * self.hidden_size, "kept", count=2)

    def list_matrices(self, num_layers: int | None = None) -> Iterator[Matrix]:
        """Every matrix of the model (or of its first `num_layers`) once, named as in a GGUF file (`blk.0.attn_q`)."""
        yield self.embedding
        for index in range(len(self.layers) if num_layers is None else num_layers):
            for each in self.list_layer_matrices(index):
                yield Matrix(f"blk.{index}.{each.name}", each.rows, each.cols, each.role, each.count)
        if self.num_streams > 1:
            yield Matrix("streams_head", self.num_streams, self.num_streams * self.hidden_size, "kept")
        if not self.tie_embeddings:
            yield self.output

    def count_vector_weights(self) -> int:
        """Norms and other vectors, which stay in float32."""
        norms = sum(layer.num_norms * self.hidden_size for layer in self.layers) + self.hidden_size
        return norms + sum(layer.attention.count_vector_weights() for layer in self.layers)

    def count_parameters(self) -> int:
        """Weights of all matrices and vectors."""
        return sum(each.num_weights for each in self.list_matrices()) + self.count_vector_weights()

    def count_active_parameters(self) -> int:
        """Weights of matrices that one token is multiplied with: no embedding, only the experts it is sent to."""
        total = self.output.num_weights
        if self.num_streams > 1:
            total += self.num_streams * self.num_streams * self.hidden_size
        for index, layer in enumerate(self.layers):
            for each in self.list_layer_matrices(index):
                count = layer.mlp.num_experts_per_token if each.role == "expert" else each.count
                total += each.rows * each.cols * count
        return total
