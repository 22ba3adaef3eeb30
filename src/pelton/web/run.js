// One request on its way: what was sent, and what has come back so far. Start at `Run`.

const NUM_ALTERNATIVES = 8;

/** A request to /v1/chat/completions. `onChange` is called after every event. */
export class Run {
  state = "waiting"; // then "streaming", and "finished", "stopped" or "failed"
  text = "";
  error = null;
  responseId = null;
  generationId = null; // what the engine calls it, once that has been found out
  finishReason = null;
  timings = null;
  usage = null;
  promptTokens = []; // {id, text}
  promptNote = "";
  tokens = []; // {id, text, probability, alternatives: [{text, probability}]}
  arrivals = []; // milliseconds since it was sent, one per token
  #abort = new AbortController();

  constructor(api, messages, params, onChange) {
    this.api = api;
    this.messages = messages;
    this.params = params;
    this.onChange = onChange;
    // Known before the answer begins, so that a request in the queue can be found.
    this.requestId = `page-${Array.from(crypto.getRandomValues(new Uint8Array(9)), (b) => b.toString(36).padStart(2, "0")).join("")}`;
    this.sentMs = performance.now();
  }

  /** What the server knows the request by; null as long as it may not know it. */
  get id() {
    return this.responseId ?? this.generationId;
  }

  get isRunning() {
    return this.state === "waiting" || this.state === "streaming";
  }

  /** Send it and read to the end; throws nothing, see `state` and `error`. */
  async start() {
    this.#askPromptTokens();
    const body = {
      messages: this.messages,
      stream: true,
      stream_options: { include_usage: true },
      logprobs: true,
      top_logprobs: NUM_ALTERNATIVES,
      return_token_ids: true,
      ...this.params,
    };
    try {
      for await (const event of this.api.stream("v1/chat/completions", body, this.requestId, this.#abort.signal)) {
        this.#read(event);
        this.onChange(this);
      }
      this.state = "finished";
    } catch (error) {
      this.state = error.name === "AbortError" ? "stopped" : "failed";
      this.error = this.state === "failed" ? error : null;
    }
    this.endMs = performance.now();
    this.onChange(this);
  }

  /** End it; the server drops it before its next step. */
  stop() {
    this.#abort.abort();
  }

  #read(event) {
    this.responseId = event.id;
    this.timings = event.timings ?? this.timings;
    this.usage = event.usage ?? this.usage;
    if (event.prompt_token_ids && this.promptTokens.length === 0) {
      this.promptTokens = event.prompt_token_ids.map((id) => ({ id, text: null }));
    }
    const choice = event.choices[0];
    if (choice === undefined) return;
    this.state = "streaming";
    this.text += choice.delta.content ?? "";
    this.finishReason = choice.finish_reason ?? this.finishReason;
    const now = performance.now() - this.sentMs;
    (choice.logprobs?.content ?? []).forEach((entry, i) => {
      this.tokens.push(makeToken(entry, choice.token_ids?.[i] ?? null));
      this.arrivals.push(now);
    });
  }

  async #askPromptTokens() {
    try {
      const found = await this.api.post("tokenize", { messages: this.messages, return_token_strs: true });
      this.promptTokens = found.tokens.map((id, i) => ({ id, text: found.token_strs[i] }));
    } catch (error) {
      this.promptNote = `The pieces of the prompt are not known: ${error.message}`;
    }
    this.onChange(this);
  }
}

function makeToken(entry, id) {
  return {
    id,
    text: entry.token,
    probability: Math.exp(entry.logprob),
    alternatives: entry.top_logprobs.map((other) => ({ text: other.token, probability: Math.exp(other.logprob) })),
  };
}
