"""How a plan is shown: a page for people, one JSON object for programs. Start at `print_plan` and `make_plan_json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pelton.cli import terminal
from pelton.insight.explain_units import format_bytes, format_ops
from pelton.insight.model_shape import GroupedAttention
from pelton.insight.model_source import ModelSource
from pelton.insight.plan import Plan, SpeedPlan
from pelton.insight.plan_changes import Change


def print_plan(source: ModelSource, plan: Plan, changes: Sequence[Change]) -> None:
    """Print what `make_plan` and `find_changes` found."""
    shape = source.shape
    sparse = shape.count_active_parameters() < 0.8 * (shape.count_parameters() - shape.embedding.num_weights)
    active = f", {shape.count_active_parameters() / 1e9:.2f} B active" if sparse else ""
    lines = [
        f"{source.name}: {shape.count_parameters() / 1e9:.2f} B parameters{active}, {len(shape.layers)} layers, "
        f"context up to {shape.max_context:,} tokens",
        f"  from {source.origin}; weights {plan.planned.formats.describe()}, KV cache {plan.planned.kv.name}",
        f"on {plan.machine.title}",
        f"  {plan.machine.source}",
        "",
        *_describe_memory(plan),
        "",
        *_describe_speed(plan),
    ]
    if changes:
        lines += ["", "What would help most", *(f"  {change.name}: {change.effect}" for change in changes)]
    terminal.write_out("\n".join(lines) + "\n")


def _describe_memory(plan: Plan) -> list[str]:
    memory = plan.memory
    kv_bytes = memory.kv_bytes if memory.kept_kv_bytes is None else memory.kept_kv_bytes
    rows = [
        ("weights", memory.weight_bytes, ""),
        (f"KV cache of one request, {plan.context:,} tokens", kv_bytes, _describe_kv(plan)),
        (f"KV cache of {plan.users:,}", plan.users * kv_bytes, ""),
        ("workspace", memory.workspace_bytes, "activations, logits"),
        ("program", memory.process_bytes, "Python, libraries, tokenizer"),
        ("in all", memory.count_total(plan.users), ""),
    ]
    lines = ["Memory"]
    for name, num_bytes, note in rows:
        lines.append(f"  {name:40} {_format_bytes(num_bytes):>10}{'  ' + note if note else ''}")
    if memory.num_fitting is not None and memory.available_bytes is not None:
        fit = f"{memory.num_fitting:,} request{'s' * (memory.num_fitting != 1)} of {plan.context:,} tokens"
        fit += " fit" + "s" * (memory.num_fitting == 1)
        lines.append(f"  {fit} into {_format_bytes(memory.available_bytes)}{_explain_shortage(plan)}")
    else:
        lines.append("  how many requests fit: --memory says how much there is")
    return lines


def _describe_kv(plan: Plan) -> str:
    memory = plan.memory
    per_token = f"{memory.kv_bytes_per_token:,.0f} B a token"
    growing = memory.growing_bytes_per_token
    if growing < memory.kv_bytes_per_token:
        window = min(
            layer.attention.window
            for layer in plan.planned.shape.layers
            if isinstance(layer.attention, GroupedAttention) and layer.attention.window is not None
        )
        per_token += f", {growing:,.0f} past the window of {window:,}"
        if memory.kept_kv_bytes is not None and memory.kept_kv_bytes > 1.05 * memory.kv_bytes:
            per_token += f"; windows need {_format_bytes(memory.kv_bytes)}, this version keeps all"
    return per_token


def _explain_shortage(plan: Plan) -> str:
    memory = plan.memory
    assert memory.available_bytes is not None
    fixed = memory.count_total(0)
    if fixed > memory.available_bytes:
        return f": without any request {_format_bytes(fixed)} are needed"
    return "" if memory.num_fitting is None or memory.num_fitting >= plan.users else f": fewer than {plan.users:,}"


def _describe_speed(plan: Plan) -> list[str]:
    lower = "" if plan.machine.runs_pelton else ", at the machine's limits: nothing can be faster"
    lines = [f"Speed with prompts of {plan.prompt:,} tokens, and {plan.context:,} tokens of context{lower}"]
    lines.append(f"  {'users':>6} {'TTFT':>12} {'bound':>11} {'ITL':>12} {'bound':>11} {'tokens/s in all':>16}")
    for speed in plan.speeds:
        lines.append(
            f"  {speed.users:>6,} {_format_time(speed.ttft_s):>12} {speed.prefill.bound:>11} "
            f"{_format_time(speed.itl_s):>12} {speed.decode.bound:>11} {speed.tokens_per_s:>16,.1f}"
        )
    lines.append("  TTFT: until the last of the users, who all come at once, has a first token")
    lines.append(f"  {_explain(plan.speed)}")
    return lines


def _explain(speed: SpeedPlan) -> str:
    """Where a decode step's time goes, and what it is bound by."""
    decode = speed.decode
    share = 100.0 * decode.attend_s / decode.total_s
    return (
        f"a decode step of {speed.users:,} reads {format_bytes(decode.cost.num_bytes)} and does "
        f"{format_ops(decode.cost.num_ops)}; "
        f"attention takes {share:.0f} % of it; the limits would allow {_format_time(decode.limit_s)}"
    )


def _format_bytes(num_bytes: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.2f} {unit}"
    return f"{num_bytes / 1e3:,.1f} kB"


def _format_time(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 10 else f"{seconds * 1e3:,.2f} ms"


def make_plan_json(source: ModelSource, plan: Plan, changes: Sequence[Change]) -> dict[str, object]:
    """The object `pelton plan --json` prints: bytes, seconds, operations."""
    shape = source.shape
    return {
        "model": {
            "name": source.name,
            "source": source.origin,
            "num_parameters": shape.count_parameters(),
            "num_active_parameters": shape.count_active_parameters(),
            "weights": plan.planned.formats.describe(),
            "kv_cache_dtype": plan.planned.kv.name,
        },
        "machine": {
            "title": plan.machine.title,
            "source": plan.machine.source,
            "is_lower_bound": not plan.machine.runs_pelton,
            "read_bytes_per_s": plan.machine.limits.read_bytes_per_s.best,
            "int8_ops_per_s": plan.machine.limits.int8_ops_per_s.best,
            "f32_ops_per_s": plan.machine.limits.f32_ops_per_s.best,
        },
        "context": plan.context,
        "prompt": plan.prompt,
        "users": plan.users,
        "memory": {**dataclasses.asdict(plan.memory), "total_bytes": plan.memory.count_total(plan.users)},
        "speed": [
            {
                "users": speed.users,
                "ttft_s": speed.ttft_s,
                "itl_s": speed.itl_s,
                "tokens_per_s": speed.tokens_per_s,
                "prefill": dataclasses.asdict(speed.prefill),
                "decode": dataclasses.asdict(speed.decode),
            }
            for speed in plan.speeds
        ],
        "changes": [dataclasses.asdict(change) for change in changes],
    }
