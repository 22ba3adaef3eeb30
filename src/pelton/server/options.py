"""`ServerOptions`: every option of the server, described once; the command line and the docs come from the fields."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pelton.core.errors import InvalidParameterError
from pelton.core.fields import check_number_types, option, validate_options

_INTEGERS = (
    "port",
    "requests_per_minute",
    "tokens_per_minute",
    "max_body_bytes",
    "max_prompt_tokens",
    "max_choices",
    "max_batch_prompts",
    "max_stop_strings",
    "max_schema_bytes",
)
_NUMBERS = ("keep_alive_s", "drain_timeout_s", "request_timeout_s", "body_timeout_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of `pelton serve`, validated on construction (`InvalidParameterError`)."""

    host: str = option("127.0.0.1", "Address to listen on; anything but loopback should have API keys.")
    port: int = option(8000, "Port to listen on; 0 takes a free one.", minimum=0, maximum=65535)
    served_model_name: tuple[str, ...] = option(
        (), "Name under which clients find the model; the first one is reported. Left out: the model as it was named."
    )
    api_key_file: str | None = option(
        None, "File with one API key a line, `name:key` or `key`; PELTON_API_KEYS, separated by commas, adds to it."
    )
    requests_per_minute: int | None = option(
        None, "Most requests of one API key in a minute; unset sets no limit.", minimum=1, maximum=10**9
    )
    tokens_per_minute: int | None = option(
        None,
        "Most tokens, prompt and output, of one API key in a minute; unset sets no limit.",
        minimum=1,
        maximum=10**12,
        unit="tokens",
    )
    max_body_bytes: int = option(4 * 2**20, "Longest body of a request.", minimum=1024, maximum=2**30, unit="bytes")
    max_prompt_tokens: int | None = option(
        None, "Longest prompt; unset allows the whole context.", minimum=1, maximum=2**31 - 1, unit="tokens"
    )
    max_choices: int = option(16, "Most choices (n, best_of) of one request.", minimum=1, maximum=1024)
    max_batch_prompts: int = option(256, "Most prompts in one completions request.", minimum=1, maximum=2**16)
    max_stop_strings: int = option(16, "Most stop strings of one request.", minimum=0, maximum=64)
    max_schema_bytes: int = option(
        64 * 1024, "Largest JSON schema, regex or grammar of a request.", minimum=2, maximum=2**24, unit="bytes"
    )
    request_timeout_s: float | None = option(
        None,
        "Longest time of one request from arrival to its end; unset sets no limit.",
        minimum=0.0,
        exclusive_minimum=True,
        maximum=10**6,
        unit="seconds",
    )
    body_timeout_s: float = option(
        60.0,
        "Longest pause in a body that is being sent, and longest time for the head of a request to arrive.",
        minimum=0.05,
        maximum=86400.0,
        unit="seconds",
    )
    keep_alive_s: float = option(
        10.0,
        "A stream that has been silent for this long sends a comment, so that proxies do not close it.",
        minimum=0.05,
        maximum=3600.0,
        unit="seconds",
    )
    drain_timeout_s: float = option(
        30.0,
        "After SIGTERM, how long open requests may go on before they end with an error.",
        minimum=0.0,
        maximum=86400.0,
        unit="seconds",
    )
    cors_origins: tuple[str, ...] = option((), "Origin that browsers may call from, or *; none by default.")
    ssl_certfile: str | None = option(None, "Certificate chain (PEM); together with --ssl-keyfile turns TLS on.")
    ssl_keyfile: str | None = option(None, "Private key (PEM) of the certificate.")
    ssl_ca_certs: str | None = option(None, "CA certificates (PEM): clients must show a certificate signed by one.")
    otlp_endpoint: str | None = option(
        None,
        "OTLP/HTTP endpoint for a span per request and its parts; needs opentelemetry-sdk and its OTLP exporter.",
    )
    use_docs: bool = option(True, "Serve /docs and /openapi.json.")

    def __post_init__(self) -> None:
        check_number_types(self, _INTEGERS, _NUMBERS)
        validate_options(self)
        self._check_texts()
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise InvalidParameterError("ssl_keyfile", self.ssl_keyfile, "both --ssl-certfile and --ssl-keyfile")
        if self.ssl_ca_certs is not None and self.ssl_certfile is None:
            raise InvalidParameterError("ssl_ca_certs", self.ssl_ca_certs, "only together with --ssl-certfile")
        for name in ("api_key_file", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs"):
            value = getattr(self, name)
            if value is not None and not Path(value).is_file():
                raise InvalidParameterError(name, value, "a file that exists")

    def _check_texts(self) -> None:
        """Refuse texts with which the server would start and then not do what was meant."""
        if not self.host.strip():
            raise InvalidParameterError("host", self.host, "an address of this machine; 0.0.0.0 for all of them")
        for name in self.served_model_name:
            if not name.strip():
                raise InvalidParameterError("served_model_name", name, "a name that is not empty")
        for origin in self.cors_origins:
            # Browsers send exactly this much, so that anything else would never match.
            if origin != "*" and not re.fullmatch(r"https?://[^/?#\s]+", origin):
                raise InvalidParameterError("cors_origins", origin, "* or http(s)://host[:port] without a path")
        if self.otlp_endpoint is not None and not re.match(r"https?://[^/?#\s]", self.otlp_endpoint):
            raise InvalidParameterError("otlp_endpoint", self.otlp_endpoint, "an http(s):// address")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")
