// The KV cache block by block. Start at `BlocksPanel`.

import { countUses, makeCells, USES } from "./figures.js";
import { formatCount, plural } from "./format.js";
import { Chart, Legend, Panel } from "./panel.js";

const MAX_CELLS = 1536;
const COLOR_OF = {
  free: "free",
  cached: "cached",
  own: "own",
  shared: "shared",
  request: "request",
  request_shared: "request-shared",
};
const NAMES = {
  request: "this request's own",
  request_shared: "this request's, shared",
  own: "others' own",
  shared: "others', shared",
  cached: "cached, reusable",
  free: "free",
};

/** Which blocks of the KV cache are whose. */
export class BlocksPanel {
  #cells = new Uint8Array(0);

  constructor() {
    this.chart = new Chart("Blocks of the KV cache", 60, (...args) => this.#paint(...args));
    this.legend = new Legend(Object.entries(NAMES).map(([use, name]) => [COLOR_OF[use], name]));
    this.panel = new Panel("blocks", "KV cache", this.chart.canvas, this.legend.root);
    this.panel.setCaption("Blocks of tokens' keys and values, and whose they are.");
    this.root = this.panel.root;
  }

  /** Show an answer of /v1/kv_cache. */
  update(cache) {
    const counts = countUses(cache.runs);
    const { cells, perCell, numShown, numHidden } = makeCells(cache.runs, cache.num_blocks, MAX_CELLS);
    this.#cells = cells;
    for (const [use, name] of Object.entries(NAMES))
      this.legend.update(COLOR_OF[use], `${name} ${formatCount(counts[use])}`);
    const unit =
      perCell === 1
        ? `A square is a block of ${plural(cache.block_size, "token")}`
        : `A square is ${perCell} blocks of ${plural(cache.block_size, "token")}`;
    const rest = numHidden > 0 ? `; ${formatCount(numHidden)} more are free` : "";
    this.panel.setCaption(`${unit}: ${formatCount(numShown)} of ${formatCount(cache.num_blocks)} shown${rest}.`);
    const said = Object.entries(NAMES).filter(([use]) => counts[use] > 0);
    this.chart.setLabel(
      `${plural(cache.num_blocks, "block")} of the KV cache: ${said.map(([use, name]) => `${formatCount(counts[use])} ${name}`).join(", ")}`,
    );
    this.panel.setNote("");
    this.chart.draw(this.#getHeight());
  }

  #getLayout(width) {
    const size = this.#cells.length <= 256 ? 13 : this.#cells.length <= 768 ? 10 : 8;
    const numColumns = Math.max(1, Math.floor(width / size));
    return { size, numColumns };
  }

  #getHeight() {
    const { size, numColumns } = this.#getLayout(this.chart.width || 600);
    return Math.max(1, Math.ceil(this.#cells.length / numColumns)) * size;
  }

  #paint(context, width, height, colors) {
    const { size, numColumns } = this.#getLayout(width);
    if (Math.abs(this.#getHeight() - height) > 1) this.chart.draw(this.#getHeight());
    const inner = size - 2;
    this.#cells.forEach((rank, i) => {
      const x = (i % numColumns) * size;
      const y = Math.floor(i / numColumns) * size;
      const use = USES[rank];
      context.fillStyle = colors[COLOR_OF[use]];
      context.fillRect(x, y, inner, inner);
      // Shared blocks have a notch, so that colour is not all that tells them apart.
      if (use === "shared" || use === "request_shared") {
        context.fillStyle = colors.sheet;
        context.fillRect(x + inner / 2 - 1, y + inner / 2 - 1, 2, 2);
      }
    });
  }
}
