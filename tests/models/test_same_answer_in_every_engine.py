"""A request's bits are the same through `LLM` and `AsyncEngine`, as one of n choices, alone and among others."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from random_gguf import RandomLlama, random_words

from pelton import LLM, AsyncEngine, SamplingParams
from pelton.core.outputs import Choice, GenerationResult
from pelton.core.request import Request

WriteModel = Callable[[RandomLlama], Path]

MODEL = RandomLlama(name="engines_f32")
OPTIONS = {"threads": 1, "kv_cache_tokens": 4096}


def make_prompt(key: str, num_tokens: int) -> list[int]:
    return [int(word) % MODEL.vocab_size for word in random_words(key, num_tokens)]


def make_params(seed: int, **fields: object) -> SamplingParams:
    return SamplingParams(max_tokens=9, temperature=0.9, seed=seed, logprobs=3, ignore_eos=True, **fields)


def get_bits(choice: Choice) -> tuple[object, ...]:
    return choice.seed, choice.token_ids, choice.logprobs, choice.cumulative_logprob


@pytest.mark.parametrize("use_prefix_cache", [True, False])
@pytest.mark.parametrize("num_prompt_tokens", [1, 16, 37])
def test_n_choices_are_n_requests_with_the_next_seeds(
    num_prompt_tokens: int, use_prefix_cache: bool, write_model: WriteModel
) -> None:
    prompt = make_prompt("choices", num_prompt_tokens)
    seed = 2**64 - 2  # so that the seeds of later choices wrap
    with LLM(write_model(MODEL), **OPTIONS, use_prefix_cache=use_prefix_cache) as llm:
        (together,) = llm.generate([prompt], make_params(seed, n=4))
        streamed = list(llm.stream(prompt, make_params(seed, n=4)))
    with LLM(write_model(MODEL), **OPTIONS, use_prefix_cache=False) as llm:
        alone = [llm.generate([prompt], make_params((seed + i) % 2**64))[0].choices[0] for i in range(4)]
    assert [get_bits(choice) for choice in together.choices] == [get_bits(choice) for choice in alone]
    assert [choice.index for choice in together.choices] == [0, 1, 2, 3]
    assert together.usage.completion_tokens == 36
    assert streamed[-1].result.choices == together.choices
    for choice in together.choices:
        pieces = [output for output in streamed if output.index == choice.index]
        assert tuple(i for output in pieces for i in output.new_token_ids) == choice.token_ids
        assert "".join(output.text_delta for output in pieces) == choice.text
        assert [output.finish_reason for output in pieces] == [None] * 8 + ["length"]
    assert [output.result is None for output in streamed] == [True] * 35 + [False]


def test_best_of_returns_those_with_the_highest_mean_log_probability(write_model: WriteModel) -> None:
    prompt = make_prompt("best", 20)
    params = dataclasses.replace(make_params(5, n=6), logprobs=None)
    with LLM(write_model(MODEL), **OPTIONS) as llm:
        (all_six,) = llm.generate([prompt], dataclasses.replace(params, logprobs=0))
        (best,) = llm.generate([prompt], dataclasses.replace(params, n=2, best_of=6))
        streamed = list(llm.stream(prompt, dataclasses.replace(params, n=2, best_of=6)))
    ranked = sorted(all_six.choices, key=lambda c: -c.cumulative_logprob / len(c.token_ids))
    assert [(c.seed, c.token_ids) for c in best.choices] == [(c.seed, c.token_ids) for c in ranked[:2]]
    assert [c.cumulative_logprob for c in best.choices] == [c.cumulative_logprob for c in ranked[:2]]
    assert [c.logprobs for c in best.choices] == [None, None]
    assert best.usage.completion_tokens == 54
    assert [(o.index, o.new_token_ids, o.text_delta) for o in streamed] == [
        (c.index, c.token_ids, c.text) for c in best.choices
    ]


def test_blocking_and_asynchronous_engine_give_the_bits_of_a_request_alone(write_model: WriteModel) -> None:
    path = write_model(MODEL)
    prompts = [make_prompt(f"engines {i}", n) for i, n in enumerate((1, 5, 16, 17, 64, 100))]
    with LLM(path, **OPTIONS, use_prefix_cache=False) as llm:
        alone = [get_bits(llm.generate([p], make_params(i))[0].choices[0]) for i, p in enumerate(prompts)]
    with LLM(path, **OPTIONS) as llm:
        results = llm.generate(prompts, [make_params(i) for i in range(len(prompts))])
    assert [get_bits(result.choices[0]) for result in results] == alone

    async def ask() -> list[GenerationResult]:
        async with AsyncEngine(path, **OPTIONS, prefill_chunk=16) as engine:
            streams = [engine.generate(p, make_params(i)) for i, p in enumerate(prompts)]
            found = await asyncio.gather(*(stream.get_result() for stream in streams))
            again = await asyncio.gather(
                *(engine.generate(p, make_params(i)).get_result() for i, p in enumerate(prompts))
            )
            assert [get_bits(a.choices[0]) for a in again] == [get_bits(f.choices[0]) for f in found]
            assert again[-1].usage.cached_tokens > 0
            return found

    assert [get_bits(result.choices[0]) for result in asyncio.run(ask())] == alone


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_seeded_request_is_the_same_beside_requests_without_a_seed(order: str, write_model: WriteModel) -> None:
    seeded = dataclasses.replace(make_params(42), max_tokens=16)
    prompts = {"a": make_prompt("seeded", 21), "b": make_prompt("unseeded", 30)}
    with LLM(write_model(MODEL), **OPTIONS) as llm:
        alone = get_bits(llm.generate([prompts["a"]], seeded)[0].choices[0])
        params = [seeded if name == "a" else dataclasses.replace(seeded, seed=None) for name in order]
        together = llm.generate([prompts[name] for name in order], params)
    assert get_bits(together[order.index("a")].choices[0]) == alone


def test_request_is_the_same_when_others_join_while_it_generates(write_model: WriteModel) -> None:
    def make_request(name: str, num_tokens: int, seed: int) -> Request:
        prompt = tuple(make_prompt(name, num_tokens))
        return Request(name, prompt, make_params(seed), 16, seed, frozenset(), 0.0)

    with LLM(write_model(MODEL), **OPTIONS, use_prefix_cache=False) as llm:
        core = llm._core
        outputs = []
        for others in ([], [make_request("b", 30, 987654321), make_request("c", 7, 7)]):
            request = make_request("a", 21, 42)
            core.add_request(request)
            for _ in range(4):
                core.step()
            assert len(request.output_token_ids) == 4
            for other in others:
                core.add_request(other)
            while core.num_unfinished_requests:
                core.step()
            assert [len(other.output_token_ids) for other in others] == [16] * len(others)
            outputs.append(request.output_token_ids)
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0])) > 4
