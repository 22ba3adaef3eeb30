"""`pelton explain`: runs a prompt and tells what happened, or asks a running server what did. Start at `explain`.

`insight/` explains; this file runs, measures and prints. `explain_remote.py` asks servers.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from pelton.cli import terminal
from pelton.cli.main import EXIT_INTERRUPTED
from pelton.cli.open_model import ModelOption, find_model, make_engine_options, open_llm
from pelton.cli.options import OptionGroup, with_options
from pelton.cli.run import HIDDEN_OPTIONS, RUN_DEFAULTS, RawOption, SystemOption, check_prompt, make_messages
from pelton.core.config import EngineConfig, read_environment
from pelton.core.errors import ConfigError, InvalidParameterError, PeltonError
from pelton.core.fields import option, validate_options
from pelton.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pelton.core.outputs import GenerationResult
    from pelton.core.trace import LoadSample
    from pelton.engine.llm import LLM
    from pelton.insight.explain_request import Observed
    from pelton.insight.explain_types import Explanation
    from pelton.insight.machine_rates import MachineRates
    from pelton.insight.prediction import Planned

EXAMPLES = (
    'pelton explain "How does inference work?"',
    "pelton explain -m model.gguf --max-tokens 200 --threads 2 < question.txt",
    "pelton explain --url http://localhost:8000",
    "pelton explain --url http://localhost:8000 --request chatcmpl-0123 --api-key KEY --json",
)

# How many candidates of the first token are shown.
_NUM_CANDIDATES = 5
# A story about more tokens is not a better one.
_MAX_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """Which server is asked, and for what."""

    url: str | None = option(None, "A running server to ask, in place of running a prompt here.")
    request: str | None = option(
        None,
        "With --url: the request to explain, by the id in its answer or its x-request-id; unset explains them all.",
    )
    api_key: str | None = option(None, "With --url: the API key; unset takes the first of PELTON_API_KEYS.")
    window_s: float = option(
        300.0,
        "With --url: how far to look back.",
        minimum=0.0,
        exclusive_minimum=True,
        maximum=86400.0,
        unit="seconds",
    )

    def __post_init__(self) -> None:
        validate_options(self)


DEFAULTS = {**RUN_DEFAULTS, "max_tokens": _MAX_TOKENS}
SAMPLING_OPTIONS = OptionGroup.from_dataclass(SamplingParams, defaults=DEFAULTS, hidden=HIDDEN_OPTIONS)
ENGINE_OPTIONS = make_engine_options("max_num_seqs")
REMOTE_OPTIONS = OptionGroup.from_dataclass(RemoteOptions)


@with_options(REMOTE_OPTIONS, SAMPLING_OPTIONS, ENGINE_OPTIONS)
def explain(
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT", show_default=False, help="The text to answer. Left out: standard input if it is piped."
        ),
    ] = None,
    model: ModelOption = None,
    system: SystemOption = None,
    raw: RawOption = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of the text.")] = False,
    **values: object,
) -> int:
    """Run a prompt and tell what happened, stage by stage: what it took, what limits it, why, what would help.

    A few other tokens are generated before, so that nothing is cold, and the limits of this machine are measured the
    first time. With --url it explains a running server: its traffic of the last minutes, or one of its requests.
    """
    remote = REMOTE_OPTIONS.build(values)
    if remote.url is not None:
        _refuse_local(model, system, raw=raw)
        return _explain_server(remote, prompt, json=json)
    _refuse_remote(remote)
    if raw and system is not None:
        raise InvalidParameterError("--system", system, "no --system together with --raw, which has no messages")
    params = SAMPLING_OPTIONS.build(values, logprobs=_NUM_CANDIDATES)
    config = ENGINE_OPTIONS.build(values)
    if prompt is None and not terminal.is_terminal(sys.stdin):
        prompt = terminal.read_piped_text()
    if prompt is None:
        raise InvalidParameterError("PROMPT", None, "a prompt as argument or on standard input, or --url of a server")
    check_prompt(prompt)
    return _explain_here(prompt, model, config, params, system=system, raw=raw, json=json)


def _explain_server(remote: RemoteOptions, prompt: str | None, *, json: bool) -> int:
    if prompt is not None:
        raise InvalidParameterError("PROMPT", prompt, "no prompt beside --url, which asks what a server has done")
    from pelton.cli.explain_remote import fetch_explanation

    assert remote.url is not None
    if remote.request == "":
        raise InvalidParameterError("--request", "", "the id of a request")
    api_key = remote.api_key or (read_environment().api_keys or "").split(",")[0].rpartition(":")[2].strip() or None
    answer = fetch_explanation(remote.url, api_key, remote.request, remote.window_s)
    if json:
        terminal.write_json(answer)
    else:
        _print_text(str(answer["text"]))
    return 0


def _refuse_local(model: str | None, system: str | None, *, raw: bool) -> None:
    for flag, value in (("--model", model), ("--system", system), ("--raw", raw or None)):
        if value is not None:
            raise InvalidParameterError(flag, value, "left out beside --url, which runs no prompt")


def _refuse_remote(remote: RemoteOptions) -> None:
    for flag, value in (("--request", remote.request), ("--api-key", remote.api_key)):
        if value is not None:
            shown = value if flag == "--request" else "set"
            raise InvalidParameterError(flag, shown, "only together with --url, the server that knows it")


def _explain_here(
    prompt: str,
    model: str | None,
    config: EngineConfig,
    params: SamplingParams,
    *,
    system: str | None,
    raw: bool,
    json: bool,
) -> int:
    planned = read_planned(model, config)
    rates = measure_machine(planned, config)
    with open_llm(model, config) as llm:
        _warm_up(llm, raw=raw)
        samples = [read_load_now()]
        outputs = llm.stream(prompt, params) if raw else llm.stream_chat(make_messages(prompt, system), params)
        result: GenerationResult | None = None
        try:
            with terminal.ProgressBar("generating") as bar:
                for number, output in enumerate(outputs, 1):
                    bar.update(number, params.max_tokens)
                    result = output.result or result
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        samples.append(read_load_now())
        assert result is not None, "a stream ends with a result"
        explanation = _make_explanation(llm, result, planned, rates, [s for s in samples if s is not None])
    from pelton.insight.explain_text import write_text

    text = write_text(explanation)
    if json:
        terminal.write_json(explanation.describe(text))
    else:
        _print_text(text)
    return 0


def _warm_up(llm: LLM, *, raw: bool) -> None:
    """Generate something else first: what a process does once (imports, memory) is no part of the story."""
    params = SamplingParams(max_tokens=4, temperature=0.0)
    result = llm.generate("Hello.", params)[0] if raw else llm.chat(make_messages("Hello.", None), params)
    # Scoring forgets the prefix cache, in which the story's prompt must find nothing.
    llm.score([*result.prompt_token_ids, *result.token_ids][:2])


def read_planned(model: str | None, config: EngineConfig) -> Planned:
    """The model as the cost model takes it, from the header of its file; raises what `find_model` raises."""
    from pelton.insight import model_source

    return model_source.read_planned(find_model(model), config.kv_cache_dtype)


def measure_machine(planned: Planned, config: EngineConfig) -> MachineRates | None:
    """This machine: its limits measured unless they are stored, and its rates if `pelton plan` has measured them.

    None, and a line on standard error, if that fails.
    """
    from pelton.compute.native import choose_isa, choose_threads
    from pelton.insight.this_machine import estimate_machine, find_this_machine, list_needs, open_limits

    try:
        isa, threads = choose_isa(config.isa or read_environment().isa), choose_threads(config.threads)
        with terminal.ProgressBar("measuring this machine, once") as bar:
            limits = open_limits(isa, threads, lambda what: bar.update(0, None, what))
        return find_this_machine(list_needs(planned), isa, threads, read_environment().cache_dir) or estimate_machine(
            limits
        )
    except ConfigError as error:
        terminal.write_error(f"pelton: the limits of this machine are not known: {error}")
        return None


def read_load_now() -> LoadSample | None:
    """A reading of the CPUs' load."""
    from pelton.engine.cpu_load import read_load

    return read_load()


def _make_explanation(
    llm: LLM,
    result: GenerationResult,
    planned: Planned,
    rates: MachineRates | None,
    samples: list[LoadSample],
) -> Explanation:
    from pelton.insight.explain_facts import RequestFacts
    from pelton.insight.explain_history import History
    from pelton.insight.explain_request import explain_request
    from pelton.insight.explain_setup import make_setup

    setup = make_setup(llm.config, llm.load_facts, planned)
    setup = setup if rates is None else setup.on_machine(rates)
    trace = llm.traces.find_request(result.request_id)
    if trace is None:
        raise PeltonError("the request was not recorded; allowed: --num-kept-traces of at least 1")
    readings = sorted([*samples, *llm.traces.list_samples()])
    history = History([trace], llm.traces.list_steps(), readings, now_s=time.perf_counter())
    return explain_request(RequestFacts(trace, history, setup), _observe(llm, result))


def _observe(llm: LLM, result: GenerationResult) -> Observed:
    from pelton.insight.explain_request import Observed

    tokenizer = llm.tokenizer

    def piece(token_id: int) -> str:
        if tokenizer.is_special(token_id):
            return tokenizer.piece(token_id)
        return tokenizer.token_bytes(token_id).decode(errors="replace")

    first = result.logprobs[0].top if result.logprobs else ()
    return Observed(
        pieces=[(token_id, piece(token_id)) for token_id in result.prompt_token_ids],
        candidates=[(token_id, piece(token_id), math.exp(logprob)) for token_id, logprob in first],
        first_id=result.token_ids[0] if result.token_ids else None,
        answer=result.text,
    )


def _print_text(text: str) -> None:
    """Print an explanation without what a terminal would obey; headings (no indentation) are bold on a terminal."""
    lines = ["".join(c for c in line if c.isprintable()) for line in text.splitlines()]
    if terminal.wants_color(sys.stdout):
        lines = [f"\x1b[1m{line}\x1b[0m" if line[:1].strip() else line for line in lines]
    terminal.write_out("\n".join(lines) + "\n")
