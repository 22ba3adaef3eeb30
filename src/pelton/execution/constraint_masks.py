"""`ConstraintMasks`: fills the masks of constrained requests in a worker thread while the model runs.

An error of one request's constraint is that request's only. Must not know how masks are used or made; entry point:
`ConstraintMasks.start`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from pelton.core.request import Request
from pelton.core.step_plan import SampledToken
from pelton.sampling.masks import TokenMask, count_mask_words

# A mask, or why there is none.
MaskOrError = TokenMask | str


class ConstraintMasks:
    """Masks for one vocabulary. The thread is started when the first constrained request comes."""

    def __init__(self, vocab_size: int) -> None:
        self._num_words = count_mask_words(vocab_size)
        self._executor: ThreadPoolExecutor | None = None

    def start(self, requests: Sequence[Request]) -> Future[dict[str, MaskOrError]] | None:
        """Begin to fill the masks of those `requests` that are constrained; None if none is."""
        constrained = [request for request in requests if request.constraint is not None]
        if not constrained:
            return None
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pelton-masks")
        return self._executor.submit(self._fill, constrained)

    def close(self) -> None:
        """End the thread."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None

    def _fill(self, requests: Sequence[Request]) -> dict[str, MaskOrError]:
        masks: dict[str, MaskOrError] = {}
        rows = np.zeros((len(requests), self._num_words), np.uint32)
        for request, row in zip(requests, rows, strict=True):
            assert request.constraint is not None
            masks[request.request_id] = row
            try:
                request.constraint.fill_mask(row)
            except Exception as error:  # whatever a constraint raises ends its own request and no other
                masks[request.request_id] = _describe(error)
        return masks


def accept_tokens(requests: Sequence[Request], sampled: Mapping[str, SampledToken]) -> dict[str, str]:
    """Give sampled tokens to the constraints of their requests; return the requests that fail by it, and why."""
    failed: dict[str, str] = {}
    for request in requests:
        token = sampled.get(request.request_id)
        if request.constraint is None or token is None:
            continue
        try:
            request.constraint.accept(token.token_id)
        except Exception as error:  # as above
            failed[request.request_id] = _describe(error)
    return failed


def _describe(error: Exception) -> str:
    return f"the structure asked for could not be followed: {type(error).__name__}: {error}"
