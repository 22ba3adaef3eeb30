"""Which architecture is implemented where: one line per family.

Entry point: `get_family`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pelton.core.errors import UnsupportedModelError
from pelton.core.model_config import ModelConfig
from pelton.models import llama


@dataclass(frozen=True, slots=True)
class Family:
    """The functions of a family file. Weights are the family's own type, opaque to everybody else."""

    read_config: Callable[[Mapping[str, object], llama.TensorSource, int], ModelConfig]
    load_weights: Callable[[ModelConfig, llama.TensorSource], Any]  # Any: each family has its own weights type
    forward: Callable[[Any, ModelConfig, Any], Any]  # Any: works on the values of whichever Ops it is given
    forward_hidden: Callable[[Any, ModelConfig, Any], Any]  # Any: the same


_FAMILIES = {"llama": Family(llama.read_config, llama.load_weights, llama.forward, llama.forward_hidden)}


def get_family(architecture: object) -> Family:
    """Return the family of `general.architecture`. Raises `UnsupportedModelError` listing those implemented."""
    if not isinstance(architecture, str) or architecture not in _FAMILIES:
        raise UnsupportedModelError(
            f"general.architecture is {architecture!r}; supported: {', '.join(sorted(_FAMILIES))}"
        )
    return _FAMILIES[architecture]
