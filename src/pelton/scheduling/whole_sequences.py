"""A step without a KV cache between steps: every scheduled request computes its whole sequence from position 0.

It is the slow way, kept to show what the cache is worth. Blocks, queues and preemption stay the scheduler's matter,
which passes them in. Entry point: `plan_whole_sequences`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pelton.core.request import Request, RequestStatus
from pelton.core.step_plan import ScheduledRequest
from pelton.scheduling.limits import SchedulerLimits
from pelton.scheduling.policies.base import SchedulingPolicy
from pelton.scheduling.shares import plan_tokens


def plan_whole_sequences(
    running: Sequence[Request],
    policy: SchedulingPolicy,
    limits: SchedulerLimits,
    *,
    grow: Callable[[Request], bool],
    admit: Callable[[Request], bool],
) -> list[ScheduledRequest]:
    """Plan running requests by rank, then waiting ones, while their tokens together stay within the limit.

    The first one is planned however long it is. `running` is the scheduler's own list, which `grow` (blocks for all
    tokens, False if the request itself was preempted) and `admit` (False without room) change.
    """
    scheduled: list[ScheduledRequest] = []
    num_left = limits.max_num_batched_tokens
    num_running = len(running)
    policy.start_step(running, [])
    for request in tuple(running):
        if request.status is not RequestStatus.RUNNING:
            continue
        if scheduled and request.num_tokens > num_left:
            break
        request.num_computed_tokens = 0
        if grow(request):
            scheduled.append(plan_tokens(request, request.num_tokens))
            num_left -= request.num_tokens
    if len(running) < num_running:  # somebody was preempted: there is no room for newcomers
        return [item for item in scheduled if item.request.status is RequestStatus.RUNNING]
    while len(running) < limits.max_num_seqs:
        first = policy.peek_waiting()
        if first is None or (scheduled and first.num_tokens > num_left) or not admit(first):
            break
        scheduled.append(plan_tokens(first, first.num_tokens))
        num_left -= first.num_tokens
    return scheduled
