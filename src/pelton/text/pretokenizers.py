"""How a text is cut into words before byte-level BPE, by the name GGUF files give it (`tokenizer.ggml.pre`).

The patterns are the published ones of each model's `tokenizer.json` and of llama.cpp's table of the same names
(src/llama-vocab.cpp): in turn, each pattern cuts every piece into its matches and what lies between them.
No Unicode normalisation is done, so that decoding gives back exactly what was encoded; llama.cpp does none either.
It must not know vocabularies or files. Start at `get_pre_tokenizer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pelton.core.errors import UnsupportedModelError

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

DEFAULT_PRE_TOKENIZER = "default"

# openai/gpt-2, src/encoder.py
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_END_OF_LINE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_SYMBOLS}|{_END_OF_LINE}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_SYMBOLS}|{_END_OF_LINE}"

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_SLASH_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASH_SYMBOLS}|{_END_OF_LINE}"
_O200K = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_SLASH_SYMBOLS}|{_END_OF_LINE}"
)

# Cased letters as DeepSeek's tokenizer.json lists them (an older Unicode version than \p{Lu}\p{Ll}\p{Lt} today).
_DEEPSEEK_LETTER_RANGES = (
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 "
    "3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A "
    "1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 "
    "1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 "
    "212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D "
    "A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 "
    "104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
_DEEPSEEK_PUNCTUATION_RANGES = "21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002"
_DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"


def _character_class(ranges: str) -> str:
    """Turn hexadecimal code points and ranges into the inside of a regular expression's character class."""
    ends = (part.split("-") for part in ranges.split())
    return "".join("-".join(rf"\x{{{int(end, 16):X}}}" for end in pair) for pair in ends)


_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_character_class(_DEEPSEEK_LETTER_RANGES)}]+",
    rf"\s?[{_character_class(_DEEPSEEK_PUNCTUATION_RANGES)}]+",
    r"\s+$",
    _DEEPSEEK_CJK,
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    rf"|{_END_OF_LINE}",
)
_DIGITS_THEN_GPT2 = (r"\p{N}", _GPT2)
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


@dataclass(frozen=True, slots=True)
class PreTokenizerSpec:
    """A way of cutting text: `patterns` applied one after the other.

    `ignore_merges`: a word that is a token as a whole is taken as that token without merging;
    `adds_bos`: a text begins with BOS unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False


def _build_table() -> dict[str, PreTokenizerSpec]:
    gpt2 = PreTokenizerSpec((_GPT2,))
    digits = PreTokenizerSpec(_DIGITS_THEN_GPT2)
    llama3 = PreTokenizerSpec((_LLAMA3,), ignore_merges=True, adds_bos=True)
    llama3_merging = PreTokenizerSpec((_LLAMA3,))
    qwen2 = PreTokenizerSpec((_QWEN2,))
    o200k = PreTokenizerSpec((_O200K,))
    bloom = PreTokenizerSpec((_BLOOM,))
    families = {
        gpt2: "gpt-2 phi-2 mpt olmo jais exaone4 gigachat a.x-4.0 mellum",
        digits: "smollm starcoder refact command-r codeshell exaone minerva-7b",
        llama3: "llama-bpe llama3 llama-v3 falcon3 falcon-h1 lfm2 midm-2.0",
        llama3_merging: "dbrx smaug-bpe glm4 chatglm-bpe",
        qwen2: "qwen2 stablelm2 deepseek-r1-qwen megrez",
        o200k: "gpt-4o llama4",
        bloom: "bloom poro-chat gpt3-finnish",
        PreTokenizerSpec((_BLOOM, r"\p{N}")): "viking",
        PreTokenizerSpec(_DEEPSEEK_LLM): "deepseek-llm",
        PreTokenizerSpec(_DEEPSEEK_CODER): "deepseek-coder",
        PreTokenizerSpec(_DEEPSEEK_V3): "deepseek-v3",
        PreTokenizerSpec(_FALCON): "falcon",
        PreTokenizerSpec((_TEKKEN,), ignore_merges=True, adds_bos=True): "tekken",
        PreTokenizerSpec(_DEFAULT): DEFAULT_PRE_TOKENIZER,
    }
    return {name: spec for spec, names in families.items() for name in names.split()}


PRE_TOKENIZERS = _build_table()


def get_pre_tokenizer(name: str) -> PreTokenizerSpec:
    """Return how the pre-tokenizer `name` cuts text; raise `UnsupportedModelError` listing the known names."""
    spec = PRE_TOKENIZERS.get(name)
    if spec is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnsupportedModelError(f"pre-tokenizer {name!r} (tokenizer.ggml.pre) is not supported; supported: {known}")
    return spec


def build_pre_tokenizer(spec: PreTokenizerSpec) -> PreTokenizer:
    """Return the `tokenizers` object that cuts by `spec` and writes bytes in the GPT-2 alphabet."""
    from tokenizers import Regex, pre_tokenizers

    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in spec.patterns]
    # Never use_regex: it would cut by GPT-2's pattern once more, after the patterns of the model.
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
