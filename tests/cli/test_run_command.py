"""`pelton run`: where the prompt comes from, what is printed where, and how it ends."""

from __future__ import annotations

import json

import pytest


def test_answer_goes_to_stdout_and_one_line_of_figures_to_stderr(cli) -> None:
    outcome = cli.run("run", "Hi")
    assert outcome.code == 0
    assert outcome.out == "Hello!\n"
    assert outcome.err.count("\n") == 1
    for part in ("prompt 8 tokens", "TTFT", "prefill", "ITL median", "p99", "decode", "KV cache 1,000 bytes", "seed"):
        assert part in outcome.err
    assert cli.runner.is_closed


def test_verbose_says_first_what_the_kv_cache_holds(cli) -> None:
    # 64 blocks of 16 tokens and 1,000 bytes, contexts of 512 tokens: 1,024 tokens, 2 requests.
    lines = cli.run("run", "-v", "Hi").err.splitlines()
    assert lines[0] == "pelton: KV cache: 1,024 tokens in at most 0.00 GiB, 2 requests at once of 512 tokens"
    assert len(lines) == 2
    assert cli.run("run", "--verbose", "--json", "Hi").err.splitlines() == lines[:1]


def test_prompt_goes_through_the_chat_template_with_the_system_message(cli) -> None:
    cli.run("run", "--system", "Be kind.", "Hi")
    assert cli.runner.prompts == ["[system]Be kind.[user]Hi"]


def test_raw_prompt_is_continued_as_it_is(cli) -> None:
    cli.run("run", "--raw", "Once upon")
    assert cli.runner.prompts == ["Once upon"]


def test_raw_works_without_a_chat_template_and_chat_says_how(cli) -> None:
    cli.template = None
    assert cli.run("run", "--raw", "Hi").out == "Hello!\n"
    assert "--raw" in cli.run("run", "Hi").error


def test_piped_input_is_the_prompt_without_its_last_newline(cli) -> None:
    cli.run("run", "--raw", stdin="Grüße\n\n".encode())
    assert cli.runner.prompts == ["Grüße\n"]


def test_argument_goes_before_piped_input(cli) -> None:
    cli.run("run", "--raw", "argument", stdin=b"piped")
    assert cli.runner.prompts == ["argument"]


def test_json_has_exactly_the_documented_fields(cli) -> None:
    outcome = cli.run("run", "--raw", "--json", "--seed", "7", "Hi")
    assert outcome.code == 0
    assert outcome.err == ""
    answer = json.loads(outcome.out)
    assert list(answer) == [
        "text",
        "token_ids",
        "prompt_token_ids",
        "finish_reason",
        "usage",
        "timings",
        "kv_cache_bytes",
        "seed",
    ]
    assert answer["text"] == "Hello!"
    assert answer["token_ids"] == [*b"Hello!", 257]
    assert answer["prompt_token_ids"] == list(b"Hi")
    assert answer["finish_reason"] == "stop"
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 7, "cached_tokens": 0}
    assert answer["seed"] == 7
    timings = answer["timings"]
    assert set(timings) == {
        "load_ms",
        "tokenize_ms",
        "prefill_ms",
        "ttft_ms",
        "itl_ms",
        "prefill_tokens_per_s",
        "decode_tokens_per_s",
    }
    assert set(timings["itl_ms"]) == {"mean", "p50", "p99"}
    assert timings["load_ms"] == 1.5


def test_json_of_a_chat_prompt_reports_the_rendered_prompt(cli) -> None:
    answer = json.loads(cli.run("run", "--json", "Hi").out)
    assert answer["prompt_token_ids"] == list(b"[user]Hi")


def test_defaults_of_run_are_its_own_and_options_replace_them(cli) -> None:
    cli.run("run", "Hi")
    params = cli.runner.plans[-1].scheduled[0].request.params
    assert (params.temperature, params.top_p, params.top_k) == (0.7, 0.95, 0)
    cli.run("run", "--temperature", "0", "--top-p", "0.5", "--top-k", "-1", "--stop", "x", "--stop", "yy", "Hi")
    params = cli.runner.plans[-1].scheduled[0].request.params
    assert (params.temperature, params.top_p, params.top_k) == (0.0, 0.5, -1)
    assert params.stop == ("x", "yy")


def test_remaining_sampling_options_reach_the_request(cli) -> None:
    options = ["--min-p", "0.1", "--stop-token-ids", "3,4", "--logit-bias", "5=-1.5", "--logit-bias", "6=2"]
    cli.run("run", *options, "--ignore-eos", "--max-tokens", "9", "Hi")
    params = cli.runner.plans[-1].scheduled[0].request.params
    assert params.min_p == 0.1
    assert params.stop_token_ids == (3, 4)
    assert params.logit_bias == {5: -1.5, 6: 2.0}
    assert params.ignore_eos
    assert params.max_tokens == 9


def test_engine_options_reach_the_engine(cli) -> None:
    cli.run("run", "-m", "some.gguf", "--threads", "2", "--isa", "scalar", "--no-kv-cache", "Hi")
    config = cli.configs[0]
    assert (config.threads, config.isa, config.use_kv_cache) == (2, "scalar", False)
    assert cli.references == ["some.gguf"]


def test_model_is_the_default_one_when_none_is_given(cli) -> None:
    cli.run("run", "Hi")
    assert cli.references == [None]


def test_stop_string_ends_the_answer_before_it(cli) -> None:
    assert cli.run("run", "--stop", "lo", "Hi").out == "Hel\n"


def test_length_limit_is_named_in_the_closing_line(cli) -> None:
    outcome = cli.run("run", "--max-tokens", "3", "Hi")
    assert outcome.out == "Hel\n"
    assert "3 new tokens, ended by length" in outcome.err


def test_ctrl_c_ends_the_answer_with_its_figures_and_code_130(cli) -> None:
    cli.runner.interrupt_at = 4
    outcome = cli.run("run", "Hi")
    assert outcome.code == 130
    assert outcome.out == "Hell\n"
    assert outcome.err.startswith("pelton: interrupted after 4 new tokens")
    assert outcome.err.count("\n") == 1


def test_ctrl_c_before_the_first_token_says_so(cli) -> None:
    cli.runner.interrupt_at = 0
    outcome = cli.run("run", "Hi")
    assert outcome.code == 130
    assert outcome.err == "pelton: interrupted before the first token\n"


def test_ctrl_c_with_json_prints_nothing(cli) -> None:
    cli.runner.interrupt_at = 2
    outcome = cli.run("run", "--json", "Hi")
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-tokens", "0", "Hi"], "--max-tokens is 0; allowed: 1 to 2147483647"),
        (["--max-tokens", "-3", "Hi"], "--max-tokens is -3; allowed: 1 to 2147483647"),
        (["--max-tokens", "many", "Hi"], "--max-tokens is 'many'; allowed: an integer, 1 to 2147483647"),
        (["--max-tokens", "1.5", "Hi"], "--max-tokens is '1.5'; allowed: an integer, 1 to 2147483647"),
        (["--max-tokens", "1_0", "Hi"], "--max-tokens is '1_0'; allowed: an integer, 1 to 2147483647"),
        (["--temperature", "nan", "Hi"], "--temperature is nan; allowed: 0 to 100"),
        (["--temperature", "1e999", "Hi"], "--temperature is inf; allowed: 0 to 100"),
        (["--temperature", "warm", "Hi"], "--temperature is 'warm'; allowed: a number, 0 to 100"),
        (["--temperature", "", "Hi"], "--temperature is ''; allowed: a number, 0 to 100"),
        (["--top-p", "0", "Hi"], "--top-p is 0.0; allowed: more than 0 to 1"),
        (["--threads", "0", "Hi"], "--threads is 0; allowed: 1 to 1024"),
        (["--isa", "mmx", "Hi"], "--isa is 'mmx'; allowed: one of scalar, avx2, avx_vnni, avx512, amx, neon"),
        (["--stop", "", "Hi"], "--stop is ''; allowed: non-empty strings"),
        (["--logit-bias", "5", "Hi"], "--logit-bias is '5'; allowed: TOKEN_ID=BIAS, for example 42=-1.5"),
        (["--logit-bias", "5=1e9", "Hi"], "--logit-bias[5] is 1000000000.0; allowed: a number from -100 to 100"),
        ([""], "prompt is ''; allowed: a text of at least one character"),
        (["a\udcffb"], "prompt is '\\udcff'; allowed: UTF-8 text"),
        (["--raw", "--system", "x", "Hi"], "--system is 'x'; allowed: no --system together with --raw"),
    ],
)
def test_bad_values_are_refused_before_a_model_is_loaded(cli, arguments: list[str], message: str) -> None:
    outcome = cli.run("run", *arguments)
    assert outcome.code == 2
    assert message in outcome.error
    assert cli.references == []


def test_empty_standard_input_is_an_empty_prompt(cli) -> None:
    assert cli.run("run", stdin=b"\n").error == "prompt is ''; allowed: a text of at least one character"


def test_standard_input_that_is_not_utf8_is_refused_with_the_place(cli) -> None:
    error = cli.run("run", stdin=b"abc\xff").error
    assert error == "standard input is 'byte 0xff at offset 3'; allowed: UTF-8 text"


def test_prompt_longer_than_the_context_is_refused_with_both_numbers(cli) -> None:
    cli.context = 16
    outcome = cli.run("run", "--raw", "x" * 40)
    assert outcome.code == 2
    assert "40" in outcome.error
    assert "16" in outcome.error


def test_unknown_model_is_one_line_with_code_1(cli) -> None:
    outcome = cli.run("run", "-m", "missing", "Hi")
    assert outcome.code == 1
    assert outcome.error == "model 'missing' does not exist; allowed: smollm2"


def test_token_id_outside_the_vocabulary_is_refused(cli) -> None:
    assert "258" in cli.run("run", "--logit-bias", "258=1", "Hi").error


def test_single_token_has_no_inter_token_latency(cli) -> None:
    outcome = cli.run("run", "--max-tokens", "1", "Hi")
    assert "ITL none (one token) | decode none" in outcome.err
