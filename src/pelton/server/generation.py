"""From any protocol's request to engine calls, and back to outputs. A route makes an `Ask` and reads a `Generation`.

    generation = Generation(request, ask)
    async for output in generation.outputs(): ...        # streaming; close it early and the engine aborts
    result = await generation.collect()                  # or the whole result

This is the one place where requests are counted, put into the live table, charged to their caller and logged. It knows
the engine's types and no protocol's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from starlette.requests import Request

from pelton.core.errors import (
    GenerationError,
    InvalidParameterError,
    ModelNotFoundError,
    RequestTimeoutError,
    ServerClosingError,
)
from pelton.core.outputs import GenerationResult, RequestOutput
from pelton.core.request_options import RequestOptions
from pelton.core.sampling_params import SamplingParams
from pelton.core.tools import Tool, ToolChoice
from pelton.engine.output_stream import OutputStream
from pelton.server.errors import rename_parameter
from pelton.server.live_requests import LiveRequest
from pelton.server.state import ServerState, get_caller, get_ids, get_log_fields, get_request_id, get_state
from pelton.server.tools import offer_tools

Message = Mapping[str, object]
NO_TOOLS = ToolChoice("none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One prompt with its parameters: either `prompt` (a text, or token ids as they are) or `messages`.

    `tools` may be called as `tool_choice` says; `prepare_tools` brings them into the prompt, as `template_tools` where
    the chat template takes them. `template_variables` go to the template as they are. `field_names` says what the
    client called things that errors of the engine name: {"prompt": "prompt[3]"}.
    """

    params: SamplingParams
    prompt: str | Sequence[int] | None = None
    messages: Sequence[Message] | None = None
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = NO_TOOLS
    template_tools: Sequence[Mapping[str, object]] | None = None
    template_variables: Mapping[str, object] = field(default_factory=dict)
    field_names: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    cache_salt: str = ""
    is_stream: bool = False


class Generation:
    """One `Ask` on its way through the engine."""

    def __init__(self, request: Request, ask: Ask) -> None:
        """Check the ask against the server's limits; raises `InvalidParameterError`. Nothing runs yet."""
        self._state = get_state(request)
        self._caller = get_caller(request)
        self._log_fields = get_log_fields(request)
        self.prompt_token_ids: tuple[int, ...] = ()
        self._ask = ask
        self._task: asyncio.Task[object] | None = None
        self._is_cut = False
        self._num_unseen_gaps = 0
        check_limits(self._state, ask)
        self._live = LiveRequest(
            request_id=_name_generation(request, self._state),
            route=request.scope["path"],
            caller=self._caller.name,
            is_stream=ask.is_stream,
            num_choices=ask.params.n,
            arrival_s=time.perf_counter(),
            cut=self._cut,
            http_request_id=get_request_id(request),
        )

    async def collect(self) -> GenerationResult:
        """Run to the end and return the result."""
        result: GenerationResult | None = None
        async for output in self.outputs():
            result = output.result or result
        assert result is not None, "the engine ended a request without a result"
        return result

    async def outputs(self) -> AsyncGenerator[RequestOutput, None]:
        """The engine's outputs. Raises what the engine raises, and `ServerClosingError` when the server ends first."""
        last_s: dict[int, float] = {}
        result: GenerationResult | None = None
        unfinished_reason = "abort"
        stream: OutputStream | None = None
        self._state.live.add(self._live)
        try:
            self._task = asyncio.current_task()
            stream = self._start(await prepare_tools(self._state, self._ask))
            await self._queue(stream)
            while True:
                # The task that waits now is the one to be cut short; it is not the same one from first to last.
                self._task = asyncio.current_task()
                try:
                    output = await anext(stream)
                except StopAsyncIteration:
                    break
                self._note(output, last_s)
                if output.error is not None:
                    unfinished_reason = output.finish_reason or unfinished_reason
                    raise _make_error(output)
                result = output.result or result
                yield output
        except asyncio.CancelledError:
            if self._is_cut:
                raise ServerClosingError("the server is shutting down; this request was not finished") from None
            raise
        finally:
            self._state.live.remove(self._live)
            if stream is not None:
                await stream.aclose()
            self._finish(result, unfinished_reason)

    def _start(self, ask: Ask) -> OutputStream:
        engine = self._state.engine
        options = RequestOptions(
            request_id=self._live.request_id,
            priority=ask.priority,
            tenant=self._caller.name,
            cache_salt=ask.cache_salt,
            timeout_s=self._state.options.request_timeout_s,
        )
        if ask.messages is not None:
            return engine.chat(
                ask.messages,
                ask.params,
                options,
                tools=ask.template_tools or None,
                variables=ask.template_variables or None,
            )
        assert ask.prompt is not None, "an ask has a prompt or messages"
        return engine.generate(ask.prompt, ask.params, options)

    async def _queue(self, stream: OutputStream) -> None:
        """Let the engine check and queue the request."""
        try:
            await stream.start()
            num_tokens, limit = len(stream.prompt_token_ids), self._state.options.max_prompt_tokens
            if limit is not None and num_tokens > limit:
                name = "prompt" if self._ask.messages is None else "messages"
                raise InvalidParameterError(name, num_tokens, f"at most {limit}", "number of tokens")
        except InvalidParameterError as error:
            raise rename_parameter(error, self._ask.field_names) from error
        self.prompt_token_ids = stream.prompt_token_ids
        self._live.num_prompt_tokens = num_tokens

    def _cut(self) -> None:
        self._is_cut = True
        if self._task is not None:
            self._task.cancel()

    def _note(self, output: RequestOutput, last_s: dict[int, float]) -> None:
        num_tokens = len(output.new_token_ids)
        if num_tokens == 0:
            return
        now_s = time.perf_counter()
        before_s = last_s.get(output.index)
        # Tokens that came together with a choice's first one have no gap that could be seen from here.
        self._num_unseen_gaps += num_tokens - 1 if before_s is None else 0
        self._live.note_tokens(num_tokens, now_s)
        self._state.metrics.observe_tokens(num_tokens, None if before_s is None else now_s - before_s)
        last_s[output.index] = now_s

    def _finish(self, result: GenerationResult | None, unfinished_reason: str) -> None:
        state, live = self._state, self._live
        if result is None:
            if live.num_prompt_tokens is not None:  # else it was refused, and no choice has begun
                state.metrics.count_unfinished(live.num_choices, unfinished_reason)
            state.limiter.charge_tokens(self._caller.name, (live.num_prompt_tokens or 0) + live.num_output_tokens)
            entry: dict[str, object] = {"request_id": live.request_id, "output_tokens": live.num_output_tokens}
        else:
            state.metrics.observe_result(result, self._ask.params.max_tokens)
            state.metrics.observe_gaps(self._num_unseen_gaps, result.timings.itl_ms.mean / 1e3)
            trace = state.engine.traces.find_request(live.request_id)
            state.metrics.observe_waits(() if trace is None else trace.waits)
            usage = result.usage
            state.limiter.charge_tokens(self._caller.name, usage.prompt_tokens + usage.completion_tokens)
            entry = {
                "request_id": live.request_id,
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.cached_tokens,
                "output_tokens": usage.completion_tokens,
                "finish_reasons": [choice.finish_reason for choice in result.choices],
                "queue_ms": round(result.timings.queue_ms, 3),
                "ttft_ms": round(result.timings.ttft_ms, 3),
                "itl_ms": round(result.timings.itl_ms.mean, 3),
            }
        generations = self._log_fields.setdefault("generations", [])
        assert isinstance(generations, list)
        generations.append(entry)


def _name_generation(request: Request, state: ServerState) -> str:
    """A new id, under which the request's trace is kept; the client's own name for the request leads to the first."""
    ids, name = get_ids(request), get_request_id(request)
    generation_id = ids.make_generation_id()
    if generation_id == ids.make("gen-") and name != ids.make("req-"):
        state.names.add(name, generation_id)
    return generation_id


def _make_error(output: RequestOutput) -> Exception:
    """What a choice's error is for the client: half an answer must never look like a whole one."""
    if output.finish_reason == "abort":
        return RequestTimeoutError(output.error)
    return GenerationError(output.error)


async def prepare_tools(state: ServerState, ask: Ask) -> Ask:
    """The ask with its tools, and the calls and results among its messages, as the model's chat template takes them.

    Calls that must be made become a structure. Raises `InvalidParameterError` for calls or schemas that are none. What
    has been prepared already stays as it is.
    """
    template = state.engine.chat_template
    if ask.messages is None or template is None or ask.template_tools is not None or not needs_tools(ask):
        return ask
    work = partial(offer_tools, template, state.engine.tokenizer, ask.messages, ask.tools, ask.tool_choice)
    offer = await asyncio.get_running_loop().run_in_executor(state.executor, work)
    params = ask.params
    if offer.structure is not None:
        if params.structure is not None:
            raise InvalidParameterError("tool_choice", ask.tool_choice.mode, "auto or none, with a response_format")
        params = replace(params, structure=offer.structure)
    return replace(ask, messages=offer.messages, template_tools=offer.template_tools, params=params)


def needs_tools(ask: Ask) -> bool:
    """Whether tools are offered, or calls or results are among the messages."""
    return bool(ask.tools) or any("tool_calls" in m or m.get("role") == "tool" for m in ask.messages or ())


def check_limits(state: ServerState, ask: Ask) -> None:
    """Raise `InvalidParameterError` for an ask beyond the server's limits."""
    options, params = state.options, ask.params
    for name, value in (("n", params.n), ("best_of", params.best_of)):
        if value is not None and value > options.max_choices:
            raise InvalidParameterError(name, value, f"at most {options.max_choices} choices")


def check_model(state: ServerState, model: str | None) -> str:
    """The name to answer with; raises `ModelNotFoundError` for a model this server does not run."""
    if model is None:
        return state.model_names[0]
    if model not in state.model_names:
        names = ", ".join(state.model_names)
        raise ModelNotFoundError(f"model {model[:200]!r} is not served here; allowed: {names}")
    return model


async def merge_outputs(generations: Sequence[Generation]) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Outputs of several generations as they come, each with its generation's number; closing it ends all of them."""
    if len(generations) == 1:
        stream = generations[0].outputs()
        try:
            async for output in stream:
                yield 0, output
        finally:
            await stream.aclose()
        return
    # Bounded, so that a slow reader is felt by the pumps; the engine then merges what waits.
    queue: asyncio.Queue[tuple[int, RequestOutput | BaseException | None]] = asyncio.Queue(len(generations))
    pumps = [asyncio.create_task(_pump(number, g, queue)) for number, g in enumerate(generations)]
    num_open = len(generations)
    try:
        while num_open > 0:
            number, item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield number, item
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    number: int, generation: Generation, queue: asyncio.Queue[tuple[int, RequestOutput | BaseException | None]]
) -> None:
    stream = generation.outputs()
    try:
        async for output in stream:
            await queue.put((number, output))
    except Exception as error:  # handed on to the reader of the queue
        await queue.put((number, error))
    else:
        await queue.put((number, None))
    finally:
        await stream.aclose()


async def collect_all(generations: Sequence[Generation]) -> list[GenerationResult]:
    """Run all to the end; the first error ends the others."""
    tasks = [asyncio.ensure_future(g.collect()) for g in generations]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
