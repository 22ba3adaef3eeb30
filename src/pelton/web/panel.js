// A panel of the X-ray: a title, one sentence, a picture, and its figures as a table. And `Chart`, its canvas.

import { el, inNextFrame, setText } from "./dom.js";
import { getColors, watchTheme } from "./theme.js";

const MAX_TABLE_ROWS = 40;
const TABLE_MS = 1000;

/** A section with a heading. `note` is the quiet place for what is missing. */
export class Panel {
  constructor(id, title, ...children) {
    this.caption = el("p", { class: "caption" });
    this.note = el("p", { class: "note" });
    this.body = el("div", { class: "panel-body" }, ...children);
    const heading = el("h3", { id: `${id}-title`, text: title });
    this.root = el(
      "section",
      { class: "panel", id, "aria-labelledby": `${id}-title` },
      el("div", { class: "panel-head" }, heading, this.caption),
      this.body,
      this.note,
    );
  }

  /** Say in one sentence what is seen. */
  setCaption(text) {
    setText(this.caption, text);
  }

  /** Say what is missing; an empty text if nothing is. */
  setNote(text) {
    setText(this.note, text);
  }
}

/** Figures behind a picture, for who cannot see it or wants them exact. Filled only while it is open. */
export class FigureTable {
  #makeRows = () => [];
  #timer = null;

  constructor(label, columns) {
    this.body = el("tbody");
    const head = el("tr", {}, ...columns.map((name) => el("th", { scope: "col", text: name })));
    const table = el("table", {}, el("caption", { class: "unseen", text: label }), el("thead", {}, head), this.body);
    // It scrolls, so the keyboard must reach it.
    const frame = el("div", { class: "table-frame", tabindex: "0", role: "region", "aria-label": label }, table);
    this.root = el(
      "details",
      { class: "figures" },
      el("summary", {}, "Figures", el("span", { class: "unseen", text: ` of ${label}` })),
      frame,
    );
    this.root.addEventListener("toggle", () => this.#draw());
  }

  /** Use these rows (lists of texts, `makeRows` makes them) from now on. */
  update(makeRows) {
    this.#makeRows = makeRows;
    // Nobody can read a table that changes faster.
    if (this.root.open) this.#timer ??= setTimeout(() => this.#draw(), TABLE_MS);
  }

  #draw() {
    clearTimeout(this.#timer);
    this.#timer = null;
    if (!this.root.open) return;
    const rows = this.#makeRows().slice(0, MAX_TABLE_ROWS);
    this.body.replaceChildren(
      ...rows.map((row) =>
        el("tr", {}, ...row.map((text, i) => el(i === 0 ? "th" : "td", { scope: i === 0 ? "row" : null, text }))),
      ),
    );
  }
}

let numCharts = 0;

/** A canvas of some height in CSS pixels. `paint(context, width, height, colors)` draws it, at most once a frame. */
export class Chart {
  constructor(label, height, paint) {
    this.paint = paint;
    this.height = height;
    this.name = `chart-${(numCharts += 1)}`;
    this.canvas = el("canvas", { class: "chart", role: "img", "aria-label": label });
    this.canvas.style.height = `${height}px`;
    this.width = 0;
    this.isSeen = false;
    new IntersectionObserver(
      ([entry]) => {
        this.isSeen = entry.isIntersecting;
        if (this.isSeen) this.draw();
      },
      { rootMargin: "100px" },
    ).observe(this.canvas);
    new ResizeObserver(([entry]) => {
      this.width = Math.floor(entry.contentRect.width);
      this.draw();
    }).observe(this.canvas);
    watchTheme(() => this.draw());
  }

  /** Describe the picture to who cannot see it. */
  setLabel(text) {
    if (this.canvas.getAttribute("aria-label") !== text) this.canvas.setAttribute("aria-label", text);
  }

  /** Paint in the next frame in which it can be seen, with another height if one is given. */
  draw(height = this.height) {
    if (height !== this.height) this.canvas.style.height = `${height}px`;
    this.height = height;
    if (this.isSeen) inNextFrame(this.name, () => this.#paintNow());
  }

  #paintNow() {
    if (this.width === 0 || !this.isSeen) return;
    const scale = Math.min(window.devicePixelRatio || 1, 2);
    const [width, height] = [Math.round(this.width * scale), Math.round(this.height * scale)];
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.font = "11px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace";
    this.paint(context, this.width, this.height, getColors());
  }
}

/** What colours mean: [[class of the swatch, text], ...]; texts are set again by `update`. */
export class Legend {
  constructor(names) {
    this.items = new Map(
      names.map(([kind, text]) => [kind, el("li", {}, el("i", { class: `swatch ${kind}` }), el("span", { text }))]),
    );
    this.root = el("ul", { class: "legend" }, ...this.items.values());
  }

  /** Change the text of one colour. */
  update(kind, text) {
    setText(this.items.get(kind).lastChild, text);
  }
}

/** A row of named values: [[key, name], ...]; `update` sets them. */
export class Values {
  constructor(names) {
    this.items = new Map(names.map(([key, name]) => [key, { name, node: el("dd", { text: "–" }) }]));
    const pairs = [...this.items.values()].map(({ name, node }) => el("div", {}, el("dt", { text: name }), node));
    this.root = el("dl", { class: "values" }, ...pairs);
  }

  /** Set values by key. */
  update(values) {
    for (const [key, text] of Object.entries(values)) setText(this.items.get(key).node, text);
  }
}
