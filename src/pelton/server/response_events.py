"""The JSON of the Responses API: the response object and the events of a stream. It knows shapes, not requests.

Start at `ResponseWriter`. A stream tells of every part: item added, content part added, deltas, and all done again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from pelton.core.outputs import GenerationResult, RequestOutput, TokenLogprobs, Usage
from pelton.server.answer_parser import AnswerDelta
from pelton.server.answer_parts import AnswerParts, Part, PartEvent
from pelton.server.answers import make_timings
from pelton.server.chat import ChatDelta, ChatResult
from pelton.server.errors import ErrorInfo
from pelton.server.json_text import dump_json
from pelton.server.logprobs import TokenLogprobBody, make_chat_logprobs
from pelton.server.sse import make_frame
from pelton.text.tokenizer import Tokenizer
from pelton.text.tool_calls.deltas import ToolDelta

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseHead:
    """What does not change while a response comes: its ids, and `settings`, the request's fields that are repeated."""

    id: str
    created: int
    model: str
    settings: Json
    with_logprobs: bool = False


class ResponseWriter:
    """Writes one response: `write_whole`, or `write_start`, `write` per delta and the frames that follow from them."""

    def __init__(self, head: ResponseHead, tokenizer: Tokenizer) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._parts = AnswerParts()
        self._num_events = 0
        self._status = "completed"
        self._logprobs: list[TokenLogprobBody] = []
        self._num_logprobs_sent = 0

    def write_whole(self, chat: ChatResult) -> Json:
        """The response object of a request that does not stream."""
        item = chat.choices[0]
        calls = tuple(ToolDelta(i, call.arguments, call.id, call.name) for i, call in enumerate(item.tool_calls))
        for _ in (*self._parts.push(AnswerDelta(item.content, item.reasoning, calls)), *self._parts.end()):
            pass  # only the parts are wanted
        self._status = _get_status(item.finish_reason)
        if item.choice.logprobs is not None:
            self._add_logprobs(item.choice.token_ids, item.choice.logprobs)
        return self._make_response(chat.result)

    def write_start(self) -> bytes:
        """The first two events."""
        response = self._make_response(None)
        return self._write("response.created", response=response) + self._write(
            "response.in_progress", response=response
        )

    def write(self, delta: ChatDelta) -> bytes:
        """The events of one delta; the request's last one ends with the whole response."""
        output = delta.output
        if output.logprobs:
            self._add_logprobs(output.new_token_ids, output.logprobs)
        frames = b"".join(self._write_part(event) for event in self._parts.push(delta.answer))
        if delta.finish_reason is None:
            return frames
        self._status = _get_status(delta.finish_reason)
        frames += b"".join(self._write_part(event) for event in self._parts.end())
        return frames + self._write_end(output)

    def write_error(self, info: ErrorInfo) -> bytes:
        """The last event of a stream that fails."""
        code = {429: "rate_limit_exceeded", 400: "invalid_prompt"}.get(info.status, "server_error")
        error = {"code": code, "message": info.message, "type": info.type, "param": info.parameter}
        response = {**self._make_response(None), "status": "failed", "error": error, "output": self._make_items()}
        return self._write("response.failed", response=response)

    def _write_end(self, output: RequestOutput) -> bytes:
        assert output.result is not None, "a response has one choice, so its end is the request's"
        return self._write(f"response.{self._status}", response=self._make_response(output.result))

    def _write(self, kind: str, **fields: object) -> bytes:
        event = {"type": kind, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return make_frame(dump_json(event), kind)

    def _write_part(self, event: PartEvent) -> bytes:
        part = event.part
        place: Json = {"item_id": self._get_item_id(part), "output_index": part.index}
        if event.kind == "open":
            frame = self._write(
                "response.output_item.added", output_index=part.index, item=self._make_item(part, "in_progress")
            )
            if part.kind != "call":
                empty = self._make_content(part, "", ())
                frame += self._write("response.content_part.added", **place, content_index=0, part=empty)
            return frame
        if event.kind == "more":
            return self._write_more(part, event.text, place)
        return b"".join(self._write_close(part, place))

    def _write_more(self, part: Part, text: str, place: Json) -> bytes:
        if part.kind == "call":
            return self._write("response.function_call_arguments.delta", **place, delta=text)
        if part.kind == "reasoning":
            return self._write("response.reasoning_text.delta", **place, content_index=0, delta=text)
        new = self._logprobs[self._num_logprobs_sent :]
        self._num_logprobs_sent = len(self._logprobs)
        return self._write("response.output_text.delta", **place, content_index=0, delta=text, logprobs=new)

    def _write_close(self, part: Part, place: Json) -> Iterator[bytes]:
        if part.kind == "call":
            yield self._write("response.function_call_arguments.done", **place, name=part.name, arguments=part.text)
        else:
            logprobs: Json = {} if part.kind == "reasoning" else {"logprobs": self._logprobs}
            kind = "reasoning_text" if part.kind == "reasoning" else "output_text"
            yield self._write(f"response.{kind}.done", **place, content_index=0, text=part.text, **logprobs)
            content = self._make_content(part, part.text, self._logprobs)
            yield self._write("response.content_part.done", **place, content_index=0, part=content)
        item = self._make_item(part, "incomplete" if part.is_cancelled else self._status)
        yield self._write("response.output_item.done", output_index=part.index, item=item)

    def _add_logprobs(self, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...]) -> None:
        if self._head.with_logprobs:
            self._logprobs += make_chat_logprobs(self._tokenizer, token_ids, logprobs)

    def _get_item_id(self, part: Part) -> str:
        prefix = {"reasoning": "rs", "text": "msg", "call": "fc"}[part.kind]
        return f"{prefix}_{self._head.id.removeprefix('resp_')}_{part.index}"

    def _make_content(self, part: Part, text: str, logprobs: object) -> Json:
        if part.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}

    def _make_item(self, part: Part, status: str) -> Json:
        item: Json = {"id": self._get_item_id(part), "status": status}
        is_new = status == "in_progress"
        content = [] if is_new else [self._make_content(part, part.text, self._logprobs)]
        if part.kind == "call":
            arguments = "" if is_new else part.text
            return {
                **item,
                "type": "function_call",
                "call_id": part.call_id,
                "name": part.name,
                "arguments": arguments,
            }
        if part.kind == "reasoning":
            return {**item, "type": "reasoning", "summary": [], "content": content}
        return {**item, "type": "message", "role": "assistant", "content": content}

    def _make_items(self) -> list[Json]:
        # Only the last part can have been cut off.
        last = len(self._parts.parts) - 1
        return [
            self._make_item(part, self._status if part.index == last else "completed")
            for part in self._parts.parts
            if not part.is_cancelled
        ]

    def _make_response(self, result: GenerationResult | None) -> Json:
        status = "in_progress" if result is None else self._status
        is_cut = status == "incomplete"
        response: Json = {
            "id": self._head.id,
            "object": "response",
            "created_at": self._head.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": self._head.model,
            **self._head.settings,
            "output": [] if result is None else self._make_items(),
            "usage": None,
        }
        if result is not None:
            response["usage"] = self._make_usage(result.usage)
            response["timings"] = make_timings(result.timings, result.usage)
            response["seed"] = result.seed
            if status == "completed":
                response["completed_at"] = int(time.time())
        return response

    def _make_usage(self, usage: Usage) -> Json:
        reasoning = "".join(part.text for part in self._parts.parts if part.kind == "reasoning")
        num_reasoning = len(self._tokenizer.encode(reasoning, add_special=False)) if reasoning else 0
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": num_reasoning},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }


def _get_status(finish_reason: str) -> str:
    return "incomplete" if finish_reason == "length" else "completed"
