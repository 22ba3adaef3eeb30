"""`ParamsResolver`: turns the strings of `SamplingParams` into token ids, as one model's tokenizer writes them.

Must not know requests or logits, nor import the native module or NumPy. Entry point: `ParamsResolver.resolve`.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict

from pelton.core.errors import InvalidParameterError
from pelton.core.sampling_params import SamplingParams
from pelton.text.tokenizer import Tokenizer

_MAX_NUM_CACHED = 64


class ParamsResolver:
    """Resolves `bad_words` and `dry_sequence_breakers` for one tokenizer. Safe to call from any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._breaker_ids: OrderedDict[str, tuple[int, ...]] = OrderedDict()

    def resolve(self, params: SamplingParams) -> SamplingParams:
        """Return `params` with token ids in place of strings; the same object if there is nothing to do.

        Raises `InvalidParameterError` for a string that the vocabulary cannot express.
        """
        if not params.needs_tokenizer:
            return params
        sequences = dict.fromkeys(params.bad_token_sequences)
        for word in params.bad_words:
            sequences.update(dict.fromkeys(self._tokenize_word(word)))
        breakers = set(params.dry_breaker_token_ids)
        if params.dry_multiplier != 0:
            with self._lock:
                for text in params.dry_sequence_breakers:
                    breakers.update(self._find_breaker_ids(text))
        return dataclasses.replace(
            params,
            bad_words=(),
            bad_token_sequences=tuple(sequences),
            dry_sequence_breakers=(),
            dry_breaker_token_ids=tuple(sorted(breakers)),
        )

    def _tokenize_word(self, word: str) -> list[tuple[int, ...]]:
        """Token ids of a word as it stands, and with or without a space before it."""
        bare = word.removeprefix(" ")
        ways = [self._encode("bad_words", word), self._encode_in_text(bare)]
        ways += [self._encode("bad_words", " " + bare), self._encode_in_text(" " + bare)]
        return [way for way in dict.fromkeys(ways) if way]

    def _encode_in_text(self, text: str) -> tuple[int, ...]:
        # Some tokenizers put a space before a text; what follows a line break has none.
        before = self._encode("bad_words", "\n")
        both = self._encode("bad_words", "\n" + text)
        return both[len(before) :] if both[: len(before)] == before else ()

    def _find_breaker_ids(self, text: str) -> tuple[int, ...]:
        """All tokens whose text holds `text`; if there are none, the last token of `text`."""
        if text not in self._breaker_ids:
            wanted = text.encode()
            tokenizer = self._tokenizer
            ids = tuple(i for i in range(tokenizer.vocab_size) if wanted in tokenizer.token_bytes(i))
            self._breaker_ids[text] = ids or self._encode("dry_sequence_breakers", text)[-1:]
            if len(self._breaker_ids) > _MAX_NUM_CACHED:
                self._breaker_ids.popitem(last=False)
        return self._breaker_ids[text]

    def _encode(self, name: str, text: str) -> tuple[int, ...]:
        try:
            return tuple(self._tokenizer.encode(text, add_special=False, parse_special=False))
        except InvalidParameterError as error:
            raise InvalidParameterError(name, error.value, error.allowed) from error
