"""Writing to standard output and error, reading standard input, and progress bars.

Knows streams and terminals, nothing about models. Start at `write_out`. rich is imported by the first progress bar
or table only, because `pelton run` must print its first token quickly.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from pelton.core.config import read_wants_color
from pelton.core.errors import InvalidParameterError, PeltonError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class OutputClosedError(PeltonError):
    """Standard output cannot take what must be written: closed pipe, full disk, no such stream."""


def write_out(text: str) -> None:
    """Write `text` to standard output at once (no buffering across calls).

    Raises `OutputClosedError` if the reader has gone away, the disk is full, or there is no standard output.
    """
    if sys.stdout is None:
        raise OutputClosedError("standard output is closed; allowed: a terminal, a file or an open pipe")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        raise make_output_error(error) from error
    except ValueError as error:  # "I/O operation on closed file"
        raise OutputClosedError("standard output is closed; allowed: a terminal, a file or an open pipe") from error


def make_output_error(error: OSError) -> OutputClosedError:
    """Put an operating-system error on standard output into one line."""
    if error.errno in (errno.EPIPE, errno.EBADF):
        return OutputClosedError("standard output was closed by its reader; allowed: a reader that reads to the end")
    return OutputClosedError(f"standard output: {error.strerror or error}; allowed: a place with room for the output")


def get_stdout() -> TextIO | None:
    """Standard output for a writer of many lines; None if there is none."""
    return sys.stdout


def silence_stdout() -> None:
    """Point standard output at nothing, so that the interpreter's last flush cannot complain."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        stdout_fd = sys.stdout.fileno()
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, stdout_fd)
        os.close(devnull)


def prepare_streams() -> None:
    """Let standard output and error show what their encoding can and replace the rest, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def write_error(text: str) -> None:
    """Write one line to standard error; never raises, as there is nowhere left to report to."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def write_json(value: Mapping[str, object]) -> None:
    """Write one JSON object and a newline to standard output; infinities and NaN are refused."""
    encoding = sys.stdout.encoding if sys.stdout is not None else ""
    is_utf8 = (encoding or "").lower().replace("-", "") == "utf8"
    write_out(json.dumps(value, ensure_ascii=not is_utf8, allow_nan=False) + "\n")


def is_terminal(stream: TextIO | None) -> bool:
    """Whether `stream` (one of sys.stdin, stdout, stderr, which are None when closed) is a terminal."""
    return stream is not None and not stream.closed and stream.isatty()


def wants_color(stream: TextIO | None) -> bool:
    """Whether `stream` is a terminal that shows colours, and NO_COLOR does not ask for none."""
    return is_terminal(stream) and read_wants_color()


def read_piped_text() -> str:
    """Read standard input to its end as UTF-8, without one closing newline.

    Raises `InvalidParameterError` when it is closed or not UTF-8.
    """
    if sys.stdin is None:
        raise InvalidParameterError("standard input", "closed", "a prompt as argument or on standard input")
    text = decode_utf8(sys.stdin.buffer.read(), "standard input")
    return text.removesuffix("\n").removesuffix("\r")


def decode_utf8(data: bytes, source: str) -> str:
    """Decode UTF-8 strictly (a byte order mark is dropped); raise `InvalidParameterError` naming `source`."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise InvalidParameterError(source, byte, "UTF-8 text") from None


def check_utf8(text: str, name: str) -> None:
    """Raise `InvalidParameterError` for text that UTF-8 cannot express, as arguments in another encoding arrive."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameterError(name, text[error.start : error.end], "UTF-8 text") from None


class ProgressBar:
    """A progress bar on standard error, drawn only on a terminal, made at the first `update`."""

    def __init__(self, description: str, *, is_bytes: bool = False) -> None:
        self._description = description
        self._is_bytes = is_bytes
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._is_shown = is_terminal(sys.stderr)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, done: float, total: float | None, note: str = "") -> None:
        """Show that `done` of `total` (None: unknown) is finished, with a short `note` at the end of the bar."""
        if not self._is_shown:
            return
        if self._progress is None:
            self._progress = self._make_progress()
            self._bar = self._progress.add_task(self._description, total=total, note=note)
            self._progress.start()
        assert self._bar is not None
        self._progress.update(self._bar, completed=done, total=total, note=note)

    def _make_progress(self) -> Progress:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        text = TextColumn("{task.description}", markup=False)
        amount = (DownloadColumn(), TransferSpeedColumn()) if self._is_bytes else (MofNCompleteColumn(),)
        note = TextColumn("{task.fields[note]}", markup=False)
        console = Console(stderr=True)
        return Progress(text, BarColumn(), *amount, TimeRemainingColumn(), note, console=console, transient=True)


def print_table(title: str, columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> None:
    """Print a table to standard output; `columns` are (heading, whether to align right)."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, header_style="bold")
    for heading, is_number in columns:
        table.add_column(heading, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    # Away from a terminal nothing limits the width, and a folded table would be harder to read by programs.
    console = Console(width=None if is_terminal(sys.stdout) else 200)
    with console.capture() as capture:
        console.print(table)
    # A terminal does not show the blanks rich fills lines up with, but a file would keep them.
    lines = [line.rstrip() for line in capture.get().splitlines()]
    write_out("".join(f"{line}\n" for line in lines if line))
