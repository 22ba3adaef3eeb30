"""Pelton: an LLM inference engine for the machine you have.

    from pelton import LLM, SamplingParams

Everything public is listed in `__all__` and imported when it is first used, so that `import pelton` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pelton.core import errors
    from pelton.core.config import EngineConfig
    from pelton.core.errors import PeltonError
    from pelton.core.outputs import Choice, GenerationResult, RequestOutput
    from pelton.core.request_options import RequestOptions
    from pelton.core.sampling_params import SamplingParams
    from pelton.core.structure import Structure
    from pelton.engine.async_engine import AsyncEngine
    from pelton.engine.llm import LLM

__all__ = [
    "LLM",
    "AsyncEngine",
    "Choice",
    "EngineConfig",
    "GenerationResult",
    "PeltonError",
    "RequestOptions",
    "RequestOutput",
    "SamplingParams",
    "Structure",
    "__version__",
    "errors",
]

_MODULE_OF_NAME = {
    "LLM": "pelton.engine.llm",
    "AsyncEngine": "pelton.engine.async_engine",
    "Choice": "pelton.core.outputs",
    "EngineConfig": "pelton.core.config",
    "GenerationResult": "pelton.core.outputs",
    "PeltonError": "pelton.core.errors",
    "RequestOptions": "pelton.core.request_options",
    "RequestOutput": "pelton.core.outputs",
    "SamplingParams": "pelton.core.sampling_params",
    "Structure": "pelton.core.structure",
}


def __getattr__(name: str) -> object:
    if name == "errors":
        return importlib.import_module("pelton.core.errors")
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'pelton' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_MODULE_OF_NAME[name]), name)
    globals()[name] = value  # the next access no longer comes here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
