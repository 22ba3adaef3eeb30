"""`RequestGroup`: the choices of one request, and what is told of them while they run and at the end.

It must not know the scheduler; `requests.py` drives it. Start at `RequestGroup.make_output`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pelton.core.outputs import Choice, GenerationResult, RequestOutput, Usage
from pelton.core.step_plan import SampledToken
from pelton.core.trace import RequestTrace
from pelton.engine.latency import make_timings
from pelton.engine.prepare import PreparedRequest
from pelton.engine.request_state import RequestState


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What results say of the engine: milliseconds of loading, token slots and bytes of a KV block."""

    load_ms: float
    block_size: int
    kv_bytes_per_block: int


class RequestGroup:
    """One request with its choices; `key` is the engine's own id of it, `name` the one that outputs show.

    A streamed group gives an output per token. One that is not, and one of which `best_of` must choose first, gives an
    output per choice at the end, whole.
    """

    __slots__ = ("_facts", "is_streamed", "key", "name", "num_unfinished", "prepared", "states", "trace")

    def __init__(
        self,
        key: str,
        prepared: PreparedRequest,
        states: list[RequestState],
        facts: EngineFacts,
        *,
        is_streamed: bool,
    ) -> None:
        self.key = key
        self.name = key if prepared.options.request_id is None else prepared.options.request_id
        self.prepared = prepared
        self.states = states
        self.trace: RequestTrace | None = None
        self.num_unfinished = len(states)
        self.is_streamed = is_streamed and len(states) == prepared.params.n
        self._facts = facts

    def make_output(self, index: int, sampled: SampledToken, delta: str) -> RequestOutput:
        """One streamed piece of a choice that goes on."""
        logprobs = () if sampled.logprobs is None else (sampled.logprobs,)
        return RequestOutput(self.name, (sampled.token_id,), delta, logprobs, index=index)

    def finish_choice(
        self, index: int, sampled: SampledToken | None, delta: str, end_s: float
    ) -> tuple[RequestOutput, ...]:
        """Take note that a choice has ended at `end_s`; return what is to be told now.

        `sampled` is its last token, None if something else than a token ended it.
        """
        self.num_unfinished -= 1
        is_last = self.num_unfinished == 0
        if not self.is_streamed:
            return self._make_whole_outputs(self.make_result(end_s)) if is_last else ()
        state = self.states[index]
        result = self.make_result(end_s) if is_last else None
        output = RequestOutput(
            request_id=self.name,
            new_token_ids=() if sampled is None else (sampled.token_id,),
            text_delta=delta,
            logprobs=() if sampled is None or sampled.logprobs is None else (sampled.logprobs,),
            finish_reason=state.finish_reason,
            usage=None if result is None else result.usage,
            timings=None if result is None else result.timings,
            result=result,
            index=index,
            stop_reason=state.stop_reason,
            error=state.error,
            seed=state.request.seed,
        )
        return (output,)

    def make_result(self, end_s: float) -> GenerationResult:
        """The request, all of whose choices have ended, the last one at `end_s`."""
        params, first = self.prepared.params, self.states[0].request
        timings = make_timings(
            first,
            [state.token_times_s for state in self.states],
            end_s=end_s,
            tokenize_s=self.prepared.prompt.tokenize_s,
            load_ms=self._facts.load_ms,
        )
        return GenerationResult(
            request_id=self.name,
            prompt_token_ids=first.prompt_token_ids,
            choices=self._make_choices(),
            usage=Usage(
                prompt_tokens=len(first.prompt_token_ids),
                completion_tokens=sum(len(state.request.output_token_ids) for state in self.states),
                cached_tokens=first.num_cached_tokens,
            ),
            timings=timings,
            kv_cache_bytes=self._count_blocks() * self._facts.kv_bytes_per_block,
            prompt_logprobs=None if params.prompt_logprobs is None else tuple(first.prompt_logprobs),
        )

    def _make_choices(self) -> tuple[Choice, ...]:
        states, params = self.states, self.prepared.params
        if len(states) > params.n:
            # sorted() keeps the order of seeds among equals.
            states = sorted(states, key=lambda state: -state.compute_mean_logprob())[: params.n]
        with_logprobs = params.logprobs is not None
        return tuple(state.make_choice(i, with_logprobs=with_logprobs) for i, state in enumerate(states))

    def _count_blocks(self) -> int:
        """Blocks that held K/V at the end; the prompt's full ones are the leader's and count once."""
        num_blocks = 0
        for state in self.states:
            request = state.request
            num_blocks += -(-request.num_computed_tokens // self._facts.block_size)
            if request.leader is not None and request.num_computed_tokens > 0:
                num_blocks -= len(request.prompt_token_ids) // self._facts.block_size
        return num_blocks

    def _make_whole_outputs(self, result: GenerationResult) -> tuple[RequestOutput, ...]:
        last = len(result.choices) - 1
        return tuple(
            RequestOutput(
                request_id=result.request_id,
                new_token_ids=choice.token_ids,
                text_delta=choice.text,
                logprobs=choice.logprobs or (),
                finish_reason=choice.finish_reason,
                usage=result.usage if choice.index == last else None,
                timings=result.timings if choice.index == last else None,
                result=result if choice.index == last else None,
                index=choice.index,
                stop_reason=choice.stop_reason,
                error=choice.error,
                seed=choice.seed,
            )
            for choice in result.choices
        )
