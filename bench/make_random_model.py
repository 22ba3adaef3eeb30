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

# From the config.json that each model was published with.
SHAPES = {
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


def main() -> None:
    """Command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-3.2-1b")
    parser.add_argument("--type", choices=TYPES, default="Q4_0", help="block type of the layers' matrices")
    parser.add_argument("--embedding-type", choices=TYPES, default="Q8_0", help="of the embedding and output matrices")
    arguments = parser.parse_args()
    model = replace(
        SHAPES[arguments.shape],
        weight_type=GgmlType[arguments.type],
        embedding_type=GgmlType[arguments.embedding_type],
    )
    arguments.path.parent.mkdir(parents=True, exist_ok=True)
    write_gguf(model, arguments.path)
    print(f"{arguments.path}: {arguments.path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
