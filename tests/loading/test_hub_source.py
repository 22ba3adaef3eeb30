"""Pulling from a Hugging Face repository, with the library's network calls replaced."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import errors
from huggingface_hub.utils.tqdm import are_progress_bars_disabled

from pelton.core.errors import DownloadError
from pelton.loading.pull import pull, resolve_model

MODEL = b"GGUF" + bytes(5000)


class FakeHub:
    """What the server holds, and the failures a test asks for."""

    def __init__(self) -> None:
        self.files = {"org/repo": {"README.md": b"hi", "model.gguf": MODEL}}
        self.sha256 = hashlib.sha256(MODEL).hexdigest()
        self.failure: BaseException | None = None
        self.num_downloads = 0

    def model_info(self, repo_id: str, *, files_metadata: bool) -> object:
        assert files_metadata
        if self.failure is not None:
            raise self.failure
        return SimpleNamespace(siblings=[self.make_sibling(*item) for item in self.files[repo_id].items()])

    def make_sibling(self, name: str, content: bytes) -> object:
        return huggingface_hub.hf_api.RepoSibling(
            rfilename=name, size=len(content), lfs=SimpleNamespace(sha256=self.sha256)
        )

    def download(self, repo_id: str, name: str, *, local_dir: Path) -> str:
        self.num_downloads += 1
        assert are_progress_bars_disabled()
        target = local_dir / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(self.files[repo_id][name])
        return str(target)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake.download)
    return fake


def list_files(cache: Path) -> list[str]:
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if not path.is_dir())


@pytest.mark.parametrize("reference", ["hf:org/repo", "hf:org/repo/model.gguf"])
def test_file_of_a_repository_is_fetched_once(hub: FakeHub, tmp_path: Path, reference: str) -> None:
    seen: list[tuple[int, int | None]] = []
    path = pull(reference, tmp_path, lambda done, total: seen.append((done, total)))
    assert path == tmp_path / "models" / "hf" / "org" / "repo" / "model.gguf"
    assert path.read_bytes() == MODEL
    assert seen[0] == (0, len(MODEL))
    assert not are_progress_bars_disabled()
    hub.failure = ConnectionError("no network")
    assert resolve_model(reference, tmp_path) == path
    assert list_files(tmp_path) == ["models/hf/org/repo/model.gguf"]
    assert hub.num_downloads == 1


def test_file_in_a_folder_keeps_its_folder(hub: FakeHub, tmp_path: Path) -> None:
    hub.files["org/repo"] = {"sub/model.gguf": MODEL}
    path = pull("hf:org/repo", tmp_path)
    assert path == tmp_path / "models" / "hf" / "org" / "repo" / "sub" / "model.gguf"
    assert resolve_model("hf:org/repo/sub/model.gguf", tmp_path) == path
    assert hub.num_downloads == 1


def test_several_files_are_listed(hub: FakeHub, tmp_path: Path) -> None:
    hub.files["org/repo"]["other.gguf"] = MODEL
    with pytest.raises(DownloadError, match=r"more than one .*one of: model\.gguf, other\.gguf"):
        pull("hf:org/repo", tmp_path)
    hub.files["org/repo"] = {"README.md": b""}
    with pytest.raises(DownloadError, match=r"holds no \.gguf file"):
        pull("hf:org/repo", tmp_path)
    with pytest.raises(DownloadError, match=r"has no file 'absent\.gguf'; its \.gguf files: none"):
        pull("hf:org/repo/absent.gguf", tmp_path)


def test_wrong_hash_leaves_nothing(hub: FakeHub, tmp_path: Path) -> None:
    hub.sha256 = "0" * 64
    with pytest.raises(DownloadError, match="SHA-256"):
        pull("hf:org/repo", tmp_path)
    assert list_files(tmp_path) == []


def test_interrupted_download_keeps_its_part_under_another_name(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_halfway(repo_id: str, name: str, *, local_dir: Path) -> str:
        local_dir.mkdir(parents=True)
        (local_dir / "model.incomplete").write_bytes(MODEL[:100])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(huggingface_hub, "hf_hub_download", stop_halfway)
        with pytest.raises(KeyboardInterrupt):
            pull("hf:org/repo", tmp_path)
    assert list_files(tmp_path) == ["models/hf/org/repo/.partial-model.gguf/model.incomplete"]
    assert pull("hf:org/repo", tmp_path).read_bytes() == MODEL
    assert list_files(tmp_path) == ["models/hf/org/repo/model.gguf"]


def make_failure(kind: type[BaseException]) -> BaseException:
    # Their constructors want a response of the HTTP client of the day.
    error = kind.__new__(kind)
    error.args = ("first line\nsecond line",)
    return error


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (make_failure(errors.GatedRepoError), "hf:org/repo needs permission"),
        (make_failure(errors.RepositoryNotFoundError), "hf:org/repo does not exist, or needs a login"),
        (make_failure(errors.EntryNotFoundError), "hf:org/repo does not exist in the repository"),
        (make_failure(errors.OfflineModeIsEnabled), "HF_HUB_OFFLINE is set"),
        (make_failure(errors.HFValidationError), "hf:org/repo is not a repository name"),
        (ConnectionError("[Errno 111] Connection refused\nmore"), "could not be reached: [Errno 111]"),
        (RuntimeError(), "could not be reached: RuntimeError"),
    ],
)
def test_failure_is_one_line(hub: FakeHub, tmp_path: Path, failure: BaseException, expected: str) -> None:
    hub.failure = failure
    with pytest.raises(DownloadError) as caught:
        pull("hf:org/repo", tmp_path)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list_files(tmp_path) == []
