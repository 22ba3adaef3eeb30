"""`Plan`: before a model is loaded, what it will take, how many requests fit, how fast it will be, what would help.

Everything comes from the cost model and the rates of a machine. Start at `make_plan`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pelton.core.errors import InvalidParameterError
from pelton.core.fields import check_number_types, option, validate_options
from pelton.insight.attention_cost import count_growing_bytes
from pelton.insight.cost_model import count_kv_bytes, count_kv_bytes_per_token, count_weight_bytes
from pelton.insight.kv_layout import BLOCK_TOKENS, count_cache_block_bytes
from pelton.insight.machine_rates import MachineRates
from pelton.insight.model_shape import GroupedAttention, ModelShape
from pelton.insight.prediction import PREFILL_CHUNK, Planned, Prediction, predict_decode, predict_prefill
from pelton.insight.workspace import count_workspace_bytes

# The interpreter with the command line; NumPy, the native module, the engine's code and reading a file; what a token of
# vocabulary adds with its merge (docs/log.d/plan.md).
INTERPRETER_BYTES = 25e6
_ENGINE_BYTES = 35e6
_VOCABULARY_ENTRY_BYTES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What to plan for, validated on construction (`InvalidParameterError`)."""

    context: int | None = option(
        None,
        "Tokens of context per request; unset takes 4096, or what the model can do if that is less.",
        minimum=1,
        maximum=2**31 - 1,
        unit="tokens",
    )
    users: int = option(8, "Requests at the same time.", minimum=1, maximum=1_000_000)
    prompt: int | None = option(
        None,
        "Prompt tokens per request; unset takes 512, or the context if that is less.",
        minimum=1,
        maximum=2**31 - 1,
        unit="tokens",
    )

    def __post_init__(self) -> None:
        check_number_types(self, ("context", "users", "prompt"), ())
        validate_options(self)
        if self.context is not None and self.prompt is not None and self.prompt > self.context:
            raise InvalidParameterError("prompt", self.prompt, f"1 to {self.context}, the context")

    def choose_context(self, shape: ModelShape) -> int:
        """The context in tokens. `InvalidParameterError` for a context or prompt that the model cannot have."""
        if self.context is None:
            if self.prompt is not None and self.prompt > shape.max_context:
                raise InvalidParameterError(
                    "prompt", self.prompt, f"1 to {shape.max_context}, the context of this model"
                )
            return max(min(4096, shape.max_context), self.prompt or 1)
        if self.context > shape.max_context:
            raise InvalidParameterError("context", self.context, f"1 to {shape.max_context}, the context of this model")
        return self.context


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes by part. `growing_bytes_per_token` leaves out layers whose window is full.

    `kv_bytes` is one request's at the context if no window keeps more than it sees; `kept_kv_bytes` is what the blocks
    of Pelton's cache take, which is more where layers have windows (None: Pelton does not run there). `num_fitting`
    requests fit into `available_bytes`; both are None where the memory is not known.
    """

    weight_bytes: int
    kv_bytes_per_token: float
    growing_bytes_per_token: float
    kv_bytes: float
    kept_kv_bytes: float | None
    workspace_bytes: int
    process_bytes: int
    available_bytes: int | None
    num_fitting: int | None

    def count_total(self, num_requests: int) -> float:
        """All parts with `num_requests` requests at the context."""
        kv_bytes = self.kv_bytes if self.kept_kv_bytes is None else self.kept_kv_bytes
        return self.weight_bytes + num_requests * kv_bytes + self.workspace_bytes + self.process_bytes


@dataclass(frozen=True, slots=True)
class SpeedPlan:
    """Predictions with `users` requests: until the last first token if they come at once, and between two tokens."""

    users: int
    prefill: Prediction
    decode: Prediction

    @property
    def ttft_s(self) -> float:
        """Seconds until the last of the requests has its first token."""
        return self.prefill.total_s

    @property
    def itl_s(self) -> float:
        """Seconds between two tokens of a request."""
        return self.decode.total_s

    @property
    def tokens_per_s(self) -> float:
        """New tokens per second of all requests."""
        return self.users / self.decode.total_s


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole answer; `options` has no unset values left."""

    planned: Planned
    machine: MachineRates
    context: int
    prompt: int
    users: int
    memory: MemoryPlan
    speeds: tuple[SpeedPlan, ...]

    @property
    def speed(self) -> SpeedPlan:
        """At the number of users that was asked for."""
        return self.speeds[-1]


def make_plan(planned: Planned, machine: MachineRates, options: PlanOptions, available_bytes: int | None) -> Plan:
    """Plan for a model on a machine with `available_bytes` of memory (None: as much as the machine has).

    Raises `InvalidParameterError` for a context the model cannot have, or formats that do not fit its matrices.
    """
    context = options.choose_context(planned.shape)
    prompt = options.prompt if options.prompt is not None else min(512, context)
    available = machine.memory_bytes if available_bytes is None else available_bytes
    counts = sorted({users for users in (1, 8, 32) if users < options.users} | {options.users})
    speeds = tuple(
        SpeedPlan(
            users=users,
            prefill=predict_prefill(planned, machine, users, prompt, 0),
            decode=predict_decode(planned, machine, users, context),
        )
        for users in counts
    )
    memory = plan_memory(planned, machine, context, options.users, prompt, available)
    return Plan(planned, machine, context, prompt, options.users, memory, speeds)


def plan_memory(
    planned: Planned, machine: MachineRates, context: int, users: int, prompt: int, available: int | None
) -> MemoryPlan:
    """Memory by part, and how many requests of `context` tokens fit into `available` bytes."""
    shape, kv = planned.shape, planned.kv
    weight_bytes = count_weight_bytes(shape, planned.formats)
    kv_bytes = count_kv_bytes(shape, kv, context)
    kept = count_kept_kv_bytes(planned, context) if machine.runs_pelton else None
    largest_step = min(PREFILL_CHUNK, max(users * prompt, users))
    is_quantized = planned.formats.default.number_type == "int8"
    workspace = count_workspace_bytes(shape, largest_step, users, machine.limits.num_threads, is_quantized=is_quantized)
    process = int(INTERPRETER_BYTES) + count_engine_bytes(shape)
    fixed = weight_bytes + workspace + process
    per_request = kv_bytes if kept is None else kept
    fitting = None if available is None else max(int((available - fixed) // max(per_request, 1)), 0)
    return MemoryPlan(
        weight_bytes=weight_bytes,
        kv_bytes_per_token=count_kv_bytes_per_token(shape, kv),
        growing_bytes_per_token=sum(count_growing_bytes(layer.attention, kv) for layer in shape.layers),
        kv_bytes=kv_bytes,
        kept_kv_bytes=kept,
        workspace_bytes=workspace,
        process_bytes=process,
        available_bytes=available,
        num_fitting=fitting,
    )


def count_engine_bytes(shape: ModelShape) -> int:
    """Bytes that loading adds to the interpreter besides weights and KV cache: libraries, code, tokenizer."""
    return int(_ENGINE_BYTES + _VOCABULARY_ENTRY_BYTES * shape.vocab_size)


def count_kept_kv_bytes(planned: Planned, context: int) -> float | None:
    """Bytes that whole blocks of Pelton's cache take, windows or not; None for attention that it does not run."""
    attention = planned.shape.layers[0].attention
    if any(not isinstance(layer.attention, GroupedAttention) for layer in planned.shape.layers):
        return None
    assert isinstance(attention, GroupedAttention)
    num_blocks = -(-context // BLOCK_TOKENS)
    num_layers = len(planned.shape.layers)
    return num_blocks * count_cache_block_bytes(planned.kv, attention.num_kv_heads, attention.head_dim, num_layers)
