"""The server's own OpenAPI document: it describes every route, and nothing that fits it or not makes a 5xx."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies
from hypothesis.errors import Unsatisfiable
from live_server import HANG_S, LiveServer, run_live
from scripted import echo, make_engine

schemathesis = pytest.importorskip("schemathesis")
GenerationMode = schemathesis.GenerationMode
NUM_EXAMPLES = 6


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with run_live(make_engine(echo)) as live:
        yield live


def test_unknown_fields_are_refused_by_the_document_too(server: LiveServer) -> None:
    schemas = server.client.get("/openapi.json").json()["paths"]
    for path in ("/v1/chat/completions", "/v1/completions"):
        schema = schemas[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert schema["additionalProperties"] is False
        assert {"temperature", "top_k", "min_p", "seed", "logit_bias"} <= set(schema["properties"])


def test_examples_of_the_document_work(server: LiveServer) -> None:
    for path, operations in server.client.get("/openapi.json").json()["paths"].items():
        body = operations.get("post", {}).get("requestBody")
        if body is not None:
            example = body["content"]["application/json"]["example"]
            if "model" in example:  # required by some protocols, and every server has its own names
                example = {**example, "model": "tiny"}
            assert server.client.post(path, json=example).status_code == 200, path


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_no_request_makes_a_server_error(server: LiveServer, mode: GenerationMode) -> None:
    document = schemathesis.openapi.from_dict(server.client.get("/openapi.json").json())
    operations = [result.ok() for result in document.get_all_operations()]
    assert len(operations) > 6
    for operation in operations:
        check_operation(server, operation, mode)
    assert server.chat("x").status_code == 200


def check_operation(server: LiveServer, operation: object, mode: GenerationMode) -> None:
    """Send requests that fit the document (or just do not), and some that the examples of fields suggest."""

    @given(data=strategies.data())
    @settings(
        max_examples=NUM_EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def run(data: strategies.DataObject) -> None:
        case = data.draw(operation.as_strategy(generation_mode=mode))
        response = case.call(base_url=server.url, timeout=HANG_S)
        assert response.status_code < 500, (case.as_curl_command(), response.text)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run()
        except Unsatisfiable:
            return  # an operation without parameters has no requests that do not fit
