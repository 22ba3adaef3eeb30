"""What is measured and how good it has to be: tests, targets, and the model files and engines of each suite.

Plain data, so that the table of targets can be read in one place. Start at `SUITES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Against = Literal["any peer", "llama.cpp", "same file", "f16 KV cache"]

PELTON = "pelton"
LLAMA_CPP = "llama.cpp"
OPENVINO = "openvino"
VLLM = "vllm"


@dataclass(frozen=True)
class Target:
    """One wish: Pelton's tokens per second (`speed`), their ratio to a rival's, or the share of the bandwidth limit.

    `wanted` is the least that will do, except for `seconds`, where it is the most. `variant` is Pelton's own label
    where it is not the default one.
    """

    kind: Literal["speed", "ratio", "bandwidth", "seconds"]
    wanted: float
    against: Against = "any peer"
    variant: str = PELTON


@dataclass(frozen=True)
class SpeedTest:
    """One thing to time; `num_tokens` are the tokens one call computes, `num_steps` the steps (0: bound by arithmetic).

    `peers` are those measured beside Pelton.
    """

    name: str
    command: str
    arguments: dict[str, int]
    num_tokens: int
    num_steps: int = 0
    peers: Sequence[str] = (LLAMA_CPP,)
    targets: Sequence[Target] = ()

    @property
    def mean_context(self) -> float:
        """Tokens in the KV cache of a sequence, on average over the test."""
        return self.arguments.get("depth", 0) + self.num_steps / 2


@dataclass(frozen=True)
class Case:
    """One model file with its rivals' versions of it: `formats` are what llama.cpp may read beside the same file.

    `file` is the name under the models folder; None stands for the file given on the command line. `shape` and
    `file_type` say how to make it when it is missing.
    """

    name: str
    file: str | None = None
    file_type: str = "Q4_1"
    shape: str | None = None
    formats: Sequence[str] = ()
    peers: Sequence[str] = (LLAMA_CPP,)
    kv_cache_dtypes: Sequence[str] = ()
    isa: str | None = None


@dataclass(frozen=True)
class Suite:
    """Cases that share tests."""

    cases: Sequence[Case]
    tests: Sequence[SpeedTest] = field(default_factory=tuple)


def _prefill(num_tokens: int, depth: int, peers: Sequence[str], *targets: Target) -> SpeedTest:
    name = f"prefill{num_tokens}" + (f"-depth{depth}" if depth else "")
    return SpeedTest(
        name, "prefill", {"num_tokens": num_tokens, "depth": depth}, num_tokens, peers=peers, targets=targets
    )


def _decode(depth: int, num_seqs: int, peers: Sequence[str], *targets: Target, num_new_tokens: int = 128) -> SpeedTest:
    name = "decode" + (f"-depth{depth}" if depth else "") + (f"-x{num_seqs}" if num_seqs > 1 else "")
    arguments = {"num_new_tokens": num_new_tokens, "depth": depth, "num_seqs": num_seqs}
    return SpeedTest(
        name, "decode", arguments, num_new_tokens * num_seqs, num_steps=num_new_tokens, peers=peers, targets=targets
    )


ALL_PEERS = (LLAMA_CPP, OPENVINO, VLLM)

_SMOLLM2_TESTS = (
    _prefill(512, 0, ALL_PEERS, Target("speed", 2000), Target("ratio", 1.5), Target("ratio", 5, "same file")),
    _prefill(2048, 0, (LLAMA_CPP,), Target("ratio", 3, "llama.cpp")),
    _prefill(512, 4096, (LLAMA_CPP,), Target("ratio", 3, "llama.cpp")),
    _decode(
        0, 1, ALL_PEERS, Target("ratio", 1.5, "llama.cpp"), Target("ratio", 2, "same file"), Target("bandwidth", 0.6)
    ),
    _decode(4096, 1, (LLAMA_CPP,), Target("ratio", 3, "llama.cpp")),
    _decode(0, 8, ALL_PEERS, Target("ratio", 2), num_new_tokens=64),
    _decode(0, 32, ALL_PEERS, Target("ratio", 2), num_new_tokens=32),
)
_AVX2_TESTS = (
    _prefill(512, 0, (LLAMA_CPP,), Target("ratio", 1.5, "llama.cpp")),
    _prefill(2048, 0, (LLAMA_CPP,), Target("ratio", 1.5, "llama.cpp")),
    _prefill(512, 4096, (LLAMA_CPP,), Target("ratio", 1.5, "llama.cpp")),
    _decode(0, 1, (LLAMA_CPP,), Target("ratio", 1, "llama.cpp")),
    _decode(4096, 1, (LLAMA_CPP,), Target("ratio", 1, "llama.cpp")),
    _decode(0, 8, (LLAMA_CPP,), Target("ratio", 1, "llama.cpp"), num_new_tokens=64),
    _decode(0, 32, (LLAMA_CPP,), Target("ratio", 1, "llama.cpp"), num_new_tokens=32),
)
_1B_TESTS = (
    _prefill(512, 0, (LLAMA_CPP,), Target("ratio", 2, "same file")),
    _decode(0, 1, (LLAMA_CPP,), Target("ratio", 1.2, "same file"), Target("bandwidth", 0.8), num_new_tokens=64),
)
_KV_TESTS = (
    _decode(
        4096,
        1,
        (),
        Target("ratio", 1.15, "f16 KV cache", "pelton kv=int8"),
        Target("ratio", 1.2, "f16 KV cache", "pelton kv=int4"),
    ),
)
# Not run by a worker: a process is started and its first byte of output waited for.
COLD_START = SpeedTest("cold-start-s", "start", {}, 1, peers=(), targets=(Target("seconds", 0.6),))

SUITES: dict[str, Suite] = {
    "smollm2": Suite((Case("smollm2", formats=("Q4_0", "Q8_0"), peers=ALL_PEERS),), _SMOLLM2_TESTS),
    "1b": Suite(
        (
            Case("1b-q4_k_m", "llama-1b-q4_k_m.gguf", "Q4_K_M", "llama-1b"),
            Case("1b-q8_0", "llama-1b-q8_0.gguf", "Q8_0", "llama-1b"),
        ),
        _1B_TESTS,
    ),
    "avx2": Suite((Case("avx2", formats=("Q4_0", "Q8_0"), isa="avx2"),), _AVX2_TESTS),
    "kv": Suite((Case("kv", peers=(), kv_cache_dtypes=("int8", "int4")),), _KV_TESTS),
    "start": Suite((Case("start", peers=()),), (COLD_START,)),
}
