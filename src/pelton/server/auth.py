"""API keys: where they come from, and which caller a header belongs to. Start at `ApiKeys`.

It knows headers, not routes; `dependencies.py` asks it for every request.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pelton.core.errors import InvalidParameterError

ANONYMOUS = "anonymous"
_MIN_KEY_LENGTH = 8


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. `name` is what logs and fair shares go by; it is never the key itself."""

    name: str


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """The keys that may call. Without any, every caller is let in as `anonymous`.

    Keys are kept as SHA-256 digests: all have one length, so that comparing takes the same time for all of them.
    """

    digests: Mapping[bytes, str]

    @classmethod
    def from_lines(cls, lines: Iterable[str]) -> ApiKeys:
        """Read keys, one a line: `key`, or `name:key`; blank lines and lines beginning with # are left out.

        Raises `InvalidParameterError` for a key of fewer than 8 characters or one that occurs twice.
        """
        digests: dict[bytes, str] = {}
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            name, separator, key = text.rpartition(":")
            if len(key) < _MIN_KEY_LENGTH or not key.isascii() or any(c.isspace() for c in key):
                # The key itself must not reach logs or terminals.
                raise InvalidParameterError(
                    f"API key {number}",
                    f"{len(key)} characters",
                    f"at least {_MIN_KEY_LENGTH} ASCII characters without blanks",
                )
            digest = _digest(key)
            if digest in digests:
                raise InvalidParameterError(f"API key {number}", "a repeated key", "each key once")
            digests[digest] = name if separator else f"key-{digest.hex()[:8]}"
        return cls(digests)

    @classmethod
    def load(cls, key_file: str | None, variable: str | None) -> ApiKeys:
        """Join the keys of a file and of PELTON_API_KEYS (separated by commas); either may be missing.

        Raises `InvalidParameterError` for a file that cannot be read, or holds no key.
        """
        lines: list[str] = []
        if key_file is not None:
            try:
                lines = Path(key_file).read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidParameterError("api_key_file", key_file, f"a readable text file ({error})") from error
        keys = cls.from_lines([*lines, *(variable or "").split(",")])
        if key_file is not None and not keys.digests:
            raise InvalidParameterError("api_key_file", key_file, "a file with at least one key")
        return keys

    @property
    def is_open(self) -> bool:
        """Whether anybody may call."""
        return not self.digests

    def find_caller(self, headers: Mapping[str, str]) -> Caller | None:
        """The caller of a request with these headers (lower-case names); None if its key is missing or unknown.

        Takes `Authorization: Bearer KEY`, or `x-api-key: KEY`. Every known key is compared, whichever fits.
        """
        if self.is_open:
            return Caller(ANONYMOUS)
        digest = _digest(_get_key(headers))
        found: str | None = None
        for known, name in self.digests.items():
            if hmac.compare_digest(known, digest):
                found = name
        return None if found is None else Caller(found)


def _get_key(headers: Mapping[str, str]) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    return headers.get("x-api-key", "")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()
