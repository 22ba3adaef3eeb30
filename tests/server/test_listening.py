"""Where the server listens and who may call: origins of web pages, TLS, addresses and ports."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import httpx
import pytest
from live_server import HANG_S
from scripted import echo, make_engine

from pelton.core.errors import ConfigError, InvalidParameterError
from pelton.server.options import ServerOptions
from pelton.server.serve import bind


def test_pages_of_other_origins_are_refused_unless_allowed(serve) -> None:
    server = serve(make_engine(echo))
    body = {"prompt": "a"}
    foreign = {"origin": "https://evil.example"}
    assert server.client.post("/v1/completions", json=body, headers=foreign).status_code == 403
    broken = {"origin": "http://["}
    assert server.client.post("/v1/completions", json=body, headers=broken).status_code == 403
    own = {"origin": server.url}
    response = server.client.post("/v1/completions", json=body, headers=own)
    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers
    allowing = serve(make_engine(echo), cors_origins=("https://app.example",))
    preflight = allowing.client.options(
        "/v1/completions",
        headers={
            "origin": "https://app.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        },
    )
    assert preflight.status_code == 200
    response = allowing.client.post("/v1/completions", json=body, headers={"origin": "https://app.example"})
    assert response.headers["access-control-allow-origin"] == "https://app.example"
    assert allowing.client.post("/v1/completions", json=body, headers=foreign).status_code == 403


def test_tls_is_served_with_a_certificate(serve, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "1", "-subj", "/CN=localhost"]
    try:
        subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the openssl command")
    server = serve(make_engine(echo), ssl_certfile=str(cert), ssl_keyfile=str(key))
    context = ssl.create_default_context(cafile=str(cert))
    response = httpx.post(
        f"https://127.0.0.1:{server.port}/v1/completions", json={"prompt": "a"}, verify=context, timeout=HANG_S
    )
    assert response.json()["choices"][0]["text"] == "a"


def test_tls_files_that_are_none_are_refused(serve, tmp_path: Path) -> None:
    path = tmp_path / "no.pem"
    path.write_text("nothing")
    with pytest.raises(ConfigError, match="PEM"):
        serve(make_engine(echo), ssl_certfile=str(path), ssl_keyfile=str(path))
    with pytest.raises(InvalidParameterError, match="ssl_keyfile"):
        ServerOptions(ssl_certfile=str(path))
    with pytest.raises(InvalidParameterError, match="a file that exists"):
        ServerOptions(ssl_certfile=str(tmp_path / "missing"), ssl_keyfile=str(path))


def test_a_port_in_use_is_named(serve) -> None:
    server = serve(make_engine(echo))
    with pytest.raises(ConfigError, match=str(server.port)):
        bind(ServerOptions(port=server.port))


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("10.0.0.5", False)],
)
def test_loopback_is_recognised(host: str, is_loopback: bool) -> None:
    assert ServerOptions(host=host).is_loopback is is_loopback
