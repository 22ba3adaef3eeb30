"""The story of one request, stage by stage, with its verdicts and what would help. Start at `explain_request`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pelton.core.trace import WaitCause
from pelton.insight.advice import advise
from pelton.insight.cost_model import count_kv_bytes_per_token
from pelton.insight.explain_facts import RequestFacts
from pelton.insight.explain_saved import compare_with_recomputing
from pelton.insight.explain_types import Explanation, Fact, Stage
from pelton.insight.explain_units import (
    format_bytes,
    format_count,
    format_ops,
    format_share,
    format_time,
    get_quantile,
)
from pelton.insight.verdicts import judge

_WAITS = {
    WaitCause.STEP: "until the engine could take it over, between two steps",
    WaitCause.BUDGET: "because the tokens of the steps went to others",
    WaitCause.TENANT_SHARE: "because its caller had its share of the steps already",
    WaitCause.MEMORY: "for free blocks of the KV cache",
    WaitCause.SEATS: "for a seat among those that run at once",
    WaitCause.PREEMPTED: "after giving its blocks back",
}
_MISSES = {
    "first_time": "nothing that begins like this was cached",
    "diverged_at": "cached prompts go on differently there",
    "evicted": "what was cached there had been needed for something else",
    "partial_block": "there was no room for a copy of the block it ends in",
    "salt": "it is cached, but under another salt",
    "off": "reuse is switched off for it",
}
_BAR_WIDTH = 40
_CANDIDATE_BAR_WIDTH = 30
_MAX_PIECES = 40


@dataclass(frozen=True, slots=True)
class Observed:
    """What traces do not keep, and whoever ran the request knows: pieces of its prompt, its first token, its answer.

    `pieces` are (token id, text); `candidates` (token id, text, probability), the most likely first, with the one that
    was drawn named by `first_id`.
    """

    pieces: Sequence[tuple[int, str]]
    candidates: Sequence[tuple[int, str, float]]
    first_id: int | None
    answer: str


def explain_request(facts: RequestFacts, observed: Observed | None = None) -> Explanation:
    """Explain a request, finished or not."""
    stages: list[Stage | None] = [_tell_tokens(facts, observed), _tell_queue(facts)]
    if facts.trace.first_scheduled_s is not None:
        stages += [_tell_embedding(facts), _tell_prefill(facts), _tell_kv_cache(facts)]
    if facts.trace.first_token_s is not None:
        stages.append(_tell_first_token(facts, observed))
    if facts.decode_steps and facts.times.gaps_s:
        stages += [_tell_decode(facts), _tell_gaps(facts), _tell_saved(facts)]
    stages += [_tell_answer(facts, observed), _tell_reader(facts)]
    verdicts = judge(facts)
    return Explanation(
        subject="request",
        request_id=facts.trace.request_id,
        headline=_make_headline(facts),
        stages=tuple(stage for stage in stages if stage is not None),
        verdicts=tuple(verdicts),
        advice=tuple(advise(facts, [verdict.name for verdict in verdicts])),
    )


def _make_headline(facts: RequestFacts) -> str:
    trace, times = facts.trace, facts.times
    parts = [
        format_count(trace.num_prompt_tokens, "prompt token"),
        format_count(trace.num_output_tokens, "new token"),
        format_time(times.total_s) + ("" if trace.is_finished else f" so far ({trace.state})"),
    ]
    if times.ttft_s is not None:
        parts.append(f"TTFT {format_time(times.ttft_s)}")
    if times.itl_s is not None:
        parts.append(f"ITL {format_time(times.itl_s)} in the mean")
    return ", ".join(parts)


def _tell_tokens(facts: RequestFacts, observed: Observed | None) -> Stage:
    num = facts.trace.num_prompt_tokens
    text = (
        f"The text is cut into {format_count(num, 'token')} of the model's vocabulary; the model sees only their ids."
    )
    lines: tuple[str, ...] = ()
    if observed is not None and observed.pieces:
        shown = [f"{token_id} {piece!r}" for token_id, piece in observed.pieces]
        if len(shown) > _MAX_PIECES:
            half = _MAX_PIECES // 2
            shown = [*shown[:half], f"... {len(shown) - 2 * half} more ...", *shown[-half:]]
        lines = tuple(_fill(shown))
    planned = facts.setup.planned
    facts_of_it = [Fact("prompt tokens", num, "tokens")]
    if planned is not None:
        facts_of_it.append(Fact("vocabulary", planned.shape.vocab_size, "tokens"))
    return Stage(
        name="tokens",
        title="Text becomes tokens",
        text=text,
        duration_s=facts.trace.tokenize_s,
        facts=tuple(facts_of_it),
        lines=lines,
    )


def _tell_queue(facts: RequestFacts) -> Stage:
    sums: dict[WaitCause, float] = {}
    for wait in list(facts.trace.waits):
        sums[wait.cause] = sums.get(wait.cause, 0.0) + wait.end_s - wait.start_s
    told = sorted((cause for cause in sums if sums[cause] >= 1e-3), key=lambda cause: -sums[cause])
    text = "Nothing was ahead of it: the next step took it."
    if told:
        text = "It waited " + ", then ".join(f"{format_time(sums[cause])} {_WAITS[cause]}" for cause in told) + "."
    elif facts.trace.first_scheduled_s is None:
        text = "It waits for its first step."
    found = [Fact(f"waited: {cause.value}", sums[cause] * 1e3, "ms") for cause in told]
    return Stage(
        name="queue", title="Waiting for a turn", text=text, duration_s=facts.times.queue_s, facts=tuple(found)
    )


def _tell_embedding(facts: RequestFacts) -> Stage | None:
    planned = facts.setup.planned
    if planned is None:
        return None
    shape, num = planned.shape, facts.num_uncached
    table = planned.formats.get(shape.embedding.name, "embedding")
    row_bytes = table.count_bytes(shape.vocab_size, shape.hidden_size) / shape.vocab_size
    return Stage(
        name="embedding",
        title="Tokens become vectors",
        text=f"Each id picks a row of {shape.hidden_size:,} numbers from the embedding table, which "
        f"{format_count(len(shape.layers), 'layer')} then work on. Nothing is computed yet.",
        facts=(
            Fact("rows read", num, "rows"),
            Fact("bytes of a row", row_bytes, "B"),
            Fact("format of the table", table.name),
        ),
    )


def _tell_prefill(facts: RequestFacts) -> Stage:
    trace, phase, steps = facts.trace, facts.prefill, facts.prefill_steps
    num, model_s = facts.num_uncached, sum(step.model_s for step in steps)
    text = f"All layers are computed for {format_count(num, 'prompt token')} in {format_count(len(steps), 'step')}"
    reused = f"; {trace.num_cached_tokens:,} more were reused from the prefix cache" if trace.num_cached_tokens else ""
    text += f"{reused}. Each weight that is read serves all of a step's tokens"
    bound = facts.get_bound(phase)
    if bound == "arithmetic":
        text += ", so that arithmetic is the limit, not memory."
    elif bound == "memory":
        text += "; these are so few that reading the weights from memory is the limit all the same."
    else:
        text += "."
    if any(step.num_sequences > 1 for step in steps):
        text += " Others computed in the same steps; what is said of the steps includes them."
    found = [Fact("tokens computed", num, "tokens"), Fact("the model's time", model_s * 1e3, "ms")]
    if model_s > 0:
        found.append(Fact("rate", num / model_s, "tokens/s"))
    if phase is not None:
        found += [
            Fact("operations", phase.cost.num_ops / 1e9, "Gop"),
            Fact("operations per second", phase.ops_per_s / 1e9, "Gop/s"),
            Fact("bytes read", phase.cost.num_bytes / 1e6, "MB"),
        ]
    return Stage(
        name="prefill",
        title="Prefill: the prompt is computed",
        text=text,
        duration_s=facts.times.prefill_s,
        facts=tuple(found),
        bound=bound,
        pct_of_limit=None if phase is None else phase.pct_of_limit,
    )


def _tell_kv_cache(facts: RequestFacts) -> Stage:
    trace, setup = facts.trace, facts.setup
    num_tokens = trace.num_prompt_tokens + max(trace.num_output_tokens - len(trace.numbers), 0)
    per_token = setup.kv_bytes_per_token
    if setup.planned is not None:
        per_token = count_kv_bytes_per_token(setup.planned.shape, setup.planned.kv)
    num_written = num_tokens - trace.num_cached_tokens
    text = (
        "Each layer keeps a key and a value of every token, so that later tokens can look back at it without computing "
        f"it again: {format_bytes(per_token)} a token, {format_bytes(per_token * num_written)} written."
    )
    if not setup.config.use_kv_cache:
        text = "The KV cache is off: keys and values of all tokens are computed anew in each step, and none are kept."
        return Stage(name="kv_cache", title="Nothing is remembered", text=text)
    miss = trace.cache_miss
    if trace.num_cached_tokens:
        text += f" {format_count(trace.num_cached_tokens, 'token')} of the prompt were there already."
    if miss is not None:
        text += f" From token {miss.position:,} on nothing could be reused: {_MISSES[miss.reason.value]}."
    return Stage(
        name="kv_cache",
        title="The KV cache remembers",
        text=text,
        facts=(
            Fact("type", setup.config.kv_cache_dtype),
            Fact("bytes per token", per_token, "B"),
            Fact("tokens stored", num_tokens, "tokens"),
            Fact("bytes written", per_token * num_written / 1e6, "MB"),
            Fact("tokens reused", trace.num_cached_tokens, "tokens"),
            Fact("blocks", -(-num_tokens // setup.block_size), "blocks"),
            Fact("the cache holds", setup.num_kv_tokens, "tokens"),
        ),
    )


def _tell_first_token(facts: RequestFacts, observed: Observed | None) -> Stage:
    text = (
        "The last layer's row of the last prompt token becomes a score for every word of the vocabulary; one is drawn."
    )
    lines: list[str] = []
    found: list[Fact] = []
    if observed is not None and observed.candidates:
        width = max(len(repr(piece)) for _, piece, _ in observed.candidates)
        for token_id, piece, probability in observed.candidates:
            bar = "#" * round(_CANDIDATE_BAR_WIDTH * probability)
            mark = "  <- drawn" if token_id == observed.first_id else ""
            lines.append(f"{piece!r:{width}}  {probability * 100:6.2f} %  {bar}{mark}")
            found.append(Fact(f"candidate {piece!r}", probability, "probability"))
    ttft_s = facts.times.ttft_s
    return Stage(
        name="first_token",
        title="The first token",
        text=text,
        duration_s=ttft_s,
        facts=tuple(found),
        lines=tuple(lines),
    )


def _tell_decode(facts: RequestFacts) -> Stage:
    phase, steps, gaps = facts.decode, facts.decode_steps, facts.times.gaps_s
    num, model_s = len(gaps), sum(step.model_s for step in steps)
    text = f"{format_count(num, 'more token')} in {format_count(len(steps), 'step')}, one after the other"
    bound = facts.get_bound(phase)
    if bound == "memory":
        text += (
            ". Every step reads all weights and all K/V for a few rows, so that memory is the limit, not arithmetic."
        )
    elif bound == "arithmetic":
        others = "prompts of others" if any(step.num_prompt_tokens for step in steps) else "so many sequences"
        text += f". With {others} in the steps arithmetic is the limit, although every step reads all weights."
    else:
        text += "."
    found = [Fact("tokens", num, "tokens"), Fact("sequences in a step", facts.mean_batch, "in the mean")]
    found.append(Fact("the model's time per step", model_s / len(steps) * 1e3, "ms"))
    if phase is not None:
        found += [
            Fact("bytes per step", phase.cost.num_bytes / phase.num_steps / 1e6, "MB"),
            Fact("bytes per token", phase.cost.num_bytes / phase.num_steps / facts.mean_batch / 1e6, "MB"),
            Fact("read from memory", phase.bytes_per_s / 1e9, "GB/s"),
            Fact("operations per second", phase.ops_per_s / 1e9, "Gop/s"),
        ]
    other_s = sum(step.end_s - step.start_s - step.model_s for step in steps)
    found.append(Fact("outside the model per step", other_s / len(steps) * 1e3, "ms"))
    return Stage(
        name="decode",
        title="Decode: one token after the other",
        text=text,
        duration_s=facts.times.decode_s,
        facts=tuple(found),
        bound=bound,
        pct_of_limit=None if phase is None else phase.pct_of_limit,
    )


def _tell_gaps(facts: RequestFacts) -> Stage:
    gaps = facts.times.gaps_s
    p50, p99, longest = get_quantile(gaps, 0.5), get_quantile(gaps, 0.99), max(gaps)
    text = f"Half of the gaps between tokens were under {format_time(p50)}, 99 % under {format_time(p99)}"
    text += "." if longest < 2 * p50 else f"; the longest took {format_time(longest)}."
    if facts.times.stall_s > 0.05 * sum(gaps):
        text += f" Prompts of others made them {format_time(facts.times.stall_s)} longer in all."
    return Stage(
        name="gaps",
        title="The gaps between tokens (ITL)",
        text=text,
        facts=(
            Fact("mean", sum(gaps) / len(gaps) * 1e3, "ms"),
            Fact("p50", p50 * 1e3, "ms"),
            Fact("p99", p99 * 1e3, "ms"),
            Fact("max", longest * 1e3, "ms"),
        ),
        lines=tuple(_draw_histogram(gaps)),
    )


def _tell_saved(facts: RequestFacts) -> Stage | None:
    if not facts.setup.config.use_kv_cache or len(facts.trace.numbers) > 1:
        return None
    saved = compare_with_recomputing(facts.setup, facts.trace.num_prompt_tokens, len(facts.times.gaps_s))
    if saved is None:
        return None
    factor = saved.without_ops / saved.with_ops
    text = (
        f"Without it every token would compute the whole sequence again: {format_ops(saved.without_ops)} in place of "
        f"{format_ops(saved.with_ops)}, {factor:,.0f} times as many"
    )
    found = [
        Fact("operations with it", saved.with_ops / 1e9, "Gop"),
        Fact("operations without it", saved.without_ops / 1e9, "Gop"),
    ]
    if saved.with_s is not None and saved.without_s is not None:
        # What was measured comes first, and the prediction as a factor on it: both are of the same machine then.
        with_s = sum(facts.times.gaps_s)
        without_s = with_s * saved.without_s / saved.with_s
        text += f"; by prediction they would take {format_time(without_s)}, and they took {format_time(with_s)}"
        found.append(Fact("took with it", with_s * 1e3, "ms"))
        found.append(Fact("predicted without it", without_s * 1e3, "ms"))
    return Stage(name="kv_saved", title="What the KV cache saved", text=text + ".", facts=tuple(found))


def _tell_answer(facts: RequestFacts, observed: Observed | None) -> Stage:
    trace = facts.trace
    text = f"{format_count(trace.num_output_tokens, 'token')} so far; it is {trace.state}."
    if trace.finish_reason is not None:
        reasons = {
            "stop": "the model ended it",
            "length": "max_tokens, or the context, ended it",
            "abort": "it was dropped, or its time was over",
            "error": "an error ended it",
        }
        ending = reasons.get(trace.finish_reason, trace.finish_reason)
        text = f"{format_count(trace.num_output_tokens, 'token')}; {ending}."
    lines: tuple[str, ...] = ()
    if observed is not None and observed.answer:
        lines = tuple(_clean(observed.answer))
    return Stage(name="answer", title="The answer", text=text, duration_s=facts.times.total_s, lines=lines)


def _tell_reader(facts: RequestFacts) -> Stage | None:
    sends = list(facts.trace.sends)
    if not sends or facts.times.reader_s < 0.01 * facts.times.total_s:
        return None
    taken_s = sum(send.done_s - send.taken_s for send in sends)
    share = facts.times.reader_s / facts.times.total_s
    return Stage(
        name="reader",
        title="Handing the answer over",
        text=f"{format_count(len(sends), 'piece')}; the reader took {format_time(taken_s / len(sends))} with each, "
        f"{format_share(share)} of the whole.",
        duration_s=taken_s,
        facts=(Fact("pieces", len(sends), "pieces"), Fact("per piece", taken_s / len(sends) * 1e3, "ms")),
    )


def _fill(words: Sequence[str], width: int = 74) -> list[str]:
    """Lines of whole words with two blanks between them."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 2 + len(word) <= width:
            lines[-1] += "  " + word
        else:
            lines.append(word)
    return lines


def _draw_histogram(gaps: Sequence[float], num_bins: int = 8) -> list[str]:
    """Counts of gaps by length, from the shortest to the 99th percentile; longer ones are in the last bin."""
    low, high = min(gaps), get_quantile(gaps, 0.99)
    if len(gaps) < num_bins or high <= low:
        return []
    counts = [0] * num_bins
    for gap in gaps:
        counts[min(int((gap - low) / (high - low) * num_bins), num_bins - 1)] += 1
    lines = []
    for index, count in enumerate(counts):
        start = low + (high - low) * index / num_bins
        bar = "#" * max(round(_BAR_WIDTH * count / max(counts)), count > 0)
        lines.append(f"{format_time(start):>9} {bar} {count}")
    return lines


def _clean(text: str, max_chars: int = 1200) -> list[str]:
    """Lines of a text without what a terminal would obey."""
    shown = text if len(text) <= max_chars else text[:max_chars] + " ..."
    lines = shown.expandtabs(4).splitlines()
    return ["".join(c for c in line if c.isprintable()) for line in lines]
