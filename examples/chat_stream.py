"""A chat that streams, with the `openai` package, against a running `pelton serve`.

    python examples/chat_stream.py "How does inference work?"

PELTON_URL and PELTON_KEY say where the server is (default http://127.0.0.1:8000/v1, no key).
"""

from __future__ import annotations

import os
import sys

from openai import OpenAI

question = " ".join(sys.argv[1:]) or "How does inference work?"
client = OpenAI(
    base_url=os.environ.get("PELTON_URL", "http://127.0.0.1:8000/v1"), api_key=os.environ.get("PELTON_KEY", "none")
)
model = client.models.list().data[0].id
stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": question}],
    max_tokens=128,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage is not None:
        timings = chunk.model_extra["timings"]
        print(f"\n{chunk.usage.completion_tokens} tokens, TTFT {timings['ttft_ms']:.0f} ms", file=sys.stderr)
