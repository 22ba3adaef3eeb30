"""Several answers at once in one event loop: each is read as it comes, one is given up, one gives several choices.

python examples/async_streams.py
python examples/async_streams.py --model model.gguf
"""

from __future__ import annotations

import argparse
import asyncio

from pelton import AsyncEngine, RequestOptions, SamplingParams


async def tell(engine: AsyncEngine, name: str, prompt: str) -> str:
    """Read an answer piece by piece; return its line."""
    text = ""
    async for output in engine.generate(prompt, SamplingParams(max_tokens=24, seed=1), RequestOptions(request_id=name)):
        text += output.text_delta  # a server would send it on
    return f"{name}: {text!r}"


async def give_up(engine: AsyncEngine) -> str:
    """Leave an answer after three pieces: its request is dropped and its memory is free before the next step."""
    num_pieces = 0
    async with engine.generate("Once upon a time", SamplingParams(seed=2)) as stream:
        async for _ in stream:
            num_pieces += 1
            if num_pieces == 3:
                break
    return f"given up after {num_pieces} pieces"


async def choose(engine: AsyncEngine) -> str:
    """Take the likelier two of four answers."""
    params = SamplingParams(max_tokens=12, n=2, best_of=4, seed=3)
    result = await engine.generate("The capital of France is", params).get_result()
    return "choices: " + ", ".join(f"{choice.text!r} (seed {choice.seed})" for choice in result.choices)


async def main(model: str | None) -> None:
    """Run all of them together."""
    async with AsyncEngine(model) as engine:
        lines = await asyncio.gather(
            tell(engine, "sea", "The sea is"), tell(engine, "sky", "The sky is"), give_up(engine), choose(engine)
        )
        print("\n".join(lines))
        stats = engine.stats()
        print(f"{stats.num_new_tokens} tokens in {stats.num_steps} steps; {stats.num_unfinished} unfinished")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Several answers at once.")
    parser.add_argument("--model", default=None, help="a model as `pelton run -m` takes it")
    asyncio.run(main(parser.parse_args().model))
