"""The boundary around every command: whatever fails becomes one line on standard error and an exit code.

Knows errors and streams, not commands; `app.py` has those. Start at `run_guarded`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pelton.cli import terminal
from pelton.core.config import read_environment, read_is_debug
from pelton.core.errors import InvalidParameterError, PeltonError

EXIT_FAILURE = 1
EXIT_USAGE = 2


def run_guarded(args: Sequence[str]) -> int:
    """Run `pelton ARGS` and return the exit code: 0 success, 1 failure, 2 wrong usage or a value that is not allowed.

    Each failure writes exactly one line to standard error; PELTON_DEBUG=1 puts the traceback before it.
    KeyboardInterrupt passes through.
    """
    try:
        terminal.prepare_streams()
        read_environment()  # a bad variable is reported before any work
        from pelton.cli.app import run_command

        code = run_command(args)
        if sys.stdout is not None:
            terminal.write_out("")  # what is still buffered must arrive, or be reported
        return code
    except Exception as error:  # the process boundary: whatever failed becomes one line
        return _report(error)
    finally:
        _drop_unwritable_output()


def _report(error: Exception) -> int:
    if read_is_debug():
        import traceback

        terminal.write_error("".join(traceback.format_exception(error)).rstrip())
    message, code = _describe(error)
    terminal.write_error("pelton: error: " + " ".join(message.split()))
    return code


def _describe(error: Exception) -> tuple[str, int]:
    if isinstance(error, InvalidParameterError):
        return _name_flag(error), EXIT_USAGE
    if isinstance(error, PeltonError):
        return str(error), EXIT_FAILURE
    from pelton.cli.app import UsageError

    if isinstance(error, UsageError):
        return str(error), EXIT_USAGE
    if isinstance(error, BrokenPipeError):
        return str(terminal.make_output_error(error)), EXIT_FAILURE
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}{error.strerror}", EXIT_FAILURE
    if isinstance(error, MemoryError):
        return "not enough memory; a smaller --max-context, --kv-cache-tokens or model needs less", EXIT_FAILURE
    hint = "" if read_is_debug() else "; PELTON_DEBUG=1 shows where"
    return f"internal error, please report it: {type(error).__name__}: {error}{hint}", EXIT_FAILURE


def _name_flag(error: InvalidParameterError) -> str:
    """The message with the option's flag for a field that only the engine could check, against the model, say."""
    from pelton.core.config import EngineConfig
    from pelton.core.fields import get_option_specs
    from pelton.core.sampling_params import SamplingParams

    parameter = error.parameter
    if parameter in get_option_specs(EngineConfig) or parameter in get_option_specs(SamplingParams):
        return "--" + parameter.replace("_", "-") + str(error).removeprefix(parameter)
    return str(error)


def _drop_unwritable_output() -> None:
    # What could not be written would be tried again, and complained about, when the interpreter ends.
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        terminal.silence_stdout()
