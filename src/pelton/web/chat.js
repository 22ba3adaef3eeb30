// The playground: the conversation, its parameters, sending, stopping and asking again. Start at `Playground`.

import { byId, el, inNextFrame, setText } from "./dom.js";
import { formatMs, plural } from "./format.js";
import { Run } from "./run.js";

const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];

/** Owner of the left side. `onRun` gets each run when it starts and whenever it changes. */
export class Playground {
  #turns = []; // {role, content, node}
  #run = null;

  constructor(api, onRun) {
    this.api = api;
    this.onRun = onRun;
    this.fields = Object.fromEntries([...NUMBERS, "prompt", "system", "schema"].map((name) => [name, byId(name)]));
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.fields.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#send();
    });
    this.fields.schema.addEventListener("input", () => this.#showSchemaError(""));
    byId("stop").addEventListener("click", () => this.#run?.stop());
    byId("regenerate").addEventListener("click", () => this.#regenerate());
    byId("clear").addEventListener("click", () => this.#clear());
    this.#showEmpty();
    if (matchMedia("(min-width: 70rem)").matches) byId("params").open = true;
  }

  #send() {
    const text = this.fields.prompt.value.trim();
    if (text === "" || this.#run?.isRunning) return;
    const params = this.#readParams();
    if (params === null) return;
    this.fields.prompt.value = "";
    this.#addTurn("user", text);
    this.#start(params);
  }

  #regenerate() {
    if (this.#run === null || this.#run.isRunning) return;
    const params = this.#readParams();
    if (params === null) return;
    while (this.#turns.at(-1)?.role === "assistant") this.#turns.pop().node.remove();
    if (this.#turns.length > 0) this.#start(params);
  }

  #clear() {
    this.#run?.stop();
    this.#run = null;
    this.#turns = [];
    this.#showEmpty();
    this.#showError("");
    this.#showButtons();
    this.fields.prompt.focus();
  }

  #start(params) {
    this.#showError("");
    const system = this.fields.system.value.trim();
    const messages = this.#turns.map(({ role, content }) => ({ role, content }));
    if (system !== "") messages.unshift({ role: "system", content: system });
    const turn = this.#addTurn("assistant", "");
    turn.node.setAttribute("aria-busy", "true");
    const run = new Run(this.api, messages, params, () => this.#change(run, turn));
    this.#run = run;
    setText(byId("status"), "Generating");
    this.#showButtons();
    this.onRun(run);
    run.start();
  }

  #change(run, turn) {
    turn.content = run.text;
    if (!run.isRunning && turn.node.hasAttribute("aria-busy")) {
      // Before it is called finished, all of it is there.
      showAnswer(turn, run);
      this.#finish(run, turn);
    }
    inNextFrame("answer", () => showAnswer(turn, run));
    if (run === this.#run) this.onRun(run);
  }

  #finish(run, turn) {
    turn.node.removeAttribute("aria-busy");
    if (run !== this.#run) return;
    if (run.state === "failed") {
      this.#showError(
        run.error.param?.startsWith("response_format") ? `JSON schema: ${run.error.message}` : run.error.message,
      );
      setText(byId("status"), "Failed");
      if (run.error.status === 401) document.dispatchEvent(new CustomEvent("key-wanted"));
    } else {
      const word = run.state === "stopped" ? "Stopped" : "Finished";
      setText(byId("status"), `${word} after ${plural(run.tokens.length, "token")}`);
    }
    if (run.text === "" && run.state === "failed") {
      this.#turns.splice(this.#turns.indexOf(turn), 1);
      turn.node.remove();
    }
    this.#showButtons();
  }

  #addTurn(role, content) {
    if (this.#turns.length === 0) byId("log").replaceChildren();
    const name = role === "user" ? "You" : "Model";
    const text = document.createTextNode(content);
    const foot = el("p", { class: "turn-foot" });
    const node = el(
      "article",
      { class: `turn ${role}`, "aria-label": name },
      el("h3", { text: name }),
      el("div", { class: "turn-text" }, text),
      foot,
    );
    const turn = { role, content, node, text, foot };
    this.#turns.push(turn);
    byId("log").append(node);
    byId("log").scrollTop = byId("log").scrollHeight;
    return turn;
  }

  #readParams() {
    const params = {};
    for (const name of NUMBERS) {
      const field = this.fields[name];
      if (!field.checkValidity() || (field.value === "" && field.validity.badInput)) {
        byId("params").open = true;
        field.focus();
        this.#showError(`${field.labels[0].firstChild.textContent.trim()}: ${field.validationMessage}`);
        return null;
      }
      if (field.value !== "") params[name] = Number(field.value);
    }
    const schema = this.fields.schema.value.trim();
    if (schema === "") return params;
    let parsed = null;
    try {
      parsed = JSON.parse(schema);
    } catch (error) {
      return this.#refuseSchema(`This is not JSON: ${error.message}`);
    }
    if (parsed === null || typeof parsed !== "object" || Array.isArray(parsed))
      return this.#refuseSchema("A JSON schema is an object in braces.");
    params.response_format = { type: "json_schema", json_schema: { name: "answer", schema: parsed } };
    return params;
  }

  #refuseSchema(message) {
    byId("params").open = true;
    this.#showSchemaError(message);
    this.fields.schema.focus();
    return null;
  }

  #showSchemaError(message) {
    setText(byId("schema-error"), message);
    this.fields.schema.setAttribute("aria-invalid", String(message !== ""));
  }

  #showError(message) {
    setText(byId("error"), message);
  }

  #showButtons() {
    const isRunning = this.#run?.isRunning ?? false;
    const { activeElement } = document;
    byId("stop").hidden = !isRunning;
    byId("send").hidden = isRunning;
    byId("regenerate").disabled = isRunning || this.#run === null;
    byId("clear").disabled = this.#turns.length === 0;
    // A button that goes away must not take the focus with it.
    if (activeElement === byId("stop") || activeElement === byId("send"))
      (isRunning ? byId("stop") : this.fields.prompt).focus();
  }

  #showEmpty() {
    byId("log").replaceChildren(
      el("p", {
        class: "empty",
        text: "Send a message: the answer streams here, and what it cost the machine appears in the X-ray.",
      }),
    );
  }
}

function showAnswer(turn, run) {
  const log = byId("log");
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  const shown = turn.text.data;
  if (run.text.startsWith(shown)) turn.text.appendData(run.text.slice(shown.length));
  else turn.text.data = run.text;
  setText(turn.foot, describe(run));
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

function describe(run) {
  if (run.state === "waiting") return "waiting for the first token";
  const tokens = plural(run.tokens.length, "token");
  if (run.state === "streaming") return tokens;
  if (run.state === "stopped") return `stopped after ${tokens}`;
  if (run.state === "failed") return `broke off after ${tokens}`;
  const why = run.finishReason === "length" ? ", cut off at the longest length" : "";
  return `${tokens} in ${formatMs(run.endMs - run.sentMs)}${why}`;
}
