// Steps against what the machine can do at best. Start at `RooflinePanel`.

import { logTicks, makePoint } from "./figures.js";
import { formatCount, plural } from "./format.js";
import { Chart, FigureTable, Legend, Panel } from "./panel.js";

const LEFT = 50;
const BOTTOM = 34;
const TOP = 10;
const RIGHT = 20;
const MAX_POINTS = 160;

/** The roofline chart of the last steps. */
export class RooflinePanel {
  #points = [];
  #machine = null;
  #ownSteps = new Set();

  constructor() {
    this.chart = new Chart("Roofline", 250, (...args) => this.#paint(...args));
    this.legend = new Legend([
      ["decode", "steps that decode"],
      ["prefill", "steps with prompt tokens"],
      ["request outline", "with this request in it"],
    ]);
    this.table = new FigureTable("roofline", ["Step", "Operations per byte", "Gop/s", "GB/s", "Bound", "% of limit"]);
    this.panel = new Panel("roofline", "Roofline", this.chart.canvas, this.legend.root, this.table.root);
    this.root = this.panel.root;
    this.panel.setCaption("Operations per byte read from memory against operations per second, both logarithmic.");
  }

  /** Show these steps against the limits of `machine` (null: not known). */
  update(steps, machine, ownSteps) {
    this.#machine = machine;
    this.#ownSteps = ownSteps;
    this.#points = steps
      .slice(-MAX_POINTS)
      .map(makePoint)
      .filter((point) => point !== null);
    const limits = machine === null ? "" : ` Limits measured on ${machine.title}.`;
    this.panel.setCaption(`Under the slope, memory is the limit; under the flat roofs, arithmetic.${limits}`);
    this.panel.setNote(
      machine === null
        ? "The limits of this machine are not known: pelton plan MODEL --machine this measures and keeps them."
        : "",
    );
    const last = this.#points.at(-1);
    const said =
      last === undefined
        ? ""
        : `; the last one did ${formatFigure(last.y)} Gop/s at ${formatFigure(last.x)} operations per byte`;
    this.chart.setLabel(`Roofline of ${plural(this.#points.length, "step")}${said}`);
    this.chart.draw();
    this.table.update(() =>
      this.#points
        .slice(-40)
        .reverse()
        .map(({ x, y, step }) => [
          formatCount(step.number),
          formatFigure(x),
          formatFigure(y),
          formatFigure(step.gb_per_s),
          step.bound ?? "–",
          step.pct_of_limit === null ? "–" : `${step.pct_of_limit.toFixed(0)} %`,
        ]),
    );
  }

  #makeScales(width, height) {
    const machine = this.#machine;
    const ys = this.#points.map((p) => p.y);
    const xs = this.#points.map((p) => p.x);
    const roof = machine === null ? Math.max(...ys, 10) : Math.max(machine.int8_gop_per_s, machine.f32_gop_per_s);
    const ridge = machine === null ? Math.max(...xs, 10) : roof / machine.read_gb_per_s;
    const xTicks = logTicks(Math.min(...xs, 1), Math.max(...xs, ridge * 3));
    const yTicks = logTicks(Math.min(...ys, roof / 100), roof * 1.05);
    const place = (ticks, value, from, to) =>
      from +
      ((Math.log10(value) - Math.log10(ticks[0])) / (Math.log10(ticks.at(-1)) - Math.log10(ticks[0]))) * (to - from);
    return {
      xTicks,
      yTicks,
      toX: (value) => place(xTicks, value, LEFT, width - RIGHT),
      toY: (value) => place(yTicks, value, height - BOTTOM, TOP),
    };
  }

  #paint(context, width, height, colors) {
    const scales = this.#makeScales(width, height);
    paintGrid(context, scales, width, height, colors);
    if (this.#machine !== null) paintRoofs(context, scales, this.#machine, colors);
    context.globalAlpha = 0.75;
    for (const { x, y, step } of this.#points) {
      context.fillStyle = step.prompt_tokens > 0 ? colors.prefill : colors.decode;
      context.beginPath();
      if (step.prompt_tokens > 0) context.rect(scales.toX(x) - 3, scales.toY(y) - 3, 6, 6);
      else context.arc(scales.toX(x), scales.toY(y), 3.2, 0, 2 * Math.PI);
      context.fill();
      if (this.#ownSteps.has(step.number)) {
        context.strokeStyle = colors.request;
        context.stroke();
      }
    }
    context.globalAlpha = 1;
  }
}

function paintGrid(context, { xTicks, yTicks, toX, toY }, width, height, colors) {
  context.strokeStyle = colors.line;
  context.fillStyle = colors.muted;
  for (const tick of xTicks) {
    const x = Math.round(toX(tick)) + 0.5;
    line(context, x, TOP, x, height - BOTTOM);
    context.textAlign = "center";
    context.fillText(formatFigure(tick), x, height - BOTTOM + 14);
  }
  for (const tick of yTicks) {
    const y = Math.round(toY(tick)) + 0.5;
    line(context, LEFT, y, width - RIGHT, y);
    context.textAlign = "right";
    context.fillText(formatFigure(tick), LEFT - 6, y + 4);
  }
  context.textAlign = "center";
  context.fillText("operations per byte from memory", (LEFT + width) / 2, height - 3);
  context.save();
  context.translate(10, (height - BOTTOM) / 2);
  context.rotate(-Math.PI / 2);
  context.fillText("Gop/s", 0, 0);
  context.restore();
}

function paintRoofs(context, { xTicks, yTicks, toX, toY }, machine, colors) {
  const highest = Math.max(machine.int8_gop_per_s, machine.f32_gop_per_s);
  context.strokeStyle = colors.ink;
  context.fillStyle = colors.ink;
  context.lineWidth = 1.5;
  // The slope begins where it comes into the picture, at the left or at the bottom.
  const start = Math.max(xTicks[0], yTicks[0] / machine.read_gb_per_s);
  line(context, toX(start), toY(start * machine.read_gb_per_s), toX(highest / machine.read_gb_per_s), toY(highest));
  for (const [name, limit, dash] of [
    ["int8", machine.int8_gop_per_s, []],
    ["f32", machine.f32_gop_per_s, [5, 4]],
  ]) {
    context.setLineDash(dash);
    line(context, toX(limit / machine.read_gb_per_s), toY(limit), toX(xTicks.at(-1)), toY(limit));
    context.textAlign = "right";
    context.fillText(`${name} ${formatFigure(limit)}`, toX(xTicks.at(-1)) - 4, toY(limit) + (name === "f32" ? 13 : -5));
  }
  context.setLineDash([]);
  context.lineWidth = 1;
  context.textAlign = "left";
  context.fillText(`memory ${formatFigure(machine.read_gb_per_s)} GB/s`, toX(start) + 8, TOP + 12);
}

function line(context, x1, y1, x2, y2) {
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}

function formatFigure(value) {
  if (value === null || value === undefined) return "–";
  return Number(value.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });
}
