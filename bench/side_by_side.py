"""Pelton and llama.cpp on one GGUF file in one run: same threads, same prompts, models loaded once, turns alternating.

    python bench/side_by_side.py --setup                     # once: llama.cpp in an environment of its own
    python bench/side_by_side.py -m model.gguf --name zen4   # table on the terminal, JSON in bench/results/

llama.cpp runs with n_batch = n_ubatch = 512 and once with flash attention, once without; each test is compared with
the faster of the two. It gets the next tokens handed to it and samples nothing, as its own benchmark does, while
Pelton samples greedily. Start at `run_rounds`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker_process import (
    DEFAULT_WORKDIR,
    ROOT,
    Worker,
    WorkerError,
    count_physical_cores,
    default_pelton_python,
    describe_machine,
    find_peer_python,
    get_commit,
    set_up_peer,
    start_llama_cpp,
    start_pelton,
)


@dataclass(frozen=True)
class SpeedTest:
    """One thing to time, in tokens per second; `target` is the least ratio Pelton / llama.cpp wanted."""

    label: str
    command: str
    arguments: dict[str, int]
    num_tokens: int
    target: float


def make_tests(prompt_tokens: int, new_tokens: int, depths: Sequence[int], batch: int) -> list[SpeedTest]:
    """Prefill, decode of one sequence at each depth, decode of `batch` sequences."""
    tests = [SpeedTest(f"prefill {prompt_tokens}", "prefill", {"num_tokens": prompt_tokens}, prompt_tokens, 2.0)]
    for depth in depths:
        arguments = {"num_new_tokens": new_tokens, "depth": depth, "num_seqs": 1}
        tests.append(SpeedTest(f"decode {new_tokens} at depth {depth}", "decode", arguments, new_tokens, 1.0))
    if batch > 1:
        arguments = {"num_new_tokens": new_tokens, "depth": 0, "num_seqs": batch}
        tests.append(SpeedTest(f"decode {new_tokens} x {batch}", "decode", arguments, new_tokens * batch, 1.0))
    return tests


def run_rounds(workers: Sequence[Worker], tests: Sequence[SpeedTest], repeat: int) -> dict[str, dict[str, list[float]]]:
    """Return tokens/s as {test label: {worker label: one value a round}}; a first, uncounted round warms up.

    Inside a round the engines take turns test by test, forwards in even and backwards in odd rounds, so that a machine
    that slows down or speeds up favours nobody.
    """
    speeds: dict[str, dict[str, list[float]]] = {t.label: {w.label: [] for w in workers} for t in tests}
    for i in range(-1, repeat):
        for test in tests:
            for worker in workers if i % 2 == 0 else list(reversed(workers)):
                seconds = worker.ask(test.command, **test.arguments)["seconds"]
                if i >= 0:
                    speeds[test.label][worker.label].append(test.num_tokens / seconds)
        print(f"round {i + 1} of {repeat} done" if i >= 0 else "warm-up done", flush=True)
    return speeds


def summarise(values: Sequence[float]) -> dict[str, float]:
    """Median, minimum and maximum."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def compare(tests: Sequence[SpeedTest], speeds: dict[str, dict[str, list[float]]]) -> list[dict[str, Any]]:
    """One row a test: every engine's summary, the best peer, the ratio of medians, and whether the target is met."""
    rows = []
    for test in tests:
        summaries = {label: summarise(values) for label, values in speeds[test.label].items()}
        row: dict[str, Any] = {"test": test.label, "target_ratio": test.target, "tokens_per_s": summaries}
        row["all_tokens_per_s"] = speeds[test.label]
        peers = {label: s["median"] for label, s in summaries.items() if label != "pelton"}
        if peers and "pelton" in summaries:
            best = max(peers, key=lambda label: peers[label])
            row |= {"best_peer": best, "ratio": summaries["pelton"]["median"] / peers[best]}
            row["meets_target"] = row["ratio"] >= test.target
        rows.append(row)
    return rows


def print_table(rows: Sequence[dict[str, Any]], labels: Sequence[str]) -> None:
    """Median (min..max) tokens per second of each engine, then the ratio against its target."""
    print(
        f"\n{'tokens/s: median (min..max)':28}" + "".join(f"{label:>28}" for label in labels) + f"{'ratio':>8}  target"
    )
    for row in rows:
        cells = ""
        for label in labels:
            s = row["tokens_per_s"][label]
            cells += f"{s['median']:10.1f} ({s['min']:.1f}..{s['max']:.1f})".rjust(28)
        if "ratio" in row:
            verdict = "met" if row["meets_target"] else "NOT MET"
            cells += f"{row['ratio']:8.2f}  >= {row['target_ratio']:g}: {verdict}"
        print(f"{row['test']:28}{cells}")


def save(path: Path, document: dict[str, Any]) -> None:
    """Write the JSON record; nothing half-written stays under the final name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
    print(f"\nsaved {path}")


def start_workers(arguments: argparse.Namespace, stack: ExitStack) -> list[Worker]:
    """Start the engines asked for; `stack` ends them."""
    workers = []
    if "pelton" in arguments.engines:
        python = arguments.pelton_python or default_pelton_python()
        workers.append(
            stack.enter_context(start_pelton(python, arguments.model, arguments.threads, workdir=arguments.workdir))
        )
    if "llama.cpp" in arguments.engines:
        python = find_peer_python(arguments.peer_python, arguments.workdir)
        for flash_attention in (False, True):
            worker = start_llama_cpp(
                python, arguments.model, arguments.threads, flash_attention=flash_attention, workdir=arguments.workdir
            )
            workers.append(stack.enter_context(worker))
    return workers


def parse_arguments() -> argparse.Namespace:
    """Command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, help="GGUF file both engines load")
    parser.add_argument("--threads", type=int, default=count_physical_cores(), help="threads of each engine")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--depth", default="0,4096", help="depths of the decode tests, separated by commas")
    parser.add_argument("--batch", type=int, default=8, help="sequences of the batched decode test; 1 leaves it out")
    parser.add_argument("--repeat", type=int, default=5, help="counted rounds")
    parser.add_argument("--engines", default="pelton,llama.cpp", help="leave one out to time the other alone")
    parser.add_argument("--setup", action="store_true", help="build llama.cpp's environment under --workdir, then stop")
    parser.add_argument("--workdir", type=Path, default=DEFAULT_WORKDIR, help="environments and logs of the workers")
    parser.add_argument("--peer-python", type=Path, help="an interpreter that already has llama-cpp-python")
    parser.add_argument("--pelton-python", type=Path, help="an interpreter that has Pelton; this one by default")
    parser.add_argument("--name", default="side_by_side", help="name of the record in --results")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is not met")
    arguments = parser.parse_args()
    arguments.engines = arguments.engines.split(",")
    if unknown := set(arguments.engines) - {"pelton", "llama.cpp"}:
        parser.error(f"--engines names {', '.join(sorted(unknown))}; allowed: pelton, llama.cpp")
    if arguments.threads < 1 or arguments.repeat < 1:
        parser.error(f"--threads is {arguments.threads}, --repeat is {arguments.repeat}; allowed: at least 1")
    if not arguments.setup and (arguments.model is None or not arguments.model.is_file()):
        parser.error(f"--model is {arguments.model}; a GGUF file is needed")
    return arguments


def main() -> int:
    """Set up, or measure, print and record; the exit code says whether targets were met if --check asks."""
    arguments = parse_arguments()
    if arguments.setup:
        print(f"llama.cpp is ready: {set_up_peer(arguments.workdir)}")
        return 0
    depths = [int(depth) for depth in arguments.depth.split(",")]
    tests = make_tests(arguments.prompt_tokens, arguments.new_tokens, depths, arguments.batch)
    document: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": get_commit(),
        "machine": describe_machine(),
        "model": arguments.model.name,
        "model_bytes": arguments.model.stat().st_size,
        "threads": arguments.threads,
        "repeat": arguments.repeat,
    }
    with ExitStack() as stack:
        workers = start_workers(arguments, stack)
        document["engines"] = {w.label: w.description for w in workers}
        rows = compare(tests, run_rounds(workers, tests, arguments.repeat))
    document["machine"]["load_average_at_end"] = os.getloadavg()[0]
    document["results"] = rows
    print_table(rows, [w.label for w in workers])
    save(arguments.results / f"{document['date'][:10]}-{arguments.name}.json", document)
    return int(arguments.check and not all(row.get("meets_target", True) for row in rows))


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except WorkerError as error:
        raise SystemExit(str(error)) from error
