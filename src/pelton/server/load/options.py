"""`LoadOptions`: what load to put on a server; the command line comes from the fields."""

from __future__ import annotations

from dataclasses import dataclass

from pelton.core.fields import check_number_types, option, validate_options
from pelton.server.load.lengths import Lengths

ENDPOINTS = ("chat", "completions")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """One load, validated on construction (`InvalidParameterError`)."""

    url: str = option("http://127.0.0.1:8000/v1", "Base URL of the server, with /v1.")
    served_model: str | None = option(None, "Model to ask for; unset takes the first the server lists.")
    endpoint: str = option("chat", "What to call: /chat/completions or /completions.", choices=ENDPOINTS)
    num_requests: int = option(128, "Requests that count.", minimum=1, maximum=10**6)
    num_warmup: int = option(4, "Requests before them that do not.", minimum=0, maximum=10**4)
    concurrency: int = option(
        16,
        "Closed loop: this many clients, each sends its next request when it has its answer.",
        minimum=1,
        maximum=4096,
    )
    rate: float | None = option(
        None,
        "Open loop instead: requests per second, with the random gaps of a Poisson process.",
        minimum=0.0,
        exclusive_minimum=True,
        maximum=1e5,
    )
    prompt_tokens: str = option("128", "Prompt length: N, LOW-HIGH (uniform) or MEDIAN~SIGMA (log-normal).")
    output_tokens: str = option("128", "Output length, in the same ways.")
    shared_prefix: float = option(
        0.0, "Share of each prompt that is the same in all of them.", minimum=0.0, maximum=1.0
    )
    use_ignore_eos: bool = option(True, "Send ignore_eos, so that every answer has its full length.")
    seed: int = option(1, "Seed of prompts, lengths and gaps.", minimum=0, maximum=2**63 - 1)
    timeout_s: float = option(300.0, "A request that takes longer has failed.", minimum=0.1, maximum=86400.0, unit="s")
    slo_ttft_ms: float = option(1000.0, "Good requests have a TTFT of at most this.", minimum=0.0, maximum=1e7)
    slo_tpot_ms: float = option(100.0, "Good requests have a mean TPOT of at most this.", minimum=0.0, maximum=1e7)

    def __post_init__(self) -> None:
        integers = ("num_requests", "num_warmup", "concurrency", "seed")
        check_number_types(self, integers, ("rate", "shared_prefix", "timeout_s", "slo_ttft_ms", "slo_tpot_ms"))
        validate_options(self)
        for name in ("prompt_tokens", "output_tokens"):
            Lengths.parse(getattr(self, name), name)
