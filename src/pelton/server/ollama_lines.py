"""The JSON of Ollama's API: one object, or lines with the pieces of an answer. It knows shapes, not requests.

Start at `LineWriter`. Durations are nanoseconds, as Ollama's are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from pelton.core.outputs import Timings, TokenLogprobs, Usage
from pelton.core.tools import ToolCall
from pelton.server.answer_parser import AnswerDelta
from pelton.server.answers import make_timings
from pelton.server.chat import ChatDelta, ChatResult
from pelton.server.errors import ErrorInfo
from pelton.server.json_text import dump_json
from pelton.server.logprobs import make_chat_logprobs
from pelton.text.tokenizer import Tokenizer
from pelton.text.tool_calls.deltas import ToolDelta, join_calls

Json = dict[str, object]


def make_error_body(info: ErrorInfo) -> Mapping[str, object]:
    """The error body of Ollama's API; also the last line of a stream that fails."""
    return {"error": info.message}


def format_time(seconds: float) -> str:
    """A Unix time as RFC 3339 writes it."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def write_line(body: Mapping[str, object]) -> bytes:
    """One line of a stream."""
    return dump_json(body) + b"\n"


@dataclass(slots=True)
class LineWriter:
    """Writes one answer, of /api/chat (`is_chat`) or of /api/generate; made when the request arrives."""

    model: str
    tokenizer: Tokenizer
    is_chat: bool
    start_s: float
    _calls: list[ToolDelta]

    @classmethod
    def make(cls, model: str, tokenizer: Tokenizer, *, is_chat: bool) -> LineWriter:
        """A writer for a request that has just arrived."""
        return cls(model, tokenizer, is_chat, time.perf_counter(), [])

    def write_whole(self, chat: ChatResult) -> Json:
        """The object of a request that does not stream."""
        item, result = chat.choices[0], chat.result
        body = self._make(item.content, item.reasoning, item.tool_calls)
        if item.choice.logprobs is not None:
            body["logprobs"] = make_chat_logprobs(self.tokenizer, item.choice.token_ids, item.choice.logprobs)
        return body | self._make_end(item.finish_reason, result.timings, result.usage)

    def write(self, delta: ChatDelta) -> bytes:
        """The lines of one delta. A tool call is written when it is whole."""
        output, answer = delta.output, delta.answer
        calls = self._take_calls(answer, is_end=delta.finish_reason is not None)
        lines = b""
        if answer.content or answer.reasoning or calls or output.logprobs:
            body = {**self._make(answer.content, answer.reasoning, calls), "done": False}
            if output.logprobs:
                body["logprobs"] = self._make_logprobs(output.new_token_ids, output.logprobs)
            lines += write_line(body)
        if delta.finish_reason is not None:
            assert output.usage is not None, "an answer is one choice, so its end is the request's"
            assert output.timings is not None, "timings come with the usage"
            lines += write_line(
                self._make("", "", ()) | self._make_end(delta.finish_reason, output.timings, output.usage)
            )
        return lines

    def make_loaded(self) -> Json:
        """The answer to a request without a prompt, which asks for the model to be loaded: it is."""
        return {**self._make("", "", ()), "done": True, "done_reason": "load"}

    def _make_logprobs(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> object:
        return make_chat_logprobs(self.tokenizer, token_ids, logprobs)

    def _take_calls(self, answer: AnswerDelta, *, is_end: bool) -> tuple[ToolCall, ...]:
        self._calls = [c for c in (*self._calls, *answer.tool_calls) if c.index not in answer.cancelled_calls]
        if not self._calls:
            return ()
        open_index = None if is_end else max(call.index for call in self._calls)
        whole = tuple(call for call in self._calls if call.index != open_index)
        self._calls = [call for call in self._calls if call.index == open_index]
        return join_calls(whole)

    def _make(self, content: str, reasoning: str, calls: Sequence[ToolCall]) -> Json:
        body: Json = {"model": self.model, "created_at": format_time(time.time())}
        if not self.is_chat:
            body["response"] = content
            if reasoning:
                body["thinking"] = reasoning
            return body
        message: Json = {"role": "assistant", "content": content}
        if reasoning:
            message["thinking"] = reasoning
        if calls:
            message["tool_calls"] = [
                {"id": call.id, "function": {"name": call.name, "arguments": json.loads(call.arguments or "{}")}}
                for call in calls
            ]
        body["message"] = message
        return body

    def _make_end(self, finish_reason: str, timings: Timings, usage: Usage) -> Json:
        body = make_timings(timings, usage)
        return {
            "done": True,
            "done_reason": "length" if finish_reason == "length" else "stop",
            "total_duration": round((time.perf_counter() - self.start_s) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": round(timings.prefill_ms * 1e6),
            "eval_count": usage.completion_tokens,
            "eval_duration": round(body["predicted_ms"] * 1e6),
            "timings": body,
        }
