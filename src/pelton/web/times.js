// TTFT in its parts, and every gap between tokens as a bar. Start at `TimesPanel`.

import { el, setText } from "./dom.js";
import { makeGaps, makeStart, quantile, roundUp } from "./figures.js";
import { formatCount, formatMs, plural } from "./format.js";
import { Chart, FigureTable, Legend, Panel, Values } from "./panel.js";

const AXIS = 54;
const MIN_BAR = 3;

/** Times of one request, live. */
export class TimesPanel {
  #gaps = [];
  #bars = [];
  #known = [];
  #story = null;
  #numSteps = 0;

  constructor() {
    this.values = new Values([
      ["queue", "Queue"],
      ["ttft", "TTFT"],
      ["p50", "ITL median"],
      ["p99", "ITL p99"],
      ["rate", "Decode"],
      ["cached", "From cache"],
    ]);
    this.parts = el("div", { class: "parts", role: "img", "aria-label": "Parts of the time to the first token" });
    this.partNames = el("ul", { class: "legend" });
    this.chart = new Chart("Gaps between tokens", 132, (...args) => this.#paint(...args));
    this.hint = el("p", { class: "hint pointed-at" });
    this.legend = new Legend([
      ["decode", "bound by memory"],
      ["arithmetic", "bound by arithmetic"],
      ["own", "bound not known"],
      ["stall", "held up by others' prompts"],
    ]);
    this.table = new FigureTable("gaps between tokens", [
      "Token",
      "Gap",
      "Held up",
      "Step",
      "Batch",
      "Bound",
      "% of limit",
    ]);
    this.panel = new Panel(
      "times",
      "Times",
      this.values.root,
      el("h4", { text: "To the first token" }),
      this.parts,
      this.partNames,
      el("h4", { text: "Between tokens" }),
      this.chart.canvas,
      this.legend.root,
      this.hint,
      this.table.root,
    );
    this.panel.setCaption("The phases before the first token, then the gap before each later one.");
    this.root = this.panel.root;
    this.chart.canvas.addEventListener("pointermove", (event) => this.#pointAt(event.offsetX));
  }

  #findGaps(run, story, steps, numSteps) {
    if (story === null) return makeSeenGaps(run);
    if (story !== this.#story || numSteps !== this.#numSteps) this.#known = makeGaps(story, steps);
    this.#story = story;
    this.#numSteps = numSteps;
    return this.#known;
  }

  /** Show a run; `story` is the server's account of it (null: none yet), `steps` the known steps by number, up to `numSteps`. */
  update({ run, story, storyNote, steps, numSteps }) {
    this.#gaps = this.#findGaps(run, story, steps, numSteps);
    const gaps = Float64Array.from(this.#gaps, (each) => each.gap).sort();
    this.#showValues(run, story, gaps);
    this.#showStart(story === null ? makeSeenStart(run) : makeStart(story));
    const where = story === null ? "As seen from this page" : "As the engine saw it";
    const bounds = countBounds(this.#gaps);
    this.panel.setCaption(
      this.#gaps.length === 0
        ? "The phases before the first token, then the gap before each later one."
        : `${where}: ${plural(this.#gaps.length, "gap")}${bounds}.`,
    );
    this.panel.setNote(storyNote);
    this.chart.setLabel(
      `Gaps between ${plural(this.#gaps.length + 1, "token")}: median ${formatMs(quantile(gaps, 0.5))}, longest ${formatMs(quantile(gaps, 1))}${bounds}`,
    );
    this.chart.draw();
    this.table.update(() =>
      this.#gaps
        .slice(-40)
        .reverse()
        .map((each, i) => this.#makeRow(each, this.#gaps.length - i + 1)),
    );
  }

  #makeRow(each, token) {
    return [
      formatCount(token),
      formatMs(each.gap),
      formatMs(each.stall),
      each.number === null ? "–" : formatCount(each.number),
      formatCount(each.batch),
      each.bound ?? "–",
      each.pct === null ? "–" : `${each.pct.toFixed(0)} %`,
    ];
  }

  #showValues(run, story, gaps) {
    const timings = run.timings;
    const mean = gaps.length > 0 ? gaps.reduce((a, b) => a + b, 0) / gaps.length : null;
    const cached = story?.cached_tokens ?? run.usage?.prompt_tokens_details?.cached_tokens ?? null;
    const prompt = story?.prompt_tokens ?? run.usage?.prompt_tokens ?? run.promptTokens.length;
    this.values.update({
      queue: formatMs(story?.times.queue ?? timings?.queue_ms),
      ttft: formatMs(story?.times.ttft ?? timings?.ttft_ms ?? run.arrivals[0]),
      p50: formatMs(quantile(gaps, 0.5)),
      p99: formatMs(quantile(gaps, 0.99)),
      rate: mean > 0 ? `${(1000 / mean).toFixed(1)} tok/s` : "–",
      cached: cached === null ? "–" : `${formatCount(cached)} of ${formatCount(prompt)}`,
    });
  }

  #showStart(parts) {
    const total = parts.reduce((sum, part) => sum + part.ms, 0);
    while (this.parts.children.length > parts.length) this.parts.lastChild.remove();
    while (this.partNames.children.length > parts.length) this.partNames.lastChild.remove();
    parts.forEach((part, i) => {
      if (i >= this.parts.children.length) {
        this.parts.append(el("i"));
        this.partNames.append(el("li", {}, el("i"), el("span")));
      }
      const node = this.parts.children[i];
      node.className = part.phase;
      node.style.flexGrow = String(Math.max(part.ms / total, 0.004));
      const item = this.partNames.children[i];
      item.firstChild.className = `swatch ${part.phase}`;
      setText(item.lastChild, `${part.name} ${formatMs(part.ms)}`);
    });
    this.parts.setAttribute(
      "aria-label",
      `Time to the first token: ${parts.map((p) => `${p.name} ${formatMs(p.ms)}`).join(", ") || "not known yet"}`,
    );
  }

  #paint(context, width, height, colors) {
    const bottom = height - 16;
    const numBars = Math.max(8, Math.floor((width - AXIS) / MIN_BAR));
    const shown = this.#gaps.slice(-numBars);
    const first = this.#gaps.length - shown.length;
    // One gap may be far longer than the others: it is cut off, and written beside its bar.
    const typical =
      quantile(
        shown.map((each) => each.gap).sort((a, b) => a - b),
        0.98,
      ) ?? 1;
    const top = roundUp(Math.max(typical * 1.05, 0.01));
    paintAxis(context, width, bottom, top, colors);
    const slot = Math.min((width - AXIS) / Math.max(shown.length, 24), 14);
    this.#bars = [];
    shown.forEach((each, i) => {
      const x = AXIS + i * slot;
      const size = Math.min(each.gap / top, 1) * (bottom - 8);
      const stall = Math.min(each.stall / top, 1) * (bottom - 8);
      context.fillStyle =
        each.bound === "memory" ? colors.decode : each.bound === "arithmetic" ? colors.arithmetic : colors.own;
      context.fillRect(x, bottom - size, Math.max(slot - 1, 1.5), size);
      context.fillStyle = colors.stall;
      context.fillRect(x, bottom - size, Math.max(slot - 1, 1.5), Math.min(stall, size));
      this.#bars.push({ x, end: x + slot, index: first + i });
    });
    context.fillStyle = colors.muted;
    context.textAlign = "left";
    if (shown.length > 0) context.fillText(`token ${formatCount(first + 2)}`, AXIS, height - 3);
    context.textAlign = "right";
    if (shown.length > 24)
      context.fillText(
        `token ${formatCount(this.#gaps.length + 1)}`,
        Math.min(AXIS + shown.length * slot, width),
        height - 3,
      );
  }

  #pointAt(x) {
    const bar = this.#bars.find((each) => x >= each.x && x < each.end);
    if (bar === undefined) return;
    const each = this.#gaps[bar.index];
    const parts = [`Token ${formatCount(bar.index + 2)}`, formatMs(each.gap)];
    if (each.number !== null) parts.push(`step ${formatCount(each.number)}`, `${plural(each.batch, "sequence")} in it`);
    if (each.bound !== null)
      parts.push(`bound by ${each.bound}${each.pct === null ? "" : `, ${each.pct.toFixed(0)} % of its limit`}`);
    if (each.stall > 0) parts.push(`${formatMs(each.stall)} for others' prompts`);
    setText(this.hint, parts.join(" · "));
  }
}

function paintAxis(context, width, bottom, top, colors) {
  context.textAlign = "right";
  for (const share of [0, 0.5, 1]) {
    const y = Math.round(bottom - share * (bottom - 8)) + 0.5;
    context.strokeStyle = colors.line;
    context.beginPath();
    context.moveTo(AXIS, y);
    context.lineTo(width, y);
    context.stroke();
    context.fillStyle = colors.muted;
    context.fillText(share === 0 ? "0" : `${Number((top * share).toPrecision(2))} ms`, AXIS - 6, y + 4);
  }
}

function makeSeenGaps(run) {
  return run.arrivals
    .slice(1)
    .map((ms, i) => ({ gap: ms - run.arrivals[i], stall: 0, batch: null, number: null, bound: null, pct: null }));
}

function makeSeenStart(run) {
  const timings = run.timings;
  if (timings !== null) {
    return [
      { phase: "tokenize", name: "tokenise", ms: timings.tokenize_ms },
      { phase: "queue", name: "queue", ms: timings.queue_ms },
      { phase: "prefill", name: "prefill", ms: timings.prompt_ms },
    ].filter((part) => part.ms > 0);
  }
  return run.arrivals.length > 0 ? [{ phase: "prefill", name: "until the first token came", ms: run.arrivals[0] }] : [];
}

function countBounds(gaps) {
  const counts = ["memory", "arithmetic"].map((bound) => [bound, gaps.filter((each) => each.bound === bound).length]);
  const known = counts
    .filter(([, count]) => count > 0)
    .map(([bound, count]) => `${formatCount(count)} bound by ${bound}`);
  return known.length > 0 ? `, ${known.join(", ")}` : "";
}
