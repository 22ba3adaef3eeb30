// Calls of the server with the visitor's key, and its errors in words. Start at `Api`.

import { EventParser } from "./sse.js";

const KEY_NAME = "pelton-api-key";
const CUT_OFF = "The connection ended before the answer did.";

/** An answer that was no success, or none at all. `status` is 0 if the server could not be reached. */
export class ApiError extends Error {
  constructor(message, status, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

/** The server's API; addresses are relative to the page, which may lie behind a proxy's prefix. */
export class Api {
  #key = readStored();

  get hasKey() {
    return this.#key !== "";
  }

  /** Use another key from now on; an empty one means none. */
  setKey(key) {
    this.#key = key.trim();
    try {
      sessionStorage.setItem(KEY_NAME, this.#key);
    } catch {
      // A browser that keeps nothing asks again after a reload.
    }
  }

  /** JSON of a GET; throws `ApiError`. */
  async get(path) {
    return (await this.fetch(path)).json();
  }

  /** JSON of a POST; throws `ApiError`. */
  async post(path, body) {
    return (await this.#post(path, body, {})).json();
  }

  /** The response of a GET; throws `ApiError`. */
  async fetch(path) {
    return check(await this.#send(path, { headers: this.#headers() }));
  }

  /** Data of the events of a streamed POST as they come, parsed; throws `ApiError`, also for one in the stream. */
  async *stream(path, body, requestId, signal) {
    const response = await this.#post(path, body, { signal, requestId });
    const parser = new EventParser();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await read(reader);
      if (done) throw new ApiError(CUT_OFF, 0);
      for (const data of parser.push(value)) {
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new ApiError(event.error.message, 200, event.error.param ?? null);
        yield event;
      }
    }
  }

  async #post(path, body, { signal, requestId }) {
    const headers = { ...this.#headers(), "content-type": "application/json" };
    if (requestId) headers["x-request-id"] = requestId;
    return check(await this.#send(path, { method: "POST", headers, body: JSON.stringify(body), signal }));
  }

  async #send(path, options) {
    try {
      return await fetch(path, { cache: "no-store", ...options });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The server cannot be reached.", 0);
    }
  }

  #headers() {
    return this.#key ? { authorization: `Bearer ${this.#key}` } : {};
  }
}

/** The next piece of a body; throws `ApiError` where the connection breaks. */
async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(CUT_OFF, 0);
  }
}

async function check(response) {
  if (response.ok) return response;
  let found = null;
  try {
    found = (await response.json()).error;
  } catch {
    // No JSON: a proxy's answer, perhaps.
  }
  const said = typeof found === "string" ? found : found?.message;
  throw new ApiError(
    describe(response.status, said, response.headers.get("retry-after")),
    response.status,
    found?.param,
  );
}

function describe(status, message, retryAfter) {
  if (status === 401) return "This server wants an API key, or does not know the one you gave.";
  const wait = retryAfter ? ` Try again in ${retryAfter} s.` : "";
  if (status === 429) return `Your key has used its allowance up.${wait}`;
  if (status === 503 && retryAfter) return `The server is busy: its queue is full.${wait}`;
  return message ?? `The server answered with status ${status}.`;
}

function readStored() {
  try {
    return sessionStorage.getItem(KEY_NAME) ?? "";
  } catch {
    return "";
  }
}
