"""Hold `pelton plan` to account: predicted TTFT, ITL and memory beside what this machine really does.

    python bench/plan_vs_measured.py model.gguf --depth 0 --users 1,8,32
    python bench/plan_vs_measured.py model.gguf --depth 4096 --users 1,8,32 --prompt 64 --json

TTFT: until the last of the users, who come at once, has a first token of a prompt after `depth` cached tokens. Rates of
the machine are taken from where `pelton plan` keeps them, or measured first (`--measure`: anew). Exit code 1 if a
prediction is off by more than `--tolerance` percent. Nothing else should run. Start at `compare`.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from pelton.core.config import read_environment
from pelton.insight.kv_layout import KvFormat, count_cache_block_bytes
from pelton.insight.machine_rates import MachineRates
from pelton.insight.model_shape import GroupedAttention
from pelton.insight.model_source import open_model
from pelton.insight.plan import plan_memory
from pelton.insight.prediction import Planned, predict_decode, predict_prefill
from pelton.insight.this_machine import list_needs, open_this_machine
from plan_measurements import Case, Measurement, measure


@dataclass(frozen=True)
class Row:
    """One quantity of one case: predicted, measured, and by how many percent the prediction is off."""

    case: Case
    quantity: str
    predicted: float
    measured: float

    @property
    def error_pct(self) -> float:
        """Positive where the prediction is too high; 0 where nothing was measured."""
        return 100.0 * (self.predicted / self.measured - 1.0) if self.measured else 0.0


def compare(planned: Planned, machine: MachineRates, result: Measurement) -> list[Row]:
    """TTFT, ITL and memory of one measured case beside their predictions."""
    case = result.case
    # Tokens are decoded behind the prompt; the middle one of them stands for all.
    context = case.depth + case.prompt + 1 + case.new_tokens // 2
    prefill = predict_prefill(planned, machine, case.users, case.prompt, case.depth)
    decode = predict_decode(planned, machine, case.users, context)
    return [
        Row(case, "TTFT, ms", prefill.total_s * 1e3, result.ttft_s * 1e3),
        Row(case, "ITL, ms", decode.total_s * 1e3, result.itl_s * 1e3),
        Row(case, "memory, MB", predict_memory(planned, machine, result) / 1e6, result.resident_bytes / 1e6),
    ]


def compare_parts(planned: Planned, machine: MachineRates, result: Measurement) -> list[Row]:
    """Linears, attention and the rest of a decode step beside their predictions."""
    case = result.case
    decode = predict_decode(planned, machine, case.users, case.depth + case.prompt + 1 + case.new_tokens // 2)
    nodes = result.itl_node_s
    parts = (
        ("linears, ms", decode.linear_s, nodes["linear"]),
        ("attention, ms", decode.attend_s, nodes["attend"]),
        ("row by row, ms", decode.rest_s, nodes["other"]),
        ("around, ms", decode.overhead_s, result.itl_s - sum(nodes.values())),
    )
    return [Row(case, f"- {name}", predicted * 1e3, measured * 1e3) for name, predicted, measured in parts]


def predict_memory(planned: Planned, machine: MachineRates, result: Measurement) -> float:
    """Bytes with as many KV blocks as were written, and the workspace of the largest step so far."""
    attention = planned.shape.layers[0].attention
    assert isinstance(attention, GroupedAttention)
    num_layers = len(planned.shape.layers)
    block_bytes = count_cache_block_bytes(planned.kv, attention.num_kv_heads, attention.head_dim, num_layers)
    kv_bytes = result.num_kv_blocks * block_bytes
    prompt = -(-result.max_step_tokens // result.max_step_requests)
    memory = plan_memory(planned, machine, 16, result.max_step_requests, prompt, None)
    return memory.weight_bytes + memory.workspace_bytes + memory.process_bytes + kv_bytes


def print_rows(rows: list[Row]) -> None:
    """The table."""
    print(f"{'users':>5} {'depth':>6} {'prompt':>6}  {'quantity':16} {'predicted':>10} {'measured':>10} {'off':>6}")
    for row in rows:
        case = row.case
        print(
            f"{case.users:>5} {case.depth:>6} {case.prompt:>6}  {row.quantity:16} {row.predicted:>10.2f} "
            f"{row.measured:>10.2f} {row.error_pct:>+5.0f}%"
        )


def main() -> int:
    """Command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--depth", type=int, default=0)
    parser.add_argument("--users", default="1,8,32")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--kv-cache-dtype", default="f16")
    parser.add_argument("--measure", action="store_true", help="measure the rates of this machine anew")
    parser.add_argument("--parts", action="store_true", help="show the parts of a decode step as well")
    parser.add_argument("--tolerance", type=float, default=25.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    source = open_model(str(args.model), read_environment().cache_dir)
    planned = Planned(source.shape, source.formats, KvFormat(args.kv_cache_dtype))
    cases = [Case(int(users), args.depth, args.prompt, args.new_tokens) for users in args.users.split(",")]
    results = measure(args.model, cases, threads=args.threads, kv_cache_dtype=args.kv_cache_dtype, repeat=args.repeat)
    # After the models: what measuring leaves behind is not theirs.
    machine = open_this_machine(list_needs(planned), threads=args.threads, measure_anew=args.measure)
    rows = [row for result in results for row in compare(planned, machine, result)]
    parts = [row for result in results for row in compare_parts(planned, machine, result)] if args.parts else []
    if args.json:
        print(json.dumps([{**row.case.__dict__, "quantity": row.quantity, "predicted": row.predicted,
                           "measured": row.measured, "error_pct": row.error_pct} for row in rows]))  # fmt: skip
    else:
        print_rows(rows + parts)
    return int(any(abs(row.error_pct) > args.tolerance for row in rows))


if __name__ == "__main__":
    sys.exit(main())
