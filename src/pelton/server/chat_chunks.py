"""The JSON of chat completions: whole answers, and the chunks of a stream. It knows shapes, not requests.

Most chunks hold one token and there are thousands a second, so their constant parts are made once (`ChunkWriter`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pelton.core.tools import ToolCall
from pelton.server.answer_parser import NOTHING, AnswerDelta
from pelton.server.answers import make_timings, make_usage
from pelton.server.chat import ChatChoice, ChatDelta, ChatResult
from pelton.server.json_text import dump_json
from pelton.server.logprobs import make_chat_logprobs
from pelton.server.sse import make_frame
from pelton.text.tokenizer import Tokenizer
from pelton.text.tool_calls.deltas import ToolDelta

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What every object of one answer begins with, and what the client asked to see."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    include_usage: bool = False
    include_reasoning: bool = True
    return_token_ids: bool = False

    def make(self, kind: str) -> Json:
        """The fields all objects share."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }


def make_chat_completion(head: AnswerHead, tokenizer: Tokenizer, chat: ChatResult) -> Json:
    """The whole answer of a request that does not stream."""
    result = chat.result
    answer = {
        **head.make("chat.completion"),
        "choices": [_make_choice(head, tokenizer, choice) for choice in chat.choices],
        "usage": make_usage(result.usage),
        "timings": make_timings(result.timings, result.usage),
    }
    if head.return_token_ids:
        answer["prompt_token_ids"] = list(result.prompt_token_ids)
    return answer


def _make_choice(head: AnswerHead, tokenizer: Tokenizer, item: ChatChoice) -> Json:
    choice = item.choice
    message: Json = {"role": "assistant", "content": item.content, "refusal": None}
    if item.reasoning and head.include_reasoning:
        message |= {"reasoning": item.reasoning, "reasoning_content": item.reasoning}
    if item.tool_calls:
        message["content"] = item.content or None
        message["tool_calls"] = [_make_call(call) for call in item.tool_calls]
    body: Json = {
        "index": choice.index,
        "message": message,
        "logprobs": None,
        "finish_reason": item.finish_reason,
        "stop_reason": choice.stop_reason,
        "seed": choice.seed,
    }
    if choice.logprobs is not None:
        body["logprobs"] = {
            "content": make_chat_logprobs(tokenizer, choice.token_ids, choice.logprobs),
            "refusal": None,
        }
    if head.return_token_ids:
        body["token_ids"] = list(choice.token_ids)
    return body


def _make_call(call: ToolCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


class ChunkWriter:
    """Writes the frames of one streamed answer."""

    def __init__(self, head: AnswerHead, tokenizer: Tokenizer) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._fields = head.make("chat.completion.chunk")
        self._start = b"data: " + dump_json(self._fields)[:-1] + b',"choices":[{"index":'
        self._end = b'},"logprobs":null,"finish_reason":null}]' + (b',"usage":null' if head.include_usage else b"")
        self._end += b"}\n\n"

    def write_role(self, index: int, prompt_token_ids: Sequence[int]) -> bytes:
        """The first chunk of choice `index`: who speaks, and the prompt's token ids if they were asked for."""
        frame = self._start + str(index).encode() + b',"delta":{"role":"assistant","content":""' + self._end
        if not self._head.return_token_ids:
            return frame
        return frame[: -len(b"}\n\n")] + b',"prompt_token_ids":' + dump_json(list(prompt_token_ids)) + b"}\n\n"

    def write(self, delta: ChatDelta) -> bytes:
        """The chunk of one delta, if it has anything to say; the request's last one ends with usage and timings."""
        output = delta.output
        is_plain = not output.logprobs and delta.finish_reason is None and not self._head.return_token_ids
        answer = delta.answer
        if is_plain and not answer.reasoning and not answer.tool_calls:
            if not answer.content:
                return b""
            text = json.dumps(answer.content).encode()
            return self._start + str(delta.index).encode() + b',"delta":{"content":' + text + self._end
        chunk = self._make_chunk(delta)
        if output.result is None:
            return make_frame(dump_json(chunk))
        assert output.usage is not None, "the last output has usage"
        assert output.timings is not None, "the last output has timings"
        timings = make_timings(output.timings, output.usage)
        if not self._head.include_usage:
            return make_frame(dump_json({**chunk, "timings": timings}))
        last = {**self._fields, "choices": [], "usage": make_usage(output.usage), "timings": timings}
        return make_frame(dump_json(chunk)) + make_frame(dump_json(last))

    def _make_chunk(self, delta: ChatDelta) -> Json:
        output = delta.output
        choice: Json = {
            "index": delta.index,
            "delta": self._make_delta(delta.answer),
            "logprobs": None,
            "finish_reason": delta.finish_reason,
        }
        if output.logprobs:
            entries = make_chat_logprobs(self._tokenizer, output.new_token_ids, output.logprobs)
            choice["logprobs"] = {"content": entries, "refusal": None}
        if delta.finish_reason is not None:
            choice |= {"stop_reason": output.stop_reason, "seed": output.seed}
        if self._head.return_token_ids:
            choice["token_ids"] = list(output.new_token_ids)
        chunk: Json = {**self._fields, "choices": [choice]}
        if self._head.include_usage:
            chunk["usage"] = None
        return chunk

    def _make_delta(self, answer: AnswerDelta) -> Json:
        delta: Json = {}
        if answer is NOTHING:
            return delta
        if answer.reasoning and self._head.include_reasoning:
            delta |= {"reasoning": answer.reasoning, "reasoning_content": answer.reasoning}
        if answer.content:
            delta["content"] = answer.content
        if answer.tool_calls:
            delta["tool_calls"] = [_make_call_delta(call) for call in answer.tool_calls]
        return delta


def _make_call_delta(call: ToolDelta) -> Json:
    function: Json = {"arguments": call.arguments}
    delta: Json = {"index": call.index, "function": function}
    if call.id is not None:
        delta |= {"id": call.id, "type": "function"}
    if call.name is not None:
        function["name"] = call.name
    return delta
