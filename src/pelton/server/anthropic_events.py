"""The JSON of Anthropic's Messages API: messages, the events of a stream, errors. It knows shapes, not requests.

Start at `MessageWriter`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pelton.core.outputs import Usage
from pelton.server.answer_parser import AnswerDelta
from pelton.server.answer_parts import AnswerParts, Part, PartEvent
from pelton.server.answers import make_timings
from pelton.server.chat import ChatDelta, ChatResult
from pelton.server.errors import ErrorInfo
from pelton.server.json_text import dump_json
from pelton.server.sse import make_frame
from pelton.text.tool_calls.deltas import ToolDelta

Json = dict[str, object]

PING_FRAME = make_frame(b'{"type":"ping"}', "ping")

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def make_error_body(info: ErrorInfo) -> Mapping[str, object]:
    """The error body of the Messages API."""
    return {"type": "error", "error": {"type": _ERROR_TYPES.get(info.status, "api_error"), "message": info.message}}


class MessageWriter:
    """Writes one message: `write_whole`, or `write_start` and then `write` per delta."""

    def __init__(self, message_id: str, model: str) -> None:
        self._id = message_id
        self._model = model
        self._parts = AnswerParts()

    def write_whole(self, chat: ChatResult) -> Json:
        """The message of a request that does not stream."""
        item, result = chat.choices[0], chat.result
        calls = tuple(ToolDelta(i, call.arguments, call.id, call.name) for i, call in enumerate(item.tool_calls))
        for _ in (*self._parts.push(AnswerDelta(item.content, item.reasoning, calls)), *self._parts.end()):
            pass  # only the parts are wanted
        message = self._make_message(make_usage(result.usage))
        message["content"] = [_make_block(part) for part in self._parts.parts]
        message |= _make_stop(item.finish_reason, item.choice.stop_reason)
        message["timings"] = make_timings(result.timings, result.usage)
        return message

    def write_start(self, num_input_tokens: int) -> bytes:
        """The first event. How much of the prompt was cached is not known yet."""
        message = self._make_message({"input_tokens": num_input_tokens, "output_tokens": 0})
        return _write("message_start", message=message)

    def write(self, delta: ChatDelta) -> bytes:
        """The events of one delta; the last one ends the message."""
        frames = b"".join(_write_part(event) for event in self._parts.push(delta.answer))
        if delta.finish_reason is None:
            return frames
        output = delta.output
        assert output.usage is not None, "a message has one choice, so its end is the request's"
        assert output.timings is not None, "timings come with the usage"
        frames += b"".join(_write_part(event) for event in self._parts.end())
        stop = _make_stop(delta.finish_reason, output.stop_reason)
        timings = make_timings(output.timings, output.usage)
        frames += _write("message_delta", delta=stop, usage=make_usage(output.usage), timings=timings)
        return frames + _write("message_stop")

    def _make_message(self, usage: Json) -> Json:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }


def write_error(info: ErrorInfo) -> bytes:
    """The last event of a stream that fails."""
    return make_frame(dump_json(make_error_body(info)), "error")


def make_usage(usage: Usage) -> Json:
    """`usage`: Anthropic counts cached tokens of the prompt apart from the others."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _make_stop(finish_reason: str, stop_reason: str | int | None) -> Json:
    if isinstance(stop_reason, str) and finish_reason == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": stop_reason}
    names = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    return {"stop_reason": names[finish_reason], "stop_sequence": None}


def _write(kind: str, **fields: object) -> bytes:
    return make_frame(dump_json({"type": kind, **fields}), kind)


def _write_part(event: PartEvent) -> bytes:
    part = event.part
    if event.kind == "close":
        return _write("content_block_stop", index=part.index)
    if event.kind == "open":
        block: Json = {"type": "text", "text": ""}
        if part.kind == "reasoning":
            block = {"type": "thinking", "thinking": "", "signature": ""}
        elif part.kind == "call":
            block = {"type": "tool_use", "id": part.call_id, "name": part.name, "input": {}}
        return _write("content_block_start", index=part.index, content_block=block)
    delta: Json = {"type": "text_delta", "text": event.text}
    if part.kind == "reasoning":
        delta = {"type": "thinking_delta", "thinking": event.text}
    elif part.kind == "call":
        delta = {"type": "input_json_delta", "partial_json": event.text}
    return _write("content_block_delta", index=part.index, delta=delta)


def _make_block(part: Part) -> Json:
    if part.kind == "text":
        return {"type": "text", "text": part.text}
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": part.text, "signature": ""}
    arguments = json.loads(part.text or "{}")
    return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": arguments}
