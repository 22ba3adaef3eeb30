"""Control tokens that mark calls and thoughts are part of the answer; all others stay hidden."""

from __future__ import annotations

from collections.abc import Callable

from pelton.text.detokenizer import IncrementalDetokenizer
from pelton.text.gguf_vocab import build_gguf_tokenizer


def test_markers_show_in_whole_and_streamed_text(make_byte_level: Callable[..., dict[str, object]]) -> None:
    special = ("<s>", "[TOOL_CALLS]", "<|python_tag|>", "<think>", "<|eom_id|>", "</s>")
    tokenizer = build_gguf_tokenizer(make_byte_level(special=special))
    ids = tokenizer.encode("<s><think>a[TOOL_CALLS]<|python_tag|><|eom_id|>", add_special=False)
    assert len(ids) == 6
    assert tokenizer.decode(ids) == "<think>a[TOOL_CALLS]<|python_tag|>"
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert "".join(detokenizer.push([token_id]) for token_id in ids) == tokenizer.decode(ids)
    assert all(tokenizer.is_special(token_id) for token_id in ids if token_id != ord("a"))
    assert tokenizer.find_token("<think>") == ids[1]
    assert tokenizer.find_token("ac") is None
