"""`MaskMaker`: the tokens a request may sample next, as bits, from all that restricts them.

A mask [ceil(V / 32)] uint32 has bit i % 32 of word i // 32 set if token i is allowed. Must not know models or text;
entry point: `MaskMaker.make`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from pelton.core.request import Request
from pelton.core.sampling_params import SamplingParams

TokenMask = NDArray[np.uint32]

_MAX_NUM_CACHED = 256


def count_mask_words(vocab_size: int) -> int:
    """Words of a mask over `vocab_size` tokens."""
    return -(-vocab_size // 32)


class MaskMaker:
    """Makes masks for one vocabulary. Keeps those of `allowed_token_ids`, which are the same for all steps."""

    def __init__(self, vocab_size: int) -> None:
        self.num_words = count_mask_words(vocab_size)
        # By id of the tuple, which is kept beside the mask so that no other can get its id.
        self._allowed: OrderedDict[int, tuple[tuple[int, ...], TokenMask]] = OrderedDict()

    def make(self, request: Request, constraint_mask: TokenMask | None = None) -> TokenMask | None:
        """Return a request's mask for its next token, or None if every token is allowed.

        Allowed is what `constraint_mask` (may be longer; not changed) and `allowed_token_ids` both allow, but no end
        token before `min_tokens` and no token that completes one of `bad_token_sequences` in the output.
        """
        params = request.params
        banned = list(self._list_banned(request))
        if constraint_mask is None and params.allowed_token_ids is None and not banned:
            return None
        mask: TokenMask = np.full(self.num_words, 0xFFFFFFFF, np.uint32)
        if constraint_mask is not None:
            mask &= constraint_mask[: self.num_words]
        if params.allowed_token_ids is not None:
            mask &= self._get_allowed(params.allowed_token_ids)
        for token_id in banned:
            if token_id < 32 * self.num_words:
                mask[token_id // 32] &= np.uint32(~(1 << token_id % 32) & 0xFFFFFFFF)
        return mask

    def _list_banned(self, request: Request) -> Iterator[int]:
        params = request.params
        output = request.output_token_ids
        if len(output) < params.min_tokens:
            yield from request.eos_token_ids
            yield from params.stop_token_ids
        yield from _find_completing_tokens(params, output)

    def _get_allowed(self, token_ids: tuple[int, ...]) -> TokenMask:
        key = id(token_ids)
        if key not in self._allowed:
            self._allowed[key] = token_ids, make_mask(token_ids, self.num_words)
            if len(self._allowed) > _MAX_NUM_CACHED:
                self._allowed.popitem(last=False)
        return self._allowed[key][1]


def make_mask(token_ids: Iterable[int], num_words: int) -> TokenMask:
    """A mask of `num_words` words that allows exactly `token_ids`, which lie within it."""
    is_allowed = np.zeros(32 * num_words, np.uint8)
    is_allowed[list(token_ids)] = 1
    return np.packbits(is_allowed, bitorder="little").view("<u4").astype(np.uint32)


def _find_completing_tokens(params: SamplingParams, output: list[int]) -> Iterator[int]:
    """Last tokens of the bad sequences of which the output ends with all the others."""
    for sequence in params.bad_token_sequences:
        num_before = len(sequence) - 1
        if num_before == 0 or tuple(output[-num_before:]) == sequence[:-1]:
            yield sequence[-1]
