"""Lines on standard error that hold a loaded model against its plan. `insight/plan_check.py` compares; this prints.

Start at `write_start_lines`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pelton.cli import terminal
from pelton.cli.report import make_kv_cache_line
from pelton.core.config import read_environment

if TYPE_CHECKING:
    from pelton.core.load_facts import LoadFacts
    from pelton.core.outputs import GenerationResult
    from pelton.insight.plan_check import PlanCheck


def write_start_lines(facts: LoadFacts) -> PlanCheck | None:
    """Say what the KV cache holds, memory as planned and measured, and the speed to expect; return the comparison."""
    # Here and not above: a plain run must not pay for the cost model.
    from pelton.insight.plan_check import make_plan_check

    check = make_plan_check(facts, read_environment().cache_dir)
    terminal.write_error(make_kv_cache_line(facts))
    for line in [] if check is None else check.describe():
        terminal.write_error(f"pelton: {line}")
    return check


def write_request_line(check: PlanCheck | None, result: GenerationResult | None) -> None:
    """Say how long a request took beside the prediction; nothing where there is none, or the request was cut off."""
    if check is None or result is None:
        return
    from pelton.insight.plan_check import check_request

    compared = check_request(check, result)
    if compared is not None:
        terminal.write_error(f"pelton: {compared.describe()}")
