"""`pelton perplexity`: how well a model predicts a text, in llama.cpp's convention. Start at `perplexity`.

The arithmetic is in `engine/perplexity.py`; this file reads the text and shows the result.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from pelton.cli import terminal
from pelton.cli.open_model import ModelOption, make_engine_options, open_llm
from pelton.cli.options import OptionGroup, with_options
from pelton.cli.tokenize import read_text_file
from pelton.engine.perplexity import PerplexityOptions, measure_perplexity

EXAMPLES = (
    "pelton perplexity -m model.gguf --text book.txt",
    "pelton perplexity -m model.gguf --text book.txt --context 2048 --json",
)

PERPLEXITY_OPTIONS = OptionGroup.from_dataclass(PerplexityOptions)
ENGINE_OPTIONS = make_engine_options("max_num_seqs", "max_context", "kv_cache_tokens", "use_kv_cache")


@with_options(PERPLEXITY_OPTIONS, ENGINE_OPTIONS)
def perplexity(
    text: Annotated[
        str, typer.Option("--text", metavar="FILE", show_default=False, help="UTF-8 text file of at least two windows.")
    ],
    model: ModelOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    **values: object,
) -> None:
    """Measure how well a model predicts a text, as llama.cpp does.

    Consecutive windows of --context tokens are computed, and the second half of each is scored.
    """
    options = PERPLEXITY_OPTIONS.build(values)
    config = ENGINE_OPTIONS.build(values)
    # llama.cpp drops one closing newline of a file given with -f (common/arg.cpp), so the token counts agree.
    content = read_text_file(text).removesuffix("\n")
    with open_llm(model, config) as llm, terminal.ProgressBar("perplexity") as bar:
        result = measure_perplexity(
            llm, content, options, lambda done, total, running: bar.update(done, total, f"{running:.4f}")
        )
    if json:
        terminal.write_json(asdict(result))
    else:
        terminal.write_out(
            f"perplexity {result.perplexity:.4f} ({result.windows} windows of {options.context} tokens, "
            f"{result.tokens} tokens scored)\n"
        )
