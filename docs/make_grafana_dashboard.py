"""Write docs/grafana-dashboard.json, a dashboard of the server's metrics. `--check` only says whether it is current."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from generated_page import finish

PAGE = Path(__file__).with_name("grafana-dashboard.json")
WIDTH, HEIGHT, COLUMNS = 8, 8, 3

Target = tuple[str, str]


def make_quantiles(histogram: str) -> list[Target]:
    """Median, 90th and 99th percentile of a histogram over the last minutes."""
    rate = f"sum by (le) (rate(pelton:{histogram}_bucket[$__rate_interval]))"
    return [(f"histogram_quantile({q}, {rate})", f"p{round(q * 100)}") for q in (0.5, 0.9, 0.99)]


def make_rate(counter: str, legend: str, by: str = "") -> Target:
    """Events of a counter per second."""
    group = f" by ({by})" if by else ""
    return f"sum{group} (rate(pelton:{counter}[$__rate_interval]))", legend


# Title, unit of Grafana, queries with their legends.
PANELS: tuple[tuple[str, str, list[Target]], ...] = (
    ("Time to first token", "s", make_quantiles("time_to_first_token_seconds")),
    ("Inter-token latency", "s", make_quantiles("inter_token_latency_seconds")),
    ("Whole requests", "s", make_quantiles("e2e_request_latency_seconds")),
    (
        "Tokens per second",
        "short",
        [make_rate("generation_tokens_total", "generated"), make_rate("prompt_tokens_total", "prompt")],
    ),
    (
        "Sequences",
        "short",
        [
            ("sum(pelton:num_requests_running)", "running"),
            ("sum by (reason) (pelton:num_requests_waiting_by_reason)", "waiting: {{reason}}"),
        ],
    ),
    ("Queue time", "s", make_quantiles("request_queue_time_seconds")),
    (
        "KV cache",
        "percentunit",
        [
            ("avg(pelton:kv_cache_usage_perc)", "in use"),
            ("sum(pelton:kv_cache_cached_blocks) / sum(pelton:kv_cache_blocks)", "free, may be reused"),
        ],
    ),
    (
        "Prompt tokens by source",
        "short",
        [make_rate("prompt_tokens_by_source_total", "{{source}}", "source")],
    ),
    ("Prefix cache misses", "short", [make_rate("prefix_cache_misses_total", "{{reason}}", "reason")]),
    ("Finished choices", "short", [make_rate("request_success_total", "{{finished_reason}}", "finished_reason")]),
    ("Errors", "short", [make_rate("http_errors_total", "{{status}} {{code}}", "status, code")]),
    (
        "Where steps spend time, seconds per second",
        "short",
        [make_rate("step_seconds_total", "{{part}}", "part")],
    ),
    (
        "What requests wait for, seconds per second",
        "short",
        [
            make_rate("request_wait_seconds_total", "{{cause}}", "cause"),
            make_rate("num_preemptions_total", "preemptions"),
        ],
    ),
)


def make_dashboard() -> dict[str, object]:
    """The dashboard as Grafana imports it."""
    panels = []
    for number, (title, unit, targets) in enumerate(PANELS):
        row, column = divmod(number, COLUMNS)
        panels.append(
            {
                "id": number + 1,
                "title": title,
                "type": "timeseries",
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "targets": [
                    {"refId": "ABCDEF"[i], "expr": expression, "legendFormat": legend}
                    for i, (expression, legend) in enumerate(targets)
                ],
            }
        )
    variable = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "title": "Pelton",
        "uid": "pelton",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [variable]},
        "panels": panels,
    }


if __name__ == "__main__":
    sys.exit(finish(PAGE, json.dumps(make_dashboard(), indent=1) + "\n", "its script says"))
