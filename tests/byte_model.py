"""A byte-level tokenizer and the shape of a model that does not exist, for engines that are scripted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pelton.core.errors import InvalidParameterError
from pelton.core.model_config import ModelConfig, RopeConfig
from pelton.core.request import Request

BOS, EOS, END_OF_TURN = 256, 257, 258
_NAMES = {BOS: "<s>", EOS: "</s>", END_OF_TURN: "<|end|>"}


class ByteTokenizer:
    """Ids 0 to 255 are bytes, then three control tokens, then `pieces`, multi-byte tokens that only a runner uses."""

    def __init__(self, *, add_bos: bool = True, pieces: Sequence[str] = ()) -> None:
        self.bos_token_id = BOS
        self.eos_token_ids = frozenset((EOS, END_OF_TURN))
        self.add_bos = add_bos
        self.add_eos = False
        self.strips_leading_space = False
        self._bytes = [bytes([b]) for b in range(256)] + [b""] * 3 + [p.encode() for p in pieces]
        self.vocab_size = len(self._bytes)
        self._id_of_piece = {p: 259 + i for i, p in enumerate(pieces)}

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InvalidParameterError("text", "a lone surrogate", "text that can be written as UTF-8")
        ids = [BOS] if add_special and self.add_bos else []
        for index, part in enumerate(text.split("<s>") if parse_special else [text]):
            ids += [BOS] * (index > 0) + list(part.encode())
        return ids

    def count_least_tokens(self, text: str) -> int:
        return len(text.encode("utf-8", "replace")) // 3  # "<s>" is one token

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        return b"".join(self._bytes[i] for i in ids).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id]

    def piece(self, token_id: int) -> str:
        return _NAMES.get(token_id) or self._bytes[token_id].decode(errors="replace")

    def find_token(self, text: str) -> int | None:
        control = next((token_id for token_id, name in _NAMES.items() if name == text), None)
        return control or self._id_of_piece.get(text)

    def is_special(self, token_id: int) -> bool:
        return BOS <= token_id <= END_OF_TURN

    def get_piece_ids(self, pieces: Iterable[str]) -> list[int]:
        return [self._id_of_piece[p] for p in pieces]


def follow(script: Sequence[int]) -> Callable[[Request], int]:
    """Generate these ids, one after the other."""
    return lambda request: script[len(request.output_token_ids)]


def make_config(vocab_size: int, context: int, *, name: str = "fake") -> ModelConfig:
    """The smallest shape there is."""
    return ModelConfig(
        model_type="fake",
        name=name,
        vocab_size=vocab_size,
        hidden_size=1,
        intermediate_size=1,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=1,
        max_position_embeddings=context,
        norm_eps=1e-5,
        rope=RopeConfig(num_dims=1),
        tie_word_embeddings=True,
    )
