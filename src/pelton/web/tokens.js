// The tokens of prompt and answer, one by one, with ids and how likely each was. Start at `TokensPanel`.

import { el, inNextFrame, setText } from "./dom.js";
import { formatCount, formatShare, plural, rateProbability, showToken } from "./format.js";
import { Panel } from "./panel.js";

// More elements than this at a time would make a frame long.
const PAGE_SIZE = 200;
const MAX_NEW_PER_FRAME = 50;

/** Prompt and answer, token by token. */
export class TokensPanel {
  constructor() {
    this.prompt = new TokenView("prompt", "Prompt");
    this.answer = new TokenView("answer", "Answer");
    const scale = el(
      "p",
      { class: "scale" },
      "less likely ",
      ...[4, 3, 2, 1, 0].map((rate) => el("i", { class: `rate-${rate}` })),
      " more likely",
    );
    this.panel = new Panel("tokens", "Tokens", this.prompt.root, this.answer.root, scale);
    this.panel.setCaption(
      "What the model reads and writes, with ids; point at one of the answer for its alternatives.",
    );
    this.root = this.panel.root;
  }

  /** Show a run. */
  update(run) {
    this.prompt.update(run.promptTokens, run);
    this.answer.update(run.tokens, run);
    this.panel.setNote(run.promptNote);
  }
}

/** One list of tokens, a page at a time; it follows the end until somebody turns a page. */
class TokenView {
  #tokens = [];
  #source = null;
  #page = 0;
  #follows = true;
  #numDrawn = 0;
  #drawnPage = -1;

  constructor(id, title) {
    this.name = `tokens-${id}`;
    this.title = title;
    this.count = el("span", { class: "count" });
    this.earlier = el("button", {
      type: "button",
      class: "quiet",
      text: "earlier",
      on: { click: () => this.#turn(-1) },
    });
    this.later = el("button", { type: "button", class: "quiet", text: "later", on: { click: () => this.#turn(1) } });
    this.pager = el("span", { class: "pager", hidden: true }, this.earlier, this.later);
    this.list = el("div", {
      class: "tokens",
      role: "group",
      "aria-label": `${title}, token by token: arrow keys move`,
    });
    this.detail = el("div", { class: "token-detail", id: `${this.name}-detail` });
    this.root = el(
      "div",
      { class: "token-view" },
      el("h4", {}, title, " ", this.count, this.pager),
      this.list,
      this.detail,
    );
    this.list.addEventListener("pointerover", (event) => this.#pointAt(event.target));
    this.list.addEventListener("focusin", (event) => this.#pointAt(event.target));
    this.list.addEventListener("keydown", (event) => this.#move(event));
    this.detail.hidden = true;
  }

  /** Show these tokens of a run; the list may have grown. */
  update(tokens, source) {
    if (source !== this.#source || tokens !== this.#tokens) {
      if (source !== this.#source) this.#follows = true;
      this.#source = source;
      this.#drawnPage = -1;
      this.detail.hidden = true;
    }
    this.#tokens = tokens;
    inNextFrame(this.name, () => this.#draw());
  }

  #turn(direction) {
    this.#page += direction;
    this.#follows = this.#page >= this.#getLastPage();
    this.#draw();
  }

  #getLastPage() {
    return Math.max(0, Math.ceil(this.#tokens.length / PAGE_SIZE) - 1);
  }

  #draw() {
    const last = this.#getLastPage();
    this.#page = this.#follows ? last : Math.min(Math.max(this.#page, 0), last);
    if (this.#page !== this.#drawnPage) {
      this.list.replaceChildren();
      this.#numDrawn = 0;
      this.#drawnPage = this.#page;
    }
    const start = this.#page * PAGE_SIZE;
    const end = Math.min(this.#tokens.length, start + PAGE_SIZE);
    const from = start + this.#numDrawn;
    const to = Math.min(end, from + MAX_NEW_PER_FRAME);
    const fresh = this.#tokens.slice(from, to).map((token, i) => this.#makeToken(token, from + i));
    const isAtEnd = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 30;
    this.list.append(...fresh);
    this.#numDrawn += fresh.length;
    if (isAtEnd && this.#source.isRunning) this.list.scrollTop = this.list.scrollHeight;
    if (to < end) inNextFrame(this.name, () => this.#draw());
    this.pager.hidden = last === 0;
    this.earlier.disabled = this.#page === 0;
    this.later.disabled = this.#page === last;
    const all = formatCount(this.#tokens.length);
    setText(this.count, last === 0 ? all : `${formatCount(start + 1)}–${formatCount(end)} of ${all}`);
  }

  #makeToken(token, index) {
    const text = token.text === null ? "?" : showToken(token.text);
    const chance = token.probability === undefined ? "" : `, ${formatShare(token.probability)}`;
    const rate = token.probability === undefined ? "rate-none" : `rate-${rateProbability(token.probability)}`;
    return el(
      "button",
      {
        type: "button",
        class: `token ${rate}`,
        tabindex: index % PAGE_SIZE === 0 ? "0" : "-1",
        "data-index": index,
        "aria-label": `${text}, id ${token.id ?? "unknown"}${chance}`,
        "aria-describedby": this.detail.id,
      },
      el("span", { class: "piece", text }),
      el("span", { class: "id", text: token.id ?? "" }),
    );
  }

  #pointAt(target) {
    const node = target.closest(".token");
    if (node === null) return;
    for (const other of this.list.querySelectorAll('[tabindex="0"], .pointed')) {
      other.setAttribute("tabindex", "-1");
      other.classList.remove("pointed");
    }
    node.setAttribute("tabindex", "0");
    node.classList.add("pointed");
    this.#showDetail(this.#tokens[Number(node.dataset.index)], Number(node.dataset.index));
  }

  #showDetail(token, index) {
    if (token === undefined) return;
    const text = token.text === null ? "?" : showToken(token.text);
    const head = el(
      "p",
      {},
      `${this.title} token ${formatCount(index + 1)}: `,
      el("b", { class: "piece", text }),
      ` id ${token.id ?? "unknown"}`,
    );
    if (token.probability !== undefined) head.append(`, probability ${formatShare(token.probability)}`);
    const others = (token.alternatives ?? []).map((other) => {
      const bar = el("i", { class: "bar" });
      bar.style.width = `${Math.max(other.probability * 100, 0.5)}%`;
      const isChosen = other.text === token.text;
      return el(
        "li",
        { class: isChosen ? "chosen" : null },
        el("span", { class: "piece", text: showToken(other.text) }),
        el("span", { class: "track" }, bar),
        el("span", { class: "percent", text: formatShare(other.probability) }),
      );
    });
    this.detail.replaceChildren(
      head,
      ...(others.length > 0
        ? [el("ol", { "aria-label": `${plural(others.length, "alternative")}, most likely first` }, ...others)]
        : []),
    );
    this.detail.hidden = false;
  }

  #move(event) {
    const tokens = [...this.list.children];
    const at = tokens.indexOf(document.activeElement);
    const moves = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tokens.length - 1 };
    if (at < 0 || !(event.key in moves)) return;
    event.preventDefault();
    tokens[Math.min(Math.max(moves[event.key], 0), tokens.length - 1)].focus();
  }
}
