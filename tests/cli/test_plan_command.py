"""`pelton plan` from the command line: what it prints, what it refuses, and that a preset is answered at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def test_plan_of_a_preset_shows_memory_speed_and_changes(cli) -> None:
    outcome = cli.run("plan", "llama-2-13b", "--machine", "h100", "--context", "4096", "--users", "8")
    assert outcome.code == 0
    for text in ("13.02 B parameters", "819,200 B a token", "3.36 GB", "TTFT", "ITL", "What would help most", "H100"):
        assert text in outcome.out
    assert "requests of 4,096 tokens fit into 80.00 GB" in outcome.out


def test_json_has_the_same_numbers_in_bytes_and_seconds(cli) -> None:
    outcome = cli.run("plan", "llama-2-13b", "--machine", "h100", "--memory", "40GB", "--users", "4", "--json")
    report = json.loads(outcome.out)
    assert report["memory"]["kv_bytes_per_token"] == 819_200
    assert report["memory"]["kv_bytes"] == 819_200 * 4096
    assert report["memory"]["available_bytes"] == 40 * 10**9
    assert [speed["users"] for speed in report["speed"]] == [1, 4]
    # 26 GB at 3.35 TB/s, and 4 x 3.36 GB more for 4 users.
    assert report["speed"][0]["itl_s"] == pytest.approx((25.7e9 + 3.36e9) / 3.35e12, rel=0.02)
    assert report["speed"][0]["decode"]["bound"] == "memory"
    assert report["machine"]["is_lower_bound"] is True
    assert 2 <= len(report["changes"]) <= 3


def test_windows_are_told_apart_from_what_this_version_keeps(cli) -> None:
    out = cli.run("plan", "mistral-7b", "--context", "32768", "--machine", "epyc-9654").out
    assert "0 past the window of 4,096; windows need 536.87 MB, this version keeps all" in out
    assert "--memory says how much there is" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lama-3.1-8b", "--machine", "h100"], "no model is known as 'lama-3.1-8b'; .*did you mean llama-3.1-8b"),
        (["llama-3.1-8b", "--machine", "h10"], "--machine is 'h10'; .*did you mean h100"),
        (["llama-3.1-8b", "--machine", "h100", "--weights", "q9"], "--weights is 'q9'; allowed: one of f32"),
        (["smollm2-135m", "--machine", "h100", "--weights", "q4_k"], "--weights is 'q4_k'; .*rows of 576"),
        (["llama-3.1-8b", "--machine", "h100", "--kv-cache-dtype", "f8"], "--kv-cache-dtype is 'f8'; allowed: one of"),
        (["llama-3.1-8b", "--machine", "h100", "--kv-cache-dtype", "mixed"], "--kv-cache-dtype is 'mixed'; allowed"),
        (["llama-3.1-8b", "--machine", "h100", "--context", "1000000"], "--context is 1000000; allowed: 1 to 131072"),
        (["llama-3.1-8b", "--machine", "h100", "--users", "0"], "--users is 0; allowed: 1 to"),
        (["llama-3.1-8b", "--machine", "h100", "--memory", "lots"], "--memory is 'lots'; allowed: bytes"),
        (["llama-3.1-8b", "--machine", "epyc-9654", "--memory", "50%"], "--memory is '50%'; .*not known"),
        (["llama-3.1-8b", "--machine", "h100", "--threads", "2"], "--threads is 2; allowed: unset beside --machine"),
        (["deepseek-v4-pro"], "no kernels.* weights in fp8"),
        (["no/such/file.gguf", "--machine", "h100"], "'no/such/file.gguf' does not exist; allowed: a .gguf"),
        (["llama-3.1-8b", "--machine", "h100", "--prompt", "200000"], "--prompt is 200000; allowed: 1 to 131072"),
    ],
)
def test_bad_input_is_one_line_that_names_it(cli, arguments: list[str], message: str) -> None:
    error = cli.run("plan", *arguments).error
    import re

    assert re.search(message, error), error


def test_config_without_needed_keys_names_them(cli, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "hidden_size": 64}')
    assert "lacks vocab_size, num_hidden_layers" in cli.run("plan", str(path), "--machine", "h100").error


def test_preset_on_a_named_machine_loads_neither_numpy_nor_the_native_module() -> None:
    """What would make the answer slow; the time itself is in docs/plan.md."""
    code = (
        "import sys; from pelton.cli.main import main; main(['plan', 'llama-3.1-405b', '--machine', 'h200']); "
        "sys.exit(any(name in sys.modules for name in ('numpy', 'pelton._native', 'tokenizers', 'rich')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "405.85 B" in done.stdout
