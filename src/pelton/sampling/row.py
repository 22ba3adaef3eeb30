"""`SamplingRow`: what one row of logits is sampled with. Knows nothing about how; plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pelton.core.request import Request
from pelton.core.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class SamplingRow:
    """Parameters and history of one row.

    `seed` is 0 to 2^64 - 1 and used whatever `params.seed` says. `position` numbers the request's output tokens from
    0; (seed, position) fixes the noise. The history is read only by the penalties. `mirostat_mu` is mirostat's bound
    after the tokens so far, None before the first. `mask` [ceil(V / 32)] uint32 has bit i % 32 of word i // 32 set if
    token i is allowed; None allows all.
    """

    params: SamplingParams
    seed: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    position: int
    mirostat_mu: float | None = None
    mask: NDArray[np.uint32] | None = None

    @classmethod
    def from_request(cls, request: Request, mask: NDArray[np.uint32] | None = None) -> SamplingRow:
        """Return the row that samples the next token of `request`; it shares the request's lists."""
        output = request.output_token_ids
        prompt = request.prompt_token_ids
        return cls(request.params, request.seed, prompt, output, len(output), request.mirostat_mu, mask)

    def get_mirostat_bound(self) -> float | None:
        """Most bits a token may surprise by: twice tau at first (Basu et al. 2021, Algorithm 1); None: off."""
        if self.params.mirostat == 0:
            return None
        return 2 * self.params.mirostat_tau if self.mirostat_mu is None else self.mirostat_mu
