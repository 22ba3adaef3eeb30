"""What a worker process understands, the same for every engine: one JSON object a line in, one a line out.

    {"command": "prefill", "num_tokens": 512, "depth": 0}                    -> {"seconds": 0.31}
    {"command": "decode", "num_new_tokens": 128, "depth": 0, "num_seqs": 1}  -> {"seconds": 0.62}
    {"command": "perplexity", "text_path": "a.txt", "num_context": 512}      -> {"perplexity": 14.1, ...}

The first line out, before any command, describes the engine. A failure is {"error": "..."}. Standard library only:
the file runs in environments that have nothing in common. Start at `serve`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

SEED = 20240607


def random_token_ids(count: int, vocab_size: int) -> list[int]:
    """The same `count` uniformly random ids for every engine."""
    generator = random.Random(SEED)
    return [generator.randrange(vocab_size) for _ in range(count)]


class Engine(ABC):
    """What a worker can be asked; times are seconds of wall clock, loading and warm-up left out."""

    name: str

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """Version, settings and instruction sets in use."""

    @abstractmethod
    def prefill(self, num_tokens: int, depth: int) -> float:
        """Seconds to compute `num_tokens` of a prompt behind `depth` cached ones, up to the logits of the last."""

    @abstractmethod
    def decode(self, num_new_tokens: int, depth: int, num_seqs: int) -> float:
        """Seconds for `num_new_tokens` decode steps of `num_seqs` sequences that start `depth` tokens deep."""

    @abstractmethod
    def perplexity(self, text: str, num_context: int) -> dict[str, object]:
        """Perplexity of `text` with llama.cpp's convention, and how many windows and tokens were scored."""


def _answer(engine: Engine, request: dict[str, object]) -> dict[str, object]:
    arguments = dict(request)
    command = arguments.pop("command")
    if command == "prefill":
        counts = {key: int(str(arguments[key])) for key in ("num_tokens", "depth")}
        return {"seconds": engine.prefill(**counts)}
    if command == "decode":
        counts = {key: int(str(arguments[key])) for key in ("num_new_tokens", "depth", "num_seqs")}
        return {"seconds": engine.decode(**counts)}
    if command == "perplexity":
        text = Path(str(arguments["text_path"])).read_text(encoding="utf-8")
        return engine.perplexity(text, int(str(arguments["num_context"])))
    raise ValueError(f"command is {command!r}; allowed: prefill, decode, perplexity")


def serve(make_engine: Callable[[], Engine]) -> None:
    """Load the engine, describe it, then answer commands until standard input ends."""
    # Libraries may print: keep the real standard output for answers and send theirs to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(answer: dict[str, object]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        engine = make_engine()
    except Exception as error:  # a worker reports whatever went wrong to the process that started it
        send({"error": f"{type(error).__name__}: {error}"})
        traceback.print_exc()
        return
    send({"engine": engine.name, **engine.describe()})
    for line in sys.stdin:
        try:
            send(_answer(engine, json.loads(line)))
        except Exception as error:  # as above
            send({"error": f"{type(error).__name__}: {error}"})
            traceback.print_exc()
