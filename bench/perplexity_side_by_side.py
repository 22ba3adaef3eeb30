"""Perplexity of Pelton and llama.cpp over the same text, windows and convention, and whether they read the same tokens.

    python bench/perplexity_side_by_side.py -m model.gguf              # a text every Python has, 40 kB
    python bench/perplexity_side_by_side.py -m model.gguf --text FILE

Start at `main`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from make_text import make_text
from worker_process import (
    DEFAULT_WORKDIR,
    WorkerError,
    count_physical_cores,
    default_pelton_python,
    find_peer_python,
    start_llama_cpp,
    start_pelton,
)

MAX_DIFFERENCE = 0.005


def parse_arguments() -> argparse.Namespace:
    """Command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, help="UTF-8 text file; by default one is made under --workdir")
    parser.add_argument("--context", type=int, default=512, help="window length in tokens")
    parser.add_argument("--threads", type=int, default=count_physical_cores())
    parser.add_argument("--workdir", type=Path, default=DEFAULT_WORKDIR)
    parser.add_argument("--peer-python", type=Path)
    parser.add_argument("--pelton-python", type=Path)
    arguments = parser.parse_args()
    if arguments.text is None:
        arguments.text = arguments.workdir / "text.txt"
        arguments.text.parent.mkdir(parents=True, exist_ok=True)
        arguments.text.write_text(make_text(40_000), encoding="utf-8")
    return arguments


def describe_token_difference(ours: list[int], theirs: list[int]) -> str:
    """Say whether two tokenisations agree, and where they first do not."""
    if ours == theirs:
        return f"same {len(ours)} tokens"
    first = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return f"tokens differ from position {first} on ({len(ours)} against {len(theirs)} tokens)"


def main() -> int:
    """Run both, print both; exit code 1 when they differ by more than 0.5 %."""
    arguments = parse_arguments()
    request: dict[str, Any] = {"text_path": str(arguments.text.resolve()), "num_context": arguments.context}
    peer_python = find_peer_python(arguments.peer_python, arguments.workdir)
    common = (arguments.model, arguments.threads)
    with start_llama_cpp(peer_python, *common, flash_attention=False, workdir=arguments.workdir) as peer:
        theirs = peer.ask("perplexity", **request)
    with start_pelton(arguments.pelton_python or default_pelton_python(), *common, workdir=arguments.workdir) as pelton:
        ours = pelton.ask("perplexity", **request)
    difference = ours["perplexity"] / theirs["perplexity"] - 1
    for label, answer in (("pelton", ours), ("llama.cpp", theirs)):
        print(
            f"{label:10} perplexity {answer['perplexity']:.4f}  windows {answer['windows']}  tokens {answer['tokens']}"
        )
    print(f"text       {arguments.text} ({arguments.text.stat().st_size} bytes), windows of {arguments.context} tokens")
    print(f"tokens     {describe_token_difference(ours['token_ids'], theirs['token_ids'])}")
    is_close = abs(difference) <= MAX_DIFFERENCE
    print(f"difference {difference:+.3%} (allowed {MAX_DIFFERENCE:.1%}): {'met' if is_close else 'NOT MET'}")
    return 0 if is_close else 1


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except WorkerError as error:
        raise SystemExit(str(error)) from error
