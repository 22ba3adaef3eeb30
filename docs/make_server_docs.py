"""Write docs/server.md from the server itself: its routes, fields, errors and metrics; `--check` only compares.

Start at `make_page`. What cannot be generated is the text in `HEAD`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from generated_page import escape, finish

from pelton.core.fields import get_option_specs
from pelton.server.app import create_app
from pelton.server.errors import STATUS_TABLE
from pelton.server.metrics import ServerMetrics
from pelton.server.options import ServerOptions

PAGE = Path(__file__).with_name("server.md")

HEAD = """# The server

<!-- Made by docs/make_server_docs.py; run `make docs` after changing a route, a field, an option or an error. -->

```bash
pelton serve                                   # the default model on http://127.0.0.1:8000/v1
pelton serve -m model.gguf --port 8080 --max-num-seqs 128
curl localhost:8000/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 32}'
```

```python
from openai import OpenAI

client = OpenAI(base_url="http://localhost:8000/v1", api_key="any")
messages = [{"role": "user", "content": "Hi"}]
for chunk in client.chat.completions.create(model="smollm2", messages=messages, stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
```

A field that is not in the tables below is a 400 that names it; so is a value out of range. Nothing is ignored, cut off
or clamped in silence. The one exception is `max_tokens` beyond the end of the context: the answer then ends there, with
finish_reason `length`. Bodies are JSON whatever their Content-Type; NaN, infinities and keys given twice are refused.

## Answers

* Every answer has `timings`, with llama-server's names (`cache_n`, `prompt_n`, `prompt_ms`, `prompt_per_token_ms`,
  `prompt_per_second`, `predicted_n`, `predicted_ms`, `predicted_per_token_ms`, `predicted_per_second`) and
  `queue_ms`, `tokenize_ms`, `ttft_ms` and `itl_ms` (mean, p50, p99). `prompt_n` counts the prompt tokens computed,
  `cache_n` those taken from the prefix cache. In a stream they are on the last chunk. Over several prompts, counts
  are sums and times are those of the prompt whose first token came last.
* A choice reports `seed`, which repeats it exactly, and `stop_reason`, the stop string or token id that ended it.
  Choice i of a request is the request of its own with seed + i.
* A stream's first chunk of a choice has the role; with `stream_options.include_usage` the last chunk has `choices:
  []` and `usage`, which is null in all others. A stream ends with `data: [DONE]`. One that fails ends with `data:
  {"error": {...}}` instead. Several tokens may come in one chunk when a client reads slowly or the machine is busy.
* Log-probabilities are the model's own, before temperature and filters. One of minus infinity is written -9999. A
  token that is a part of a character is written `bytes:\\xe6`.
* Reasoning of models that think in the text comes as `reasoning` and, the same, `reasoning_content`.
* Tool calls are found in the style of the model's chat template (Hermes and Qwen, Llama 3, Mistral). A template that
  knows no tools gets them in the system message. `tool_choice` "required" or a named function is a grammar: the call
  cannot be malformed. In a stream, a call that turns out to be none after parts of it have been sent is repeated as
  content. With `parallel_tool_calls: false` only the first call is handed out.
* `user` and `metadata` go into the request log and do nothing else.

## Operations

* **Keys.** `--api-key-file` (one `name:key` or `key` a line) and `PELTON_API_KEYS` (separated by commas). With any
  key set, every path but `/health`, `/ready` and the page's own files needs `Authorization: Bearer KEY` or
  `x-api-key: KEY`. Keys are compared in constant time and never logged; logs, limits and fair shares
  (`--scheduling-policy fair`) go by the key's name.
* **Limits.** `--requests-per-minute` and `--tokens-per-minute` per key: 429 with Retry-After. Tokens are charged when
  a request ends, so a request that is let in may overdraw the allowance; the next one waits for it. A full queue
  (`--max-queued-requests`, `--max-queued-tokens`) is a 503 with Retry-After, estimated from the rate of late.
* **Browsers.** No CORS headers unless `--cors-origins`; a page of another origin is refused (403).
* **Health.** `/health` is 200 while the event loop runs. `/ready` is 200 while the engine takes requests, and 503
  while the server drains or when the engine has stopped; then every open request has ended with an error.
* **Slow clients.** A body that stands still for `--body-timeout-s` is a 408, and the connection is closed. One whose
  request line and headers are not there after that time is closed without an answer.
* **The end.** SIGTERM: `/ready` turns 503, new requests are refused, open ones go on for `--drain-timeout-s` and then
  end with an error; exit code 0.
* **Disconnects.** A client that closes its connection aborts its request before the engine's next step, whether it
  was queued, in prefill or decoding. The log shows status 499.
* **Silence.** After `--keep-alive-s` without data a stream sends the comment `: keep-alive`.
* **The page.** `/` shows a playground and, while it streams, an X-ray of the request: tokens with probabilities, TTFT
  and every ITL, KV blocks, steps, roofline, explanation. It loads nothing from elsewhere, runs under a strict
  Content-Security-Policy, and sends the API key that is typed into it (kept for the tab) with each of its calls.
* **Logs.** One JSON line per request on standard output: ids, status, caller, times, tokens; no prompts, no keys.
  What an open page asks for several times a second (`/v1/engine`, `/v1/kv_cache`, `/v1/steps`, `/v1/requests`) is
  logged only when it fails.
  `X-Request-Id` is taken over and sent back; it need not be unique.
* **Traces.** The engine always records what requests and steps did, for all unfinished requests and the last
  `--num-kept-traces` finished ones; no text and no token ids. `GET /v1/requests` lists them. `GET /v1/requests/ID`
  tells where the time of one went: each wait with its cause, each chunk of the prompt, each token's gap and by how
  much other requests' prompts stretched it, each send. `ID` is any id of the request: that of the answer
  (`chatcmpl-X`, `cmpl-X`, `msg_X`, `resp_X`), of the generation (`gen-X`; further prompts `gen-X-1`), or
  `X-Request-Id`. `GET /v1/requests/ID/trace` is a file for [Perfetto](https://ui.perfetto.dev), as
  `pelton run --trace FILE` writes it. Every API key sees this of all requests: when, how long and whose, never what.
  Causes of waits are in [scheduling.md](scheduling.md#what-a-request-waits-for).
* **OpenTelemetry.** `--otlp-endpoint http://host:4318/v1/traces` sends a span per HTTP request, below it one per
  generation, and below that tokenising, waits, chunks of the prompt, decoding and sending (`pip install pelton[otel]`).
* **TLS.** `--ssl-certfile`, `--ssl-keyfile`; `--ssl-ca-certs` demands certificates of clients.
* **Load.** `pelton bench serve` measures this server or any other of the OpenAI API; `bench/soak_server.py` abuses
  it.
* **Dashboard.** `grafana-dashboard.json` shows the metrics below.

Other protocols (responses, messages, Ollama, TGI, embeddings, tokenize) are in [protocols.md](protocols.md).
"""


def make_page() -> str:
    """The whole page as Markdown."""
    engine: Any = SimpleNamespace()  # Any: a document needs no engine
    document = create_app(engine).openapi()
    sections = [HEAD, make_routes(document)]
    for path in ("/v1/chat/completions", "/v1/completions"):
        sections.append(make_fields(document, path))
    return "\n".join([*sections, make_options(), make_errors(), make_metrics()])


def make_routes(document: dict[str, Any]) -> str:  # Any: OpenAPI is nested JSON
    """All routes with what they are for."""
    lines = ["## Routes", "", "| Route | What it does |", "|---|---|"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            lines.append(f"| `{method.upper()} {path}` | {operation['summary']} |")
    return "\n".join([*lines, ""])


def make_fields(document: dict[str, Any], path: str) -> str:  # Any: see make_routes
    """The fields of one body."""
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    lines = [f"## Fields of {path}", "", "| Field | Type | Meaning |", "|---|---|---|"]
    for name, spec in schema["properties"].items():
        lines.append(
            f"| `{name}` | {describe_type(spec)} | {escape(spec.get('description', 'as in the OpenAI API'))} |"
        )
    return "\n".join([*lines, ""])


def describe_type(spec: dict[str, Any]) -> str:  # Any: see make_routes
    """A JSON type in a few words, with its range."""
    if "anyOf" in spec:
        parts = [describe_type(part) for part in spec["anyOf"] if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(parts))
    if "$ref" in spec:
        return str(spec["$ref"]).rsplit("/", 1)[1]
    if "enum" in spec or "const" in spec:
        return ", ".join(f"`{value}`".lower() for value in spec.get("enum", [spec.get("const")]))
    if spec.get("type") == "array":
        return f"list of {describe_type(spec['items'])}"
    low = spec.get("minimum", spec.get("exclusiveMinimum"))
    high = spec.get("maximum", spec.get("exclusiveMaximum"))
    bounds = [f"{word} {value:g}" for word, value in (("from", low), ("to", high)) if value is not None]
    return " ".join([str(spec.get("type", "any")), *bounds])


def make_options() -> str:
    """The options of the server."""
    lines = ["## Options", "", "Those of the engine are in [cli.md](cli.md).", "", "| Option | Default | Meaning |"]
    lines.append("|---|---|---|")
    defaults = ServerOptions()
    for name, spec in get_option_specs(ServerOptions).items():
        default = getattr(defaults, name)
        shown = "" if default in (None, ()) else f"`{default}`"
        flag = "--no-docs" if name == "use_docs" else "--" + name.replace("_", "-")
        lines.append(f"| `{flag}` | {shown} | {escape(spec.help)} |")
    return "\n".join([*lines, ""])


def make_errors() -> str:
    """The table of errors."""
    lines = [
        "## Errors",
        "",
        '`{"error": {"message", "type", "param", "code"}}`; `param` names the field at fault.',
        "",
    ]
    lines += ["| Status | Type | Code | When |", "|---|---|---|---|"]
    for cls, (status, kind, code) in sorted(STATUS_TABLE.items(), key=lambda item: (item[1][0], item[0].__name__)):
        when = (cls.__doc__ or "").strip().splitlines()[0]
        lines.append(f"| {status} | {kind} | {code or ''} | {escape(when)} |")
    lines += ["", "Unknown fields have the code `unknown_parameter`, missing ones `missing_required_parameter`.", ""]
    return "\n".join(lines)


def make_metrics() -> str:
    """The metrics recorded by the server; the engine's are in `engine_metrics.py`."""
    lines = ["## Metrics", "", "vLLM's names with the prefix `pelton:`. Recorded for requests:", ""]
    lines += ["| Metric | Kind | Meaning |", "|---|---|---|"]
    for family in ServerMetrics("model").registry.collect():
        suffix = "_total" if family.type == "counter" else ""
        lines.append(f"| `{family.name}{suffix}` | {family.type} | {escape(family.documentation)} |")
    lines += [
        "",
        "Read from the engine as of its last step: `num_requests_running`, `num_requests_waiting`,",
        "`num_requests_waiting_by_reason`, `num_unfinished_requests`, `num_queued_tokens`, `kv_cache_usage_perc`",
        "(0 to 1), `kv_cache_blocks`, `kv_cache_cached_blocks`, `engine_ready`, and the counters `num_preemptions`,",
        "`num_steps`, `prefix_cache_queries` and `prefix_cache_hits` (tokens, once per request), `prefix_cache_misses`",
        "(by reason) and",
        "`step_seconds` (by part: prefill and decode, which are the model's time, sample, python).",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(finish(PAGE, make_page(), "the server says"))
