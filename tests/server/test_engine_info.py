"""/v1/engine and /v1/kv_cache: figures of a scripted engine that can be counted by hand."""

from __future__ import annotations

import json

import pytest
from live_server import LiveServer, wait_until
from scripted import echo, make_engine, say

from pelton.insight import this_machine


def open_stream(server: LiveServer, prompt: str):
    body = {"prompt": prompt, "stream": True, "max_tokens": 400}
    return server.client.stream("POST", "/v1/completions", json=body)


def test_engine_tells_shape_sizes_and_counters(serve) -> None:
    server = serve(make_engine(echo, num_blocks=16, max_num_seqs=7))
    server.complete("abcdef")  # 7 prompt tokens and 7 new ones: 13 are stored, in 4 blocks of 4
    facts = server.client.get("/v1/engine").json()
    assert facts["model"] == {
        "name": "fake",
        "type": "fake",
        "layers": 1,
        "hidden": 1,
        "heads": 1,
        "kv_heads": 1,
        "head_dim": 1,
        "vocab": 259,
        # An embedding of 259, four attention matrices, three of the MLP, two norms of the layer and the last one.
        "parameters": 259 + 4 + 3 + 3,
        "weight_bytes": None,
        "formats": None,
    }
    assert (facts["isa"], facts["threads"], facts["context_length"]) == ("scripted", 1, 64)
    cache = facts["kv_cache"]
    assert (cache["block_size"], cache["num_blocks"], cache["tokens"], cache["bytes_per_token"]) == (4, 16, 64, 250.0)
    assert (cache["used"], cache["cached"], cache["free"]) == (0, 4, 12)
    assert facts["queue"] == {"running": 0, "waiting": 0, "by_reason": {"capacity": 0, "deferred": 0, "preempted": 0}}
    assert facts["prefix_cache"] == {"query_tokens": 7, "hit_tokens": 0, "misses": {"first_time": 1}}
    assert (facts["counters"]["steps"], facts["counters"]["new_tokens"]) == (7, 7)
    assert facts["options"]["max_num_seqs"] == 7


def test_limits_of_the_machine_come_from_the_store_and_nothing_is_measured(serve, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path))
    monkeypatch.setattr(this_machine, "measure_limits", lambda *_: pytest.fail("a server measures nothing"))
    server = serve(make_engine(echo))
    assert server.client.get("/v1/engine").json()["machine"] is None
    assert list(tmp_path.iterdir()) == []
    measured = {"best": 4e9, "median": 3e9}
    limits = {
        "num_threads": 1,
        "read_bytes_per_s": measured,
        "read_streams": 2,
        "f32_ops_per_s": {"best": 5e9, "median": 5e9},
        "int8_ops_per_s": {"best": 6e9, "median": 5e9},
        "bf16_ops_per_s": None,
        "stage_handoff_s": measured,
    }
    identity = this_machine._describe_identity("scripted", 1)
    content = {"identity": identity, "rates": {"limits": limits}}
    (tmp_path / "machine_rates.json").write_text(json.dumps(content))
    machine = serve(make_engine(echo)).client.get("/v1/engine").json()["machine"]
    assert machine == {
        "title": f"this machine ({identity['cpu']}, scripted, 1 thread)",
        "read_gb_per_s": 4.0,
        "int8_gop_per_s": 6.0,
        "f32_gop_per_s": 5.0,
    }


def test_blocks_of_a_request_are_told_apart_and_cached_at_its_end(serve) -> None:
    server = serve(make_engine(say("x", end=None), num_blocks=32, model_context=1000), keep_alive_s=0.05)
    runner = server.engine.runner
    runner.gate.clear()
    client = server.client
    try:
        with open_stream(server, "abcdefgh"):
            wait_until(lambda: server.state.live, "the request")
            (live,) = server.state.live
            wait_until(lambda: server.engine.traces.find_request(live.request_id), "the engine to know it")
            # 9 tokens are planned and wait at the gate: 3 blocks.
            wait_until(lambda: client.get("/v1/kv_cache").json()["runs"][0] == ["own", 3], "its blocks")
            found = client.get("/v1/kv_cache", params={"request": live.request_id}).json()
            assert found == {"block_size": 4, "num_blocks": 32, "runs": [["request", 3], ["free", 29]]}
    finally:
        runner.gate.set()
    # Not its stats: they are those of the last step that came to its end.
    wait_until(lambda: not server.engine.traces.list_live(), "the engine to be idle")
    kinds = {use for use, _ in client.get("/v1/kv_cache", params={"request": live.request_id}).json()["runs"]}
    assert kinds <= {"cached", "free"}
    assert "cached" in kinds


def test_an_unknown_request_is_a_404_that_names_it(echo_server: LiveServer) -> None:
    response = echo_server.client.get("/v1/kv_cache", params={"request": "nobody"})
    assert response.status_code == 404
    assert "nobody" in response.json()["error"]["message"]
