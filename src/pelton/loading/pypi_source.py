"""Fetch a wheel from the user's package index with pip, which knows their index, proxy and certificates.

`pip download` only: nothing is installed and no dependency is fetched. Knows pip's command line and messages, not what
the wheel is for. Start at `download_wheel`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from pelton.core.errors import DownloadError
from pelton.loading.staging import measure_largest

_POLL_S = 0.1
_TERMINATE_S = 5.0
_MAX_REASON_LENGTH = 300
_BROKEN_CONNECTION = re.compile(r"after connection broken by '(?P<reason>.*)': (?P<url>\S+)$")
_UNFETCHED_URL = re.compile(r"Could not fetch URL (?P<url>\S+): (?P<reason>.*?)(?: - skipping)?$")
_INDEXES = re.compile(r"Looking in indexes: (?P<urls>.*)$", re.MULTILINE)
_OBJECT = re.compile(r"<[\w.]+ object at 0x[0-9a-f]+>: ")
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")


def download_wheel(
    requirement: str,
    folder: Path,
    report: Callable[[int], None],
    pip_command: Sequence[str],
) -> Path:
    """Download the wheel of `requirement` (package==version) into `folder` and return its path.

    `report` gets the bytes received so far, about ten times a second. Raises `DownloadError` saying what could not be
    reached. pip is ended when this function is left early.
    """
    wheels, scratch, log = folder / "wheels", folder / "tmp", folder / "pip.log"
    for directory in (wheels, scratch):
        directory.mkdir()
    options = ("--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--progress-bar", "off")
    command = [*pip_command, "download", "--disable-pip-version-check", *options, "--dest", str(wheels), requirement]
    # env(1) moves pip's temporary files into the folder, so that they share its disk and its end.
    # The largest file counts, not the sum: pip holds the wheel twice while it copies it.
    code = _run(["env", f"TMPDIR={scratch}", *command], log, lambda: report(measure_largest(folder)))
    output = log.read_text(encoding="utf-8", errors="replace")
    if code != 0:
        raise DownloadError(f"{requirement} could not be downloaded: {explain_failure(output, code, pip_command[0])}")
    found = sorted(wheels.glob("*.whl"))
    if len(found) != 1:
        raise DownloadError(f"{requirement} gave {len(found)} wheels; exactly 1 is needed")
    return found[0]


def explain_failure(output: str, code: int, interpreter: str) -> str:
    """Return the one sentence of pip's `output` that says why it failed with exit status `code`."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"{interpreter} has no pip; add it with `{interpreter} -m ensurepip`, or give a local file with -m"
    if any("No space left on device" in line for line in lines):
        return "no space left on the disk of the model cache; free some space or set PELTON_CACHE to another disk"
    for line in reversed(lines):
        match = _BROKEN_CONNECTION.search(line) or _UNFETCHED_URL.search(line)
        if match is not None:
            return f"the package index could not be reached{_name_indexes(output)}: {_clean(match['reason'])}"
    if code < 0:
        return f"pip was ended by signal {-code}"
    # Of several errors pip prints the cause first and its consequence last.
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    if not lines:
        return f"pip ended with status {code} and said nothing"
    # With retries off, pip is silent about an index that does not answer; then it has seen no version at all.
    hint = "; perhaps the package index could not be reached" if "from versions: none" in output else ""
    return f"pip says: {_clean(errors[0] if errors else lines[-1])}{hint}"


def _run(command: list[str], log: Path, tick: Callable[[], None]) -> int:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            while True:
                try:
                    return process.wait(timeout=_POLL_S)
                except subprocess.TimeoutExpired:
                    tick()
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=_TERMINATE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _name_indexes(output: str) -> str:
    match = _INDEXES.search(output)
    return f" ({_CREDENTIALS.sub('', match['urls'])})" if match is not None else ""


def _clean(reason: str) -> str:
    reason = _CREDENTIALS.sub("", _OBJECT.sub("", reason))
    return reason if len(reason) <= _MAX_REASON_LENGTH else reason[: _MAX_REASON_LENGTH - 3] + "..."
