// Numbers and tokens in words. Pure functions.

/** 0.42 ms, 12.3 ms, 1.25 s. */
export function formatMs(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "–";
  if (ms >= 100_000) return `${(ms / 1000).toFixed(0)} s`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
  return `${ms.toFixed(ms >= 100 ? 0 : ms >= 10 ? 1 : 2)} ms`;
}

/** 1,234 with separators; a number of things. */
export function formatCount(count) {
  return count === null || count === undefined ? "–" : Math.round(count).toLocaleString("en");
}

/** 1.5 GB: decimal, as the command line and explanations have it. */
export function formatBytes(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) {
    bytes /= 1000;
    unit += 1;
  }
  return `${bytes.toFixed(unit === 0 || bytes >= 100 ? 0 : 1)} ${units[unit]}`;
}

/** 135 M, 7.2 B: parameters of a model. */
export function formatShort(count) {
  if (count === null || count === undefined) return "–";
  for (const [size, unit] of [
    [1e12, "T"],
    [1e9, "B"],
    [1e6, "M"],
    [1e3, "K"],
  ]) {
    if (count >= size) return `${(count / size).toFixed(count >= size * 100 ? 0 : 1)} ${unit}`;
  }
  return String(count);
}

/** A share (0 to 1) in percent; small ones keep a digit that tells them from nothing. */
export function formatShare(share) {
  const percent = share * 100;
  if (percent > 0 && percent < 0.1) return "< 0.1 %";
  return `${percent.toFixed(percent < 10 ? 1 : 0)} %`;
}

/** One thing, two things. */
export function plural(count, noun) {
  return `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;
}

const MARKS = new Map([
  ["\n", "⏎"],
  ["\r", "␍"],
  ["\t", "⇥"],
  [" ", "·"],
]);
// Controls, and what turns the direction of text around: a token must not change how its neighbours look.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** How a token's text is shown: white space at its ends by marks, unseen characters by number. */
export function showToken(text) {
  if (text === "") return "∅";
  if (text.startsWith("bytes:")) text = text.slice("bytes:".length);
  const seen = text.replace(/^ +| +$/g, (blanks) => "·".repeat(blanks.length));
  return seen.replace(UNSEEN, (c) => MARKS.get(c) ?? `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** How sure the model was, in five steps: 0 (nearly certain) to 4 (less than one in fifty). */
export function rateProbability(probability) {
  if (probability >= 0.9) return 0;
  if (probability >= 0.5) return 1;
  if (probability >= 0.2) return 2;
  return probability >= 0.02 ? 3 : 4;
}
