"""From what a user calls a model to its shape and formats: a preset, a GGUF file, a config.json, a hub repository.

Reads headers and configs, never weights. Start at `open_model`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pelton.core.errors import ModelFileError, ModelNotFoundError
from pelton.insight.kv_layout import KvFormat
from pelton.insight.model_shape import GroupedAttention, Layer, Mlp, ModelShape
from pelton.insight.nearest import suggest
from pelton.insight.prediction import Planned
from pelton.insight.presets import find_preset, list_presets
from pelton.insight.shape_from_config import read_shape
from pelton.insight.weight_formats import WEIGHT_FORMATS, ModelFormats, WeightFormat

if TYPE_CHECKING:
    from pelton.compute.ops import FloatArray, Weight
    from pelton.core.model_config import ModelConfig
    from pelton.loading.gguf import GgufFile

_CONFIG_NAME = "config.json"
_HUB_PREFIX = "hf:"
_MAX_CONFIG_BYTES = 16 << 20
_DEFAULT_WEIGHTS = "bf16"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model to plan for: its shape, the formats its weights have, and its usual KV type.

    `origin` says where the numbers are from; `is_runnable` whether a file of it was read that Pelton can run.
    """

    name: str
    origin: str
    shape: ModelShape
    formats: ModelFormats
    kv_cache_dtype: str
    is_runnable: bool = False


def open_model(name: str, cache_dir: Path) -> ModelSource:
    """Find the model `name`: a path, a preset, a known name whose file is in the cache, or hf:org/repo.

    Raises `ModelNotFoundError` with the nearest names, `ModelFileError`, `UnsupportedModelError`, `DownloadError`.
    """
    path = Path(name).expanduser() if name.startswith("~/") else Path(name)
    if name and "\0" not in name and _is_path(path):
        return _open_path(path)
    if name.startswith(_HUB_PREFIX):
        return _open_hub(name, cache_dir)
    cached = _find_cached(name, cache_dir)
    if cached is not None:
        return open_model_file(cached)
    preset = find_preset(name)
    if preset is not None:
        return ModelSource(
            name=preset.name,
            origin=preset.source,
            shape=preset.shape,
            formats=ModelFormats.from_names(preset.weights),
            kv_cache_dtype=preset.kv_cache_dtype,
        )
    forms = "a .gguf file, a config.json, hf:org/repo or a preset"
    if name.startswith((".", "/", "~")) or name.endswith((".gguf", ".json")) or name.count("/") > 1:
        raise ModelNotFoundError(f"{name!r} does not exist; allowed: {forms}")
    if "/" in name:
        return _open_hub(_HUB_PREFIX + name, cache_dir)
    raise ModelNotFoundError(f"no model is known as {name!r}; allowed: {forms}; {suggest(name, list_presets())}")


def make_shape(config: ModelConfig) -> ModelShape:
    """The shape of a model that Pelton runs."""
    attention = GroupedAttention(config.num_heads, config.num_kv_heads, config.head_dim, config.sliding_window)
    return ModelShape(
        name=config.name,
        model_type=config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        max_context=config.max_position_embeddings,
        tie_embeddings=config.tie_word_embeddings,
        layers=(Layer(attention, Mlp(config.intermediate_size)),) * config.num_layers,
    )


def _is_path(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _open_path(path: Path) -> ModelSource:
    if path.is_dir():
        if not (path / _CONFIG_NAME).is_file():
            raise ModelFileError(f"{path} is a directory without {_CONFIG_NAME}; allowed: a .gguf or config.json")
        path = path / _CONFIG_NAME
    return _open_config(path, str(path)) if path.suffix.lower() == ".json" else open_model_file(path)


def _open_config(path: Path, source: str) -> ModelSource:
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise ModelFileError(f"{source} has {path.stat().st_size} bytes; allowed: at most {_MAX_CONFIG_BYTES}")
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileError(f"{source} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{source} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelFileError(f"{source} is not a JSON object but {type(values).__name__}; allowed: a model's config")
    shape = read_shape(values, source)
    is_latent = not isinstance(shape.layers[0].attention, GroupedAttention)
    formats = ModelFormats.make_uniform(_get_config_format(values))
    return ModelSource(source, source, shape, formats, "mixed" if is_latent else "f16")


def _get_config_format(values: Mapping[str, object]) -> str:
    names = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
    dtype = values.get("torch_dtype", values.get("dtype"))
    return names.get(dtype, _DEFAULT_WEIGHTS) if isinstance(dtype, str) else _DEFAULT_WEIGHTS


def _open_hub(name: str, cache_dir: Path) -> ModelSource:
    """Fetch the config.json of a repository, and nothing else of it."""
    from pelton.loading.cache_place import get_place
    from pelton.loading.hub_source import download_file, find_file
    from pelton.loading.references import HubReference, parse_reference

    reference = parse_reference(name)
    assert isinstance(reference, HubReference), "the prefix says so"
    if reference.file not in (None, _CONFIG_NAME):
        raise ModelNotFoundError(f"model {name!r} names a file; allowed: hf:org/repo, whose {_CONFIG_NAME} is read")
    folder = get_place(HubReference(reference.repo_id, None), cache_dir).folder
    path = folder / _CONFIG_NAME
    if not path.is_file():
        # Looked up first: that fails at once without a network, where a download tries again for half a minute.
        file = find_file(HubReference(reference.repo_id, _CONFIG_NAME))
        path = download_file(file, folder, lambda num_bytes: None)
    return _open_config(path, f"{_HUB_PREFIX}{reference.repo_id}")


def _find_cached(name: str, cache_dir: Path) -> Path | None:
    """The file of a known model, if it is here already."""
    from pelton.loading.catalog import CATALOG

    if name not in CATALOG:
        return None
    from pelton.loading.cache_place import get_place

    try:
        return get_place(CATALOG[name], cache_dir).find()
    except OSError:
        return None


class _HeaderSource:
    """What a family asks of a file while it reads the config: which tensors are there, and small vectors."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file

    def has(self, name: str) -> bool:
        return name in self._file.tensors

    def get_matrix(self, name: str, rows: int, cols: int) -> Weight:
        raise NotImplementedError("a config is read without weights")

    def get_vector(self, name: str, size: int) -> FloatArray:
        from pelton.quant.dequantize import dequantize

        tensor = self._file.tensors[name]
        return dequantize(tensor.data, tensor.type, tensor.shape)


def open_model_file(path: Path) -> ModelSource:
    """Read the header of a GGUF file. Raises `ModelFileError`, `ModelNotFoundError`, `UnsupportedModelError`."""
    from pelton.loading.gguf import open_gguf
    from pelton.models.registry import get_family

    with open_gguf(path) as file:
        family = get_family(file.metadata.get("general.architecture"))
        embedding = file.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise ModelFileError(f"{path}: tensor 'token_embd.weight' is missing or not a matrix")
        config = family.read_config(file.metadata, _HeaderSource(file), embedding.shape[0])
        names = {name: tensor.type.name.lower() for name, tensor in file.tensors.items() if len(tensor.shape) == 2}
    by_name: dict[str, WeightFormat] = {
        name.removesuffix(".weight"): WEIGHT_FORMATS[each] for name, each in names.items()
    }
    formats = ModelFormats(by_name["token_embd"], {}, by_name)
    return ModelSource(config.name, str(path), make_shape(config), formats, "f16", is_runnable=True)


def read_planned(path: Path, kv_cache_dtype: str) -> Planned:
    """The model of a GGUF file as it is to be run, from the file's header; raises as `open_model_file` does."""
    source = open_model_file(path)
    return Planned(source.shape, source.formats, KvFormat(kv_cache_dtype))
