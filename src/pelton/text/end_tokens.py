"""Which tokens end a generation: those a model file names and those known by their spelling.

Many files name one end token only, though the model was trained to end a turn with another.
It must not know file formats. Start at `find_end_tokens`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pelton.text.tokenizer import TokenKind

# Nobody writes these by chance, so a token added for them ends a turn even if it is not marked as control token.
_END_OF_TURN = (
    "<|im_end|>",  # ChatML: Qwen, SmolLM2, Yi, ...
    "<|eot_id|>",  # Llama 3
    "<|eom_id|>",  # Llama 3.1, before a tool's answer
    "<|eot|>",  # Llama 4
    "<end_of_turn>",  # Gemma
    "<|end_of_turn|>",  # OpenChat, Starling
    "<end_of_utterance>",  # SmolVLM
    "<\uff5cend\u2581of\u2581sentence\uff5c>",  # DeepSeek
)
# These occur in ordinary text (strike-through in HTML), so only a control token counts.
_END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<EOT>", "\u2581<EOT>", "<|return|>", "<|end|>")
# A vocabulary with the first has the second as a mere separator of messages (OpenAI's Harmony format).
_SEPARATORS = (("<|return|>", "<|end|>"),)


def find_end_tokens(ids: Mapping[str, int], kinds: Sequence[int], named: Iterable[int | None]) -> frozenset[int]:
    """Return all ids after which a model has nothing more to say.

    `ids` maps texts to ids, `kinds[id]` is a `TokenKind`, `named` are the ids a file names as end tokens (None: not
    given).
    """
    found = {token_id for token_id in named if token_id is not None}
    excluded = {separator for marker, separator in _SEPARATORS if marker in ids}
    for texts, allowed in (
        (_END_OF_TURN, (TokenKind.CONTROL, TokenKind.USER_DEFINED)),
        (_END_OF_TEXT, (TokenKind.CONTROL,)),
    ):
        for text in texts:
            token_id = ids.get(text)
            if token_id is not None and text not in excluded and kinds[token_id] in allowed:
                found.add(token_id)
    return frozenset(found)
