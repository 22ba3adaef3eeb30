"""`StructureCompiler`: structures of one model's requests to constraints. An engine keeps one.

llguidance gets the vocabulary once, at the first structure; grammars are compiled once and kept in a bounded list, the
least recently used leave first. Its work is limited per compilation and per mask. Start at `StructureCompiler.compile`.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from pelton.core.errors import StructureError
from pelton.core.structure import Structure, dump_json, shorten
from pelton.structure.constraint import GrammarConstraint, describe_error
from pelton.structure.json_schema import PreparedSchema, prepare_schema
from pelton.structure.lark import prepare_lark
from pelton.structure.regex_limits import find_excess
from pelton.structure.vocabulary import TokenSource, build_vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MAX_CACHED_GRAMMARS = 64


class StructureCompiler:
    """Compiles structures for the vocabulary of `tokenizer`. Safe to share between threads."""

    def __init__(self, tokenizer: TokenSource, max_cached: int = MAX_CACHED_GRAMMARS) -> None:
        self.vocab_size = tokenizer.vocab_size
        self._tokenizer = tokenizer
        self._max_cached = max_cached
        self._vocabulary: LLTokenizer | None = None
        self._matchers: OrderedDict[Structure, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._vocabulary_lock = threading.Lock()

    def compile(self, structure: Structure) -> GrammarConstraint:
        """Return a fresh constraint; one request (one choice of a request) needs one of its own.

        The first call takes the time to hand over the vocabulary, a new structure some milliseconds, up to a second at
        the limits (the GIL is released), a known one microseconds. Raises `StructureError` naming the place for a
        structure that is wrong, not supported, beyond the limits, or that no text satisfies.
        """
        with self._lock:
            matcher = self._matchers.get(structure)
        if matcher is None:
            matcher = self._compile_new(structure)  # not under the lock: known structures need not wait for it
        with self._lock:
            self._matchers[structure] = matcher
            self._matchers.move_to_end(structure)
            while len(self._matchers) > self._max_cached:
                self._matchers.popitem(last=False)
            return GrammarConstraint(matcher.deep_copy(), self.vocab_size)

    @property
    def num_cached(self) -> int:
        """Compiled grammars held."""
        return len(self._matchers)

    def _compile_new(self, structure: Structure) -> LLMatcher:
        grammar, patterns = _GRAMMARS[structure.kind](structure, f"structure.{structure.kind}")
        matcher = self._make_matcher(grammar)
        if matcher.is_error():
            raise self._explain(structure, describe_error(matcher.get_error()), patterns)
        # The first mask finds a structure that nothing satisfies before any request is scheduled.
        mask = np.zeros((self.vocab_size + 31) // 32, np.uint32)
        try:
            GrammarConstraint(matcher, self.vocab_size).fill_mask(mask)
        except StructureError as error:
            allowed = f"{error.allowed} ({error.value})"
            raise StructureError(f"structure.{structure.kind}", shorten(structure.value), allowed) from error
        if not mask.any():
            raise StructureError(
                f"structure.{structure.kind}", shorten(structure.value), "texts that this model's tokens can write"
            )
        return matcher

    def _make_matcher(self, grammar: str) -> LLMatcher:
        from llguidance import LLMatcher

        with self._vocabulary_lock:
            if self._vocabulary is None:
                self._vocabulary = build_vocabulary(self._tokenizer)
        return LLMatcher(self._vocabulary, grammar, log_level=0, limits=_make_limits())

    def _explain(self, structure: Structure, message: str, patterns: tuple[tuple[str, str], ...]) -> StructureError:
        """Return the error of a grammar that does not compile, with the place of the pattern at fault if one is."""
        for place, pattern in patterns:
            grammar, _ = _make_grammar(prepare_schema({"type": "string", "pattern": pattern}, place), place)
            matcher = self._make_matcher(grammar)
            if matcher.is_error():
                found = describe_error(matcher.get_error())
                return StructureError(place, shorten(pattern), f"a supported regular expression ({found})")
        name = f"structure.{structure.kind}"
        return StructureError(name, shorten(structure.value), f"what the compiler takes ({message})")


def _make_limits() -> LLParserLimits:
    """Limits of llguidance: about 20 ms for building the lexer's start, 15 ms for a mask, in units it documents."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=10_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )


_Grammar = tuple[str, tuple[tuple[str, str], ...]]


def _make_grammar(prepared: PreparedSchema, name: str) -> _Grammar:
    from llguidance import LLMatcher

    try:
        grammar = LLMatcher.grammar_from_json_schema(dump_json(name, prepared.schema))
    except ValueError as error:  # numbers that do not fit in 64 bits
        raise StructureError(name, shorten(str(prepared.schema)), f"what the compiler takes ({error})") from error
    return grammar, prepared.patterns


def _from_json_schema(structure: Structure, name: str) -> _Grammar:
    return _make_grammar(prepare_schema(json.loads(structure.text), name), name)


def _from_json_object(structure: Structure, name: str) -> _Grammar:
    return _make_grammar(prepare_schema({"type": "object"}, name), name)


def _from_regex(structure: Structure, name: str) -> _Grammar:
    from llguidance import regex_to_lark

    excess = find_excess(structure.text)
    if excess is not None:
        raise StructureError(name, shorten(structure.text), f"a pattern without {excess}")
    # \d and \w are ASCII, as in the patterns of a JSON Schema.
    return _from_lark_text(f"start: /{regex_to_lark(structure.text, use_ascii='dw')}/")


def _from_choice(structure: Structure, name: str) -> _Grammar:
    return _from_lark_text("start: " + " | ".join(map(json.dumps, structure.choices)))


def _from_lark(structure: Structure, name: str) -> _Grammar:
    return _from_lark_text(prepare_lark(structure.text, name))


def _from_lark_text(text: str) -> _Grammar:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_lark(text), ()


_GRAMMARS: dict[str, Callable[[Structure, str], _Grammar]] = {
    "json_schema": _from_json_schema,
    "json_object": _from_json_object,
    "regex": _from_regex,
    "choice": _from_choice,
    "lark": _from_lark,
}
