"""Fixtures of the model tests: the random models as files, their goldens, and the default model."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from golden_cases import TINY_GOLDENS
from random_gguf import RandomLlama, write_gguf

from pelton import LLM


@pytest.fixture(scope="session")
def write_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[RandomLlama], Path]:
    """Return a function that gives the path of a random model's file, written when first asked for."""
    directory = tmp_path_factory.mktemp("random_models")

    def write(model: RandomLlama) -> Path:
        path = directory / f"{model.name}.gguf"
        return path if path.exists() else write_gguf(model, path)

    return write


@pytest.fixture(scope="session")
def tiny_goldens() -> dict[str, dict[str, np.ndarray]]:
    """Stored results by case name, then by array name."""
    goldens: dict[str, dict[str, np.ndarray]] = {}
    with np.load(TINY_GOLDENS) as archive:
        for key in archive.files:
            case, name = key.split("/")
            goldens.setdefault(case, {})[name] = archive[key]
    return goldens


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's file, where `make test` has put it."""
    return Path(os.environ["PELTON_TEST_MODEL"])


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Iterator[LLM]:
    """The default model, loaded once."""
    with LLM(smollm2_path, threads=2, kv_cache_tokens=4096) as llm:
        yield llm
