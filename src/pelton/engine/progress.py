"""A progress bar for many prompts, on a terminal only. `rich` is imported when a bar is shown.

Knows results and nothing of the engine. Start at `show_progress`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pelton.core.outputs import GenerationResult

_MIN_NUM_PROMPTS = 8


@contextmanager
def show_progress(progress: bool | None, num_prompts: int | None) -> Iterator[Callable[[GenerationResult], None]]:
    """Show a bar on standard error; call what this yields with every finished request.

    False shows none; None shows one for eight prompts or more (or an unknown number); True shows one for any number.
    Where standard error is no terminal there is never one.
    """
    is_many = num_prompts is None or num_prompts >= _MIN_NUM_PROMPTS
    if progress is False or (progress is None and not is_many) or not sys.stderr.isatty():
        yield lambda result: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        row = bar.add_task("", total=num_prompts, rate="")
        start_s = time.perf_counter()
        num_tokens = 0

        def show(result: GenerationResult) -> None:
            nonlocal num_tokens
            num_tokens += result.usage.completion_tokens
            rate = num_tokens / max(time.perf_counter() - start_s, 1e-9)
            bar.update(row, advance=1, rate=f"{rate:.0f} tokens/s")

        yield show
