"""Plans, predictions and suggestions against values computed by hand, on machines made up for it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from pelton.core.errors import (
    ConfigError,
    DownloadError,
    InvalidParameterError,
    ModelFileError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from pelton.insight import this_machine
from pelton.insight.kernel_rates import AttendRates, LinearRates, interpolate
from pelton.insight.kv_layout import KvFormat
from pelton.insight.machine_limits import MachineLimits, Measured, ThreadLimits
from pelton.insight.machine_rates import TableMachine, find_machine, list_machines
from pelton.insight.model_source import open_model
from pelton.insight.plan import PlanOptions, make_plan
from pelton.insight.plan_changes import MAX_CHANGES, find_changes
from pelton.insight.prediction import Planned, predict_decode, predict_prefill
from pelton.insight.presets import find_preset
from pelton.insight.weight_formats import ModelFormats
from pelton.insight.workspace import count_workspace_bytes

CONFIG = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
# Per layer q, o: 64 x 64 each; k, v: 32 x 64 each; gate, up, down: 128 x 64 each. The output: 1000 x 64.
NUM_WEIGHTS = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64) + 1000 * 64


def make_machine(*, read_gb_per_s: float = 1.0, tflops: float = 1.0, memory: int | None = 10**9) -> TableMachine:
    rate = Measured(read_gb_per_s * 1e9, read_gb_per_s * 1e9)
    ops = Measured(tflops * 1e12, tflops * 1e12)
    limits = ThreadLimits(1, rate, 1, ops, ops, ops, Measured(0.0, 0.0))
    return TableMachine("made", "made up", "nowhere", "gpu", limits, memory, tflops * 1e12)


def write_config(folder: Path, **changes: object) -> Path:
    path = folder / "config.json"
    values = {key: value for key, value in (CONFIG | changes).items() if value is not ...}
    path.write_text(json.dumps(values))
    return path


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    source = open_model(str(write_config(tmp_path)), tmp_path)
    return Planned(source.shape, ModelFormats.make_uniform("fp8"), KvFormat("f16"))


def test_decode_bound_by_memory_takes_the_time_of_its_bytes(planned: Planned) -> None:
    # One byte a weight, and K and V of 2 layers x 2 heads x 16 x 2 bytes for 100 tokens, at 1 GB/s.
    prediction = predict_decode(planned, make_machine(), 1, 100)
    kv_bytes = 100 * 2 * 2 * 2 * 16 * 2
    assert prediction.linear_s == pytest.approx(NUM_WEIGHTS / 1e9)
    assert prediction.attend_s == pytest.approx(kv_bytes / 1e9)
    assert prediction.bound == "memory"
    assert prediction.total_s == pytest.approx(prediction.limit_s)


def test_prefill_bound_by_arithmetic_takes_the_time_of_its_operations(planned: Planned) -> None:
    # 3 prompts of 1000 tokens at 1 Gop/s; of the last layer's matrices past attention and of the output, one row each.
    prediction = predict_prefill(planned, make_machine(read_gb_per_s=1e3, tflops=1e-3), 3, 1000, 0)
    past_attention = 64 * 64 + 3 * 128 * 64
    all_rows = NUM_WEIGHTS - 1000 * 64 - past_attention
    linear_ops = 2 * (all_rows * 3000 + (past_attention + 1000 * 64) * 3)
    attend_ops = 3 * 2 * 4 * (1000 * 1001 / 2) * 64
    assert prediction.linear_s == pytest.approx(linear_ops / 1e9)
    assert prediction.attend_s == pytest.approx(attend_ops / 1e9)
    assert prediction.bound == "arithmetic"


def test_prompts_longer_than_a_step_read_the_weights_once_per_step(planned: Planned) -> None:
    one = predict_prefill(planned, make_machine(), 1, 2048, 0, chunk=2048)
    four = predict_prefill(planned, make_machine(), 1, 2048, 0, chunk=512)
    assert four.cost.num_bytes - one.cost.num_bytes == pytest.approx(3 * NUM_WEIGHTS)
    assert four.cost.num_int8_ops == one.cost.num_int8_ops


def test_memory_is_the_sum_of_its_parts_and_what_is_left_holds_requests(planned: Planned) -> None:
    machine = dataclasses.replace(make_machine(), kind="cpu")
    plan = make_plan(planned, machine, PlanOptions(context=1024, users=4), 200_000_000)
    memory = plan.memory
    assert memory.weight_bytes == NUM_WEIGHTS + 4 * 5 * 64  # 5 norms in float32
    assert memory.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
    assert memory.kv_bytes == 1024 * memory.kv_bytes_per_token
    # 64 blocks of 16 tokens; 4096 bytes become 3 half pages of 2048.
    assert memory.kept_kv_bytes == 64 * 6144
    fixed = memory.weight_bytes + memory.workspace_bytes + memory.process_bytes
    assert memory.num_fitting == (200_000_000 - fixed) // (64 * 6144)
    assert memory.count_total(3) == fixed + 3 * 64 * 6144


def test_nothing_fits_where_the_weights_alone_are_too_large(planned: Planned) -> None:
    plan = make_plan(planned, make_machine(), PlanOptions(), 1_000_000)
    assert plan.memory.num_fitting == 0


def test_unset_options_follow_the_model(planned: Planned) -> None:
    plan = make_plan(planned, make_machine(), PlanOptions(), None)
    assert (plan.context, plan.prompt, plan.users) == (4096, 512, 8)
    assert [speed.users for speed in plan.speeds] == [1, 8]
    small = dataclasses.replace(planned, shape=dataclasses.replace(planned.shape, max_context=100))
    plan = make_plan(small, make_machine(), PlanOptions(users=100), None)
    assert (plan.context, plan.prompt) == (100, 100)
    assert [speed.users for speed in plan.speeds] == [1, 8, 32, 100]


def test_context_beyond_the_model_is_refused(planned: Planned) -> None:
    with pytest.raises(InvalidParameterError, match="context is 9000; allowed: 1 to 8192"):
        make_plan(planned, make_machine(), PlanOptions(context=9000), None)
    with pytest.raises(InvalidParameterError, match="prompt is 9000; allowed: 1 to 8192, the context of this model"):
        make_plan(planned, make_machine(), PlanOptions(prompt=9000), None)


@pytest.mark.parametrize("bad", [{"users": 0}, {"context": 0}, {"prompt": -1}, {"users": 1.5}])
def test_impossible_options_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(InvalidParameterError, match=next(iter(bad))):
        PlanOptions(**bad)
    with pytest.raises(InvalidParameterError, match="prompt is 20; allowed: 1 to 10, the context"):
        PlanOptions(context=10, prompt=20)


def plan_preset(name: str, machine: str, **options: int):
    preset = find_preset(name)
    assert preset is not None
    planned = Planned(preset.shape, ModelFormats.from_names(preset.weights), KvFormat(preset.kv_cache_dtype))
    return make_plan(planned, find_machine(machine), PlanOptions(**options), None)


def test_changes_are_what_a_plan_with_them_predicts() -> None:
    plan = plan_preset("llama-2-13b", "rtx-4090", users=4, context=4096, prompt=16)
    changes = find_changes(plan)
    assert 2 <= len(changes) <= MAX_CHANGES
    # 26 GB of weights do not fit into 24 GB, so weights come first.
    assert changes[0].name.startswith("quantise weights to q4_0")
    assert plan.memory.num_fitting == 0
    quantised = dataclasses.replace(plan.planned, formats=ModelFormats.make_uniform("q4_0"))
    options = PlanOptions(users=4, context=4096, prompt=16)
    again = make_plan(quantised, plan.machine, options, plan.memory.available_bytes)
    assert changes[0].num_fitting == again.memory.num_fitting
    assert changes[0].itl_s == again.speed.itl_s


def test_a_model_with_full_heads_is_told_about_grouped_queries() -> None:
    plan = plan_preset("llama-2-7b", "h100", users=64, context=4096, prompt=16)
    assert any("grouped-query attention (4 KV heads)" in change.name for change in find_changes(plan))
    plan = plan_preset("llama-3.1-8b", "h100", users=64, context=4096, prompt=16)
    assert not any("grouped-query" in change.name for change in find_changes(plan))


def test_four_bit_weights_are_not_quantised_again() -> None:
    preset = find_preset("llama-2-7b")
    assert preset is not None
    planned = Planned(preset.shape, ModelFormats.make_uniform("q4_k"), KvFormat("int8"))
    plan = make_plan(planned, find_machine("h100"), PlanOptions(), None)
    assert not any(change.name.startswith(("quantise", "KV cache in")) for change in find_changes(plan))


def test_every_machine_has_limits_and_a_source() -> None:
    for name in list_machines():
        machine = find_machine(name)
        assert machine.source
        assert machine.limits.read_bytes_per_s.best >= 60e9
        assert machine.limits.int8_ops_per_s.best >= machine.limits.f32_ops_per_s.best
    # NVIDIA's H100 SXM: 3.35 TB/s, 80 GB.
    assert find_machine("H100").limits.read_bytes_per_s.best == 3350e9
    assert find_machine("h100").memory_bytes == 80 * 10**9


def test_unknown_machine_suggests_the_nearest() -> None:
    with pytest.raises(InvalidParameterError, match=r"machine is 'h10'; .*did you mean h100"):
        find_machine("h10")


def test_unknown_model_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no model is known as 'lama-3.1-8b'; .*did you mean llama-3.1-8b"):
        open_model("lama-3.1-8b", tmp_path)


@pytest.mark.parametrize("name", ["./model", "/a/b.gguf", "model.gguf", "a/config.json", "~/m.gguf", "a/b/c"])
def test_path_to_nothing_is_told_as_a_path_and_not_looked_up(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"' does not exist; allowed: a .gguf file, a config.json, hf:org/rep"):
        open_model(name, tmp_path)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "model_type"])
def test_missing_key_of_a_config_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(ModelFileError, match=f"config.json: the config lacks {key}"):
        open_model(str(write_config(tmp_path, **{key: ...})), tmp_path)


def test_all_missing_keys_are_named_together(tmp_path: Path) -> None:
    path = write_config(tmp_path, vocab_size=..., intermediate_size=...)
    with pytest.raises(ModelFileError, match="lacks vocab_size, intermediate_size"):
        open_model(str(path), tmp_path)


@pytest.mark.parametrize("value", [0, -1, "64", 1.5, True, 2**40])
def test_impossible_value_of_a_config_is_named(tmp_path: Path, value: object) -> None:
    with pytest.raises(ModelFileError, match=f"hidden_size is {value!r}; allowed: an integer, 1 to"):
        open_model(str(write_config(tmp_path, hidden_size=value)), tmp_path)


def test_heads_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="num_key_value_heads is 3; allowed: divisors of num_attention_heads, 4"):
        open_model(str(write_config(tmp_path, num_key_value_heads=3)), tmp_path)


@pytest.mark.parametrize("text", ["", "[", "[1]", "nul", "[" * 100_000])
def test_file_that_is_no_config_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ModelFileError, match="is not"):
        open_model(str(path), tmp_path)


def test_unknown_architecture_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"model_type is 'mamba'; supported: deepseek_v3, .*llama"):
        open_model(str(write_config(tmp_path, model_type="mamba")), tmp_path)


def test_folder_with_a_config_is_read_and_one_without_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"directory without config.json"):
        open_model(str(tmp_path), tmp_path)
    write_config(tmp_path, torch_dtype="float16")
    source = open_model(str(tmp_path), tmp_path)
    assert source.formats.default.name == "f16"
    assert source.shape.count_active_parameters() == NUM_WEIGHTS


def test_of_a_hub_repository_the_config_alone_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pelton.loading import hub_source

    fetched = []

    def download(file: hub_source.HubFile, folder: Path, report: object) -> Path:
        fetched.append((file.repo_id, file.name))
        folder.mkdir(parents=True)
        return write_config(folder)

    monkeypatch.setattr(hub_source, "download_file", download)
    monkeypatch.setattr(
        hub_source, "find_file", lambda reference: hub_source.HubFile(reference.repo_id, reference.file, None, None)
    )
    for name in ("hf:org/model", "org/model", "hf:org/model/config.json"):
        source = open_model(name, tmp_path)
        assert source.shape.hidden_size == 64
        assert source.name == "hf:org/model"
    assert fetched == [("org/model", "config.json")]
    with pytest.raises(ModelNotFoundError, match="names a file; allowed: hf:org/repo"):
        open_model("hf:org/model/a.gguf", tmp_path)


def test_without_a_network_nothing_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pelton.loading import hub_source

    def find(reference: object) -> hub_source.HubFile:
        raise DownloadError("hf:org/model could not be reached: no network")

    monkeypatch.setattr(hub_source, "find_file", find)
    monkeypatch.setattr(hub_source, "download_file", lambda *arguments: pytest.fail("tries for half a minute"))
    with pytest.raises(DownloadError, match="hf:org/model could not be reached"):
        open_model("org/model", tmp_path)


def test_workspace_counts_a_row_of_logits_per_request(planned: Planned) -> None:
    few = count_workspace_bytes(planned.shape, 512, 8, 2, is_quantized=True)
    more = count_workspace_bytes(planned.shape, 512, 16, 2, is_quantized=True)
    assert more - few >= 8 * 1000 * 4


def test_values_between_measured_points_lie_on_a_line() -> None:
    assert interpolate(0, (1, 3), (10, 20)) == 10
    assert interpolate(2, (1, 3), (10, 20)) == 15
    assert interpolate(9, (1, 3), (10, 20)) == 20
    rates = LinearRates(((1.0, 1, 1, 1, 1, 1, 1, 4), (2.0, 2, 2, 2, 2, 2, 1, 4), (3.0, 3, 3, 3, 3, 3, 1, 4)), 0, 0)
    assert rates.predict(1, 1e6) == 1
    assert rates.predict(1, 80e6) == pytest.approx(1.5)
    assert rates.predict(16, 1e12) == 3
    assert rates.predict(512, 1e12) == 8  # twice the time of 256 rows
    attend = AttendRates(decode_near=4.0, decode_far=2.0, prefill=9.0)
    assert attend.predict(True, 1e6) == 4
    assert attend.predict(True, 288e6) == pytest.approx(1 / 0.375)
    assert attend.predict(False, 1e12) == 9


class Counting:
    """Stands for the probes: counts what is measured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        seconds = ((1e-11,) * 8,) * 3
        limits = make_machine().limits

        def measure_limits(isa, thread_counts):
            self.calls.append("limits")
            return MachineLimits(isa, 1, (limits,))

        def measure_linear(pool, isa, name):
            self.calls.append(name)
            return LinearRates(seconds, 1e-10, 1e-10)

        def measure_attend(pool, isa, kv, group):
            self.calls.append(f"{kv}/{group}")
            return AttendRates(1e10, 1e10, 1e11)

        monkeypatch.setattr(this_machine, "measure_limits", measure_limits)
        monkeypatch.setattr(this_machine, "measure_linear", measure_linear)
        monkeypatch.setattr(this_machine, "measure_attend", measure_attend)

    def take(self) -> list[str]:
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Counting:
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PELTON_ISA", raising=False)
    return Counting(monkeypatch)


def test_this_machine_is_measured_once_and_kept(counting: Counting, planned: Planned, tmp_path: Path) -> None:
    planned = dataclasses.replace(planned, formats=ModelFormats.make_uniform("q8_0"))
    needs = this_machine.list_needs(planned)
    first = this_machine.open_this_machine(needs, threads=1)
    assert counting.take() == ["limits", "q4_0", "q8_0", "f16/2", "int8/2"]
    again = this_machine.open_this_machine(needs, threads=1)
    assert counting.take() == []
    assert (again.limits, again.linear, again.attend) == (first.limits, first.linear, first.attend)
    more = this_machine.list_needs(dataclasses.replace(planned, kv=KvFormat("f32")))
    this_machine.open_this_machine(more, threads=1)
    assert counting.take() == ["f32/2"]
    this_machine.open_this_machine(needs, threads=1, measure_anew=True)
    assert "limits" in counting.take()


def test_rates_of_other_threads_or_a_damaged_store_are_measured_anew(
    counting: Counting, planned: Planned, tmp_path: Path
) -> None:
    needs = this_machine.list_needs(dataclasses.replace(planned, formats=ModelFormats.make_uniform("f16")))
    this_machine.open_this_machine(needs, threads=1)
    counting.take()
    this_machine.open_this_machine(needs, threads=2)
    assert "limits" in counting.take()
    store = tmp_path / "cache" / "machine_rates.json"
    for text in ("", "[]", '{"identity": 1}', store.read_text().replace('"prefill"', '"other"')):
        store.write_text(text)
        this_machine.open_this_machine(needs, threads=2)
        assert "limits" in counting.take()


def test_what_has_no_kernels_cannot_be_measured_here(planned: Planned) -> None:
    with pytest.raises(ConfigError, match=r"no kernels.* weights in fp8; --machine NAME"):
        this_machine.list_needs(planned)
    preset = find_preset("deepseek-v4-pro")
    assert preset is not None
    latent = Planned(preset.shape, ModelFormats.make_uniform("q8_0"), KvFormat("mixed"))
    with pytest.raises(ConfigError, match=r"no kernels.* the attention of deepseek_v4"):
        this_machine.list_needs(latent)
