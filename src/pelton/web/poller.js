// Asking the server again and again, while anybody looks. Start at `Poller`.

import { ApiError } from "./api.js";

const ABSENT_PAUSE_MS = 10_000;
const ERROR_PAUSE_MS = 3_000;

/**
 * Polls one address. `makePath` says what to ask for (null: nothing now), `getPeriodMs` how long to rest after an
 * answer in milliseconds; `onAnswer(answer, path)` and `onError(error, path)` get what came. After a 404 it waits for `absentPauseMs`. It
 * rests while the page is hidden.
 */
export class Poller {
  #timer = null;
  #isBusy = false;

  constructor(api, { makePath, getPeriodMs, onAnswer, onError, absentPauseMs = ABSENT_PAUSE_MS }) {
    Object.assign(this, { api, makePath, getPeriodMs, onAnswer, onError, absentPauseMs });
    document.addEventListener("visibilitychange", () => this.wake());
    this.wake();
  }

  /** Ask now, unless an answer is being waited for. */
  wake() {
    clearTimeout(this.#timer);
    this.#timer = null;
    if (!this.#isBusy && !document.hidden) this.#ask();
  }

  async #ask() {
    const path = this.makePath();
    if (path === null) return;
    this.#isBusy = true;
    let pauseMs = 0;
    try {
      this.onAnswer(await this.api.get(path), path);
      pauseMs = this.getPeriodMs();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.onError(error, path);
      if (error.status === 401)
        pauseMs = null; // until there is another key
      else pauseMs = error.status === 404 ? this.absentPauseMs : ERROR_PAUSE_MS;
    } finally {
      this.#isBusy = false;
    }
    // A timer of a hidden page would ask on: `visibilitychange` wakes it instead.
    if (pauseMs !== null && !document.hidden) this.#timer = setTimeout(() => this.wake(), pauseMs);
  }
}
