"""`tokenizer.json` and its neighbours, written by the `tokenizers` package itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from pelton.core.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from pelton.text.gguf_vocab import build_gguf_tokenizer
from pelton.text.tokenizer_json import load_chat_template, load_tokenizer_json

Metadata = dict[str, object]
Make = Callable[..., Metadata]
SPACE = "\u2581"
TEXTS = ("", "ab abc <s> </s>", " a , b ", "A\U0001f980\u6f22\u00e9\n\n x's 123", "<think>ab</think>")


def write_json(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


@pytest.fixture
def byte_level_file(tmp_path: Path, byte_alphabet: list[str]) -> Path:
    """Bytes, `ab`, and added tokens beyond the model's own: <s> </s> <|eot_id|> special, <think> not."""
    vocab = {character: byte for byte, character in enumerate(byte_alphabet)} | {"ab": 256}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", "<|eot_id|>"])
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 257)])
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    write_json(tmp_path / "tokenizer_config.json", {"bos_token": {"content": "<s>"}, "eos_token": "</s>"})
    write_json(tmp_path / "generation_config.json", {"eos_token_id": [258, 0]})
    return path


@pytest.fixture
def sentencepiece_file(tmp_path: Path) -> Path:
    """The steps of Llama 2's tokenizer.json over a tiny vocabulary."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"<0x{byte:02X}>": 3 + byte for byte in range(256)}}
    vocab |= {SPACE: 259, "a": 260, f"{SPACE}a": 261}
    model = models.BPE(vocab=vocab, merges=[(SPACE, "a")], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    write_json(tmp_path / "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True})
    return path


@pytest.mark.parametrize("name", ["byte_level_file", "sentencepiece_file"])
def test_ids_and_text_are_those_of_the_tokenizers_package(name: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(name)
    expected, tokenizer = tokenizers.Tokenizer.from_file(str(path)), load_tokenizer_json(path)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special=False)
        assert ids == expected.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == expected.decode(ids, skip_special_tokens=True)
        assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text


def test_rules_come_from_post_processor_and_neighbours(byte_level_file: Path) -> None:
    tokenizer = load_tokenizer_json(byte_level_file)
    assert tokenizer.vocab_size == 261
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.add_bos) == (257, 258, True)
    assert tokenizer.eos_token_ids == {0, 258, 259}
    assert tokenizer.encode("ab") == [257, 256]
    assert [tokenizer.is_special(token_id) for token_id in (256, 257, 260)] == [False, True, False]


def test_flags_of_the_configuration_overrule_the_post_processor(
    byte_level_file: Path, sentencepiece_file: Path
) -> None:
    assert load_tokenizer_json(sentencepiece_file).encode("a") == [1, 261]


def test_without_neighbours_there_is_no_bos_and_no_eos(byte_level_file: Path) -> None:
    for name in ("tokenizer_config.json", "generation_config.json"):
        byte_level_file.with_name(name).unlink()
    tokenizer = load_tokenizer_json(byte_level_file)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (None, None)
    assert tokenizer.eos_token_ids == {258, 259}  # </s> and <|eot_id|> by their names
    assert tokenizer.encode("ab") == [257, 256]  # the file's own post-processor


def test_same_vocabulary_gives_same_ids_from_gguf(byte_level_file: Path, make_byte_level: Make) -> None:
    from_gguf = build_gguf_tokenizer(
        make_byte_level(special=("<s>", "</s>", "<|eot_id|>", "<think>"), kinds=[3, 3, 3, 4])
    )
    from_json = load_tokenizer_json(byte_level_file)
    for text in TEXTS:
        assert from_json.encode(text, add_special=False) == from_gguf.encode(text, add_special=False)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json does not exist"):
        load_tokenizer_json(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        load_tokenizer_json(path)


def test_file_the_tokenizers_package_refuses_is_named(byte_level_file: Path) -> None:
    definition = json.loads(byte_level_file.read_text(encoding="utf-8"))
    definition["model"]["merges"] = [["a", "missing"]]
    write_json(byte_level_file, definition)
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        load_tokenizer_json(byte_level_file)


def test_ids_far_apart_are_refused_before_memory_is_taken(byte_level_file: Path) -> None:
    definition = json.loads(byte_level_file.read_text(encoding="utf-8"))
    definition["model"]["vocab"]["far"] = 4_000_000_000
    write_json(byte_level_file, definition)
    with pytest.raises(ModelFileError, match="nearly contiguous"):
        load_tokenizer_json(byte_level_file)


def test_other_kinds_of_model_are_named(tmp_path: Path) -> None:
    path = write_json(tmp_path / "tokenizer.json", {"model": {"type": "WordPiece", "vocab": {}}})
    with pytest.raises(UnsupportedModelError, match="'WordPiece'"):
        load_tokenizer_json(path)


def test_wrong_end_token_of_the_generation_configuration_is_named(byte_level_file: Path) -> None:
    write_json(byte_level_file.with_name("generation_config.json"), {"eos_token_id": [258, 999]})
    with pytest.raises(ModelFileError, match=r"generation_config\.json: eos_token_id is \[258, 999\]"):
        load_tokenizer_json(byte_level_file)


def test_chat_template_comes_from_its_own_file_or_the_configuration(tmp_path: Path) -> None:
    assert load_chat_template(tmp_path) is None
    config = tmp_path / "tokenizer_config.json"
    write_json(config, {"chat_template": "one"})
    assert load_chat_template(tmp_path) == "one"
    write_json(config, {"chat_template": [{"name": "rag", "template": "x"}, {"name": "default", "template": "two"}]})
    assert load_chat_template(tmp_path) == "two"
    write_json(config, {"chat_template": 3})
    with pytest.raises(ModelFileError, match="chat_template is a int"):
        load_chat_template(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("three", encoding="utf-8")
    assert load_chat_template(tmp_path) == "three"
