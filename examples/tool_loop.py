"""A model that calls a function and answers with its result, against a running `pelton serve`.

    python examples/tool_loop.py "What is 12 times 34?"

The first call is forced (`tool_choice`), so that small models make one too. PELTON_URL and PELTON_KEY say where the
server is (default http://127.0.0.1:8000/v1, no key).
"""

from __future__ import annotations

import json
import os
import sys

from openai import OpenAI

TOOL = {
    "type": "function",
    "function": {
        "name": "multiply",
        "description": "The product of two integers",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "minimum": -100000, "maximum": 100000},
                "b": {"type": "integer", "minimum": -100000, "maximum": 100000},
            },
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}

question = " ".join(sys.argv[1:]) or "What is 12 times 34?"
client = OpenAI(
    base_url=os.environ.get("PELTON_URL", "http://127.0.0.1:8000/v1"), api_key=os.environ.get("PELTON_KEY", "none")
)
model = client.models.list().data[0].id
messages = [{"role": "user", "content": question}]
choice: object = {"type": "function", "function": {"name": "multiply"}}
for _ in range(4):
    message = (
        client.chat.completions.create(
            model=model, messages=messages, tools=[TOOL], tool_choice=choice, temperature=0, max_tokens=200
        )
        .choices[0]
        .message
    )
    if not message.tool_calls:
        print(message.content)
        break
    messages.append({"role": "assistant", "content": message.content, "tool_calls": message.tool_calls})
    for call in message.tool_calls:
        arguments = json.loads(call.function.arguments)
        result = arguments["a"] * arguments["b"]
        print(f"multiply({arguments['a']}, {arguments['b']}) = {result}")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    choice = "none"
