"""What Ollama's /api/tags and /api/show tell of the model: facts of the loaded model, what is unknown left out."""

from __future__ import annotations

from pelton.core.model_config import ModelConfig
from pelton.server.ollama_lines import format_time
from pelton.server.state import ServerState

Json = dict[str, object]


def list_models(state: ServerState) -> list[Json]:
    """One entry per served name, all of them the one model."""
    details = _make_details(state.engine.model_config)
    return [{"name": name, "model": name, **_make_file_facts(state), "details": details} for name in state.model_names]


def describe_model(state: ServerState) -> Json:
    """The answer of /api/show."""
    model, template = state.engine.model_config, state.engine.chat_template
    return {
        "modified_at": _make_file_facts(state)["modified_at"],
        "modelfile": "",
        "parameters": "",
        "template": "" if template is None else template.source,
        "details": _make_details(model),
        "model_info": _make_info(model, state.engine.context_length),
        "capabilities": ["completion", "embedding", *(["tools"] if template is not None else [])],
    }


def _make_file_facts(state: ServerState) -> Json:
    """When the model's file was written, and its bytes; when the server started, and 0, if it has none (any more)."""
    path = state.engine.model_path
    try:
        stat = None if path is None else path.stat()
    except OSError:
        stat = None
    if stat is None:
        return {"modified_at": format_time(state.created), "size": 0}
    return {"modified_at": format_time(stat.st_mtime), "size": stat.st_size}


def _make_details(model: ModelConfig) -> Json:
    return {"parent_model": "", "format": "gguf", "family": model.model_type, "families": [model.model_type]}


def _make_info(model: ModelConfig, context_length: int) -> Json:
    """GGUF's names of what is known; `context_length` is what requests may use, which can be less than the model's."""
    prefix = model.model_type
    return {
        "general.architecture": model.model_type,
        "general.basename": model.name,
        f"{prefix}.context_length": context_length,
        f"{prefix}.embedding_length": model.hidden_size,
        f"{prefix}.block_count": model.num_layers,
        f"{prefix}.feed_forward_length": model.intermediate_size,
        f"{prefix}.attention.head_count": model.num_heads,
        f"{prefix}.attention.head_count_kv": model.num_kv_heads,
        f"{prefix}.attention.key_length": model.head_dim,
        f"{prefix}.vocab_size": model.vocab_size,
    }
