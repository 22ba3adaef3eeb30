"""How the page's files are served, and that they get into the wheel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_server import LiveServer, run_live
from scripted import echo, make_engine

from pelton.server.auth import ApiKeys

ROOT = Path(__file__).parents[2]
WEB = ROOT / "src" / "pelton" / "web"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with run_live(make_engine(echo), keys=ApiKeys.from_lines(["me:secret-of-mine"])) as live:
        yield live


def list_addresses() -> list[str]:
    """All that the page loads, as its document and its modules say."""
    names = set(re.findall(r'(?:href|src)="web/([^"]+)"', (WEB / "index.html").read_text()))
    scripts = [name for name in names if name.endswith(".js")]
    while scripts:
        for name in re.findall(r'from "\./([^"]+)"', (WEB / scripts.pop()).read_text()):
            if name not in names:
                names.add(name)
                scripts.append(name)
    return ["/", *(f"/web/{name}" for name in sorted(names))]


def test_everything_the_page_loads_is_there_without_a_key_and_guarded(server: LiveServer) -> None:
    addresses = list_addresses()
    assert {"/", "/web/app.js", "/web/page.css", "/web/icon.svg", "/web/figures.js"} <= set(addresses)
    kinds = {"": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    for address in addresses:
        response = server.client.get(address)
        assert response.status_code == 200, address
        kind = kinds[address.rpartition(".")[2] if "." in address else ""]
        assert response.headers["content-type"].startswith(kind)
        assert response.headers["x-content-type-options"] == "nosniff"
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy


def test_no_file_lies_there_unused() -> None:
    served = {"index.html", *(address.removeprefix("/web/") for address in list_addresses()[1:])}
    assert {path.name for path in WEB.iterdir() if path.suffix not in (".py", "") and path.is_file()} == served


def test_an_unchanged_file_is_not_sent_again(server: LiveServer) -> None:
    first = server.client.get("/web/app.js")
    etag = first.headers["etag"]
    for known in (etag, f'"other", W/{etag}', "*"):
        again = server.client.get("/web/app.js", headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == etag
    changed = server.client.get("/web/app.js", headers={"if-none-match": '"other"'})
    assert (changed.status_code, changed.content) == (200, first.content)
    assert first.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("name", ["nothing.js", "page.py", "__init__.py", "..%2fpage.py", "%2e%2e/__init__.py", ""])
def test_nothing_else_is_served(server: LiveServer, name: str) -> None:
    response = server.client.get(f"/web/{name}")
    assert response.status_code in (401, 404)
    assert "import" not in response.text


def test_the_api_behind_the_page_needs_the_key(server: LiveServer) -> None:
    for path in ("/v1/engine", "/v1/kv_cache", "/v1/steps", "/v1/requests", "/web"):
        assert server.client.get(path).status_code == 401, path


def test_the_wheel_takes_the_folder_as_it_is() -> None:
    tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11")
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]
    assert options["wheel"]["packages"] == ["src/pelton"]
    assert "exclude" not in options["wheel"]
    ignored = (ROOT / ".gitignore").read_text()
    assert not re.search(r"\.(js|css|html|svg)\b", ignored), "scikit-build leaves out what git ignores"
