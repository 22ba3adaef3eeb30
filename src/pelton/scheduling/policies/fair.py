"""`FairPolicy`: tenants share the tokens of the engine evenly; inside a tenant, priority and arrival decide.

Every token a tenant gets, prompt or generated, is added to its count, and the tenant with the lowest count has the next
turn, of at most a quantum of prompt tokens. This is deficit round robin (Shreedhar and Varghese, 1995) kept as counters
of service, as in start-time fair queueing (Goyal et al., 1996) and the virtual token counter (Sheng et al., "Fairness
in Serving Large Language Models", OSDI 2024). While two tenants both have prompts to compute, their counts differ by no
more than a quantum and the tokens they generate in a step. Who comes back from a pause starts at the count of the
tenant served last: nobody saves up service that was not asked for.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from pelton.core.request import Request
from pelton.scheduling.policies.base import Turn, WaitingQueue

# Prompt tokens a turn gives at most: some steps of a short prompt, a fraction of a long one.
QUANTUM = 256
# A tenant whose next request finds no room lets others pass until it is this many tokens behind; then it is waited for.
BYPASS_TOKENS = 16 * QUANTUM
# How many requests without room are tried in a step before admission ends.
_MAX_NUM_REFUSALS = 4
# Tenants without requests are forgotten when there are this many more than with requests waiting.
_MAX_NUM_IDLE = 1024


class _Tenant:
    """`num_served`: tokens it got. `prefilling`: its running requests that want prompt tokens in this step, by rank."""

    __slots__ = ("is_listed", "name", "num_served", "prefilling", "queue")

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_served = 0
        self.queue = WaitingQueue()
        self.prefilling: list[Request] = []
        self.is_listed = False


class FairPolicy:
    """Deals out turns of `QUANTUM` tokens to the tenant served least. See the module for the rule."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        # Tenants with waiting requests by (count, name); a count may be out of date, as it only ever grows.
        self._listed: list[tuple[int, str]] = []
        self._prefilling: list[_Tenant] = []
        self._refused: list[_Tenant] = []
        self._count_now = 0
        self._num_waiting = 0

    @property
    def num_waiting(self) -> int:
        """Requests that wait for admission."""
        return self._num_waiting

    def add_waiting(self, request: Request) -> None:
        """Queue a request with its tenant; a tenant that asked for nothing starts at the present count."""
        tenant = self._get_tenant(request)
        if not tenant.queue and not tenant.prefilling:
            tenant.num_served = max(tenant.num_served, self._count_now)
        tenant.queue.push(request)
        self._num_waiting += 1
        self._list(tenant)

    def remove_waiting(self, request: Request) -> None:
        """Drop a request that is finished."""
        self._tenants[request.tenant].queue.discard()
        self._num_waiting -= 1

    def peek_waiting(self) -> Request | None:
        """The first request of the tenant served least."""
        tenant = self._find_waiting()
        return None if tenant is None else tenant.queue.peek()

    def pop_waiting(self, request: Request) -> None:
        """Take a request off; until `grant` says otherwise it wants tokens in this step."""
        tenant = self._tenants[request.tenant]
        tenant.queue.pop(request)
        self._num_waiting -= 1
        if not tenant.prefilling:
            self._prefilling.append(tenant)
        tenant.prefilling.insert(0, request)

    def start_step(self, decodes: Sequence[Request], prefilling: Sequence[Request]) -> None:
        """Count a token for each of `decodes`, and put the others with their tenants."""
        for tenant in self._prefilling:
            tenant.prefilling = []
        for tenant in self._refused:
            self._list(tenant)
        self._refused = []
        self._prefilling = []
        for request in prefilling:
            tenant = self._get_tenant(request)
            if not tenant.prefilling:
                self._prefilling.append(tenant)
            tenant.prefilling.append(request)
        self._advance(decodes)
        for request in decodes:
            self._get_tenant(request).num_served += 1
        if len(self._tenants) > len(self._listed) + _MAX_NUM_IDLE:
            self._forget_idle({request.tenant for request in decodes})

    def next_turn(self, can_admit: bool) -> Turn | None:
        """The tenant served least, and its first request by rank."""
        running = min(self._prefilling, key=lambda t: (t.num_served, t.name), default=None)
        waiting = self._find_waiting() if can_admit else None
        if running is None and waiting is None:
            return None
        if running is None or (waiting is not None and _is_before(waiting, running)):
            assert waiting is not None
            tenant = waiting
        else:
            tenant = running
        request = tenant.prefilling[0] if tenant.prefilling else None
        if can_admit and tenant not in self._refused:
            first = tenant.queue.peek()
            if first is not None and (request is None or first.rank < request.rank):
                request = first
        assert request is not None
        return Turn(request, QUANTUM)

    def grant(self, request: Request, num_tokens: int, is_done: bool) -> None:
        """Count the tokens; a request that is done leaves the step."""
        tenant = self._get_tenant(request)
        tenant.num_served += num_tokens
        if is_done and request in tenant.prefilling:
            tenant.prefilling.remove(request)
            if not tenant.prefilling:
                self._prefilling.remove(tenant)

    def refuse(self, request: Request) -> bool:
        """Others may pass while the tenant is not far behind; it is not asked again in this step."""
        tenant = self._get_tenant(request)
        self._refused.append(tenant)
        return self._count_now - tenant.num_served < BYPASS_TOKENS and len(self._refused) < _MAX_NUM_REFUSALS

    def pick_victim(self, running: Sequence[Request]) -> Request:
        """The last request in order of the tenant that owns most blocks."""
        owned: dict[str, int] = {}
        for request in running:
            owned[request.tenant] = owned.get(request.tenant, 0) + len(request.block_table)
        largest = max(owned, key=lambda name: (owned[name], name))
        return next(request for request in reversed(running) if request.tenant == largest)

    def _get_tenant(self, request: Request) -> _Tenant:
        tenant = self._tenants.get(request.tenant)
        if tenant is None:
            tenant = self._tenants[request.tenant] = _Tenant(request.tenant)
            tenant.num_served = self._count_now
        return tenant

    def _advance(self, decodes: Sequence[Request]) -> None:
        """The present count is the lowest of the tenants that want prompt tokens; of those that decode if none does."""
        wanting = [tenant.num_served for tenant in self._prefilling]
        first = self._find_waiting()
        if first is not None:
            wanting.append(first.num_served)
        counts = wanting or [self._get_tenant(request).num_served for request in decodes]
        self._count_now = max(self._count_now, min(counts, default=0))

    def _forget_idle(self, decoding: set[str]) -> None:
        """Drop tenants without requests; one that comes back starts at the present count, as a new one does."""
        for name, tenant in list(self._tenants.items()):
            if not tenant.queue and not tenant.prefilling and not tenant.is_listed and name not in decoding:
                del self._tenants[name]

    def _list(self, tenant: _Tenant) -> None:
        if not tenant.is_listed and tenant.queue:
            tenant.is_listed = True
            heapq.heappush(self._listed, (tenant.num_served, tenant.name))

    def _find_waiting(self) -> _Tenant | None:
        """The tenant served least among those that have requests waiting and were not refused in this step."""
        while self._listed:
            num_served, name = self._listed[0]
            tenant = self._tenants[name]
            if tenant.queue and tenant not in self._refused and num_served == tenant.num_served:
                return tenant
            heapq.heappop(self._listed)
            tenant.is_listed = False
            if tenant not in self._refused:
                self._list(tenant)
        return None


def _is_before(a: _Tenant, b: _Tenant) -> bool:
    return (a.num_served, a.name) < (b.num_served, b.name)
