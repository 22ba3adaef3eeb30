"""Promise 3 under load: a request gives the same bits as alone, whatever meets it in the engine.

A native engine gets random loads: arrivals, lengths, cancellations, shared prefixes (so that the prefix cache is hit in
whole and in partly filled blocks), several choices of one prompt, pools so small that requests are preempted, chunk
sizes, threads, priorities and tenants. Every finished request is compared with its lonely run, ids and
log-probabilities bit for bit. The seed of every load is printed; PELTON_SCHEDULE_SEED runs one load again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as GgmlType
from random_gguf import RandomLlama

from pelton import SamplingParams
from pelton.core.config import EngineConfig
from pelton.core.request import Request
from pelton.core.step_plan import SampledToken
from pelton.engine.core import EngineCore
from pelton.engine.parts import EngineParts, load_parts

MODEL = RandomLlama(name="schedules_q4_1", weight_type=GgmlType.Q4_1)
NUM_LOADS = 24
NUM_REQUESTS = 48
MAX_PROMPT_TOKENS = 100
MAX_NEW_TOKENS = 60
# The longest request, and the smallest pool: one that fits alone must come to its end.
MAX_CONTEXT = 160
_SEED_VARIABLE = "PELTON_SCHEDULE_SEED"

Answer = tuple[tuple[int, ...], tuple[object, ...]]


@dataclass(frozen=True)
class Wish:
    """One request of a load: what is asked for, when it comes (step), and when it is cancelled (step, or never)."""

    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    arrival: int
    cancel: int | None
    priority: int
    tenant: str
    salt: str
    leader: int | None = None


@dataclass
class Answers:
    """Tokens with their log-probabilities, as they came, by request id."""

    tokens: dict[str, list[SampledToken]] = field(default_factory=dict)

    def take(self, updated: list[tuple[Request, SampledToken]]) -> None:
        for request, sampled in updated:
            self.tokens.setdefault(request.request_id, []).append(sampled)

    def get(self, request_id: str) -> Answer:
        tokens = self.tokens.get(request_id, [])
        logprobs = tuple((t.logprobs.logprob, t.logprobs.top) for t in tokens if t.logprobs is not None)
        return tuple(t.token_id for t in tokens), logprobs


def make_params(rng: random.Random) -> SamplingParams:
    """Sampled or greedy, with penalties now and then: what depends on the history must survive a preemption."""
    return SamplingParams(
        temperature=rng.choice([0.0, 0.7, 1.0, 1.3]),
        top_p=rng.choice([1.0, 0.9]),
        top_k=rng.choice([0, 20]),
        frequency_penalty=rng.choice([0.0, 0.0, 0.5]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
        typical_p=rng.choice([1.0, 1.0, 0.9]),
        dry_multiplier=rng.choice([0.0, 0.0, 0.8]),
        xtc_probability=rng.choice([0.0, 0.0, 0.5]),
        mirostat=rng.choice([0, 0, 0, 2]),
        min_tokens=1,
        logprobs=rng.choice([0, 3]),
        max_tokens=rng.randint(1, MAX_NEW_TOKENS),
    )


def make_prompt(rng: random.Random, known: list[tuple[int, ...]]) -> tuple[int, ...]:
    """A new prompt, or one that shares a prefix of any length with an earlier one, or repeats it."""
    fresh = tuple(rng.randrange(MODEL.vocab_size) for _ in range(rng.randint(1, rng.choice([8, MAX_PROMPT_TOKENS]))))
    if not known or rng.random() < 0.3:
        return fresh
    old = rng.choice(known)
    kept = rng.choice([len(old), rng.randint(0, len(old)), len(old) // 16 * 16])
    return (old[:kept] + fresh[: rng.choice([0, len(fresh)])])[:MAX_PROMPT_TOKENS] or fresh


def make_load(rng: random.Random) -> list[Wish]:
    wishes: list[Wish] = []
    known: list[tuple[int, ...]] = []
    while len(wishes) < NUM_REQUESTS:
        prompt = make_prompt(rng, known)
        known.append(prompt)
        params, seed, arrival = make_params(rng), rng.randrange(2**53), rng.choice([0, rng.randint(0, 120)])
        priority, tenant, salt = rng.choice([0, 0, 0, -1, 5]), rng.choice("abc"), rng.choice(["", "", "s1", "s2"])
        first = len(wishes)
        for choice in range(rng.choice([1, 1, 1, 3])):
            cancel = arrival + rng.randint(0, 30) if rng.random() < 0.1 else None
            leader = first if choice else None
            wishes.append(Wish(prompt, params, seed + choice, arrival, cancel, priority, tenant, salt, leader))
    return wishes


def make_config(rng: random.Random) -> EngineConfig:
    """Small pools, so that blocks are evicted and requests preempted; every policy and chunk size."""
    return EngineConfig(
        threads=rng.choice([1, 2]),
        prefill_chunk=rng.choice([1, 7, 32, 512]),
        max_num_seqs=rng.choice([3, 8, 64]),
        kv_cache_tokens=rng.choice([MAX_CONTEXT, MAX_CONTEXT + 64, 2048]),
        max_context=MAX_CONTEXT,
        use_prefix_cache=rng.random() < 0.8,
        scheduling_policy=rng.choice(["fcfs", "fair"]),
        max_step_ms=rng.choice([None, 0.2, 1.0]),
    )


def make_request(wish: Wish, request_id: str, leader: Request | None) -> Request:
    assert wish.params.max_tokens is not None
    return Request(
        request_id=request_id,
        prompt_token_ids=wish.prompt,
        params=wish.params,
        max_tokens=wish.params.max_tokens,
        seed=wish.seed,
        eos_token_ids=frozenset({0}),
        arrival_s=0.0,
        priority=wish.priority,
        tenant=wish.tenant,
        cache_salt=wish.salt,
        leader=leader,
    )


def run_load(core: EngineCore, wishes: list[Wish]) -> tuple[Answers, set[str]]:
    """Drive the engine until nothing is left; returns the answers and the ids of the cancelled requests."""
    answers, cancelled = Answers(), set()
    requests: dict[int, Request] = {}
    for step in range(50_000):
        for index, wish in enumerate(wishes):
            if wish.arrival == step:
                leader = None if wish.leader is None else requests[wish.leader]
                requests[index] = make_request(wish, f"r{index}", leader)
                core.add_request(requests[index])
            if wish.cancel == step and core.abort_request(f"r{index}"):
                cancelled.add(f"r{index}")
        core.scheduler.check_invariants()
        if core.num_unfinished_requests:
            answers.take(core.step().updated)
            core.scheduler.check_invariants()
        elif step > max(wish.arrival for wish in wishes):
            return answers, cancelled
    raise AssertionError("the load does not come to an end")


class Lonely:
    """Answers of requests that have an engine for themselves: whole prompts, one thread, nothing cached."""

    def __init__(self, path: Path) -> None:
        config = EngineConfig(threads=1, kv_cache_tokens=256, max_context=MAX_CONTEXT, use_prefix_cache=False)
        self._parts = load_parts(path, config, None)
        self._core = EngineCore(self._parts.runner, config)

    def compute(self, wish: Wish) -> Answer:
        answers = Answers()
        self._core.add_request(make_request(wish, "alone", None))
        while self._core.num_unfinished_requests:
            answers.take(self._core.step().updated)
        return answers.get("alone")

    def close(self) -> None:
        self._parts.runner.close()


@pytest.fixture(scope="module")
def path(write_model: Callable[[RandomLlama], Path]) -> Path:
    return write_model(MODEL)


@pytest.fixture(scope="module")
def lonely(path: Path) -> Iterator[Lonely]:
    lonely = Lonely(path)
    yield lonely
    lonely.close()


@pytest.fixture(scope="module")
def seen() -> dict[str, int]:
    """What the loads brought about, added up, so that the last test can say whether they tested anything."""
    return {"finished": 0, "cancelled": 0, "preemptions": 0, "cached_tokens": 0, "leaders": 0}


def _list_seeds() -> list[int]:
    chosen = os.environ.get(_SEED_VARIABLE)
    return [int(chosen)] if chosen else list(range(NUM_LOADS))


@pytest.mark.parametrize("seed", _list_seeds())
def test_every_request_answers_as_alone(seed: int, path: Path, lonely: Lonely, seen: dict[str, int]) -> None:
    print(f"{_SEED_VARIABLE}={seed}")
    rng = random.Random(seed)
    config, wishes = make_config(rng), make_load(rng)
    parts: EngineParts = load_parts(path, config, None)
    try:
        core = EngineCore(parts.runner, config)
        answers, cancelled = run_load(core, wishes)
        for index, wish in enumerate(wishes):
            got, alone = answers.get(f"r{index}"), lonely.compute(wish)
            if f"r{index}" in cancelled:
                assert got[0] == alone[0][: len(got[0])], f"cancelled request {index} of load {seed}"
                assert got[1] == alone[1][: len(got[1])], f"cancelled request {index} of load {seed}"
            else:
                assert got == alone, f"request {index} of load {seed}, {config}"
        stats = core.scheduler.stats()
    finally:
        parts.runner.close()
    seen["finished"] += len(wishes) - len(cancelled)
    seen["cancelled"] += len(cancelled)
    seen["preemptions"] += stats.num_preemptions
    seen["cached_tokens"] += stats.prefix_cache.num_hit_tokens
    seen["leaders"] += sum(wish.leader is not None for wish in wishes)


@pytest.mark.skipif(_SEED_VARIABLE in os.environ, reason="one load alone need not bring everything about")
def test_the_loads_bring_about_what_they_are_for(seen: dict[str, int]) -> None:
    """Without this the equality above might be true of loads in which nothing happens."""
    assert seen["finished"] >= 1000
    assert min(seen.values()) > 20, seen
