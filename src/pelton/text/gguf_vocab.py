"""Build a `Tokenizer` from the metadata of a GGUF file: byte-level BPE (`gpt2`) and SentencePiece BPE (`llama`).

Defaults for absent keys are llama.cpp's (src/llama-vocab.cpp): pre-tokenizer `default`; BOS is added for the kind
`llama` and for Llama 3 and Tekken vocabularies; EOS is never added; kind `llama` has unknown, BOS and EOS as ids 0,
1 and 2 and puts a space before a text. Decoding never removes spaces before punctuation.
It must not know how the file was read. Start at `build_gguf_tokenizer`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pelton.core.errors import ModelFileError, UnsupportedModelError
from pelton.text.end_tokens import find_end_tokens
from pelton.text.gguf_metadata import PREFIX, TokenizerMetadata
from pelton.text.pretokenizers import DEFAULT_PRE_TOKENIZER, build_pre_tokenizer, get_pre_tokenizer
from pelton.text.tokenizer import SPACE_MARK, TextRules, Tokenizer, TokenKind, Vocabulary

if TYPE_CHECKING:
    import tokenizers

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_MAX_PIECE_CHARACTERS = 1024
# Kinds that merging may produce; the others stand for themselves and never come from ordinary text.
_TEXT_KINDS = frozenset({TokenKind.NORMAL, TokenKind.USER_DEFINED, TokenKind.UNUSED})


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The token list of a file: texts without duplicates, kinds, ids by text."""

    texts: list[str]
    kinds: list[int]
    ids: dict[str, int]


def build_gguf_tokenizer(metadata: Mapping[str, object]) -> Tokenizer:
    """Return the tokenizer described by the `tokenizer.ggml.*` keys of `metadata`.

    Raises `UnsupportedModelError` for a tokenizer model or pre-tokenizer that is not implemented and
    `ModelFileError` for keys that are missing, of the wrong type or inconsistent.
    """
    reader = TokenizerMetadata(metadata)
    model = reader.get_string("model")
    if model is None:
        raise ModelFileError(f"{PREFIX}model is missing; it must name the kind of tokenizer: {', '.join(_BUILDERS)}")
    if model not in _BUILDERS:
        raise UnsupportedModelError(
            f"tokenizer {model!r} ({PREFIX}model) is not supported; supported: {', '.join(_BUILDERS)}"
        )
    return _BUILDERS[model](reader)


def _build_byte_level(reader: TokenizerMetadata) -> Tokenizer:
    from tokenizers import models

    spec = get_pre_tokenizer(reader.get_string("pre") or DEFAULT_PRE_TOKENIZER)
    texts = reader.get_strings("tokens")
    bos, eos = reader.get_token_id("bos_token_id", len(texts)), reader.get_token_id("eos_token_id", len(texts))
    tokens = _read_tokens(reader, texts, {bos: TokenKind.CONTROL, eos: TokenKind.CONTROL})
    pairs = [tuple(merge.split(" ")) for merge in dict.fromkeys(reader.get_strings("merges"))]
    if set(map(len, pairs)) != {2}:
        index, pair = next((i, pair) for i, pair in enumerate(pairs) if len(pair) != 2)
        raise ModelFileError(f"{PREFIX}merges[{index}] is {' '.join(pair)!r}; it must be two tokens and one space")
    try:
        bpe = models.BPE(vocab=tokens.ids, merges=pairs, ignore_merges=spec.ignore_merges)  # type: ignore[arg-type]  # pairs are of length 2
    except Exception as error:  # the tokenizers package raises this class itself for merges of unknown tokens
        raise ModelFileError(f"{PREFIX}merges do not fit the vocabulary: {error}") from error
    encoders = _build_encoders(bpe, tokens)
    for encoder in encoders:
        encoder.pre_tokenizer = build_pre_tokenizer(spec)
    rules = _read_rules(reader, tokens, (bos, eos), adds_bos=spec.adds_bos and bos is not None)
    return Tokenizer(Vocabulary(tokens.texts, tokens.kinds, is_byte_level=True), *encoders, rules)


def _build_sentencepiece(reader: TokenizerMetadata) -> Tokenizer:
    from tokenizers import models, normalizers

    texts = reader.get_strings("tokens")
    unknown = _read_id(reader, "unknown", 0, texts) or 0
    bos, eos = _read_id(reader, "bos", 1, texts), _read_id(reader, "eos", 2, texts)
    known_kinds = {bos: TokenKind.CONTROL, eos: TokenKind.CONTROL, unknown: TokenKind.UNKNOWN}
    tokens = _read_tokens(reader, texts, known_kinds, has_byte_tokens=True)
    scores = reader.get_floats("scores", len(tokens.texts))
    if scores is None:
        raise ModelFileError(f"{PREFIX}scores is missing; tokenizer 'llama' needs one score for each token")
    bpe = models.BPE(
        vocab=tokens.ids,
        merges=derive_merges(tokens.texts, tokens.kinds, scores),
        unk_token=tokens.texts[unknown],
        fuse_unk=True,
        byte_fallback=TokenKind.BYTE in tokens.kinds,
    )
    encoders = _build_encoders(bpe, tokens)
    adds_space = reader.get_flag("add_space_prefix", True)
    steps: list[normalizers.Normalizer] = [normalizers.Prepend(SPACE_MARK)] if adds_space else []
    for encoder in encoders:
        encoder.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE_MARK)])
    rules = _read_rules(reader, tokens, (bos, eos), adds_bos=bos is not None, strips_leading_space=adds_space)
    return Tokenizer(Vocabulary(tokens.texts, tokens.kinds, is_byte_level=False), *encoders, rules)


_BUILDERS = {"gpt2": _build_byte_level, "llama": _build_sentencepiece}


def derive_merges(texts: Sequence[str], kinds: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return BPE merges, first ones first, that do what SentencePiece's merging by score does.

    SentencePiece joins the two neighbours whose joined text is the token with the best score (bpe_model.cc), so every
    way to split a token into two tokens is a merge, ordered by the score of the whole. Tokens with equal scores are
    ordered by id, where SentencePiece takes the leftmost; vocabularies of this kind have no equal scores.
    Raises `ModelFileError` for a token too long to be one.
    """
    pieces = {text for text, kind in zip(texts, kinds, strict=True) if kind in _TEXT_KINDS}
    ranked = sorted(range(len(texts)), key=lambda token_id: -scores[token_id])
    merges = []
    for token_id in ranked:
        text = texts[token_id]
        if kinds[token_id] not in _TEXT_KINDS:
            continue
        if len(text) > _MAX_PIECE_CHARACTERS:
            raise ModelFileError(
                f"{PREFIX}tokens[{token_id}] has {len(text)} characters; allowed: at most {_MAX_PIECE_CHARACTERS}"
            )
        for end in range(1, len(text)):
            left, right = text[:end], text[end:]
            if left in pieces and right in pieces:
                merges.append((left, right))
    return merges


def _read_tokens(
    reader: TokenizerMetadata,
    texts: list[str],
    known_kinds: Mapping[int | None, TokenKind],
    *,
    has_byte_tokens: bool = False,
) -> _Tokens:
    """Read the kinds of `texts`; if the file has none, `known_kinds` and the spelling of byte tokens decide."""
    if "" in texts:
        texts = [text or f"[EMPTY_{token_id}]" for token_id, text in enumerate(texts)]
    ids = dict(zip(texts, range(len(texts)), strict=True))
    if len(ids) != len(texts):
        first = next(token_id for token_id, text in enumerate(texts) if ids[text] != token_id)
        raise ModelFileError(f"{PREFIX}tokens has {texts[first]!r} twice, as ids {first} and {ids[texts[first]]}")
    kinds = reader.get_integers("token_type", len(texts), range(7))
    if kinds is None:
        kinds = [int(known_kinds.get(token_id, TokenKind.NORMAL)) for token_id in range(len(texts))]
        if has_byte_tokens:
            kinds = [
                int(TokenKind.BYTE) if _BYTE_TOKEN.fullmatch(text) else kind
                for text, kind in zip(texts, kinds, strict=True)
            ]
    if 0 in kinds:  # llama.cpp's "undefined", which it treats as unused
        kinds = [kind or int(TokenKind.UNUSED) for kind in kinds]
    if has_byte_tokens:
        for token_id, kind in enumerate(kinds):
            if kind == TokenKind.BYTE and not _BYTE_TOKEN.fullmatch(texts[token_id]):
                raise ModelFileError(f"{PREFIX}tokens[{token_id}] is {texts[token_id]!r}; a byte token must be <0xNN>")
    return _Tokens(texts, kinds, ids)


def _build_encoders(bpe: tokenizers.models.BPE, tokens: _Tokens) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    """Return the encoder that parses special tokens and the one that does not; they share the model's tables."""
    from tokenizers import AddedToken, Tokenizer

    special, user_defined = [], []
    for token_id, kind in enumerate(tokens.kinds):
        if kind == TokenKind.NORMAL:
            continue
        if kind in (TokenKind.CONTROL, TokenKind.UNKNOWN):
            special.append(AddedToken(tokens.texts[token_id], special=True, normalized=False))
        elif kind == TokenKind.USER_DEFINED:
            user_defined.append(AddedToken(tokens.texts[token_id], special=False, normalized=False))
    encoder, plain_encoder = Tokenizer(bpe), Tokenizer(bpe)
    encoder.add_tokens([*special, *user_defined])
    plain_encoder.add_tokens(user_defined)
    return encoder, plain_encoder


def _read_id(reader: TokenizerMetadata, name: str, default: int, texts: Sequence[str]) -> int | None:
    token_id = reader.get_token_id(f"{name}_token_id", len(texts))
    return default if token_id is None and default < len(texts) else token_id


def _read_rules(
    reader: TokenizerMetadata,
    tokens: _Tokens,
    bos_and_eos: tuple[int | None, int | None],
    *,
    adds_bos: bool,
    strips_leading_space: bool = False,
) -> TextRules:
    """Read BOS/EOS flags and all end tokens; `adds_bos` is the default for the kind of vocabulary."""
    bos, eos = bos_and_eos
    prefix = _get_affix(bos, reader.get_flag("add_bos_token", adds_bos), "bos")
    suffix = _get_affix(eos, reader.get_flag("add_eos_token", False), "eos")
    named = (eos, *(reader.get_token_id(f"{name}_token_id", len(tokens.texts)) for name in ("eot", "eom")))
    return TextRules(
        bos_token_id=bos,
        eos_token_id=eos,
        eos_token_ids=find_end_tokens(tokens.ids, tokens.kinds, named),
        prefix_token_ids=prefix,
        suffix_token_ids=suffix,
        strips_leading_space=strips_leading_space,
    )


def _get_affix(token_id: int | None, is_added: bool, name: str) -> tuple[int, ...]:
    if not is_added:
        return ()
    if token_id is None:
        raise ModelFileError(f"{PREFIX}add_{name}_token is true, but {PREFIX}{name}_token_id is missing")
    return (token_id,)
