"""Many prompts from a file in bounded memory: one JSON line per answer, in the order of the prompts.

    python examples/offline_batch.py prompts.txt > answers.jsonl
    python examples/offline_batch.py prompts.txt --model model.gguf --max-tokens 200

Prompts are read as room comes free in the batch, one per line; a million of them need no more memory than a thousand.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from pelton import LLM, SamplingParams


def read_prompts(path: Path) -> Iterator[str]:
    """Yield the lines of a file that are not blank."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield line.rstrip("\n")


def main() -> None:
    """Answer every line of a file."""
    parser = argparse.ArgumentParser(description="Answer every line of a file.")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", default=None, help="a model as `pelton run -m` takes it")
    parser.add_argument("--max-tokens", type=int, default=64)
    arguments = parser.parse_args()
    params = SamplingParams(max_tokens=arguments.max_tokens, temperature=0.7, seed=1)
    with LLM(arguments.model) as llm:
        for result in llm.generate_iter(read_prompts(arguments.prompts), params):
            answer = {"text": result.text, "tokens": result.usage.completion_tokens, "finish": result.finish_reason}
            sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
