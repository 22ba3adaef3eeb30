"""`DeferredRequests`: requests that wait until another one, their leader, has computed the prompt they share.

It knows who waits for whom, nothing else. Entry points: `add` and `pop_all`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pelton.core.request import Request


class DeferredRequests:
    """Requests by the one they wait for, each in order of arrival."""

    __slots__ = ("_by_leader", "_leader_of")

    def __init__(self) -> None:
        self._by_leader: dict[Request, dict[Request, None]] = {}
        self._leader_of: dict[Request, Request] = {}

    def __len__(self) -> int:
        return len(self._leader_of)

    def add(self, request: Request, leader: Request) -> None:
        """Let `request` wait for `leader`."""
        self._by_leader.setdefault(leader, {})[request] = None
        self._leader_of[request] = leader

    def pop_all(self, leader: Request) -> list[Request]:
        """Take out everybody who waits for `leader`."""
        if not self._by_leader:
            return []
        requests = list(self._by_leader.pop(leader, ()))
        for request in requests:
            del self._leader_of[request]
        return requests

    def discard(self, request: Request) -> bool:
        """Take one request out; False if it does not wait here."""
        leader = self._leader_of.pop(request, None)
        if leader is None:
            return False
        others = self._by_leader[leader]
        del others[request]
        if not others:
            del self._by_leader[leader]
        return True

    def check_invariants(self, unfinished: Mapping[str, Request]) -> None:
        """AssertionError unless both tables agree and everybody, leaders included, is in `unfinished`. For tests."""
        pairs = {(request, leader) for leader, requests in self._by_leader.items() for request in requests}
        assert pairs == set(self._leader_of.items()), "who waits for whom is not clear"
        for request, leader in pairs:
            assert unfinished.get(request.request_id) is request, f"{request.request_id} waits and is finished"
            assert unfinished.get(leader.request_id) is leader, f"{request.request_id} waits for nobody"
            assert not leader.is_prompt_computed, f"{request.request_id} waits although the prompt is computed"
