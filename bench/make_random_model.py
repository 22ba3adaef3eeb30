"""Write a GGUF file with random weights in the shape of a known model: for speed, where no real file is at hand.

    python bench/make_random_model.py build/llama-1b-q4_k.gguf --shape llama-3.2-1b --type Q4_K

The text such a model writes is noise; its speed is that of a real one. Needs the `gguf` package. Start at `SHAPES`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from gguf import GGMLQuantizationType as GgmlType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "models"))

from random_gguf import RandomLlama, RandomRope, write_gguf

# From the config.json that each model was published with, but for the first.
SHAPES = {
    # The shape of Llama 3.2 1B with a smaller vocabulary: 1.07 billion parameters, of which a step reads every one.
    "llama-1b": RandomLlama(
        name="llama-1b", hidden_size=2048, num_layers=16, num_heads=32, num_kv_heads=8, head_dim=64,
        intermediate_size=8192, vocab_size=49152, max_context=8192, is_tied=True, rope=RandomRope(theta=500000.0),
    ),
    "smollm2-135m": RandomLlama(
        name="smollm2-135m", hidden_size=576, num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64,
        intermediate_size=1536, vocab_size=49152, max_context=8192, is_tied=True, rope=RandomRope(theta=100000.0),
    ),
    "smollm2-360m": RandomLlama(
        name="smollm2-360m", hidden_size=960, num_layers=32, num_heads=15, num_kv_heads=5, head_dim=64,
        intermediate_size=2560, vocab_size=49152, max_context=8192, is_tied=True, rope=RandomRope(theta=100000.0),
    ),
    "tinyllama-1.1b": RandomLlama(
        name="tinyllama-1.1b", hidden_size=2048, num_layers=22, num_heads=32, num_kv_heads=4, head_dim=64,
        intermediate_size=5632, vocab_size=32000, max_context=2048,
    ),
    "llama-3.2-1b": RandomLlama(
        name="llama-3.2-1b", hidden_size=2048, num_layers=16, num_heads=32, num_kv_heads=8, head_dim=64,
        intermediate_size=8192, vocab_size=128256, max_context=131072, is_tied=True,
        rope=RandomRope(theta=500000.0, scaling="llama3", factor=32.0, original_context=8192),
    ),
    "llama-2-7b": RandomLlama(
        name="llama-2-7b", hidden_size=4096, num_layers=32, num_heads=32, num_kv_heads=32, head_dim=128,
        intermediate_size=11008, vocab_size=32000, max_context=4096,
    ),
}  # fmt: skip
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
MIXTURES = ("Q4_K_M",)


def list_q6_tensors(num_layers: int) -> list[str]:
    """Names of the layers' matrices that are Q6_K in a Q4_K_M file; the others are Q4_K.

    llama.cpp, src/llama-quant.cpp, `use_more_bits`: the first and last eighth of the layers, and every third between.
    """
    eighth = num_layers // 8
    layers = [i for i in range(num_layers) if i < eighth or i >= 7 * num_layers // 8 or (i - eighth) % 3 == 2]
    return [f"blk.{i}.{name}.weight" for i in layers for name in ("attn_v", "ffn_down")]


def make_model(shape: str, type_name: str, embedding_type: str | None) -> RandomLlama:
    """Return the shape with its types; the embedding is as llama.cpp's quantizer has it unless a type is given."""
    if type_name == "Q4_K_M":
        q6_tensors = dict.fromkeys(list_q6_tensors(SHAPES[shape].num_layers), GgmlType.Q6_K)
        types = {"weight_type": GgmlType.Q4_K, "tensor_types": q6_tensors}
    else:
        types = {"weight_type": GgmlType[type_name]}
    default = "Q6_K" if type_name in ("Q4_0", "Q4_1", "Q4_K", "Q4_K_M") else "Q8_0"
    return replace(SHAPES[shape], **types, embedding_type=GgmlType[embedding_type or default])


def main() -> None:
    """Command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-3.2-1b")
    parser.add_argument("--type", choices=TYPES + MIXTURES, default="Q4_0", help="of the layers' matrices")
    parser.add_argument("--embedding-type", choices=TYPES, help="of the embedding and output matrices")
    arguments = parser.parse_args()
    model = make_model(arguments.shape, arguments.type, arguments.embedding_type)
    arguments.path.parent.mkdir(parents=True, exist_ok=True)
    partial = arguments.path.with_suffix(".partial")
    write_gguf(model, partial)
    partial.replace(arguments.path)
    print(f"{arguments.path}: {arguments.path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
