// The X-ray: what the server tells of the request that the playground sent, asked for while it runs. Start at `Xray`.

import { BlocksPanel } from "./blocks.js";
import { byId, inNextFrame, setText } from "./dom.js";
import { EnginePanel } from "./engine.js";
import { ExplanationPanel } from "./explanation.js";
import { Poller } from "./poller.js";
import { RooflinePanel } from "./roofline.js";
import { StepsPanel } from "./steps.js";
import { TimesPanel } from "./times.js";
import { TokensPanel } from "./tokens.js";

const LIVE_MS = 350;
const IDLE_MS = 1500;
const ENGINE_MS = 1000;
const EXPLAIN_MS = 3000;
const LIVE_TABLE = "v1/requests?limit=0";
const MAX_STEPS = 240;
const MAX_NAMES = 2000;

/** Owner of the right side. */
export class Xray {
  #run = null;
  #story = null;
  #storyNote = "";
  #steps = [];
  #stepsByNumber = new Map();
  #names = {};
  #nextStep = 0;
  #engine = null;
  #isExplained = false;
  #isForgotten = false;
  #phase = "";
  #pollers = [];

  /** `onEngine` gets each answer of /v1/engine. */
  constructor(api, onEngine) {
    this.tokens = new TokensPanel();
    this.times = new TimesPanel();
    this.blocks = new BlocksPanel();
    this.steps = new StepsPanel();
    this.roofline = new RooflinePanel();
    this.engine = new EnginePanel();
    this.explanation = new ExplanationPanel(api);
    this.onEngine = onEngine;
    const panels = [this.times, this.tokens, this.explanation, this.steps, this.blocks, this.roofline, this.engine];
    byId("panels").append(...panels.map((panel) => panel.root));
    this.#startPollers(api);
  }

  /** Look at this run, which is new or has changed. */
  look(run) {
    if (run !== this.#run) this.#begin(run);
    const phase = !run.isRunning ? "ended" : run.tokens.length > 0 ? "streaming" : "waiting";
    if (phase !== this.#phase && phase !== "waiting") this.wake();
    this.#phase = phase;
    setText(byId("xray-of"), `of ${run.id ?? run.requestId}`);
    inNextFrame("tokens", () => this.tokens.update(run));
    this.#showTimes();
  }

  #begin(run) {
    this.#run = run;
    this.#story = null;
    this.#storyNote = "";
    this.#isExplained = false;
    this.#isForgotten = false;
    this.#phase = "waiting";
    this.explanation.clear();
    this.wake();
  }

  /** Ask for everything now: there is a new run, or a new key. */
  wake() {
    for (const poller of this.#pollers) poller.wake();
  }

  #startPollers(api) {
    const isLive = () => this.#run?.isRunning ?? false;
    const getPeriodMs = () => (isLive() ? LIVE_MS : IDLE_MS);
    const add = (options) => this.#pollers.push(new Poller(api, options));
    // Nothing else is asked for before the engine has answered: without a key, one error is enough.
    const ifKnown = (path) => (this.#engine === null ? null : path);
    const lacks = (panel, what) => (error) => panel.panel.setNote(`${what}: ${error.message}`);
    add({
      makePath: () => "v1/engine",
      getPeriodMs: () => (isLive() ? ENGINE_MS : 2 * IDLE_MS),
      onAnswer: (answer) => this.#readEngine(answer),
      onError: (error) => {
        this.engine.panel.setNote(`The engine does not answer: ${error.message}`);
        this.onEngine(null, error);
      },
    });
    add({
      makePath: () =>
        ifKnown(
          this.#story !== null && isLive()
            ? `v1/kv_cache?request=${encodeURIComponent(this.#story.request_id)}`
            : "v1/kv_cache",
        ),
      getPeriodMs,
      onAnswer: (answer) => this.blocks.update(answer),
      onError: lacks(this.blocks, "The blocks are not known"),
    });
    add({
      makePath: () => ifKnown(`v1/steps?after=${this.#nextStep}&limit=200`),
      getPeriodMs,
      onAnswer: (answer) => this.#readSteps(answer),
      onError: (error) =>
        [this.steps, this.roofline].forEach((panel) => lacks(panel, "The steps are not known")(error)),
    });
    this.#addRequestPollers(add, isLive);
  }

  #addRequestPollers(add, isLive) {
    const makeAddress = (end) => `v1/requests/${encodeURIComponent(this.#run.id)}${end}`;
    add({
      makePath: () => {
        if (this.#story?.state === "finished") return null;
        // Before the answer begins, the table tells whether the engine knows of the request, and by which name.
        if (this.#isUnknown()) return this.#run?.isRunning ? LIVE_TABLE : null;
        return makeAddress("");
      },
      // A long answer is a long story.
      getPeriodMs: () => (this.#run.tokens.length < 500 ? LIVE_MS : 1500),
      onAnswer: (answer, path) => {
        if (path === LIVE_TABLE) this.#findRun(answer.data);
        else if (!this.#isUnknown() && path === makeAddress("")) this.#readStory(answer);
      },
      onError: (error, path) => {
        if (path !== LIVE_TABLE) {
          if (this.#isUnknown() || path !== makeAddress("")) return;
          this.#isForgotten = error.status === 404;
        }
        this.#storyNote = `The engine's own account is not known: ${error.message}`;
        this.#showTimes();
      },
    });
    add({
      makePath: () =>
        this.#isUnknown() || this.#isExplained || this.#run.tokens.length === 0 ? null : makeAddress("/explain"),
      getPeriodMs: () => EXPLAIN_MS,
      onAnswer: (answer, path) => {
        if (this.#isUnknown() || path !== makeAddress("/explain")) return;
        this.#isExplained = !isLive() && this.#story?.state === "finished";
        this.explanation.update(answer);
      },
      onError: (error) => this.explanation.panel.setNote(`There is no explanation: ${error.message}`),
    });
  }

  /** Whether there is no request that the server could tell of. */
  #isUnknown() {
    const run = this.#run;
    if (run === null || this.#isForgotten) return true;
    return run.id === null;
  }

  #findRun(rows) {
    const row = rows.find((each) => each.http_request_id === this.#run.requestId);
    if (row?.has_trace) this.#run.generationId = row.request_id;
  }

  #readEngine(answer) {
    const isFirst = this.#engine === null;
    this.#engine = answer;
    if (isFirst) this.wake();
    this.engine.update(answer);
    this.onEngine(answer, null);
  }

  #readStory(story) {
    this.#story = story;
    this.#storyNote = "";
    this.explanation.offerTrace(story.request_id);
    this.#showTimes();
  }

  #readSteps(answer) {
    // Numbers that begin again: the server has been restarted.
    if (answer.next < this.#nextStep) {
      this.#steps = [];
      this.#stepsByNumber.clear();
    }
    this.#nextStep = answer.next;
    for (const step of answer.steps) this.#stepsByNumber.set(step.number, step);
    this.#steps = [...this.#steps, ...answer.steps].slice(-MAX_STEPS);
    const first = this.#steps[0]?.number ?? 0;
    for (const number of this.#stepsByNumber.keys()) if (number < first) this.#stepsByNumber.delete(number);
    Object.assign(this.#names, answer.sequences);
    if (Object.keys(this.#names).length > MAX_NAMES) this.#forgetNames();
    inNextFrame("steps", () => this.#showSteps());
  }

  /** Drop the names of sequences that no kept step has. */
  #forgetNames() {
    const seen = new Set(this.#steps.flatMap((step) => step.shares.map(([number]) => String(number))));
    this.#names = Object.fromEntries(Object.entries(this.#names).filter(([number]) => seen.has(number)));
  }

  #showSteps() {
    const ownId = this.#story?.request_id ?? null;
    const own = new Set(
      this.#steps
        .filter((step) => ownId !== null && step.shares.some(([number]) => this.#names[number] === ownId))
        .map((step) => step.number),
    );
    this.steps.update(this.#steps, this.#names, ownId);
    this.roofline.update(this.#steps, this.#engine?.machine ?? null, own);
    if (this.#story !== null) this.#showTimes();
  }

  #showTimes() {
    if (this.#run === null) return;
    inNextFrame("times", () => this.#drawTimes());
  }

  #drawTimes() {
    this.times.update({
      run: this.#run,
      story: this.#story,
      storyNote: this.#storyNote,
      steps: this.#stepsByNumber,
      numSteps: this.#nextStep,
    });
  }
}
