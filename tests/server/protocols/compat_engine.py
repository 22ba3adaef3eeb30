"""Live servers for the tests of protocols: a scripted engine that says "Hello, wörld!", whatever it is asked.

The tokenizer has one token per byte, so prompts can be read back from their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from live_server import LiveServer
from scripted import TEMPLATE, make_engine

from byte_model import END_OF_TURN, ByteTokenizer
from pelton.core.request import Request
from pelton.core.sampling_params import SamplingParams

__all__ = ["HELLO", "TINY_OPTIONS", "CompatServer", "LiveServer"]

# Of engines with the tiny real model, so that others can be compared with the one behind a server.
TINY_OPTIONS: dict[str, object] = {"threads": 2, "kv_cache_tokens": 2048, "kv_cache_dtype": "f32"}
HELLO = (*"Hello, wörld!".encode(), END_OF_TURN)


class Recorder:
    """Chooses the tokens of `script`; keeps what the engine was asked. Raises at output token `fail_at`.

    `before_failing(num_tokens)` is called first, with the number of tokens before that one.
    """

    def __init__(self, script: Sequence[int], fail_at: int | None = None) -> None:
        self.script = script
        self.fail_at = fail_at
        self.before_failing: Callable[[int], None] = lambda num_tokens: None
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> int:
        position = len(request.output_token_ids)
        if position == 0:
            self.requests.append(request)
        if position == self.fail_at:
            self.before_failing(position)
            raise RuntimeError("the script ends here")
        return self.script[position]


class CompatServer(LiveServer):
    """A live server of a scripted engine."""

    key = "secret-key"

    def __init__(
        self,
        script: Sequence[int] = HELLO,
        *,
        fail_at: int | None = None,
        template: str = TEMPLATE,
        model_context: int = 2048,
        **options: object,
    ) -> None:
        self.tokenizer = ByteTokenizer()
        self.recorder = Recorder(script, fail_at)
        engine = make_engine(
            self.recorder,
            tokenizer=self.tokenizer,
            template=template,
            model_context=model_context,
            num_blocks=model_context,
        )
        super().__init__(engine, **options)

    @property
    def prompts(self) -> list[str]:
        """Text of all prompts so far, without BOS."""
        return [self.tokenizer.decode(request.prompt_token_ids) for request in self.recorder.requests]

    @property
    def params(self) -> list[SamplingParams]:
        """Parameters of all requests so far."""
        return [request.params for request in self.recorder.requests]
