"""`pelton run`: one prompt answered, or a chat, streamed to the terminal.

Knows where a prompt comes from and how an answer is printed; `chat.py` has the interactive loop. Start at `run`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from pelton.cli import terminal
from pelton.cli.main import EXIT_INTERRUPTED
from pelton.cli.open_model import ModelOption, make_engine_options, open_llm
from pelton.cli.options import OptionGroup, with_options
from pelton.cli.plan_check import write_request_line, write_start_lines
from pelton.cli.report import make_json
from pelton.cli.trace_file import check_trace_path, recording
from pelton.core.errors import InvalidParameterError
from pelton.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pelton.engine.llm import LLM
    from pelton.insight.plan_check import PlanCheck

EXAMPLES = (
    'pelton run "How does inference work?"',
    'pelton run -m model.gguf --system "Be brief." "What is a KV cache?"',
    "cat question.txt | pelton run --max-tokens 200 --temperature 0 --json",
    "pelton run                  # a chat; /help lists its commands",
)

# What `run` changes in SamplingParams' defaults, which are neutral (temperature 1, no cut). Small chat models wander
# off when every unlikely token keeps its full weight; 0.7 and 0.95 keep variety and cut the tail. `--temperature 1
# --top-p 1` is the model's own distribution, `--temperature 0` its most likely answer. A small model may also never
# find an end; 1024 tokens are a long answer, and the closing line says when that ended it.
RUN_DEFAULTS = {"temperature": 0.7, "top_p": 0.95, "max_tokens": 1024}

# Nothing prints log-probabilities or more than one answer.
HIDDEN_OPTIONS = ("logprobs", "prompt_logprobs", "n", "best_of")

SystemOption = Annotated[
    str | None, typer.Option("--system", metavar="TEXT", show_default=False, help="System message before the prompt.")
]
RawOption = Annotated[
    bool, typer.Option("--raw", help="Continue the text itself: no chat template, no system message.")
]

SAMPLING_OPTIONS = OptionGroup.from_dataclass(SamplingParams, defaults=RUN_DEFAULTS, hidden=HIDDEN_OPTIONS)
ENGINE_OPTIONS = make_engine_options("max_num_seqs")


@with_options(SAMPLING_OPTIONS, ENGINE_OPTIONS)
def run(
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            show_default=False,
            help="The text to answer. Left out: standard input if it is piped, else a chat.",
        ),
    ] = None,
    model: ModelOption = None,
    system: SystemOption = None,
    raw: RawOption = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end instead of streaming text.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Say on standard error what the KV cache holds, and how memory and speed compare with the plan.",
        ),
    ] = False,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            show_default=False,
            help="Write what each step did, as JSON that ui.perfetto.dev shows; no text is in it.",
        ),
    ] = None,
    **values: object,
) -> int:
    """Answer a prompt, streaming the text; without one, chat."""
    if raw and system is not None:
        raise InvalidParameterError("--system", system, "no --system together with --raw, which has no messages")
    params = SAMPLING_OPTIONS.build(values)
    config = ENGINE_OPTIONS.build(values)
    if prompt is None and not terminal.is_terminal(sys.stdin):
        prompt = terminal.read_piped_text()
    if prompt is None:
        if json:
            raise InvalidParameterError("--json", True, "a prompt as argument or on standard input; a chat prints text")
    else:
        check_prompt(prompt)
    check_trace_path(trace, config.num_kept_traces)
    with open_llm(model, config) as llm, recording(llm, trace):
        check = write_start_lines(llm.load_facts) if verbose else None
        if prompt is not None:
            return _answer(llm, prompt, params, check, system=system, raw=raw, json=json)
        from pelton.cli.chat import chat

        return chat(llm, params, system=system, raw=raw, check=check)


def check_prompt(prompt: str) -> None:
    """Raise `InvalidParameterError` for a prompt that is empty or cannot be written as UTF-8."""
    if not prompt:
        raise InvalidParameterError("prompt", prompt, "a text of at least one character")
    terminal.check_utf8(prompt, "prompt")


def make_messages(prompt: str, system: str | None) -> list[dict[str, object]]:
    """The chat messages of a single prompt."""
    messages: list[dict[str, object]] = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": prompt}]


def _answer(
    llm: LLM,
    prompt: str,
    params: SamplingParams,
    check: PlanCheck | None,
    *,
    system: str | None,
    raw: bool,
    json: bool,
) -> int:
    if json:
        result = llm.generate(prompt, params)[0] if raw else llm.chat(make_messages(prompt, system), params)
        terminal.write_json(make_json(result))
        write_request_line(check, result)
        return 0
    from pelton.cli.streaming import print_stream

    outputs = llm.stream(prompt, params) if raw else llm.stream_chat(make_messages(prompt, system), params)
    answer = print_stream(outputs)
    write_request_line(check, answer.result)
    return EXIT_INTERRUPTED if answer.is_interrupted else 0
