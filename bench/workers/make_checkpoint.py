"""Write a Llama GGUF file's weights as a bfloat16 checkpoint folder (config.json and safetensors), for vLLM.

    python make_checkpoint.py model.gguf folder

Needs the packages gguf, torch and safetensors. Start at `write_checkpoint`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

# GGUF name of a layer's tensor -> its name in a Hugging Face Llama checkpoint.
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def _get_value(reader: gguf.GGUFReader, key: str) -> float:
    field = reader.fields[key]
    return field.parts[field.data[0]].tolist()[0]


def make_config(reader: gguf.GGUFReader) -> dict[str, object]:
    """config.json of a Llama model with the file's sizes."""
    names = {tensor.name for tensor in reader.tensors}
    embedding = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    config: dict[str, object] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _get_value(reader, "llama.embedding_length"),
        "intermediate_size": _get_value(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _get_value(reader, "llama.block_count"),
        "num_attention_heads": _get_value(reader, "llama.attention.head_count"),
        "num_key_value_heads": _get_value(reader, "llama.attention.head_count_kv"),
        "max_position_embeddings": _get_value(reader, "llama.context_length"),
        "rms_norm_eps": _get_value(reader, "llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": _get_value(reader, "llama.rope.freq_base"),
        "hidden_act": "silu",
        "vocab_size": int(embedding.shape[1]),
        "tie_word_embeddings": "output.weight" not in names,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return config


def _to_hugging_face_rows(matrix: np.ndarray, num_heads: int) -> np.ndarray:
    """GGUF keeps the pairs that rotate together side by side; a checkpoint keeps them half a head apart."""
    rows, cols = matrix.shape
    return matrix.reshape(num_heads, rows // num_heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def write_checkpoint(source: Path, folder: Path) -> None:
    """Dequantise everything; `folder` appears under its name only when complete."""
    reader = gguf.GGUFReader(source)
    config = make_config(reader)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name = _NAMES.get(tensor.name, "lm_head.weight")
        if tensor.name.startswith("blk."):
            _, layer, part, _ = tensor.name.split(".")
            name = f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight"
            if part in heads:
                values = _to_hugging_face_rows(values, int(str(heads[part])))
        tensors[name] = torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
    (partial / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    partial.rename(folder)


if __name__ == "__main__":
    write_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]))
