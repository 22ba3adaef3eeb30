"""`pelton serve`: the HTTP server. Knows options and what is printed; `server/` does the rest. Start at `serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pelton.cli import terminal
from pelton.cli.open_model import ModelOption, make_engine_options, open_async_engine
from pelton.cli.options import OptionGroup, with_options
from pelton.cli.plan_check import write_start_lines
from pelton.core.config import read_environment
from pelton.loading.catalog import DEFAULT_MODEL
from pelton.server.options import ServerOptions

if TYPE_CHECKING:
    from pelton.server.auth import ApiKeys

EXAMPLES = (
    "pelton serve",
    "pelton serve -m model.gguf --port 8080 --max-num-seqs 128",
    "PELTON_API_KEYS=a-long-secret pelton serve --host 0.0.0.0 --requests-per-minute 600",
    'curl localhost:8000/v1/chat/completions -d \'{"messages": [{"role": "user", "content": "Hi"}]}\'',
)

SERVER_OPTIONS = OptionGroup.from_dataclass(ServerOptions)
ENGINE_OPTIONS = make_engine_options(has_queue=True)


@with_options(SERVER_OPTIONS, ENGINE_OPTIONS)
def serve(model: ModelOption = None, **values: object) -> int:
    """Serve a model over HTTP, for the clients of OpenAI, vLLM and llama-server.

    One JSON line per request goes to standard output. SIGTERM drains: see docs/server.md.
    """
    options = SERVER_OPTIONS.build(values)
    config = ENGINE_OPTIONS.build(values)
    # Here and not above: help must not load the web framework.
    from pelton.server.app import create_app
    from pelton.server.auth import ApiKeys
    from pelton.server.serve import bind, run_server

    keys = ApiKeys.load(options.api_key_file, read_environment().api_keys)
    _warn_if_open(options, keys)
    names = options.served_model_name or (_make_model_name(model),)
    # Before the model is loaded: a port in use should not cost that time.
    with bind(options) as listener:
        engine = open_async_engine(model, config)
        try:
            write_start_lines(engine.load_facts)
            app = create_app(engine, options, model_names=names, keys=keys, log_stream=terminal.get_stdout())
            return run_server(
                app, options, listener, lambda url: terminal.write_error(f"pelton: {names[0]} at {url}/v1")
            )
        finally:
            engine.close_now()


def _warn_if_open(options: ServerOptions, keys: ApiKeys) -> None:
    if keys.is_open and not options.is_loopback:
        terminal.write_error(
            f"pelton: warning: {options.host} can be reached by other machines and there is no API key; "
            "--api-key-file or PELTON_API_KEYS sets some"
        )


def _make_model_name(reference: str | None) -> str:
    """How clients call the model: a file without its folder and ending, anything else as it was asked for."""
    if reference is None:
        return DEFAULT_MODEL
    return Path(reference).stem if reference.endswith((".gguf", ".safetensors")) else reference
