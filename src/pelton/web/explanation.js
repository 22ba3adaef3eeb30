// Where the time went, in words, and the trace to download. Start at `ExplanationPanel`.

import { el, setText } from "./dom.js";
import { formatMs } from "./format.js";
import { Panel } from "./panel.js";

/** The server's explanation of a request. */
export class ExplanationPanel {
  #text = null;

  constructor(api) {
    this.api = api;
    this.verdicts = el("div", { class: "verdicts" });
    this.advice = el("ul", { class: "advice" });
    this.stages = el("dl", { class: "stages" });
    this.whole = el("pre", { tabindex: "0", "aria-label": "The whole explanation as text" });
    this.byStage = el(
      "details",
      { class: "figures", hidden: true },
      el("summary", { text: "Stage by stage" }),
      this.stages,
    );
    this.more = el(
      "details",
      { class: "figures", hidden: true },
      el("summary", { text: "The whole text" }),
      this.whole,
    );
    this.trace = el("a", {
      class: "trace",
      download: "trace.json",
      hidden: true,
      text: "Download the trace (Perfetto, Chrome)",
    });
    this.trace.addEventListener("click", (event) => this.#download(event));
    this.panel = new Panel(
      "explanation",
      "Explanation",
      this.verdicts,
      this.advice,
      this.byStage,
      this.more,
      el("p", {}, this.trace),
    );
    this.root = this.panel.root;
    this.clear();
  }

  /** Show nothing: another request has begun. */
  clear() {
    this.#text = null;
    for (const node of [this.verdicts, this.advice, this.stages]) node.replaceChildren();
    this.byStage.hidden = true;
    this.more.hidden = true;
    this.trace.hidden = true;
    this.panel.setNote("");
    this.panel.setCaption("Why the request took as long as it did, and what would help.");
  }

  /** Offer the trace of this request. */
  offerTrace(id) {
    this.trace.href = `v1/requests/${encodeURIComponent(id)}/trace`;
    this.trace.hidden = false;
  }

  /** Show an answer of /v1/requests/{id}/explain. */
  update(explanation) {
    this.panel.setNote("");
    if (explanation.text === this.#text) return;
    this.#text = explanation.text;
    this.verdicts.replaceChildren(...explanation.verdicts.map(makeVerdict));
    this.advice.replaceChildren(...explanation.advice.map(makeAdvice));
    this.stages.replaceChildren(...explanation.stages.map(makeStage));
    setText(this.whole, explanation.text);
    this.byStage.hidden = false;
    this.more.hidden = false;
  }

  async #download(event) {
    if (!this.api.hasKey) return; // the link does it
    event.preventDefault();
    try {
      const blob = await (await this.api.fetch(this.trace.getAttribute("href"))).blob();
      const address = URL.createObjectURL(blob);
      el("a", { href: address, download: "trace.json" }).click();
      setTimeout(() => URL.revokeObjectURL(address), 10_000);
    } catch (error) {
      this.panel.setNote(`The trace cannot be had: ${error.message}`);
    }
  }
}

function makeVerdict(verdict, index) {
  const evidence = el("ul", {}, ...verdict.evidence.map((text) => el("li", { text })));
  return el(
    "div",
    { class: index === 0 ? "verdict first" : "verdict" },
    el("h4", { text: verdict.title }),
    el("p", { text: verdict.text }),
    evidence,
  );
}

function makeAdvice(advice) {
  return el(
    "li",
    {},
    el("b", { text: advice.change }),
    advice.effect === "" ? "" : `: ${advice.effect}`,
    advice.text === "" ? "" : el("span", { class: "hint", text: ` ${advice.text}` }),
  );
}

function makeStage(stage) {
  const bound =
    stage.bound === null
      ? ""
      : ` Bound by ${stage.bound}${stage.pct_of_limit === null ? "" : `, at ${stage.pct_of_limit.toFixed(0)} % of the limit`}.`;
  const time = stage.duration_ms === null ? "" : formatMs(stage.duration_ms);
  return el(
    "div",
    {},
    el("dt", {}, stage.title, el("span", { class: "count", text: time })),
    el("dd", { text: `${stage.text}${bound}` }),
  );
}
