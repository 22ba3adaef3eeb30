"""`LogitRows`: which rows of a batch need logits, and what for: sampling, or a prompt's log-probabilities.

Must not know models. Entry point: `choose_logit_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pelton.core.errors import SamplingError
from pelton.core.outputs import TokenLogprobs
from pelton.core.request import Request
from pelton.core.step_plan import ScheduledRequest, StepPlan
from pelton.sampling.logprobs import find_token_logprobs

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Rows [first, first + len(targets)) of the logits predict `targets`, tokens of a request's prompt."""

    request: Request
    first: int
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogitRows:
    """`batch_rows` [L] are the batch rows whose logits are computed, ascending; the rest counts rows of those logits.

    `sample_rows` [R] belong, in order, to `requests`, which need a token.
    """

    batch_rows: npt.NDArray[np.int32]
    requests: list[Request]
    sample_rows: list[int]
    prompts: list[PromptRows]

    def select_samples(self, logits: Logits) -> Logits:
        """The logits [R, V] to sample from; a copy only if others are among them."""
        return logits[self.sample_rows] if self.prompts else logits

    def find_prompt_logprobs(self, logits: Logits) -> tuple[dict[str, list[TokenLogprobs]], dict[str, str]]:
        """Log-probabilities of the prompt tokens by request id, and the requests that have none, with the reason."""
        found: dict[str, list[TokenLogprobs]] = {}
        failed: dict[str, str] = {}
        for prompt in self.prompts:
            request = prompt.request
            rows = logits[prompt.first : prompt.first + len(prompt.targets)]
            try:
                found[request.request_id] = find_token_logprobs(
                    rows, prompt.targets, request.params.prompt_logprobs or 0
                )
            except SamplingError as error:
                failed[request.request_id] = f"log-probabilities of the prompt: {error}"
        return found, failed


def choose_logit_rows(plan: StepPlan) -> LogitRows:
    """Rows of a plan's batch that need logits: the last of each sampled request, and those that predict a prompt."""
    batch_rows: list[int] = []
    requests: list[Request] = []
    sample_rows: list[int] = []
    prompts: list[PromptRows] = []
    row = 0
    for item in plan.scheduled:
        targets = _find_prompt_targets(item)
        if len(targets):
            first = row + targets.start - 1 - item.start
            ids = item.request.prompt_token_ids[targets.start : targets.stop]
            prompts.append(PromptRows(item.request, len(batch_rows), ids))
            batch_rows += range(first, first + len(targets))
        row += len(item.token_ids)
        if item.needs_sample:
            requests.append(item.request)
            sample_rows.append(len(batch_rows))
            batch_rows.append(row - 1)
    return LogitRows(np.array(batch_rows, np.int32), requests, sample_rows, prompts)


def _find_prompt_targets(item: ScheduledRequest) -> range:
    """Positions of the prompt tokens that this step predicts and whose log-probabilities are still missing."""
    request = item.request
    if request.params.prompt_logprobs is None:
        return range(0)
    num_known = max(len(request.prompt_logprobs), 1)
    end = item.start + len(item.token_ids)
    return range(max(item.start + 1, num_known), min(end + 1, len(request.prompt_token_ids)))
