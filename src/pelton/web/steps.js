// Who ran how many tokens in which step, and how long each step took. Start at `StepsPanel`.

import { makeRows } from "./figures.js";
import { formatCount, formatMs, plural } from "./format.js";
import { Chart, FigureTable, Legend, Panel } from "./panel.js";

const ROW = 13;
const LABEL = 92;
const STRIP = 86;
const MAX_ROWS = 20;
const MIN_COLUMN = 5;

/** The last steps of the engine. */
export class StepsPanel {
  #steps = [];
  #names = {};
  #ownId = null;
  #rows = [];

  constructor() {
    this.chart = new Chart("Steps of the engine", 120, (...args) => this.#paint(...args));
    this.legend = new Legend([
      ["prefill", "prompt tokens"],
      ["decode", "one new token"],
      ["request", "this request"],
    ]);
    this.table = new FigureTable("steps", [
      "Step",
      "Decodes",
      "Prompt tokens",
      "Model",
      "Sampling",
      "Waiting",
      "Held up by",
    ]);
    this.panel = new Panel("steps", "Steps", this.chart.canvas, this.legend.root, this.table.root);
    this.panel.setCaption("A column is a step of the engine, a row a sequence in it; below, how long the step took.");
    this.root = this.panel.root;
  }

  /** Show these steps (oldest first); `names` are requests by sequence number, `ownId` is this page's request. */
  update(steps, names, ownId) {
    this.#steps = steps;
    this.#names = names;
    this.#ownId = ownId;
    this.chart.draw(this.#plan());
    const last = steps.at(-1);
    if (last === undefined) return;
    const numSequences = last.shares.length;
    const text = `step ${formatCount(last.number)} ran ${plural(numSequences, "sequence")}: ${plural(last.decodes, "decode")}, ${plural(last.prompt_tokens, "prompt token")}`;
    this.panel.setCaption(
      `A column is a step, a row a sequence in it; below, how long it took. The last one, ${text}.`,
    );
    this.chart.setLabel(`The last ${plural(steps.length, "step")}: ${text}`);
    this.table.update(() =>
      steps
        .slice(-40)
        .reverse()
        .map((s) => [
          formatCount(s.number),
          formatCount(s.decodes),
          formatCount(s.prompt_tokens),
          formatMs(s.model),
          formatMs(s.sample),
          formatCount(s.waiting),
          s.held_up_by ?? "–",
        ]),
    );
    this.panel.setNote("");
  }

  #getShown() {
    const numColumns = Math.max(10, Math.floor(((this.chart.width || 600) - LABEL) / MIN_COLUMN));
    return this.#steps.slice(-numColumns);
  }

  #plan() {
    const { rows, numHidden } = makeRows(this.#getShown(), this.#names, this.#ownId, MAX_ROWS);
    this.#rows = rows;
    this.numHidden = numHidden;
    return Math.max(rows.length, 1) * ROW + STRIP + (numHidden > 0 ? ROW : 0);
  }

  #paint(context, width, height, colors) {
    const steps = this.#getShown();
    if (steps.length === 0) return;
    const column = Math.min((width - LABEL) / Math.max(steps.length, 40), 14);
    const places = new Map(steps.map((step, i) => [step.number, LABEL + i * column]));
    this.#rows.forEach((row, i) => this.#paintRow(context, row, i * ROW, places, column, colors, width));
    if (this.numHidden > 0) {
      context.fillStyle = colors.muted;
      context.textAlign = "left";
      context.fillText(`and ${plural(this.numHidden, "sequence")} more`, LABEL, this.#rows.length * ROW + 10);
    }
    paintDurations(context, steps, places, column, height, colors, width);
  }

  #paintRow(context, row, y, places, column, colors, width) {
    context.fillStyle = row.isOwn ? colors.request : colors.muted;
    context.textAlign = "left";
    context.fillText(row.isOwn ? "this request" : shorten(row.name), 0, y + 10);
    context.strokeStyle = colors.line;
    context.beginPath();
    context.moveTo(LABEL, y + ROW - 0.5);
    context.lineTo(width, y + ROW - 0.5);
    context.stroke();
    for (const [number, tokens] of row.tokens) {
      const x = places.get(number);
      if (x === undefined) continue;
      const size = tokens <= 1 ? 4 : Math.min(5 + Math.log2(tokens), ROW - 2);
      context.fillStyle = tokens > 1 ? colors.prefill : row.isOwn ? colors.request : colors.decode;
      context.fillRect(x, y + (ROW - size) / 2, Math.max(column - 1, 2), size);
    }
  }
}

function paintDurations(context, steps, places, column, height, colors, width) {
  const bottom = height - 2;
  const top = height - STRIP + 12;
  const longest = Math.max(...steps.map((step) => step.end - step.start), 0.01);
  const scale = (bottom - top) / longest;
  context.fillStyle = colors.muted;
  context.textAlign = "right";
  context.fillText(formatMs(longest), LABEL - 6, top + 8);
  context.fillText("0", LABEL - 6, bottom);
  context.strokeStyle = colors.line;
  context.strokeRect(LABEL + 0.5, Math.round(top) - 0.5, width - LABEL - 1, bottom - top);
  for (const step of steps) {
    const x = places.get(step.number);
    let y = bottom;
    // From the bottom: the model, sampling, and what is left, which is Python's.
    const rest = Math.max(step.end - step.start - step.model - step.sample, 0);
    for (const [ms, color] of [
      [step.model, step.prompt_tokens > 0 ? colors.prefill : colors.decode],
      [step.sample, colors.queue],
      [rest, colors.own],
    ]) {
      const size = ms * scale;
      context.fillStyle = color;
      context.fillRect(x, y - size, Math.max(column - 1, 2), size);
      y -= size;
    }
  }
}

function shorten(name) {
  return name.length <= 12 ? name : `${name.slice(0, 3)}…${name.slice(-8)}`;
}
