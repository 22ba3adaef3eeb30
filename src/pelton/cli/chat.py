"""The interactive chat of `pelton run`: read a line, answer it, remember both.

Knows the terminal and the library's streaming calls. Start at `chat`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pelton.cli import terminal
from pelton.cli.main import EXIT_INTERRUPTED
from pelton.cli.plan_check import write_request_line
from pelton.cli.streaming import print_stream
from pelton.core.errors import PeltonError
from pelton.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pelton.engine.llm import LLM
    from pelton.insight.plan_check import PlanCheck

PROMPT_MARK = "> "
HELP = "/exit or Ctrl-D ends, /clear forgets the conversation, Ctrl-C stops an answer (or ends the chat)"


def chat(llm: LLM, params: SamplingParams, *, system: str | None, raw: bool, check: PlanCheck | None = None) -> int:
    """Chat until /exit, Ctrl-D (returns 0) or Ctrl-C at the prompt (returns 130).

    Every turn sends the whole conversation. With `raw` each line is continued by itself. An error of a turn (a
    conversation longer than the context, say) is shown and the turn forgotten; the chat goes on. With `check` a line
    after each answer compares its speed with the plan.
    """
    terminal.write_error(HELP)
    start: list[dict[str, object]] = [] if system is None else [{"role": "system", "content": system}]
    messages = list(start)
    while True:
        try:
            line = _read_line()
        except KeyboardInterrupt:
            terminal.write_error("")
            return EXIT_INTERRUPTED
        if line is None or line.strip() in ("/exit", "/quit"):
            return 0
        command = line.strip()
        if command == "/clear":
            messages = list(start)
        elif command.startswith("/") and command[1:].isalpha():
            terminal.write_error(HELP if command == "/help" else f"unknown command {command}; {HELP}")
        elif command:
            messages = _take_turn(llm, params, messages, line, raw=raw, check=check)


def _take_turn(
    llm: LLM,
    params: SamplingParams,
    messages: list[dict[str, object]],
    line: str,
    *,
    raw: bool,
    check: PlanCheck | None,
) -> list[dict[str, object]]:
    """Answer `line` and return the conversation with it; the old one if the turn failed."""
    asked: list[dict[str, object]] = [*messages, {"role": "user", "content": line}]
    try:
        outputs = llm.stream(line, params) if raw else llm.stream_chat(asked, params)
        answer = print_stream(outputs)
    except terminal.OutputClosedError:
        raise
    except PeltonError as error:
        terminal.write_error(f"pelton: error: {error}")
        return messages
    write_request_line(check, answer.result)
    return [*asked, {"role": "assistant", "content": answer.text}]


def _read_line() -> str | None:
    """Read a line, with editing and history where both ends are a terminal; None at the end of the input."""
    if terminal.is_terminal(sys.stdout):
        import readline  # noqa: F401  # importing it is what gives `input` editing and history

        try:
            return input(PROMPT_MARK)
        except EOFError:
            terminal.write_out("\n")
            return None
    if sys.stderr is not None:
        sys.stderr.write(PROMPT_MARK)
        sys.stderr.flush()
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None
