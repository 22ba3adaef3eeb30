"""From measured tokens per second to the table of targets: medians, ratios inside one run, met or missed.

A measurement is one test in one run: {"case", "test", "runs": {label: [tokens/s, ...]}, ...}. Several documents can be
merged: a ratio is always taken inside one run, and of several peers the one with the smallest ratio counts. Knows no
processes. Start at `make_rows`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from suites import LLAMA_CPP, PELTON, SUITES, SpeedTest, Target

Measurement = dict[str, Any]  # JSON: see the module's docstring


def summarise(values: Sequence[float]) -> dict[str, float]:
    """Median, minimum and maximum."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _is_rival(engine: dict[str, Any], label: str, target: Target) -> bool:
    if target.against == "f16 KV cache":
        return label == PELTON
    if engine["peer"] == PELTON:
        return False
    if target.against == "any peer":
        return True
    return engine["peer"] == LLAMA_CPP and (target.against == "llama.cpp" or bool(engine["is_same_file"]))


def find_ratio(measurements: Sequence[Measurement], target: Target) -> tuple[str, float, float] | None:
    """Return (rival, its median, smallest ratio of medians), or None if no run has both."""
    best: tuple[str, float, float] | None = None
    for measurement in measurements:
        runs, engines = measurement["runs"], measurement["engines"]
        if target.variant not in runs:
            continue
        ours = statistics.median(runs[target.variant])
        for label, values in runs.items():
            theirs = statistics.median(values)
            if _is_rival(engines[label], label, target) and (best is None or ours / theirs < best[2]):
                best = (label, theirs, ours / theirs)
    return best


def count_step_bytes(description: dict[str, Any], test: SpeedTest) -> float:
    """Bytes that one decode step must read: the weights once, and every sequence's keys and values."""
    tokens = test.mean_context * int(test.arguments.get("num_seqs", 1))
    return float(description["weight_bytes_per_step"]) + tokens * float(description["kv_bytes_per_token"])


def find_limit(measurements: Sequence[Measurement]) -> float | None:
    """Bytes per second of the fastest reading in any run: a disturbed one would flatter whoever is held against it."""
    return max((m["bandwidth_limit"] for m in measurements if m.get("bandwidth_limit")), default=None)


def count_bytes_per_s(measurements: Sequence[Measurement], test: SpeedTest) -> float:
    """Bytes per second that Pelton read in its best run."""
    steps_per_token = test.num_steps / test.num_tokens
    rates = (
        statistics.median(m["runs"][PELTON]) * steps_per_token * count_step_bytes(m["engines"][PELTON], test)
        for m in measurements
        if PELTON in m["runs"]
    )
    return float(max(rates))


def _make_row(
    case: str, test: SpeedTest, target: Target, measurements: Sequence[Measurement], limit: float | None
) -> dict[str, Any] | None:
    """One target held against what was measured; None if Pelton's variant was not."""
    ours = [statistics.median(m["runs"][target.variant]) for m in measurements if target.variant in m["runs"]]
    if not ours:
        return None
    row: dict[str, Any] = {"case": case, "test": test.name, "kind": target.kind, "wanted": target.wanted}
    row |= {"label": target.variant, "tokens_per_s": statistics.median(ours), "value": None}
    if target.kind in ("speed", "seconds"):
        row |= {"against": "tokens/s" if target.kind == "speed" else "seconds", "value": row["tokens_per_s"]}
    elif target.kind == "bandwidth":
        row["against"] = "bandwidth limit"
        if limit is not None:
            used = count_bytes_per_s(measurements, test)
            row |= {"value": used / limit, "against": f"{used / 1e9:.1f} of {limit / 1e9:.1f} GB/s read"}
    else:
        row["against"] = target.against
        if found := find_ratio(measurements, target):
            rival, theirs, ratio = found
            row |= {"value": ratio, "against": f"{target.against}: {rival} {theirs:.1f}"}
    row["is_met"] = None if row["value"] is None else is_met(target, row["value"])
    return row


def is_met(target: Target, value: float) -> bool:
    """Whether `value` reaches the target; seconds may not exceed it."""
    return value <= target.wanted if target.kind == "seconds" else value >= target.wanted


def make_rows(measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """One row a target, in the order of the suites; targets of which nothing was measured are left out."""
    rows = []
    limit = find_limit(measurements)
    for suite in SUITES.values():
        for case in suite.cases:
            for test in suite.tests:
                mine = [
                    m for m in measurements if not m["is_busy"] and (m["case"], m["test"]) == (case.name, test.name)
                ]
                candidates = (_make_row(case.name, test, target, mine, limit) for target in test.targets)
                rows += [row for row in candidates if row is not None]
    return rows


def format_speeds(measurements: Iterable[Measurement]) -> list[str]:
    """One line for every engine of every measurement: median, spread, share of Pelton's median in the same run."""
    lines = [f"{'case':12}{'test':24}{'engine':24}{'tokens/s':>10}  {'min..max':22}{'pelton is':>10}"]
    for measurement in measurements:
        test = measurement["test"] + (" (busy)" if measurement["is_busy"] else "")
        runs = measurement["runs"]
        ours = statistics.median(runs[PELTON]) if PELTON in runs else None
        for label, values in runs.items():
            s = summarise(values)
            ratio = f"{ours / s['median']:.2f} x" if ours is not None and label != PELTON else ""
            spread = f"{s['min']:.1f}..{s['max']:.1f}"
            lines.append(f"{measurement['case']:12}{test:24}{label:24}{s['median']:10.1f}  {spread:22}{ratio:>10}")
    return lines


def format_rows(rows: Iterable[dict[str, Any]]) -> list[str]:
    """The table of targets: what was reached, what was wanted, met or missed."""
    lines = [f"{'case':12}{'test':24}{'pelton tok/s':>12}  {'against':46}{'reached':>9}{'wanted':>9}  verdict"]
    for row in rows:
        verdict = {True: "met", False: "missed", None: "not measured"}[row["is_met"]]
        against, case, test = row["against"], row["case"], row["test"]
        lines.append(
            f"{case:12}{test:24}{row['tokens_per_s']:12.1f}  {against:46}"
            f"{_format_value(row['kind'], row['value']):>9}{_format_value(row['kind'], row['wanted']):>9}  {verdict}"
        )
    return lines


def _format_value(kind: str, value: float | None) -> str:
    if value is None:
        return "-"
    return {
        "seconds": f"{value:.2f} s",
        "speed": f"{value:.0f}",
        "ratio": f"{value:.2f} x",
        "bandwidth": f"{value:.0%}",
    }[kind]


def format_busy(measurements: Sequence[Measurement]) -> list[str]:
    """What each engine keeps of its speed beside a busy process: both medians come from one run."""
    lines = []
    for busy in (m for m in measurements if m["is_busy"]):
        quiet = next(
            m for m in measurements if not m["is_busy"] and all(m[k] == busy[k] for k in ("case", "test", "date"))
        )
        for label, values in busy["runs"].items():
            if label in quiet["runs"]:
                share = statistics.median(values) / statistics.median(quiet["runs"][label])
                lines.append(f"{busy['case']:12}{busy['test']:24}{label:24}keeps {share:.0%} beside a busy process")
    return lines
