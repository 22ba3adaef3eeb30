"""`SamplingRow`: what one row of logits is sampled with. Knows nothing about how; plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pelton.core.request import Request
from pelton.core.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """Parameters and history of one row.

    `seed` is 0 to 2^64 - 1 and used whatever `params.seed` says. `position` numbers the request's output tokens from
    0; (seed, position) fixes the noise. The history is read only by the penalties.
    """

    params: SamplingParams
    seed: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    position: int

    @classmethod
    def from_request(cls, request: Request) -> SamplingRow:
        """Return the row that samples the next token of `request`; it shares the request's lists."""
        output = request.output_token_ids
        return cls(request.params, request.seed, request.prompt_token_ids, output, len(output))
