"""`pelton perplexity`, `bench`, `doctor` and `pull` against values computed by hand and scripted parts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pelton.cli import doctor as doctor_command
from pelton.cli.doctor import NativeState


def compute_perplexity(token_ids: list[int], context: int, bos: int | None) -> tuple[float, int, int]:
    """llama.cpp's convention written as one sum over windows; token t has probability 1 / (1 + t)."""
    ids = ([bos] if bos is not None else []) + token_ids
    scored = []
    for start in range(0, len(ids) - context + 1, context):
        window = ids[start : start + context]
        scored += window[context // 2 + 1 :]
    return math.exp(sum(math.log(1 + t) for t in scored) / len(scored)), len(ids) // context, len(scored)


@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("context", [8, 9])
def test_perplexity_follows_the_convention_by_hand(cli, tmp_path: Path, add_bos: bool, context: int) -> None:
    text = "The quick brown fox jumps over it"
    file = tmp_path / "text.txt"
    file.write_text(text + "\n")
    cli.tokenizer.add_bos = add_bos
    answer = json.loads(cli.run("perplexity", "--text", str(file), "--context", str(context), "--json").out)
    perplexity, windows, tokens = compute_perplexity(list(text.encode()), context, 256 if add_bos else None)
    assert set(answer) == {"perplexity", "windows", "tokens"}
    assert answer["perplexity"] == pytest.approx(perplexity, rel=1e-12)
    assert (answer["windows"], answer["tokens"]) == (windows, tokens)


def test_first_token_of_every_window_is_bos_where_the_model_wants_one(cli, tmp_path: Path) -> None:
    windows: list[list[int]] = []
    score = cli.runner.score
    cli.runner.score = lambda ids, first: windows.append(list(ids)) or score(ids, first)
    file = tmp_path / "text.txt"
    file.write_text("abcdefghij")
    cli.tokenizer.add_bos = True
    cli.run("perplexity", "--text", str(file), "--context", "4")
    assert windows == [[256, *b"abc"], [256, *b"efg"]]


def test_perplexity_of_a_text_under_two_windows_is_refused(cli, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("1234567")
    error = cli.run("perplexity", "--text", str(file), "--context", "4").error
    assert error == "number of tokens of the text is 7; allowed: at least 8, two windows of 4 tokens"


def test_perplexity_window_longer_than_the_model_is_refused(cli, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("x" * 4000)
    error = cli.run("perplexity", "--text", str(file), "--context", "1024").error
    assert error == "--context is 1024; allowed: at most 512, the context of this model"


def test_perplexity_file_that_is_not_utf8_is_refused(cli, tmp_path: Path) -> None:
    file = tmp_path / "text.bin"
    file.write_bytes(b"\x80abc")
    assert cli.run("perplexity", "--text", str(file)).error.startswith(f"{file} is 'byte 0x80 at offset 0'")


BENCH = ["bench", "--prompt-tokens", "5", "--new-tokens", "3", "--repeat", "2"]


def test_bench_json_has_the_documented_shape(cli) -> None:
    answer = json.loads(cli.run(*BENCH, "--depth", "0,16", "--concurrency", "1,3", "--json").out)
    assert set(answer) == {"machine", "model", "results"}
    assert answer["model"] == "smollm2"
    assert {"cpu", "isa", "threads", "memory_bytes", "python", "pelton", "commit"} <= set(answer["machine"])
    tests = [(r["test"], r["concurrency"], r["prompt_tokens"], r["new_tokens"], r["depth"]) for r in answer["results"]]
    assert tests == [
        (test, concurrency, 5, 3 if test == "decode" else 0, depth)
        for depth in (0, 16)
        for concurrency in (1, 3)
        for test in ("prefill", "decode")
    ]
    for result in answer["results"]:
        rate = result["tokens_per_s"]
        assert set(rate) == {"median", "min", "max"}
        assert 0 < rate["min"] <= rate["median"] <= rate["max"]
        # The script says that neither the model nor sampling takes any time.
        assert (result["model_share"], result["sample_share"], result["python_share"]) == (0, 0, 1)
    assert "Python %" in cli.run(*BENCH, "--depth", "0", "--concurrency", "1").out


def test_bench_runs_the_positions_it_reports(cli) -> None:
    cli.run(*BENCH, "--depth", "16", "--concurrency", "2", "--prefill-chunk", "8")
    steps = [[(i.start, len(i.token_ids), i.needs_sample) for i in plan.scheduled] for plan in cli.runner.plans]
    # The context of 16, once, in steps of 8 tokens.
    assert steps[:4] == [[(0, 8, False)], [(8, 8, False)], [(0, 8, False)], [(8, 8, False)]]
    # The prompt of 5 behind it, for both requests: one full step of 8, and the rest.
    prefill = [[(16, 5, True), (16, 3, False)], [(19, 2, True)]]
    decode = [[(21 + n, 1, True)] * 2 for n in range(3)]
    # The last step once more, untimed, to see what it needs.
    assert steps[4:] == [*prefill, *decode[:2], *prefill, *prefill, *decode, *decode, decode[-1]]


def test_bench_requests_never_share_a_block(cli) -> None:
    cli.run(*BENCH, "--depth", "16", "--concurrency", "3")
    tables = {i.request.request_id: i.request.block_table for plan in cli.runner.plans for i in plan.scheduled}
    blocks = [block for table in tables.values() for block in table]
    assert len(tables) == 3
    assert len(blocks) == len(set(blocks))
    assert max(blocks) < cli.runner.num_blocks


def test_bench_repeats_the_same_random_ids(cli) -> None:
    cli.run(*BENCH, "--depth", "0", "--concurrency", "1")
    first = [list(plan.scheduled[0].token_ids) for plan in cli.runner.plans]
    cli.runner.plans.clear()
    cli.runner.is_closed = False
    cli.run(*BENCH, "--depth", "0", "--concurrency", "1")
    assert [list(plan.scheduled[0].token_ids) for plan in cli.runner.plans] == first


def test_bench_without_kv_cache_recomputes_everything_each_step(cli) -> None:
    cli.run(*BENCH, "--depth", "0", "--concurrency", "1", "--no-kv-cache")
    decode = cli.runner.plans[-4:-1]
    assert [(p.scheduled[0].start, len(p.scheduled[0].token_ids)) for p in decode] == [(0, 6), (0, 7), (0, 8)]
    assert cli.configs[0].use_kv_cache is False


def test_bench_refuses_what_the_context_cannot_hold(cli) -> None:
    error = cli.run(*BENCH, "--depth", "600").error
    assert error.startswith("--depth + --prompt-tokens + --new-tokens is 608; allowed: at most 512")


def test_bench_table_names_model_and_machine(cli) -> None:
    out = cli.run(*BENCH, "--depth", "0", "--concurrency", "1").out
    assert "prefill" in out
    assert "decode" in out
    assert "smollm2 on " in out


def test_bench_reports_the_bound_and_the_share_of_it(cli) -> None:
    answer = json.loads(cli.run(*BENCH, "--depth", "0", "--concurrency", "1", "--json").out)
    prefill, decode = answer["results"]
    # One step: 1000 bytes at 1000 bytes/s are 1 s; 5000 int8 and 3000 float32 operations are 0.5 + 3 s.
    assert prefill["cost"] == {"num_bytes": 1000, "num_int8_ops": 5000, "num_f32_ops": 3000}
    assert prefill["bound"] == "arithmetic"
    assert prefill["pct_of_roofline"] == pytest.approx(100 * 3.5 / prefill["duration_s"])
    # Three steps per repeat.
    assert decode["cost"] == {"num_bytes": 3000, "num_int8_ops": 15000, "num_f32_ops": 9000}
    assert decode["pct_of_roofline"] == pytest.approx(100 * 3 * 3.5 / decode["duration_s"])
    assert decode["node_s"] == {"linear": 0.003, "attend": 0.001, "other": 0.001}
    assert answer["machine"]["limits"]["read_bytes_per_s"]["best"] == 1000
    out = cli.run(*BENCH, "--depth", "0", "--concurrency", "1").out
    assert "% of roofline" in out
    assert "arithmetic" in out


def test_bench_machine_json_has_one_and_all_threads(cli) -> None:
    answer = json.loads(cli.run("bench", "machine", "--isa", "scalar", "--threads", "2", "--json").out)
    assert {"machine", "isa", "buffer_bytes", "limits"} == set(answer)
    assert answer["isa"] == "scalar"
    assert [limits["num_threads"] for limits in answer["limits"]] == [1, 2]
    assert answer["limits"][0]["stage_handoff_s"] == {"best": 1e-6, "median": 2e-6}
    assert cli.references == []  # no model is opened


def test_bench_machine_table_names_quantities_and_units(cli) -> None:
    lines = cli.run("bench", "machine", "--threads", "1").out.splitlines()
    rows = {line.strip().split("  ")[0]: line.split() for line in lines}
    assert rows["reads from memory"][-3:] == ["GB/s", "0.00", "0.00"]
    assert rows["handing a stage over"][-3:] == ["us", "1.00", "2.00"]
    assert rows["bf16 dot products"][-2:] == ["none", "none"]


def test_bench_machine_refuses_options_of_a_model(cli) -> None:
    assert "--depth" in cli.run("bench", "machine", "--depth", "0").error


def test_doctor_reports_isa_and_cached_models(cli, tmp_path: Path) -> None:
    state = NativeState(("scalar", "avx2"), "avx2", 3)
    cli.monkeypatch.setattr(doctor_command, "inspect_native", lambda: state)
    folder = tmp_path / "cache" / "smollm2"
    folder.mkdir(parents=True)
    (folder / "model.gguf").write_bytes(b"x" * 1000)
    answer = json.loads(cli.run("doctor", "--json").out)
    assert answer["isa"]["chosen"] == "avx2"
    assert answer["isa"]["available"] == ["scalar", "avx2"]
    assert answer["model_cache"]["files"] == [{"name": "smollm2/model.gguf", "size_bytes": 1000}]
    assert answer["threads"] == 3
    text = cli.run("doctor").out
    assert "avx2 (best of this machine)" in text
    assert "smollm2/model.gguf" in text


def test_doctor_names_the_isa_the_environment_forces(cli) -> None:
    cli.monkeypatch.setenv("PELTON_ISA", "scalar")
    state = NativeState(("scalar", "avx2"), "avx2", 3)
    cli.monkeypatch.setattr(doctor_command, "inspect_native", lambda: state)
    assert "scalar (PELTON_ISA)" in cli.run("doctor").out


def test_doctor_names_the_isas_available_when_the_environment_asks_for_another(cli) -> None:
    cli.monkeypatch.setenv("PELTON_ISA", "neon")
    state = NativeState(("scalar", "avx2"), "avx2", 3)
    cli.monkeypatch.setattr(doctor_command, "inspect_native", lambda: state)
    outcome = cli.run("doctor")
    assert outcome.code == 1
    assert "PELTON_ISA is 'neon'; available on this machine: scalar, avx2" in outcome.out


def test_doctor_without_the_native_module_says_so_and_fails(cli) -> None:
    state = NativeState(error="the native module cannot be loaded: no such file")
    cli.monkeypatch.setattr(doctor_command, "inspect_native", lambda: state)
    outcome = cli.run("doctor")
    assert outcome.code == 1
    assert "the native module cannot be loaded: no such file" in outcome.out


def test_pull_of_a_local_file_prints_its_path(cli, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    outcome = cli.run("pull", str(file))
    assert (outcome.code, outcome.out, outcome.err) == (0, f"{file}\n", "")


def test_pull_of_an_unknown_name_is_one_line(cli) -> None:
    assert "no-such-model" in cli.run("pull", "no-such-model").error


def test_bench_engine_counts_every_token_and_its_shares_add_up(cli) -> None:
    arguments = ("--prompt-tokens", "6", "--new-tokens", "4", "--concurrency", "1,3")
    answer = json.loads(cli.run("bench", "engine", *arguments, "--json").out)
    assert [row["concurrency"] for row in answer["results"]] == [1, 3]
    for row in answer["results"]:
        assert (row["prompt_tokens"], row["new_tokens"]) == (6, 4)
        assert row["tokens_per_s"] > 0
        assert 0 <= row["gap_median_ms"] <= row["gap_longest_ms"]
        assert row["model_share"] + row["sample_share"] + row["python_share"] == pytest.approx(1)
    assert "Python %" in cli.run("bench", "engine", *arguments).out
    error = cli.run("bench", "engine", "--prompt-tokens", "5000").error
    assert error == "--prompt-tokens + --new-tokens is 5128; allowed: at most 512, the context"
