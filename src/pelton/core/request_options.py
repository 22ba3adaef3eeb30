"""`RequestOptions`: what a caller says about a request besides its prompt and sampling: name, rank, tenant, time."""

from __future__ import annotations

from dataclasses import dataclass

from pelton.core.errors import InvalidParameterError
from pelton.core.fields import check_number_types, option, validate_options

MAX_NAME_LENGTH = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How to treat a request; nothing of it changes which tokens come out. Validated on construction.

    `request_id` is only shown in outputs and need not be unique: the engine has ids of its own. A request that runs
    longer than `timeout_s` ends with what it has, finish_reason "abort" and an `error` that says so.
    """

    request_id: str | None = option(None, "Name shown in outputs; unset shows the engine's own id.")
    priority: int = option(0, "Lower runs sooner.", minimum=-(2**31), maximum=2**31 - 1, disabled_by="0")
    tenant: str = option("", "Whose request it is, for fair shares.", disabled_by="''")
    cache_salt: str = option("", "Prompts share cached prefixes only under equal salts.", disabled_by="''")
    timeout_s: float | None = option(
        None,
        "Seconds from arrival after which the request is dropped.",
        minimum=0.0,
        exclusive_minimum=True,
        maximum=1e9,
        unit="s",
    )

    def __post_init__(self) -> None:
        check_number_types(self, ("priority",), ("timeout_s",))
        validate_options(self)
        for name, value in (("tenant", self.tenant), ("cache_salt", self.cache_salt), ("request_id", self.request_id)):
            if value is None and name == "request_id":
                continue
            if not isinstance(value, str) or len(value) > MAX_NAME_LENGTH:
                raise InvalidParameterError(name, value, f"a string of at most {MAX_NAME_LENGTH} characters")


DEFAULT_REQUEST_OPTIONS = RequestOptions()
