// What the server does at the moment: GET /stats every second while the page can be seen.

import { get } from "./api.js";
import { element } from "./dom.js";

const EVERY = 1000; // milliseconds
const SQUARES = 64; // rows that are drawn one by one

/** Acceptance by position over all recent requests, measured and expected. */
function positions(stats) {
  const measured = stats.acceptance ?? stats.acceptance_by_position ?? [];
  const expected = stats.expected ?? stats.expected_acceptance_by_position ?? [];
  return measured.map((share, i) => ({ measured: share, expected: expected[i] }));
}

export class ServerPanel {
  constructor({ rows, load, engine, key, onStats }) {
    Object.assign(this, { rows, load, engine, key, onStats });
    document.addEventListener("visibilitychange", () => this.start());
    this.start();
  }

  start() {
    clearInterval(this.timer);
    if (document.hidden) return;
    this.timer = setInterval(() => this.ask(), EVERY);
    this.ask();
  }

  async ask() {
    if (this.asking) return;
    this.asking = true;
    try {
      this.show(await get("stats", this.key()));
    } catch (error) {
      this.load.textContent = error.message;
      this.rows.replaceChildren();
    } finally {
      this.asking = false;
    }
  }

  show(stats) {
    const { rows = 0, rows_in_use: used = 0, waiting = 0, tokens_per_s: speed, tokens_per_call: calls } = stats;
    if (this.rows.childElementCount !== Math.min(rows, SQUARES)) {
      this.rows.replaceChildren(...Array.from({ length: Math.min(rows, SQUARES) }, () => element("span")));
    }
    [...this.rows.children].forEach((square, i) => square.classList.toggle("used", i < used));
    this.rows.setAttribute("aria-label", `${used} of ${rows} rows in use`);
    const facts = [[`${used}/${rows}`, "rows"], [`${waiting}`, "waiting"]];
    if (typeof speed === "number") facts.push([speed.toFixed(speed < 10 ? 1 : 0), "tokens/s"]);
    if (calls) facts.push([calls.toFixed(2), "tokens/call"]);
    this.load.replaceChildren(...facts.map(([value, name]) => element("span", {}, [element("b", {}, value), ` ${name}`])));
    const { model, drafter, verifier, status } = stats;
    const parts = [model, drafter && `drafter ${drafter}`, verifier && `rule ${verifier}`, status !== "ready" && status];
    this.engine.textContent = parts.filter(Boolean).join(" · ");
    this.onStats({ ...stats, positions: positions(stats) });
  }
}
