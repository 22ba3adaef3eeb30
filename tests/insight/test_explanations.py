"""What explanations say: costs against the cost model, sums against brute force, the story as data and as text."""

from __future__ import annotations

import json

import pytest
from clocked_engine import ClockedEngine, make_machine

from pelton.core.config import EngineConfig
from pelton.core.trace import LoadSample
from pelton.insight.attention_cost import Work
from pelton.insight.cost_model import list_ops, sum_cost
from pelton.insight.explain_costs import StepCounter
from pelton.insight.explain_load import estimate_neighbours_share, estimate_own_threads_share, measure_load
from pelton.insight.explain_request import Observed, explain_request
from pelton.insight.explain_saved import compare_with_recomputing
from pelton.insight.explain_server import explain_server
from pelton.insight.explain_setup import Setup
from pelton.insight.explain_text import WIDTH, write_text
from pelton.insight.explain_types import Explanation
from pelton.insight.explain_units import format_bytes, format_ops, format_share, format_time
from pelton.insight.kv_layout import KvFormat
from pelton.insight.prediction import Planned, predict_decode, predict_prefill
from pelton.insight.presets import find_preset
from pelton.insight.verdicts import judge
from pelton.insight.weight_formats import ModelFormats

BATCHES = [[Work(0, 1)], [Work(0, 40)], [Work(33, 7), Work(5, 1), Work(64, 20)], [Work(5000, 1)] * 5]


@pytest.fixture
def make(monkeypatch):
    return lambda **options: ClockedEngine(monkeypatch, **options)


def plan_preset(name: str) -> Planned:
    preset = find_preset(name)
    return Planned(preset.shape, ModelFormats.from_names(preset.weights), KvFormat(preset.kv_cache_dtype))


def make_setup(planned: Planned) -> Setup:
    return Setup(
        config=EngineConfig(),
        num_threads=1,
        num_blocks=64,
        block_size=16,
        kv_bytes_per_block=1600,
        planned=planned,
        rates=make_machine(),
    )


@pytest.mark.parametrize("name", ["smollm2-135m", "mistral-7b", "gemma-3-1b", "qwen3-30b-a3b", "deepseek-v3.2"])
def test_steps_cost_what_the_cost_model_says(name: str) -> None:
    planned = plan_preset(name)
    counter = StepCounter(planned)
    for works in BATCHES:
        for num_sampled in (0, 1, len(works)):
            ops = list_ops(planned.shape, planned.formats, planned.kv, works, num_sampled)
            expected = sum_cost((op, 1) for op in ops)
            found = counter.count(works, num_sampled)
            assert found.num_bytes == pytest.approx(expected.num_bytes, rel=1e-12)
            assert found.num_int8_ops == pytest.approx(expected.num_int8_ops, rel=1e-12)
            assert found.num_f32_ops == pytest.approx(expected.num_f32_ops, rel=1e-12)


@pytest.mark.parametrize("num_tokens", [1, 2, 16, 17, 18, 100, 700])
def test_recomputing_costs_the_sum_over_all_lengths(num_tokens: int) -> None:
    planned = plan_preset("smollm2-135m")
    setup, num_prompt = make_setup(planned), 35
    saved = compare_with_recomputing(setup, num_prompt, num_tokens)
    lengths = range(num_prompt + 1, num_prompt + 1 + num_tokens)
    counter = StepCounter(planned)
    without = sum(counter.count([Work(0, n)], 1).num_ops for n in lengths)
    with_it = sum(counter.count([Work(n - 1, 1)], 1).num_ops for n in lengths)
    assert saved.without_ops == pytest.approx(without, rel=2e-3)
    assert saved.with_ops == pytest.approx(with_it, rel=1e-9)
    if num_tokens <= 17:
        seconds = sum(predict_prefill(planned, setup.rates, 1, n, 0).total_s for n in lengths)
        assert saved.without_s == pytest.approx(seconds, rel=1e-9)
        seconds = sum(predict_decode(planned, setup.rates, 1, n).total_s for n in lengths)
        assert saved.with_s == pytest.approx(seconds, rel=1e-9)


def test_nothing_is_saved_where_nothing_is_generated() -> None:
    assert compare_with_recomputing(make_setup(plan_preset("smollm2-135m")), 35, 0) is None


def test_load_is_the_difference_of_readings_around_a_request() -> None:
    samples = [
        LoadSample(0.0, 10.0, 100.0, 5.0, 4),
        LoadSample(100.0, 10.0, 300.0, 5.0, 4),  # long before, and busy with others
        LoadSample(101.0, 12.0, 303.0, 5.5, 4),
        LoadSample(102.0, 14.0, 306.0, 6.0, 4),
    ]
    load = measure_load(samples, 100.2, 102.0)
    assert (load.seconds, load.own_cpus, load.foreign_cpus, load.waiting) == (2.0, 2.0, 1.0, 0.5)
    assert measure_load(samples, 50.0, 50.1) is None
    assert measure_load(samples[:1], 0.0, 1.0) is None
    # 3 threads and one CPU of others on 4 CPUs fit; that the threads waited for half a CPU is a sixth of them.
    assert estimate_neighbours_share(load, 3) == pytest.approx(0.5 / 3)
    assert estimate_neighbours_share(load, 4) == pytest.approx(1 / 5)
    assert estimate_own_threads_share(load, 4, None) == 0.0
    assert estimate_own_threads_share(load, 8, None) == 0.5
    assert estimate_own_threads_share(None, 8, 2) == 0.75
    assert estimate_own_threads_share(None, 8, None) == 0.0


def test_numbers_have_units_that_fit() -> None:
    assert [format_time(s) for s in (0, 5e-6, 0.00123, 0.0456, 0.9999, 3.14159, 61.25, 300)] == [
        "0.00 ms",
        "5.00 us",
        "1.23 ms",
        "45.6 ms",
        "1.00 s",
        "3.14 s",
        "61.2 s",
        "300 s",
    ]
    assert [format_bytes(b) for b in (12, 1234, 5.6e7, 9.9e9)] == ["12 B", "1.23 kB", "56.0 MB", "9.90 GB"]
    assert [format_ops(n) for n in (5e3, 2.5e8, 1.2e12)] == ["5.00 kop", "250 Mop", "1.20 Top"]
    assert [format_share(s) for s in (0, 0.034, 0.5)] == ["0 %", "3.4 %", "50 %"]


def check_form(explanation: Explanation) -> dict:
    """The JSON form has the agreed keys, and no line of the text is wider than a terminal."""
    text = write_text(explanation)
    form = json.loads(json.dumps(explanation.describe(text), allow_nan=False))
    keys = {"subject", "stages", "verdicts", "advice", "text"}
    assert set(form) == keys | ({"request_id"} if explanation.subject == "request" else set())
    for stage in form["stages"]:
        assert set(stage) == {"name", "title", "duration_ms", "text", "facts", "bound", "pct_of_limit"}
        assert stage["bound"] in (None, "memory", "arithmetic")
        assert all(set(fact) == {"name", "value", "unit"} for fact in stage["facts"])
    for verdict in form["verdicts"]:
        assert set(verdict) == {"name", "title", "text", "evidence"}
    for advice in form["advice"]:
        assert set(advice) == {"change", "effect", "text", "predicted"}
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    assert text.endswith("\n")
    return form


def get_facts(form: dict, stage: str) -> dict[str, object]:
    return {fact["name"]: fact["value"] for s in form["stages"] if s["name"] == stage for fact in s["facts"]}


def test_story_of_a_request_has_its_numbers(make) -> None:
    engine = make()
    trace = engine.add(50, max_tokens=11)
    engine.finish()
    facts = engine.explain(trace)
    form = check_form(explain_request(facts))
    names = [stage["name"] for stage in form["stages"]]
    assert names == [
        *("tokens", "queue", "embedding", "prefill", "kv_cache", "first_token", "decode", "gaps", "kv_saved"),
        "answer",
    ]
    stages = {stage["name"]: stage for stage in form["stages"]}
    assert stages["first_token"]["duration_ms"] == pytest.approx(50)
    assert stages["decode"]["duration_ms"] == pytest.approx(20)
    # Matrices of one weight: Q, K and V for all rows, four more and 259 logits for the row that goes on; attention sees
    # 1 to 50 keys, with 4 operations each.
    num_ops = 2 * (3 * 50 + 4 + 259) + 4 * sum(range(1, 51))
    prefill = get_facts(form, "prefill")
    assert facts.prefill.cost.num_ops == num_ops
    assert prefill["tokens computed"] == 50
    assert prefill["rate"] == pytest.approx(1000)
    # At 10 Mop/s and 1 MB/s the longer of operations and bytes, over 50 ms.
    least_s = max(num_ops / 1e7, facts.prefill.cost.num_bytes / 1e6)
    assert stages["prefill"]["pct_of_limit"] == pytest.approx(100 * least_s / 0.05)
    assert stages["decode"]["bound"] == "memory"
    gaps = get_facts(form, "gaps")
    assert (gaps["mean"], gaps["max"]) == (pytest.approx(2), pytest.approx(2))
    cache = get_facts(form, "kv_cache")
    assert (cache["tokens stored"], cache["tokens reused"], cache["blocks"]) == (60, 0, 15)


def test_first_token_and_pieces_are_shown_where_they_are_known(make) -> None:
    engine = make()
    trace = engine.add(3, max_tokens=2)
    engine.finish()
    candidates = [(65, "A", 0.75), (66, "\x1b[31m", 0.25)]
    observed = Observed([(1, "\n"), (2, "hostile\x1b[2J"), (3, "c")], candidates, 65, "A\x1b[31mB\nC")
    text = write_text(explain_request(engine.explain(trace), observed))
    assert "\x1b" not in text
    for part in ("1 '\\n'", "75.00 %  " + "#" * 22 + "  <- drawn", "A[31mB", "\n     C\n"):
        assert part in text
    form = check_form(explain_request(engine.explain(trace), observed))
    assert get_facts(form, "first_token")["candidate 'A'"] == 0.75


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_unfinished_requests_are_told_as_far_as_they_came(make, num_steps: int) -> None:
    engine = make(prefill_chunk=100)
    trace = engine.add(200, max_tokens=5)
    engine.step(num_steps)
    form = check_form(explain_request(engine.explain(trace)))
    names = [stage["name"] for stage in form["stages"]]
    assert ("prefill" in names, "decode" in names) == (num_steps > 0, num_steps > 2)


def test_without_a_model_or_a_machine_times_are_told_all_the_same(make) -> None:
    engine = make()
    trace = engine.add(50, max_tokens=11)
    engine.finish()
    facts = engine.explain(trace)
    facts.setup = Setup(config=EngineConfig(), num_threads=1, num_blocks=8, block_size=4, kv_bytes_per_block=1000)
    form = check_form(explain_request(facts))
    assert all(stage["bound"] is None and stage["pct_of_limit"] is None for stage in form["stages"])
    assert "kv_saved" not in [stage["name"] for stage in form["stages"]]
    assert form["verdicts"]


def test_server_without_traffic_says_so(make) -> None:
    engine = make()
    form = check_form(explain_server(engine.history, engine.setup, 300.0))
    assert form["verdicts"] == form["advice"] == []
    assert "No request ran or ended in the last 300 s" in form["text"]


def test_server_names_the_cause_of_most_of_the_time_and_the_knob(make) -> None:
    engine = make(max_num_seqs=2, load=(1.0, 0.0, 0.0, 4))
    for number in range(12):
        engine.add(4, max_tokens=50, first=number, tenant="ab"[number % 2])
    engine.finish()
    form = check_form(explain_server(engine.history, engine.setup, 300.0))
    assert form["verdicts"][0]["name"] == "queued_for_seats"
    # All but the first two waited.
    assert form["verdicts"][0]["evidence"][0].startswith("10 requests of 12")
    assert form["advice"][0]["change"].startswith("--max-num-seqs 12")
    assert get_facts(form, "traffic")["new tokens"] == 12 * 50
    assert len(get_facts(form, "slowest")) == 5


def test_server_tells_where_prompts_begin_to_differ(make) -> None:
    engine = make()
    for date in range(5):
        engine.add([*range(10), 200 + date, *(7 * i % 251 for i in range(300))], max_tokens=2)
        engine.finish()
    form = check_form(explain_server(engine.history, engine.setup, 300.0))
    facts = get_facts(form, "prefix_cache")
    assert facts["most usual place of differences"] == 10
    assert facts["missed: other text at a place"] == 4
    assert facts["reused"] == 4 * 10
    assert form["verdicts"][0]["name"] == "changing_prefix"
    assert form["advice"][0]["change"] == "put what changes at the end of the prompt"


def test_server_looks_back_no_further_than_asked(make) -> None:
    engine = make()
    engine.add(4)
    engine.finish()
    engine.runner.now_s += 1000
    form = check_form(explain_server(engine.history, engine.setup, 300.0))
    assert get_facts(form, "traffic")["requests"] == 0


def test_server_tells_causes_of_which_none_rules(make) -> None:
    engine = make(prefill_chunk=500, max_step_ms=3_600_000.0, load=(1.0, 0.0, 0.0, 4))
    for number in range(12):  # the plain ones
        engine.add(4, max_tokens=150, first=number)
        engine.finish()
    engine.add(400, max_tokens=1, first=100, tenant="bob")
    engine.add(20, max_tokens=6, first=101, tenant="alice")
    engine.finish()
    form = check_form(explain_server(engine.history, engine.setup, 300.0))
    names = [verdict["name"] for verdict in form["verdicts"]]
    assert names[0] == "slow_to_stream"
    assert "queued_behind_tenant" in names, "a tenth of all the time"


def test_server_with_causes_does_not_say_that_nothing_stands_out(make) -> None:
    engine = make(prefill_chunk=100, max_step_ms=3_600_000.0)
    for tenant in range(9):
        for number in range(3):
            engine.add(100, max_tokens=30, first=31 * tenant + number, tenant=str(tenant))
        engine.finish()
    form = check_form(explain_server(engine.history, engine.setup, 300.0))
    assert form["verdicts"]
    assert "balanced" not in [verdict["name"] for verdict in form["verdicts"]]


def test_balanced_request_that_waited_is_not_told_that_nothing_held_it_up(make) -> None:
    engine = make(max_step_ms=3_600_000.0)
    facts = engine.explain(engine.add(100, max_tokens=50))
    engine.finish()
    times = facts.times
    times.total_s, times.own_prefill_s, times.own_decode_s = 1.0, 0.3, 0.2
    times.memory_s = times.seats_s = times.stall_s = 0.15
    (verdict,) = judge(facts)
    assert verdict.name == "balanced"
    assert "nothing held it up" not in verdict.text
    assert "450 ms" in verdict.text


def test_what_the_cache_saved_begins_at_what_was_measured(make) -> None:
    engine = make()
    trace = engine.add(10, max_tokens=40)
    engine.finish()
    form = check_form(explain_request(engine.explain(trace)))
    facts = get_facts(form, "kv_saved")
    assert facts["took with it"] == pytest.approx(39 * 2.0)
    saved = compare_with_recomputing(engine.setup, 10, 39)
    assert facts["predicted without it"] == pytest.approx(78.0 * saved.without_s / saved.with_s)


def test_without_a_kv_cache_nothing_is_said_to_be_kept(make) -> None:
    engine = make(use_kv_cache=False)
    trace = engine.add(10, max_tokens=40)
    engine.finish()
    form = check_form(explain_request(engine.explain(trace)))
    (stage,) = [stage for stage in form["stages"] if stage["name"] == "kv_cache"]
    assert "KV cache is off" in stage["text"]
    assert stage["facts"] == []
    assert [advice["change"] for advice in form["advice"]] == ["leave out --no-kv-cache"]


def test_one_of_something_has_no_plural(make) -> None:
    engine = make()
    trace = engine.add(1, max_tokens=1)
    engine.finish()
    lines = check_form(explain_request(engine.explain(trace)))["text"].splitlines()
    assert any(line.endswith(" 1 row") for line in lines)
    assert not any(line.endswith((" 1 rows", " 1 tokens", " 1 blocks")) for line in lines)
