"""`PrefixIndex`: from the tokens of a prompt to the blocks that already hold their K/V.

A full block is found by a hash chained over everything before it: hash(block) = H(hash(block before), its tokens), the
first one starting from a root made of the salt. So equal hashes mean equal tokens from position 0 on; the block's own
tokens are compared as well. Partly filled blocks, and full ones that a prompt shares only in part, are found by what
they follow and their first token. It knows hashes, tokens and block ids; who owns a block is `kv_manager`'s matter.
Entry points: `find_full` and `find_partial`.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

T = TypeVar("T")

# How many blocks with the same beginning are compared; the newest. More would let one prompt cost milliseconds.
_MAX_NUM_COMPARED = 32
# Bounds the memory of "it was cached once": about 10 MB at most.
_MAX_NUM_REMEMBERED = 1 << 16


def compute_root(kind: str, salt: str) -> bytes:
    """The hash before the first block; equal texts of different kinds give different roots."""
    text = kind.encode() + b"\0" + salt.encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=32, person=b"pelton-root").digest()


def compute_block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Hash of a full block that follows `parent` (a block's hash or a root)."""
    return blake2b(array("q", token_ids).tobytes(), digest_size=32, key=parent).digest()


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What a block holds: `token_ids` at positions from `start` on, after everything that `parent` stands for.

    `block_hash` is set only if the block is full.
    """

    start: int
    parent: bytes
    token_ids: tuple[int, ...]
    block_hash: bytes | None


class PrefixIndex:
    """At most one entry per block, and per hash at most one block."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything, evicted blocks included."""
        self._entries: dict[int, IndexEntry] = {}
        self._full: dict[bytes, int] = {}
        self._by_beginning: dict[tuple[bytes, int], dict[int, None]] = {}
        self._num_children: Counter[bytes] = Counter()
        self._num_first_blocks: Counter[tuple[int, ...]] = Counter()
        # Hashes, and (parent, first token) pairs, oldest first.
        self._evicted: OrderedDict[bytes | tuple[bytes, int], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._entries

    def get_entry(self, block_id: int) -> IndexEntry:
        """What a block is known to hold. KeyError if nothing."""
        return self._entries[block_id]

    def list_blocks(self) -> Iterator[tuple[int, IndexEntry]]:
        """All blocks with their entries, oldest entry first."""
        return iter(self._entries.items())

    def add(self, block_id: int, entry: IndexEntry) -> bool:
        """Enter a block, in place of what was known of it; False, and no entry, if another block holds as much."""
        self.remove(block_id)
        token_ids = entry.token_ids
        if entry.block_hash is not None:
            if entry.block_hash in self._full:
                return False
            self._full[entry.block_hash] = block_id
        elif any(
            self._entries[other].token_ids[: len(token_ids)] == token_ids
            for other in self._list_candidates(entry.parent, token_ids[0])
        ):
            return False
        self._enter(block_id, entry)
        return True

    def remove(self, block_id: int) -> None:
        """Forget what a block holds, if anything is known."""
        entry = self._entries.pop(block_id, None)
        if entry is None:
            return
        if entry.block_hash is not None:
            del self._full[entry.block_hash]
        key = (entry.parent, entry.token_ids[0])
        siblings = self._by_beginning[key]
        del siblings[block_id]
        if not siblings:
            del self._by_beginning[key]
        _decrement(self._num_children, entry.parent)
        if entry.start == 0:
            _decrement(self._num_first_blocks, entry.token_ids)

    def evict(self, block_id: int) -> None:
        """Forget what a block holds, but remember that it was here."""
        entry = self._entries[block_id]
        self.remove(block_id)
        if entry.block_hash is not None:
            self._evicted[entry.block_hash] = None
        self._evicted[(entry.parent, entry.token_ids[0])] = None
        while len(self._evicted) > _MAX_NUM_REMEMBERED:
            self._evicted.popitem(last=False)

    def find_full(self, block_hash: bytes, token_ids: tuple[int, ...]) -> int | None:
        """The block with this hash, if its tokens are these."""
        block_id = self._full.get(block_hash)
        if block_id is None or self._entries[block_id].token_ids != token_ids:
            return None
        return block_id

    def find_partial(self, parent: bytes, token_ids: tuple[int, ...]) -> tuple[int, int] | None:
        """(block, number of tokens) of the block after `parent` that shares most first tokens with `token_ids`."""
        best: tuple[int, int] | None = None
        if not token_ids:
            return None
        for block_id in self._list_candidates(parent, token_ids[0]):
            num_shared = _count_shared(self._entries[block_id].token_ids, token_ids)
            if best is None or num_shared > best[1]:
                best = block_id, num_shared
            if num_shared == len(token_ids):
                break
        return best

    def has_children(self, parent: bytes) -> bool:
        """Whether any block is known that follows `parent`."""
        return parent in self._num_children

    def has_first_block(self, token_ids: tuple[int, ...]) -> bool:
        """Whether a block with exactly these tokens begins a sequence, under whatever salt."""
        return token_ids in self._num_first_blocks

    def was_evicted(self, parent: bytes, token_ids: tuple[int, ...], block_hash: bytes | None) -> bool:
        """Whether a block with this hash, or one after `parent` with the same first token, had to go."""
        if block_hash is not None and block_hash in self._evicted:
            return True
        return bool(token_ids) and (parent, token_ids[0]) in self._evicted

    def check_invariants(self) -> None:
        """AssertionError unless all tables say the same. For tests."""
        hashed = {e.block_hash: b for b, e in self._entries.items() if e.block_hash is not None}
        assert hashed == self._full, "hashes and entries differ"
        for block_id, entry in self._entries.items():
            assert block_id in self._by_beginning[(entry.parent, entry.token_ids[0])], f"block {block_id} is not found"
            if entry.block_hash is not None:
                assert compute_block_hash(entry.parent, entry.token_ids) == entry.block_hash, "a wrong hash"
        assert sum(len(blocks) for blocks in self._by_beginning.values()) == len(self._entries), "entries are left over"
        assert self._num_children == Counter(e.parent for e in self._entries.values())
        assert self._num_first_blocks == Counter(e.token_ids for e in self._entries.values() if e.start == 0)
        assert len(self._evicted) <= _MAX_NUM_REMEMBERED

    def _enter(self, block_id: int, entry: IndexEntry) -> None:
        key = (entry.parent, entry.token_ids[0])
        self._entries[block_id] = entry
        self._by_beginning.setdefault(key, {})[block_id] = None
        self._num_children[entry.parent] += 1
        if entry.start == 0:
            self._num_first_blocks[entry.token_ids] += 1
        self._evicted.pop(key, None)
        if entry.block_hash is not None:
            self._evicted.pop(entry.block_hash, None)

    def _list_candidates(self, parent: bytes, first_token: int) -> Iterator[int]:
        blocks = self._by_beginning.get((parent, first_token), {})
        for count, block_id in enumerate(reversed(blocks)):
            if count == _MAX_NUM_COMPARED:
                return
            yield block_id


def _decrement(counter: Counter[T], key: T) -> None:
    counter[key] -= 1
    if counter[key] == 0:
        del counter[key]


def _count_shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b))
