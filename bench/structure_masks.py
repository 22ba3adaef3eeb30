"""What structured output costs: vocabulary, compilation and masks, walking random allowed tokens.

    python bench/structure_masks.py -m model.gguf [--walks 20] [--tokens 200]

Prints one line per structure and one JSON object at the end; times are wall-clock milliseconds on one thread.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from pelton.core.structure import Structure
from pelton.core.tools import ToolChoice, parse_tools
from pelton.loading.gguf import open_gguf
from pelton.structure.compiler import StructureCompiler
from pelton.structure.forced_calls import build_call_structure
from pelton.text.gguf_vocab import build_gguf_tokenizer
from pelton.text.tokenizer import Tokenizer
from pelton.text.tool_calls.hermes import HERMES

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 5},
        "friends": {"type": "array", "items": {"$ref": "#"}},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
WIDE = {"type": "object", "properties": {f"field_{i}": {"type": ["string", "number"]} for i in range(100)}}


def list_structures(tokenizer: Tokenizer) -> dict[str, Structure]:
    tools = parse_tools([{"type": "function", "function": {"name": f"f{i}", "parameters": PERSON}} for i in range(5)])
    forced = build_call_structure(tools, ToolChoice("required"), HERMES, tokenizer.find_token)
    assert forced is not None
    return {
        "json_object": Structure("json_object"),
        "json_schema, 5 properties, recursive": Structure("json_schema", PERSON),
        "json_schema, 100 optional properties": Structure("json_schema", WIDE),
        "regex, 200 words": Structure("regex", r"([A-Za-z]{1,15}[ ,.]){1,200}"),
        "choice of 1000": Structure("choice", [f"item {i} of the list" for i in range(1000)]),
        "tool call, 5 tools": forced,
    }


def measure(compiler: StructureCompiler, structure: Structure, num_walks: int, num_tokens: int) -> dict[str, float]:
    start_s = time.perf_counter()
    compiler.compile(structure)
    compile_ms = (time.perf_counter() - start_s) * 1e3
    mask = np.empty((compiler.vocab_size + 31) // 32, np.uint32)
    mask_ms, accept_ms = [], []
    for seed in range(num_walks):
        rng = np.random.default_rng(seed)
        constraint = compiler.compile(structure)
        for _ in range(num_tokens):
            start_s = time.perf_counter()
            constraint.fill_mask(mask)
            mask_ms.append((time.perf_counter() - start_s) * 1e3)
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            if constraint.is_complete:
                break
            token_id = int(rng.choice(allowed))
            start_s = time.perf_counter()
            constraint.accept(token_id)
            accept_ms.append((time.perf_counter() - start_s) * 1e3)
    p50, p99, worst = (float(np.percentile(mask_ms, q)) for q in (50, 99, 100))
    return {
        "compile_ms": compile_ms,
        "mask_p50_ms": p50,
        "mask_mean_ms": float(np.mean(mask_ms)),
        "mask_p99_ms": p99,
        "mask_max_ms": worst,
        "accept_mean_ms": float(np.mean(accept_ms)),
        "num_masks": len(mask_ms),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--walks", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=200)
    arguments = parser.parse_args()
    with open_gguf(arguments.model) as file:
        tokenizer = build_gguf_tokenizer(file.metadata)
    compiler = StructureCompiler(tokenizer)
    start_s = time.perf_counter()
    compiler.compile(Structure("choice", ["a"]))
    vocabulary_ms = (time.perf_counter() - start_s) * 1e3
    print(f"vocabulary of {tokenizer.vocab_size} tokens: {vocabulary_ms:.0f} ms, once")
    results = {}
    for name, structure in list_structures(tokenizer).items():
        row = results[name] = measure(compiler, structure, arguments.walks, arguments.tokens)
        print(
            f"{name:38} compile {row['compile_ms']:6.1f} | mask p50 {row['mask_p50_ms']:6.3f} mean "
            f"{row['mask_mean_ms']:6.3f} p99 {row['mask_p99_ms']:6.3f} max {row['mask_max_ms']:6.2f} | accept "
            f"{row['accept_mean_ms']:6.4f} ms"
        )
    print(json.dumps({"vocabulary_ms": vocabulary_ms, "structures": results}))


if __name__ == "__main__":
    main()
