"""docs/protocols.md: every example runs, every field is in a schema and every field of a schema is in the page."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from compat_engine import CompatServer
from pydantic import BaseModel

from pelton.core.fields import get_option_specs
from pelton.core.sampling_params import SamplingParams
from pelton.server.schema.anthropic import MessagesRequest
from pelton.server.schema.embeddings import EmbeddingsRequest
from pelton.server.schema.ollama import OllamaChatRequest, OllamaGenerateRequest, Options
from pelton.server.schema.responses import ResponsesRequest
from pelton.server.schema.tgi import GenerateParameters
from pelton.server.schema.tokens import DetokenizeRequest, TokenizeRequest

PAGE = (Path(__file__).parents[3] / "docs" / "protocols.md").read_text(encoding="utf-8")
EXAMPLES = [block.replace("\\\n", " ") for block in re.findall(r"```bash\n(.*?)```", PAGE, re.S)]
SCHEMAS: list[type[BaseModel]] = [
    ResponsesRequest, MessagesRequest, OllamaChatRequest, OllamaGenerateRequest, Options, GenerateParameters,
    TokenizeRequest, DetokenizeRequest, EmbeddingsRequest,
]  # fmt: skip
# Explained where the page begins, or for all protocols in server.md.
COMMON = {"model", "stream", "stream_options", "priority", "cache_salt", "container", "messages"}


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.split()[2].removeprefix("http://127.0.0.1:8000"))
def test_every_example_runs(hello: CompatServer, example: str) -> None:
    command = example.replace("http://127.0.0.1:8000", hello.url).replace('"model": "pelton"', '"model": "tiny"')
    done = subprocess.run([*shlex.split(command), "--fail-with-body"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert done.stdout


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.__name__)
def test_every_field_is_described(schema: type[BaseModel]) -> None:
    sampling = set(get_option_specs(SamplingParams))
    own = {f.alias or name for name, f in schema.model_fields.items()}
    if schema in (ResponsesRequest, MessagesRequest):
        own -= sampling
    described = set(re.findall(r"`([a-z_]+)(?:[.`]|\b)", PAGE))
    assert own - COMMON - described == set()
