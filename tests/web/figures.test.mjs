// What charts are computed from, against values worked out by hand. Run by test_page_scripts.py, or: node --test

import assert from "node:assert/strict";
import test from "node:test";

import { Api } from "../../src/pelton/web/api.js";
import {
  countUses,
  logTicks,
  makeCells,
  makeGaps,
  makePoint,
  makeRows,
  makeStart,
  quantile,
  roundUp,
  USES,
} from "../../src/pelton/web/figures.js";
import {
  formatBytes,
  formatCount,
  formatMs,
  formatShare,
  formatShort,
  plural,
  rateProbability,
  showToken,
} from "../../src/pelton/web/format.js";
import { EventParser } from "../../src/pelton/web/sse.js";

test("quantiles are values that occur, by nearest rank", () => {
  assert.equal(quantile([], 0.5), null);
  assert.equal(quantile([3], 0.99), 3);
  assert.equal(quantile([1, 2, 3, 4], 0.5), 2);
  assert.equal(quantile([1, 2, 3, 4], 0.99), 4);
  assert.equal(quantile([1, 2, 3, 4], 0), 1);
});

test("axes end on 1, 2 or 5 times a power of ten", () => {
  assert.deepEqual([0.3, 1, 1.2, 4.9, 60, 0].map(roundUp), [0.5, 1, 2, 5, 100, 1]);
  assert.deepEqual(logTicks(3, 250), [1, 10, 100, 1000]);
  assert.deepEqual(logTicks(1, 1), [1, 10]);
  assert.deepEqual(logTicks(0.5, 10), [0.1, 1, 10]);
});

test("blocks are counted by use, and a cell shows the block that matters most", () => {
  const runs = [
    ["request", 2],
    ["own", 1],
    ["cached", 3],
    ["free", 994],
  ];
  assert.deepEqual(countUses(runs), { free: 994, cached: 3, own: 1, shared: 0, request: 2, request_shared: 0 });
  const fine = makeCells(runs, 1000, 1000);
  assert.deepEqual([fine.perCell, fine.numShown, fine.numHidden, fine.cells.length], [1, 64, 936, 64]);
  assert.deepEqual(
    Array.from(fine.cells.slice(0, 7), (rank) => USES[rank]),
    ["request", "request", "own", "cached", "cached", "cached", "free"],
  );
  const coarse = makeCells(runs, 1000, 16);
  assert.equal(coarse.perCell, 4);
  assert.deepEqual(
    Array.from(coarse.cells.slice(0, 3), (rank) => USES[rank]),
    ["request", "cached", "free"],
  );
});

test("every block in use is in the picture, however large the cache is", () => {
  for (const numBlocks of [1, 63, 64, 65, 5000, 131072]) {
    const runs =
      numBlocks > 1
        ? [
            ["free", numBlocks - 1],
            ["own", 1],
          ]
        : [["own", 1]];
    const { cells, numShown, perCell } = makeCells(runs, numBlocks, 1500);
    assert.equal(numShown, numBlocks);
    assert.ok(cells.length <= 1500);
    assert.equal(USES[cells[Math.floor((numBlocks - 1) / perCell)]], "own");
  }
});

test("rows of the timeline put this request first and leave out the idle ones", () => {
  const steps = [
    { number: 1, shares: [[7, 0, 5]] },
    {
      number: 2,
      shares: [
        [7, 5, 1],
        [8, 0, 3],
        [9, 0, 1],
      ],
    },
    {
      number: 3,
      shares: [
        [8, 3, 1],
        [9, 1, 1],
      ],
    },
  ];
  const { rows, numHidden } = makeRows(steps, { 7: "gen-a", 8: "gen-b", 9: "gen-c" }, "gen-c", 2);
  assert.equal(numHidden, 1);
  assert.deepEqual(
    rows.map((row) => [row.number, row.name, row.isOwn]),
    [
      [9, "gen-c", true],
      [8, "gen-b", false],
    ],
  );
  assert.deepEqual(
    [...rows[1].tokens],
    [
      [2, 3],
      [3, 1],
    ],
  );
});

test("a step is a point where operations, bytes and a rate are known", () => {
  const step = { int8_ops: 6e9, f32_ops: 2e9, bytes: 4e9, gop_per_s: 80 };
  assert.deepEqual([makePoint(step).x, makePoint(step).y], [2, 80]);
  assert.equal(makePoint({ ...step, bytes: 0 }), null);
  assert.equal(makePoint({ ...step, gop_per_s: null }), null);
});

test("gaps take bound and limit from their step, if it is known", () => {
  const decode = [
    { step: 4, gap: null, batch: 1, stall: 0 },
    { step: 5, gap: 10, batch: 2, stall: 4 },
    { step: 6, gap: 3, batch: 1, stall: 9 },
  ];
  const gaps = makeGaps({ decode }, new Map([[5, { bound: "memory", pct_of_limit: 70 }]]));
  assert.deepEqual(gaps, [
    { gap: 10, stall: 4, batch: 2, number: 5, bound: "memory", pct: 70 },
    { gap: 3, stall: 3, batch: 1, number: 6, bound: null, pct: null },
  ]);
});

test("the time to the first token is its phases, and what others took of the prefill", () => {
  const story = {
    times: { tokenize: 1, queue: 6, prefill: 30 },
    waits: [
      { cause: "tenant_share", start: 1, end: 6 },
      { cause: "preempted", start: 50, end: 60 },
    ],
    prefill: [
      { start: 6, end: 20, lost: 4 },
      { start: 20, end: 36, lost: 0 },
    ],
  };
  assert.deepEqual(makeStart(story), [
    { phase: "tokenize", name: "tokenise", ms: 1 },
    { phase: "queue", name: "queue (tenant share)", ms: 5 },
    { phase: "prefill", name: "prefill", ms: 26 },
    { phase: "stall", name: "others' tokens", ms: 4 },
  ]);
});

test("numbers are written for people", () => {
  assert.deepEqual([0.1234, 12.34, 123.4, 1234, 123_456, null, NaN].map(formatMs), [
    "0.12 ms",
    "12.3 ms",
    "123 ms",
    "1.23 s",
    "123 s",
    "–",
    "–",
  ]);
  assert.deepEqual([0, 999, 1500, 3e9].map(formatBytes), ["0 B", "999 B", "1.5 kB", "3.0 GB"]);
  assert.deepEqual([135e6, 1.24e9, 999, 7e3].map(formatShort), ["135 M", "1.2 B", "999", "7.0 K"]);
  assert.deepEqual([0, 0.0004, 0.061, 0.5, 1].map(formatShare), ["0.0 %", "< 0.1 %", "6.1 %", "50 %", "100 %"]);
  assert.deepEqual([formatCount(12345), plural(1, "token"), plural(2, "token")], ["12,345", "1 token", "2 tokens"]);
  assert.deepEqual([1, 0.6, 0.3, 0.1, 0.001].map(rateProbability), [0, 1, 2, 3, 4]);
});

test("tokens show what cannot be seen, and cannot turn text around", () => {
  assert.equal(showToken(" the"), "·the");
  assert.equal(showToken("a b "), "a b·");
  assert.equal(showToken("\n\n"), "⏎⏎");
  assert.equal(showToken(""), "∅");
  assert.equal(showToken("bytes:\\xe6"), "\\xe6");
  assert.equal(showToken("a\u202eb\u0000\u200b"), "a\\u202eb\\u0000\\u200b");
  assert.equal(showToken("<b>"), "<b>");
});

test("events are read whole, however they are cut", () => {
  const text = 'data: {"a": 1}\n\n: keep-alive\n\ndata: {"b":\ndata: 2}\r\n\r\nevent: x\ndata:[DONE]\n\n';
  const wanted = ['{"a": 1}', '{"b":\n2}', "[DONE]"];
  for (let size = 1; size <= text.length; size++) {
    const parser = new EventParser();
    const found = [];
    for (let i = 0; i < text.length; i += size) found.push(...parser.push(text.slice(i, i + size)));
    assert.deepEqual(found, wanted, `pieces of ${size}`);
  }
});

test("a stream that breaks says so in words, and an abort stays one", async () => {
  for (const [name, expected] of [
    ["TypeError", /^The connection ended before the answer did\.$/],
    ["AbortError", /^network error$/],
  ]) {
    const broken = Object.assign(new Error("network error"), { name });
    globalThis.fetch = async () => new Response(new ReadableStream({ pull: (controller) => controller.error(broken) }));
    await assert.rejects(new Api().stream("v1/chat/completions", {}, null, null).next(), { message: expected });
  }
});
