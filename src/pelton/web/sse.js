// Reading an answer that comes as server-sent events.

/** Collects text and gives the data of whole events; comments and other fields are left out. */
export class EventParser {
  #rest = "";

  /** The data of the events that `text` completes. */
  push(text) {
    this.#rest += text;
    const blocks = this.#rest.split(/\r?\n\r?\n/);
    this.#rest = blocks.pop();
    const found = [];
    for (const block of blocks) {
      const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (lines.length > 0) found.push(lines.map((line) => line.slice(line[5] === " " ? 6 : 5)).join("\n"));
    }
    return found;
  }
}
