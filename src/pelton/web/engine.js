// The engine: memory, queue, prefix cache, where its time goes. Start at `EnginePanel`.

import { el, setText } from "./dom.js";
import { formatBytes, formatCount, formatMs, formatShare } from "./format.js";
import { Panel, Values } from "./panel.js";

const MISS_NAMES = {
  first_time: "first time seen",
  diverged_at: "differs from what is cached",
  evicted: "was cached, has been evicted",
  partial_block: "no room for a copy of the last block",
  salt: "cached under another salt",
  off: "cache not used",
};
const WAIT_NAMES = { capacity: "for their turn or room", deferred: "for another's prompt", preempted: "preempted" };
const TIME_NAMES = { prefill_s: "prefill", decode_s: "decode", sample_s: "sampling", python_s: "the rest (Python)" };
const TIME_COLORS = { prefill_s: "prefill", decode_s: "decode", sample_s: "queue", python_s: "own" };

/** Figures of the whole engine. */
export class EnginePanel {
  constructor() {
    this.values = new Values([
      ["weights", "Weights"],
      ["kv", "KV cache"],
      ["used", "KV in use"],
      ["queue", "Running"],
      ["waiting", "Waiting"],
      ["preempted", "Preemptions"],
    ]);
    this.time = el("div", { class: "parts", role: "img", "aria-label": "Where the engine's time went" });
    this.timeNames = el("ul", { class: "legend" });
    this.misses = el("ul", { class: "bars" });
    this.hits = el("p", { class: "hint" });
    this.setup = el("p", { class: "hint" });
    this.plan = el("p", { class: "hint" });
    this.panel = new Panel(
      "engine",
      "Engine",
      this.values.root,
      el("h4", { text: "Time since the start" }),
      this.time,
      this.timeNames,
      el("h4", { text: "Prefix cache" }),
      this.hits,
      this.misses,
      this.setup,
      this.plan,
    );
    this.root = this.panel.root;
  }

  /** Show an answer of /v1/engine. */
  update(engine) {
    const cache = engine.kv_cache;
    const perBlock = cache.bytes_per_token * cache.block_size;
    this.values.update({
      weights:
        engine.model.weight_bytes === null
          ? `${formatCount(engine.model.parameters)} parameters`
          : formatBytes(engine.model.weight_bytes),
      kv: `${formatBytes(perBlock * cache.num_blocks)}`,
      used: `${formatBytes(perBlock * cache.used)}, ${formatBytes(perBlock * cache.cached)} cached`,
      queue: formatCount(engine.queue.running),
      waiting: describeWaiting(engine.queue),
      preempted: formatCount(engine.counters.preemptions),
    });
    this.#showTime(engine.counters);
    this.#showCache(engine.prefix_cache);
    const options = engine.options;
    const step =
      options.max_step_ms === null ? "step length chosen by itself" : `steps of at most ${options.max_step_ms} ms`;
    setText(
      this.setup,
      `${engine.model.formats ?? "weights"}, KV in ${cache.dtype} (${formatBytes(cache.bytes_per_token)} a token, ${formatCount(cache.tokens)} tokens), at most ${formatCount(options.max_num_seqs)} sequences, ${options.scheduling_policy} policy, ${step}, chunks of ${formatCount(options.prefill_chunk)} tokens.`,
    );
    setText(this.plan, engine.plan === null ? "" : describePlan(engine.plan));
    this.panel.setCaption(
      `${formatCount(engine.counters.steps)} steps, ${formatCount(engine.counters.new_tokens)} tokens generated since the start.`,
    );
    this.panel.setNote("");
  }

  #showTime(counters) {
    const keys = Object.keys(TIME_NAMES);
    const total = keys.reduce((sum, key) => sum + counters[key], 0);
    if (this.time.children.length === 0) {
      this.time.append(...keys.map((key) => el("i", { class: TIME_COLORS[key] })));
      this.timeNames.append(
        ...keys.map((key) => el("li", {}, el("i", { class: `swatch ${TIME_COLORS[key]}` }), el("span"))),
      );
    }
    const texts = keys.map((key, i) => {
      const share = total > 0 ? counters[key] / total : 0;
      this.time.children[i].style.flexGrow = String(share);
      const text = `${TIME_NAMES[key]} ${formatShare(share)}`;
      setText(this.timeNames.children[i].lastChild, text);
      return text;
    });
    this.time.setAttribute("aria-label", `Where the engine's time went: ${texts.join(", ")}`);
  }

  #showCache(cache) {
    const share = cache.query_tokens > 0 ? cache.hit_tokens / cache.query_tokens : 0;
    setText(
      this.hits,
      `${formatCount(cache.hit_tokens)} of ${formatCount(cache.query_tokens)} prompt tokens came from the cache (${formatShare(share)}). Requests by what ended their reuse:`,
    );
    const rows = Object.entries(cache.misses)
      .filter(([, count]) => count > 0)
      .sort((a, b) => b[1] - a[1]);
    const most = Math.max(1, ...rows.map(([, count]) => count));
    while (this.misses.children.length > rows.length) this.misses.lastChild.remove();
    rows.forEach(([reason, count], i) => {
      if (i >= this.misses.children.length)
        this.misses.append(
          el(
            "li",
            {},
            el("span"),
            el("span", { class: "track" }, el("i", { class: "bar" })),
            el("span", { class: "percent" }),
          ),
        );
      const [name, track, number] = this.misses.children[i].children;
      setText(name, MISS_NAMES[reason] ?? reason);
      track.firstChild.style.width = `${(count / most) * 100}%`;
      setText(number, formatCount(count));
    });
  }
}

function describePlan({ memory, speed }) {
  const sizes = [
    ["weights", memory.weight_bytes],
    ["KV cache", memory.kv_cache_bytes],
    ["program", memory.program_bytes],
  ];
  const said = sizes.map(([name, size]) => `${name} ${formatBytes(size.predicted)} / ${formatBytes(size.measured)}`);
  const text = `Planned / measured: ${said.join(", ")}.`;
  if (speed === null) return text;
  return `${text} Predicted for one user: ITL ${formatMs(speed.itl_s * 1e3)}, TTFT of ${formatCount(speed.prompt_tokens)} tokens ${formatMs(speed.ttft_s * 1e3)}.`;
}

function describeWaiting(queue) {
  const reasons = Object.entries(queue.by_reason).filter(([, count]) => count > 0);
  const said = reasons.map(([reason, count]) => `${formatCount(count)} ${WAIT_NAMES[reason] ?? reason}`);
  return said.length > 0 ? said.join(", ") : formatCount(queue.waiting);
}
