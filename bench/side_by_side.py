"""Pelton and its peers in one run: same threads, same tokens, models loaded once, turns alternating; then the targets.

    python bench/side_by_side.py --setup                            # once: the peers, each in a venv of its own
    python bench/side_by_side.py --suite smollm2 -m smollm2.gguf    # speeds, ratios, targets; JSON in bench/results/
    python bench/side_by_side.py --suite 1b                         # random 1.07 B model, made when missing
    python bench/side_by_side.py --suite avx2 -m smollm2.gguf       # both without AVX-512
    python bench/side_by_side.py --merge bench/results/a.json bench/results/b.json   # one table of parts

`--tests`, `--engines` and `--cases` measure a part. llama.cpp reads the same file and its own Q4_0 and Q8_0 of it, with
and without flash attention: settings that are clearly slower in the warm-up are not timed further. It gets the next
tokens handed to it and samples nothing, as its own benchmark does, while the others sample greedily. A peer that is not
installed is reported as absent. Start at `measure_case`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from contestants import Contestant, Places, list_contestants, make_missing_files, start_contestants
from peer_setup import SETUPS
from speed_table import Measurement, format_busy, format_rows, format_speeds, make_rows
from suites import ALL_PEERS, COLD_START, PELTON, SUITES, Case, SpeedTest
from worker_process import (
    DEFAULT_WORKDIR,
    ROOT,
    WORKERS,
    Worker,
    WorkerError,
    count_physical_cores,
    describe_machine,
    get_commit,
)

# A setting this much slower in the warm-up than the best of its group is not timed further.
KEEP_ABOVE = 0.85
LONG_CALL_S = 5.0


def time_once(worker: Worker, test: SpeedTest) -> float:
    """Tokens per second of one call."""
    return test.num_tokens / float(worker.ask(test.command, **test.arguments)["seconds"])


def warm_up(worker: Worker, test: SpeedTest) -> float:
    """Tokens per second of the first call or, unless that took long, of a second one if faster.

    One disturbed call must not rule a setting out.
    """
    begin = time.perf_counter()
    speed = time_once(worker, test)
    return speed if time.perf_counter() - begin > LONG_CALL_S else max(speed, time_once(worker, test))


def keep_best_settings(speeds: dict[str, float], groups: dict[str, str]) -> list[str]:
    """Labels whose warm-up speed is near the best of their group, in order."""
    best = {group: max(speeds[label] for label in speeds if groups[label] == group) for group in groups.values()}
    return [label for label, speed in speeds.items() if speed >= KEEP_ABOVE * best[groups[label]]]


def run_rounds(workers: Sequence[Worker], test: SpeedTest, repeat: int) -> dict[str, list[float]]:
    """Return {worker label: tokens/s, one value a round}.

    The engines take turns, forwards in even and backwards in odd rounds, so that a machine that slows down or speeds up
    favours nobody.
    """
    speeds: dict[str, list[float]] = {worker.label: [] for worker in workers}
    for i in range(repeat):
        for worker in workers if i % 2 == 0 else list(reversed(workers)):
            speeds[worker.label].append(time_once(worker, test))
    return speeds


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """One process that computes without end."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure_test(
    workers: dict[str, Worker], contestants: Sequence[Contestant], test: SpeedTest, arguments: argparse.Namespace
) -> Iterator[Measurement]:
    """Warm up, choose the settings worth timing, time them; with --busy once more beside a busy process."""
    wanted = [c for c in contestants if c.label in workers and (c.peer == PELTON or c.peer in test.peers)]
    first: dict[str, float] = {}
    failed: dict[str, str] = {}
    for contestant in wanted:
        try:
            first[contestant.label] = warm_up(workers[contestant.label], test)
        except WorkerError as error:
            failed[contestant.label] = str(error)
            print(f"failed: {test.name}: {error}", flush=True)
    labels = keep_best_settings(first, {c.label: c.group for c in wanted if c.label in first})
    chosen = [workers[label] for label in labels]
    common = {"test": test.name, "warm_up": first, "failed": failed}
    yield {**common, "is_busy": False, "runs": run_rounds(chosen, test, arguments.repeat)}
    if arguments.busy:
        with busy_neighbour():
            yield {**common, "is_busy": True, "runs": run_rounds(chosen, test, arguments.repeat)}


def measure_case(case: Case, tests: Sequence[SpeedTest], arguments: argparse.Namespace) -> dict[str, Any]:
    """Load every engine of `case`, time `tests`, and return the document's part."""
    places = arguments.places
    model = arguments.model if case.file is None else places.models / case.file
    if COLD_START in tests:
        facts = {"case": case.name, "test": COLD_START.name, "date": now(), "file": model.name}
        return {"measurements": [{**measure_cold_start(model, arguments), **facts}], "absent": {}}
    make_missing_files(case, model, places)
    contestants = [c for c in list_contestants(case, model, arguments.threads, places) if c.peer in arguments.engines]
    measurements: list[Measurement] = []
    with ExitStack() as stack:
        limit = measure_bandwidth(places, arguments)
        workers, absent = start_contestants(contestants, arguments.threads, places.workdir, stack)
        engines = {
            c.label: {"peer": c.peer, "file": c.model.name, "is_same_file": c.is_same_file}
            | workers[c.label].description
            for c in contestants
            if c.label in workers
        }
        for test in tests:
            for measurement in measure_test(workers, contestants, test, arguments):
                facts = {"case": case.name, "date": now(), "bandwidth_limit": limit, "file": model.name}
                used = {label: engines[label] for label in measurement["runs"]}
                measurements.append({**measurement, **facts, "engines": used})
                print("\n".join(format_speeds(measurements[-1:])[1:]), flush=True)
        # The machine may have become faster since: a limit below what was reached would be none.
        limit = max(limit, measure_bandwidth(places, arguments))
    for measurement in measurements:
        measurement |= {"bandwidth_limit": limit, "date": measurements[0]["date"]}
    return {"measurements": measurements, "absent": absent}


def measure_cold_start(model: Path, arguments: argparse.Namespace) -> Measurement:
    """Seconds from starting `pelton run` to its first byte of output; a first, uncounted start fills the page cache."""
    command = [str(arguments.places.pelton_python), "-m", "pelton", "run", "-m", str(model)]
    command += ["--threads", str(arguments.threads), "--temperature", "0", "--max-tokens", "1", "How does it work?"]
    seconds = []
    for _ in range(arguments.repeat + 1):
        begin = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            if not process.stdout.read(1):
                raise WorkerError(f"{' '.join(command)} wrote nothing")
            seconds.append(time.perf_counter() - begin)
    return {"is_busy": False, "runs": {PELTON: seconds[1:]}, "engines": {PELTON: {"peer": PELTON}}}


def measure_bandwidth(places: Places, arguments: argparse.Namespace) -> float:
    """Bytes per second that all threads together read from memory."""
    if arguments.bandwidth is not None:
        return float(arguments.bandwidth) * 1e9
    command = [str(places.pelton_python), str(WORKERS / "read_bandwidth.py"), str(arguments.threads)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def now() -> str:
    """UTC, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def save(path: Path, document: dict[str, Any]) -> None:
    """Write the JSON record; nothing half-written stays under the final name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
    print(f"\nsaved {path}")


def print_tables(measurements: Sequence[Measurement], absent: dict[str, str]) -> list[dict[str, Any]]:
    """Speeds, what a busy neighbour costs, absent engines and the targets; returns the rows of targets."""
    rows = make_rows(measurements)
    print("\n" + "\n".join(format_speeds(measurements)))
    if busy := format_busy(measurements):
        print("\n" + "\n".join(busy))
    for label, reason in absent.items():
        print(f"absent: {label}: {reason}")
    print("\n" + "\n".join(format_rows(rows)))
    return rows


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=sorted(SUITES), default="smollm2")
    parser.add_argument("-m", "--model", type=Path, help="GGUF file of the suites smollm2, avx2 and kv (Q4_1)")
    parser.add_argument("--tests", help="of the suite, separated by commas; all by default")
    parser.add_argument("--cases", help="of the suite, separated by commas; all by default")
    parser.add_argument("--engines", default=",".join(ALL_PEERS), help="peers beside Pelton, separated by commas")
    parser.add_argument("--busy", action="store_true", help="each test a second time beside a busy process")
    parser.add_argument("--threads", type=int, default=count_physical_cores(), help="threads of each engine")
    parser.add_argument("--repeat", type=int, default=5, help="counted rounds")
    parser.add_argument("--bandwidth", type=float, help="GB/s all threads read from memory; measured by default")
    parser.add_argument("--setup", nargs="*", choices=sorted(SETUPS), help="make the environments (all), then stop")
    parser.add_argument("--merge", nargs="+", type=Path, help="print and record one table of these files, then stop")
    parser.add_argument("--workdir", type=Path, default=DEFAULT_WORKDIR, help="environments and logs of the peers")
    parser.add_argument("--models", type=Path, help="folder of files made here; WORKDIR/models by default")
    parser.add_argument("--pelton-python", type=Path, default=Path(sys.executable), help="an interpreter with Pelton")
    parser.add_argument("--name", help="of the record in --results; the suite by default")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    arguments = parser.parse_args(argv)
    arguments.places = Places(
        arguments.workdir, arguments.models or arguments.workdir / "models", arguments.pelton_python
    )
    arguments.engines = {PELTON, *filter(None, arguments.engines.split(","))}
    if unknown := arguments.engines - {PELTON, *ALL_PEERS}:
        parser.error(f"--engines names {', '.join(sorted(unknown))}; allowed: {', '.join(ALL_PEERS)}")
    if arguments.threads < 1 or arguments.repeat < 1:
        parser.error(f"--threads is {arguments.threads}, --repeat is {arguments.repeat}; allowed: at least 1")
    suite = SUITES[arguments.suite]
    arguments.tests = choose(parser, "--tests", arguments.tests, suite.tests)
    arguments.cases = choose(parser, "--cases", arguments.cases, suite.cases)
    needs_model = arguments.setup is None and arguments.merge is None and any(c.file is None for c in suite.cases)
    if needs_model and (arguments.model is None or not arguments.model.is_file()):
        parser.error(f"--model is {arguments.model}; a GGUF file is needed")
    return arguments


def choose(parser: argparse.ArgumentParser, option: str, names: str | None, items: Sequence[Any]) -> list[Any]:
    """The items named, all by default; an unknown name ends the program."""
    if names is None:
        return list(items)
    known = {item.name: item for item in items}
    if unknown := [name for name in names.split(",") if name not in known]:
        parser.error(f"{option} names {', '.join(unknown)}; allowed: {', '.join(known)}")
    return [known[name] for name in names.split(",")]


def merge(paths: Sequence[Path]) -> dict[str, Any]:
    """One document of several: all measurements, and where each came from."""
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    measurements = [
        {**m, "commit": m.get("commit", d["commit"]), "machine": m.get("machine", d["machine"])}
        for d in documents
        for m in d["measurements"]
    ]
    last = max(documents, key=lambda document: document["date"])
    started = {label for m in measurements for label in m["engines"]}
    absent = {label: reason for d in documents for label, reason in d["absent"].items() if label not in started}
    return {**last, "suite": "merged", "measurements": measurements, "absent": absent}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the cases and tests asked for."""
    document: dict[str, Any] = {
        "date": now(),
        "commit": get_commit(),
        "machine": describe_machine(),
        "suite": arguments.suite,
        "threads": arguments.threads,
        "repeat": arguments.repeat,
        "measurements": [],
        "absent": {},
    }
    for case in arguments.cases:
        part = measure_case(case, arguments.tests, arguments)
        document["measurements"] += part["measurements"]
        document["absent"] |= part["absent"]
    return document


def main() -> int:
    """Set up, merge, or measure, print and record; the exit code says whether targets were met if --check asks."""
    arguments = parse_arguments()
    if arguments.setup is not None:
        for name in arguments.setup or SETUPS:
            SETUPS[name](arguments.places, arguments.model)
            print(f"{name} is ready")
        return 0
    document = merge(arguments.merge) if arguments.merge else measure(arguments)
    document["targets"] = print_tables(document["measurements"], document["absent"])
    default_name = "merged" if arguments.merge else arguments.suite
    save(arguments.results / f"{document['date'][:10]}-{arguments.name or default_name}.json", document)
    return int(arguments.check and not all(row["is_met"] for row in document["targets"]))


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except WorkerError as error:
        raise SystemExit(str(error)) from error
