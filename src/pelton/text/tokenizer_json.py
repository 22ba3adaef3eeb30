"""Load a `tokenizer.json` beside a model, with what its neighbours add.

`tokenizer_config.json` gives BOS, EOS and the chat template, `generation_config.json` all end tokens,
`chat_template.jinja` the template where it is a file of its own. Spaces before punctuation are never removed, whatever
`clean_up_tokenization_spaces` says, so that decoding gives back what was encoded.
It must not know models. Start at `load_tokenizer_json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pelton.core.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from pelton.text.end_tokens import find_end_tokens
from pelton.text.tokenizer import TextRules, Tokenizer, TokenKind, Vocabulary

if TYPE_CHECKING:
    import tokenizers

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_MAX_UNUSED_IDS = 1 << 20
_PROBE = "a"
_Json = dict[str, object]


def load_tokenizer_json(path: Path) -> Tokenizer:
    """Return the tokenizer of the file `path`; files beside it are read if they are there.

    Raises `ModelNotFoundError` if `path` does not exist, `ModelFileError` if a file is damaged and
    `UnsupportedModelError` for a model that is neither byte-level BPE nor SentencePiece-like.
    """
    import tokenizers

    definition = _read_json(path)
    if definition is None:
        raise ModelNotFoundError(f"{path} does not exist; it should be a tokenizer.json")
    config = _read_json(path.with_name("tokenizer_config.json")) or {}
    generation = _read_json(path.with_name("generation_config.json")) or {}
    is_byte_level = _is_byte_level(path, definition)
    try:
        encoder = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers package raises this class itself
        raise ModelFileError(f"{path}: {error}") from error
    encoder.no_truncation()
    encoder.no_padding()
    vocabulary, ids = _read_vocabulary(path, definition, encoder, is_byte_level)
    rules = _read_rules(path, (definition, config, generation), encoder, ids, vocabulary)
    return Tokenizer(vocabulary, encoder, _build_plain_encoder(encoder), rules)


def load_chat_template(folder: Path) -> str | None:
    """Return the source of the chat template in `folder`, None if there is none.

    Raises `ModelFileError` if the file that should hold it is damaged.
    """
    own_file = folder / "chat_template.jinja"
    try:
        if own_file.is_file():
            return own_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{own_file}: {error}") from error
    config_path = folder / "tokenizer_config.json"
    template = (_read_json(config_path) or {}).get("chat_template")
    if isinstance(template, list):  # [{"name": "default", "template": "..."}, ...]
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise ModelFileError(f"{config_path}: chat_template is a {type(template).__name__}; it must be a string")
    return template


def _read_json(path: Path) -> _Json | None:
    """Return the object in the file, None if there is no file."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not readable as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} holds a {type(value).__name__}; it must hold an object")
    return value


def _walk(value: object) -> Iterator[_Json]:
    """Yield every object inside the steps of a normalizer, pre-tokenizer or decoder, itself included."""
    if isinstance(value, dict):
        yield value
        for child in value.values():
            if isinstance(child, list):
                for entry in child:
                    yield from _walk(entry)


def _keeps_characters(normalizer: object) -> bool:
    """Whether normalisation is known to drop no ASCII letter, digit or punctuation mark."""
    for step in _walk(normalizer):
        is_space = step.get("pattern") == {"String": " "}
        if step.get("type") not in ("Sequence", "Prepend", "NFC") and not (step.get("type") == "Replace" and is_space):
            return False
    return True


def _is_byte_level(path: Path, definition: _Json) -> bool:
    model = definition.get("model")
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    steps = [*_walk(definition.get("pre_tokenizer")), *_walk(definition.get("decoder"))]
    types = {step.get("type") for step in steps}
    if kind == "BPE" and "ByteLevel" in types:
        return True
    has_space_mark = any(step.get("type") in ("Replace", "Metaspace") for step in steps)
    if kind in ("BPE", "Unigram") and has_space_mark:
        return False
    raise UnsupportedModelError(
        f"{path}: tokenizer model {kind!r} with steps {sorted(map(str, types))} is not supported; supported: "
        "BPE with ByteLevel, BPE or Unigram with Replace or Metaspace"
    )


def _read_vocabulary(
    path: Path, definition: _Json, encoder: tokenizers.Tokenizer, is_byte_level: bool
) -> tuple[Vocabulary, dict[str, int]]:
    ids = encoder.get_vocab(with_added_tokens=True)
    size = max(ids.values(), default=-1) + 1
    if not ids or size > len(ids) + _MAX_UNUSED_IDS:
        raise ModelFileError(f"{path}: {len(ids)} tokens have ids up to {size - 1}; ids must be nearly contiguous")
    texts, kinds = [""] * size, [int(TokenKind.UNUSED)] * size
    for text, token_id in ids.items():
        texts[token_id], kinds[token_id] = text, TokenKind.NORMAL
        if not is_byte_level and _BYTE_TOKEN.fullmatch(text):
            kinds[token_id] = TokenKind.BYTE
    for token_id, token in encoder.get_added_tokens_decoder().items():
        kinds[token_id] = TokenKind.CONTROL if token.special else TokenKind.USER_DEFINED
    model = definition["model"]
    unknown = model.get("unk_token") if isinstance(model, dict) else None
    if isinstance(unknown, str) and unknown in ids and kinds[ids[unknown]] != TokenKind.CONTROL:
        kinds[ids[unknown]] = TokenKind.UNKNOWN
    return Vocabulary(texts, kinds, is_byte_level), ids


def _read_rules(
    path: Path,
    files: tuple[_Json, _Json, _Json],
    encoder: tokenizers.Tokenizer,
    ids: dict[str, int],
    vocabulary: Vocabulary,
) -> TextRules:
    definition, config, generation = files
    generation_path = path.with_name("generation_config.json")
    bos_ids = _get_id_list(generation_path, generation, "bos_token_id", len(vocabulary.texts))
    eos_ids = _get_id_list(generation_path, generation, "eos_token_id", len(vocabulary.texts))
    bos = _get_token(config, "bos_token", ids, bos_ids)
    eos = _get_token(config, "eos_token", ids, eos_ids)
    prefix, suffix = _probe_affixes(encoder)
    # transformers lets these flags overrule the post-processor in tokenizer.json.
    prefix = _apply_flag(config.get("add_bos_token"), bos, prefix)
    suffix = _apply_flag(config.get("add_eos_token"), eos, suffix)
    return TextRules(
        bos_token_id=bos,
        eos_token_id=eos,
        eos_token_ids=find_end_tokens(ids, vocabulary.kinds, (eos, *eos_ids)),
        prefix_token_ids=prefix,
        suffix_token_ids=suffix,
        strips_leading_space=not vocabulary.is_byte_level and _strips_leading_space(definition.get("decoder")),
        keeps_characters=_keeps_characters(definition.get("normalizer")),
    )


def _apply_flag(flag: object, token_id: int | None, affix: tuple[int, ...]) -> tuple[int, ...]:
    if flag is True and token_id is not None and token_id not in affix:
        return (token_id,)
    return () if flag is False and affix == (token_id,) else affix


def _probe_affixes(encoder: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Find out which ids the post-processor puts before and after a text."""
    plain = encoder.encode(_PROBE, add_special_tokens=False).ids
    full = encoder.encode(_PROBE, add_special_tokens=True).ids
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return tuple(full[:start]), tuple(full[start + len(plain) :])
    return (), ()


def _get_token(config: _Json, name: str, ids: dict[str, int], fallback: list[int]) -> int | None:
    """Return the id of the token that the configuration names: a string, or an object with its content."""
    value = config.get(name)
    text = value.get("content") if isinstance(value, dict) else value
    if isinstance(text, str) and text in ids:
        return ids[text]
    return fallback[0] if fallback else None


def _get_id_list(path: Path, config: Mapping[str, object], name: str, vocab_size: int) -> list[int]:
    value = config.get(name)
    token_ids: list[int] = []
    for token_id in value if isinstance(value, list) else [] if value is None else [value]:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
            raise ModelFileError(f"{path}: {name} is {value!r}; allowed: token ids 0 to {vocab_size - 1}")
        token_ids.append(token_id)
    return token_ids


def _strips_leading_space(decoder: object) -> bool:
    for step in _walk(decoder):
        if step.get("type") == "Strip" and step.get("content") == " " and step.get("start"):
            return True
        if step.get("type") == "Metaspace":
            return step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space", True) is True
    return False


def _build_plain_encoder(encoder: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return an encoder with the same steps that takes the spelling of special tokens as ordinary text."""
    import tokenizers

    plain = tokenizers.Tokenizer(encoder.model)
    if encoder.normalizer is not None:
        plain.normalizer = encoder.normalizer
    if encoder.pre_tokenizer is not None:
        plain.pre_tokenizer = encoder.pre_tokenizer
    added = sorted(encoder.get_added_tokens_decoder().items())
    # In order of id, so that tokens which are not in the model's own vocabulary get their ids again.
    plain.add_tokens([token for _, token in added])
    plain.encode_special_tokens = True
    return plain
