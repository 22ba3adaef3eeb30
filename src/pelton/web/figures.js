// What the charts show, computed from the server's answers. Pure functions, tested without a browser.

/** The value below which the share `q` of values that are sorted lies (nearest rank); null of nothing. */
export function quantile(sorted, q) {
  if (sorted.length === 0) return null;
  return sorted[Math.min(sorted.length - 1, Math.max(0, Math.ceil(q * sorted.length) - 1))];
}

/** A round number at or above `value`: 1, 2 or 5 times a power of ten. */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const factor of [1, 2, 5]) if (factor * power >= value * 0.9999999) return factor * power;
  return 10 * power;
}

/** Powers of ten from the one at or below `low` to the one at or above `high`, at least two of them. */
export function logTicks(low, high) {
  const first = Math.floor(Math.log10(low) + 1e-9);
  const last = Math.max(Math.ceil(Math.log10(high) - 1e-9), first + 1);
  return Array.from({ length: last - first + 1 }, (_, i) => 10 ** (first + i));
}

// Of several blocks in one cell the one that comes last here is shown.
export const USES = ["free", "cached", "own", "shared", "request", "request_shared"];

/** How many blocks there are of each use. */
export function countUses(runs) {
  const counts = Object.fromEntries(USES.map((use) => [use, 0]));
  for (const [use, length] of runs) counts[use] += length;
  return counts;
}

/**
 * Cells of a picture of at most `maxCells`: the blocks up to the last one in use and some more, several to a cell where
 * there are too many. {cells: index into USES each, perCell, numShown: blocks, numHidden: free ones after them}
 */
export function makeCells(runs, numBlocks, maxCells) {
  let end = 0;
  let position = 0;
  for (const [use, length] of runs) {
    position += length;
    if (use !== "free") end = position;
  }
  let numShown = 64;
  while (numShown < end * 1.1) numShown *= 2;
  numShown = Math.min(numShown, numBlocks);
  const perCell = Math.max(1, Math.ceil(numShown / maxCells));
  const cells = new Uint8Array(Math.ceil(numShown / perCell));
  position = 0;
  for (const [use, length] of runs) {
    const rank = USES.indexOf(use);
    const last = Math.min(position + length, numShown) - 1;
    if (rank > 0)
      for (let i = Math.floor(position / perCell); i <= last / perCell; i++) cells[i] = Math.max(cells[i], rank);
    position += length;
    if (position >= numShown) break;
  }
  return { cells, perCell, numShown, numHidden: numBlocks - numShown };
}

/**
 * Rows of the timeline: the sequences of the last steps, at most `maxRows`, those of `ownId` first, then the busiest.
 * [{number, name, isOwn, tokens: Map(step number -> tokens)}]
 */
export function makeRows(steps, names, ownId, maxRows) {
  const rows = new Map();
  for (const step of steps) {
    for (const [number, , tokens] of step.shares) {
      let row = rows.get(number);
      if (row === undefined) {
        const name = names[number] ?? `sequence ${number}`;
        rows.set(number, (row = { number, name, isOwn: name === ownId, tokens: new Map(), last: 0 }));
      }
      row.tokens.set(step.number, tokens);
      row.last = step.number;
    }
  }
  const found = [...rows.values()].sort(
    (a, b) => b.isOwn - a.isOwn || b.last - a.last || b.tokens.size - a.tokens.size,
  );
  const kept = found.slice(0, maxRows);
  kept.sort((a, b) => b.isOwn - a.isOwn || a.number - b.number);
  return { rows: kept, numHidden: found.length - kept.length };
}

/** A step as a point of the roofline: operations per byte from memory, Gop/s. Null for steps without costs. */
export function makePoint(step) {
  const numOps = (step.int8_ops ?? 0) + (step.f32_ops ?? 0);
  if (!(step.bytes > 0) || !(numOps > 0) || !(step.gop_per_s > 0)) return null;
  return { x: numOps / step.bytes, y: step.gop_per_s, step };
}

/**
 * Gaps between tokens. From the request's story where there is one: {gap, stall, bound, step, batch, share of limit}.
 * `steps` are known steps by number.
 */
export function makeGaps(story, steps) {
  return story.decode
    .filter((each) => each.gap !== null && each.gap !== undefined)
    .map((each) => {
      const step = steps.get(each.step);
      return {
        gap: each.gap,
        stall: Math.min(each.stall ?? 0, each.gap),
        batch: each.batch,
        number: each.step,
        bound: step?.bound ?? null,
        pct: step?.pct_of_limit ?? null,
      };
    });
}

/** Parts of the time to the first token, from a story: [{phase, name, ms}], in order of time. */
export function makeStart(story) {
  const times = story.times;
  const parts = [];
  if (times.tokenize > 0) parts.push({ phase: "tokenize", name: "tokenise", ms: times.tokenize });
  const first = story.prefill[0]?.start ?? null;
  const waits = story.waits.filter((wait) => first === null || wait.start < first);
  const causes = new Map();
  for (const { cause, start, end } of waits) causes.set(cause, (causes.get(cause) ?? 0) + end - start);
  for (const [cause, ms] of causes) parts.push({ phase: "queue", name: `queue (${cause.replace("_", " ")})`, ms });
  if (waits.length === 0 && times.queue > 0) parts.push({ phase: "queue", name: "queue", ms: times.queue });
  const lost = story.prefill.reduce((sum, chunk) => sum + (chunk.lost ?? 0), 0);
  const prefill = times.prefill ?? story.prefill.reduce((sum, chunk) => sum + chunk.end - chunk.start, 0);
  if (prefill > 0) parts.push({ phase: "prefill", name: "prefill", ms: Math.max(prefill - lost, 0) });
  if (lost > 0) parts.push({ phase: "stall", name: "others' tokens", ms: lost });
  return parts;
}
