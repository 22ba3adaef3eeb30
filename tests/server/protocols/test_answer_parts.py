"""Reasoning, text and tool calls of one answer, as the protocols with parts write them down. No server, no engine."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from pelton.core.outputs import Choice, GenerationResult, RequestOutput, Timings, TokenLogprobs, Usage
from pelton.core.tools import ToolCall
from pelton.server.answer_parser import NOTHING, AnswerDelta
from pelton.server.answer_parts import AnswerParts
from pelton.server.anthropic_events import MessageWriter
from pelton.server.chat import ChatChoice, ChatDelta, ChatResult
from pelton.server.ollama_lines import LineWriter
from pelton.server.response_events import ResponseHead, ResponseWriter
from pelton.text.tool_calls.deltas import ToolDelta

# An answer with all kinds of parts; the second call's arguments come in two pieces, the first one has none.
DELTAS = [
    AnswerDelta(reasoning="think"),
    AnswerDelta(reasoning="ing", content="It is "),
    AnswerDelta(content="sunny."),
    AnswerDelta(tool_calls=(ToolDelta(0, "{}", "call_a", "now"),)),
    AnswerDelta(tool_calls=(ToolDelta(1, '{"city":', "call_b", "weather"),)),
    AnswerDelta(tool_calls=(ToolDelta(1, '"Ulm"}'),)),
]
CALLS = (ToolCall("call_a", "now", "{}"), ToolCall("call_b", "weather", '{"city":"Ulm"}'))
USAGE, TIMINGS = Usage(10, 6, 4), Timings(prefill_ms=1.0, ttft_ms=2.0)
SETTINGS: dict[str, object] = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}


class WordTokenizer:
    """Every character of a text is a token."""

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        return [ord(c) for c in text]


def make_result(finish_reason: str = "stop") -> GenerationResult:
    choice = Choice(0, "raw", (1, 2), finish_reason, None, None, 5)
    return GenerationResult("r", (1,), (choice,), USAGE, TIMINGS, 0)


def make_deltas(answers: Sequence[AnswerDelta], finish_reason: str = "tool_calls") -> list[ChatDelta]:
    """The answers as deltas of a request, and one more that ends it."""
    deltas = [ChatDelta(0, answer, RequestOutput("r", (1,), "x"), None) for answer in answers]
    end = RequestOutput("r", (2,), "", finish_reason="stop", usage=USAGE, timings=TIMINGS, result=make_result())
    return [*deltas, ChatDelta(0, NOTHING, end, finish_reason)]


def make_chat(finish_reason: str = "tool_calls") -> ChatResult:
    result = make_result()
    return ChatResult((ChatChoice("It is sunny.", "thinking", CALLS, finish_reason, result.choices[0]),), result)


def read_events(data: bytes) -> list[dict]:
    return [json.loads(block.split(b"\ndata: ")[1]) for block in data.strip().split(b"\n\n")]


def make_response_writer() -> ResponseWriter:
    head = ResponseHead(id="resp_1", created=1, model="tiny", settings=SETTINGS)
    return ResponseWriter(head, WordTokenizer())


def test_parts_open_and_close_one_after_the_other() -> None:
    parts = AnswerParts()
    events = [event for delta in DELTAS for event in parts.push(delta)] + list(parts.end())
    told = [(event.kind, event.part.index) for event in events if event.kind != "more"]
    assert told == [(kind, index) for index in range(4) for kind in ("open", "close")]
    assert [(part.kind, part.text) for part in parts.parts] == [
        ("reasoning", "thinking"),
        ("text", "It is sunny."),
        ("call", "{}"),
        ("call", '{"city":"Ulm"}'),
    ]


@pytest.mark.parametrize("deltas", [[], [AnswerDelta(reasoning="hm")]])
def test_an_answer_without_text_and_calls_gets_an_empty_text(deltas: list[AnswerDelta]) -> None:
    parts = AnswerParts()
    for delta in deltas:
        list(parts.push(delta))
    list(parts.end())
    assert (parts.parts[-1].kind, parts.parts[-1].text) == ("text", "")


def test_a_streamed_response_is_the_whole_one() -> None:
    writer = make_response_writer()
    events = read_events(writer.write_start() + b"".join(writer.write(delta) for delta in make_deltas(DELTAS)))
    whole = make_response_writer().write_whole(make_chat())
    assert events[-1]["type"] == "response.completed"
    streamed = events[-1]["response"]
    assert streamed["output"] == whole["output"]
    assert streamed["usage"] == whole["usage"]
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert [item.get("arguments") for item in whole["output"]][2:] == ["{}", '{"city":"Ulm"}']
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] == len("thinking")
    Response.model_validate(whole)


def test_the_openai_package_accepts_every_event() -> None:
    writer = make_response_writer()
    events = read_events(writer.write_start() + b"".join(writer.write(delta) for delta in make_deltas(DELTAS)))
    adapter = TypeAdapter(ResponseStreamEvent)
    assert [adapter.validate_python(event).type for event in events] == [event["type"] for event in events]
    final = Response.model_validate(events[-1]["response"])
    assert final.output_text == "It is sunny."
    assert [item.name for item in final.output if item.type == "function_call"] == ["now", "weather"]


def test_a_response_that_is_cut_off_ends_incomplete() -> None:
    writer = make_response_writer()
    events = read_events(writer.write_start() + b"".join(writer.write(d) for d in make_deltas(DELTAS[:3], "length")))
    assert events[-1]["type"] == "response.incomplete"
    assert [item["status"] for item in events[-1]["response"]["output"]] == ["completed", "incomplete"]


def test_a_streamed_message_is_the_whole_one() -> None:
    writer = MessageWriter("msg_1", "tiny")
    data = writer.write_start(10) + b"".join(writer.write(delta) for delta in make_deltas(DELTAS))
    events = read_events(data)
    adapter = TypeAdapter(RawMessageStreamEvent)
    assert [adapter.validate_python(event).type for event in events] == [event["type"] for event in events]
    blocks: dict[int, dict] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks[event["index"]] = event["content_block"]
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], blocks[event["index"]]
            key = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}[
                delta["type"]
            ]
            block[key] = block.get(key, "") + delta[key]
    for block in blocks.values():
        if block["type"] == "tool_use":
            block["input"] = json.loads(block.pop("partial_json"))
    whole = MessageWriter("msg_1", "tiny").write_whole(make_chat())
    assert list(blocks.values()) == whole["content"]
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert whole["content"][3]["input"] == {"city": "Ulm"}
    assert whole["stop_reason"] == events[-2]["delta"]["stop_reason"] == "tool_use"
    assert whole["usage"] == events[-2]["usage"]
    assert (whole["usage"]["input_tokens"], whole["usage"]["cache_read_input_tokens"]) == (6, 4)
    Message.model_validate(whole)


def test_ollama_lines_hold_whole_calls() -> None:
    writer = LineWriter.make("tiny", WordTokenizer(), is_chat=True)
    lines = [json.loads(line) for delta in make_deltas(DELTAS) for line in writer.write(delta).splitlines()]
    messages = [line["message"] for line in lines]
    whole = LineWriter.make("tiny", WordTokenizer(), is_chat=True).write_whole(make_chat())
    assert "".join(message["content"] for message in messages) == whole["message"]["content"] == "It is sunny."
    assert "".join(message.get("thinking", "") for message in messages) == whole["message"]["thinking"]
    calls = [call for message in messages for call in message.get("tool_calls", [])]
    assert calls == whole["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"name": "now", "arguments": {}},
        {"name": "weather", "arguments": {"city": "Ulm"}},
    ]
    assert lines[-1]["done"]
    assert lines[-1]["eval_count"] == 6


def test_logprobs_of_a_held_back_text_come_with_the_text() -> None:
    head = ResponseHead(id="resp_1", created=1, model="tiny", settings=SETTINGS, with_logprobs=True)

    class Pieces(WordTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            return b"t%d" % token_id

        def piece(self, token_id: int) -> str:
            return f"t{token_id}"

    writer = ResponseWriter(head, Pieces())
    held = ChatDelta(0, NOTHING, RequestOutput("r", (1,), "", (TokenLogprobs(-1.0),)), None)
    shown = ChatDelta(0, AnswerDelta("xy"), RequestOutput("r", (2,), "xy", (TokenLogprobs(-2.0),)), None)
    events = read_events(writer.write_start() + writer.write(held) + writer.write(shown))
    assert [entry["token"] for entry in events[-1]["logprobs"]] == ["t1", "t2"]


def test_a_call_that_turns_out_to_be_none_is_closed_and_left_out() -> None:
    begun = AnswerDelta(tool_calls=(ToolDelta(0, '{"a":', "call_a", "f"),))
    taken_back = AnswerDelta(content='f({"a":', cancelled_calls=frozenset({0}))
    writer = make_response_writer()
    deltas = make_deltas([begun, taken_back], "stop")
    events = read_events(writer.write_start() + b"".join(writer.write(delta) for delta in deltas))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [(item["type"], item["status"]) for item in done] == [
        ("function_call", "incomplete"),
        ("message", "completed"),
    ]
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["message"]
    lines = LineWriter.make("tiny", WordTokenizer(), is_chat=True)
    messages = [json.loads(line)["message"] for delta in deltas for line in lines.write(delta).splitlines()]
    assert all("tool_calls" not in message for message in messages)
    assert "".join(message["content"] for message in messages) == 'f({"a":'
