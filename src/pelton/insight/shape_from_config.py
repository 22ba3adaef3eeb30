"""A `ModelShape` from a config.json with Hugging Face keys. A key that is missing is named; nothing is guessed.

Presets pass through here as well. To add an architecture, write a function and add it to `_READERS`.
Start at `read_shape`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pelton.core.errors import ModelFileError, UnsupportedModelError
from pelton.insight.model_shape import (
    CompressedAttention,
    GroupedAttention,
    Indexer,
    LatentAttention,
    Layer,
    Mlp,
    ModelShape,
)

_MAX_INT = 2**31 - 1
_MAX_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class ConfigReader:
    """Typed reads of one config; every error names `source`, the key, the value and what is allowed."""

    values: Mapping[str, object]
    source: str

    def get_int(self, key: str, default: int | None = None, maximum: int = _MAX_INT) -> int:
        """A positive integer; `default` where the key is absent or null (None: it is needed)."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
            raise ModelFileError(f"{self.source}: {key} is {value!r}; allowed: an integer, 1 to {maximum}")
        return value

    def get_count(self, key: str) -> int:
        """An integer of at least 0; 0 where the key is absent or null."""
        return 0 if self.values.get(key) in (None, 0) else self.get_int(key)

    def get_flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelFileError(f"{self.source}: {key} is {value!r}; allowed: true or false")
        return value

    def get_list(self, key: str, length: int) -> list[object] | None:
        """The first `length` entries of a list, None where there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < length:
            raise ModelFileError(
                f"{self.source}: {key} is {value!r}; allowed: a list of {length} entries, one per layer"
            )
        return value[:length]

    def require(self, *keys: str) -> None:
        """Raise `ModelFileError` that names all of `keys` that are missing."""
        missing = [key for key in keys if self.values.get(key) is None]
        if missing:
            raise ModelFileError(f"{self.source}: the config lacks {', '.join(missing)}")


_COMMON = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")


def read_shape(values: Mapping[str, object], source: str) -> ModelShape:
    """Make the shape; `source` is what messages call the config.

    Raises `ModelFileError` for missing or impossible values, `UnsupportedModelError` for another architecture.
    """
    model_type = values.get("model_type")
    if model_type is None:
        raise ModelFileError(f"{source}: the config lacks model_type")
    text = values.get("text_config")
    # Models that also take pictures keep the language model's keys apart.
    if isinstance(text, Mapping) and "hidden_size" not in values:
        return read_shape({"model_type": model_type, **text}, source)
    reader = _READERS.get(model_type) if isinstance(model_type, str) else None
    if reader is None:
        raise UnsupportedModelError(f"{source}: model_type is {model_type!r}; supported: {', '.join(sorted(_READERS))}")
    return reader(ConfigReader(values, source))


def _make(config: ConfigReader, layers: list[Layer], *, tied: bool, num_streams: int = 1) -> ModelShape:
    return ModelShape(
        name=config.source,
        model_type=str(config.values["model_type"]),
        vocab_size=config.get_int("vocab_size"),
        hidden_size=config.get_int("hidden_size"),
        max_context=config.get_int("max_position_embeddings"),
        tie_embeddings=config.get_flag("tie_word_embeddings", tied),
        layers=tuple(layers),
        num_streams=num_streams,
    )


def _read_grouped(config: ConfigReader, *, window: int | None = None, **flags: bool) -> GroupedAttention:
    num_heads = config.get_int("num_attention_heads")
    num_kv_heads = config.get_int("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ModelFileError(
            f"{config.source}: num_key_value_heads is {num_kv_heads}; allowed: divisors of num_attention_heads, "
            f"{num_heads}"
        )
    head_dim = config.get_int("head_dim", max(config.get_int("hidden_size") // num_heads, 1))
    return GroupedAttention(num_heads, num_kv_heads, head_dim, window, **flags)


def _read_llama(config: ConfigReader) -> ModelShape:
    config.require(*_COMMON, "intermediate_size")
    attention = _read_grouped(config, has_bias=config.get_flag("attention_bias", False))
    layer = Layer(attention, Mlp(config.get_int("intermediate_size")))
    return _make(config, [layer] * config.get_int("num_hidden_layers", maximum=_MAX_LAYERS), tied=False)


def _read_mistral(config: ConfigReader) -> ModelShape:
    config.require(*_COMMON, "intermediate_size")
    window = config.get_int("sliding_window") if config.values.get("sliding_window") is not None else None
    layer = Layer(_read_grouped(config, window=window), Mlp(config.get_int("intermediate_size")))
    return _make(config, [layer] * config.get_int("num_hidden_layers", maximum=_MAX_LAYERS), tied=False)


def _read_mixtral(config: ConfigReader) -> ModelShape:
    config.require(*_COMMON, "intermediate_size", "num_local_experts", "num_experts_per_tok")
    mlp = Mlp(config.get_int("intermediate_size"), config.get_int("num_local_experts"), _read_num_used(config))
    layer = Layer(_read_grouped(config), mlp)
    return _make(config, [layer] * config.get_int("num_hidden_layers", maximum=_MAX_LAYERS), tied=False)


def _read_num_used(config: ConfigReader) -> int:
    key = next(key for key in ("num_local_experts", "num_experts", "n_routed_experts") if key in config.values)
    return config.get_int("num_experts_per_tok", maximum=config.get_int(key))


def _read_qwen2(config: ConfigReader) -> ModelShape:
    config.require(*_COMMON, "intermediate_size")
    layer = Layer(_read_grouped(config, has_bias=True), Mlp(config.get_int("intermediate_size")))
    return _make(config, [layer] * config.get_int("num_hidden_layers", maximum=_MAX_LAYERS), tied=False)


def _read_qwen3(config: ConfigReader) -> ModelShape:
    config.require(*_COMMON, "intermediate_size", "head_dim")
    layer = Layer(_read_grouped(config, has_qk_norm=True), Mlp(config.get_int("intermediate_size")))
    return _make(config, [layer] * config.get_int("num_hidden_layers", maximum=_MAX_LAYERS), tied=False)


def _read_qwen3_moe(config: ConfigReader) -> ModelShape:
    config.require(*_COMMON, "head_dim", "num_experts", "num_experts_per_tok", "moe_intermediate_size")
    mlp = Mlp(config.get_int("moe_intermediate_size"), config.get_int("num_experts"), _read_num_used(config))
    layer = Layer(_read_grouped(config, has_qk_norm=True), mlp)
    return _make(config, [layer] * config.get_int("num_hidden_layers", maximum=_MAX_LAYERS), tied=False)


def _read_gemma3(config: ConfigReader) -> ModelShape:
    config.require(*_COMMON, "intermediate_size", "head_dim", "num_key_value_heads", "sliding_window")
    num_layers = config.get_int("num_hidden_layers", maximum=_MAX_LAYERS)
    window = config.get_int("sliding_window")
    kinds = config.get_list("layer_types", num_layers)
    if kinds is None:
        # Five layers with a window, then one without (Gemma 3 report, arXiv:2503.19786, section 2).
        pattern = config.get_int("sliding_window_pattern", 6)
        is_windowed = [(index + 1) % pattern != 0 for index in range(num_layers)]
    else:
        is_windowed = [kind == "sliding_attention" for kind in kinds]
    mlp = Mlp(config.get_int("intermediate_size"))
    # Norms before and after attention and feed-forward.
    windowed = Layer(_read_grouped(config, window=window, has_qk_norm=True), mlp, num_norms=4)
    full = Layer(_read_grouped(config, has_qk_norm=True), mlp, num_norms=4)
    return _make(config, [windowed if each else full for each in is_windowed], tied=True)


def _read_experts(config: ConfigReader) -> Mlp:
    size = config.get_int("moe_intermediate_size")
    shared = size * config.get_count("n_shared_experts")
    return Mlp(size, config.get_int("n_routed_experts"), _read_num_used(config), shared)


def _read_indexer(config: ConfigReader) -> Indexer:
    config.require("index_n_heads", "index_head_dim", "index_topk")
    return Indexer(config.get_int("index_n_heads"), config.get_int("index_head_dim"), config.get_int("index_topk"))


def _read_deepseek_v3(config: ConfigReader) -> ModelShape:
    config.require(
        *_COMMON, "intermediate_size", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
        "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok", "first_k_dense_replace",
    )  # fmt: skip
    attention = LatentAttention(
        num_heads=config.get_int("num_attention_heads"),
        q_lora_rank=config.get_int("q_lora_rank") if config.values.get("q_lora_rank") is not None else None,
        kv_lora_rank=config.get_int("kv_lora_rank"),
        nope_dim=config.get_int("qk_nope_head_dim"),
        rope_dim=config.get_int("qk_rope_head_dim"),
        value_dim=config.get_int("v_head_dim"),
        indexer=_read_indexer(config) if config.values["model_type"] == "deepseek_v32" else None,
    )
    dense = Layer(attention, Mlp(config.get_int("intermediate_size")))
    sparse = Layer(attention, _read_experts(config))
    num_layers, num_dense = (
        config.get_int("num_hidden_layers", maximum=_MAX_LAYERS),
        config.get_count("first_k_dense_replace"),
    )
    return _make(config, [dense if i < num_dense else sparse for i in range(num_layers)], tied=False)


def _read_deepseek_v4(config: ConfigReader) -> ModelShape:
    config.require(
        *_COMMON, "head_dim", "qk_rope_head_dim", "q_lora_rank", "o_groups", "o_lora_rank", "sliding_window",
        "compress_ratios", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok", "hc_mult",
    )  # fmt: skip
    num_layers = config.get_int("num_hidden_layers", maximum=_MAX_LAYERS)
    indexer = _read_indexer(config)
    mlp = _read_experts(config)
    layers = []
    for ratio in config.get_list("compress_ratios", num_layers) or ():
        if isinstance(ratio, bool) or not isinstance(ratio, int) or ratio not in (0, 4, 128):
            raise ModelFileError(f"{config.source}: compress_ratios has {ratio!r}; allowed: 0, 4 and 128")
        attention = CompressedAttention(
            num_heads=config.get_int("num_attention_heads"),
            head_dim=config.get_int("head_dim"),
            rope_dim=config.get_int("qk_rope_head_dim"),
            q_lora_rank=config.get_int("q_lora_rank"),
            o_groups=config.get_int("o_groups"),
            o_lora_rank=config.get_int("o_lora_rank"),
            window=config.get_int("sliding_window"),
            ratio=ratio,
            indexer=indexer if ratio == 4 else None,
        )
        layers.append(Layer(attention, mlp))
    return _make(config, layers, tied=False, num_streams=config.get_int("hc_mult"))


_READERS: Mapping[str, Callable[[ConfigReader], ModelShape]] = {
    "llama": _read_llama,
    "mistral": _read_mistral,
    "mixtral": _read_mixtral,
    "qwen2": _read_qwen2,
    "qwen3": _read_qwen3,
    "qwen3_moe": _read_qwen3_moe,
    "gemma3": _read_gemma3,
    "gemma3_text": _read_gemma3,
    "deepseek_v3": _read_deepseek_v3,
    "deepseek_v32": _read_deepseek_v3,
    "deepseek_v4": _read_deepseek_v4,
}
