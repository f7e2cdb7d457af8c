// One answer on the page: its tokens as they come, its clock, and a line of numbers at the end.

import { element } from "./dom.js";
import { Run } from "./run.js";
import { TokenText } from "./tokens.js";

const FINISHES = { stop: "finished", length: "stopped at the limit", abort: "ended by the server", error: "failed" };

const counted = (number, thing) => `${number} ${thing}${number === 1 ? "" : "s"}`;

export class Answer {
  constructor(label, speculates) {
    this.speculates = speculates;
    this.run = null; // from when it is asked for
    this.tokens = new TokenText(label);
    this.clock = element("p", { class: "clock" });
    this.element = element("div", { class: "answer", "aria-busy": "false" }, [this.tokens.element, this.clock]);
  }

  /** It is not being written, and this is why. */
  wait(reason) {
    this.clock.textContent = reason;
  }

  begin() {
    this.run = new Run(this.speculates);
    this.element.setAttribute("aria-busy", "true");
    this.element.classList.add("writing");
  }

  add(chunk) {
    const { text, tokens } = this.run.add(chunk);
    this.tokens.add(text, tokens);
  }

  /** End it: for a reason of ours, or the server's. */
  end(reason = "") {
    this.run.end();
    this.element.classList.remove("writing");
    this.element.setAttribute("aria-busy", "false");
    if (this.run.finish && !this.tokens.text) this.tokens.element.append(element("i", {}, "an empty answer"));
    this.tell(this.run.now, this.summary(reason || (FINISHES[this.run.finish] ?? this.run.finish)));
  }

  tick() {
    if (!this.run || this.run.ended) return;
    this.tell(this.run.now, [counted(this.run.tokens, "token")]);
  }

  /** Set the clock, and what stands beside it. */
  tell(milliseconds, facts) {
    const time = element("b", {}, `${(milliseconds / 1000).toFixed(1)} s`);
    this.clock.replaceChildren(time, element("span", {}, facts.join(" · ")));
  }

  summary(reason) {
    const { run } = this;
    const calls = run.totals?.target_calls ?? run.steps.length;
    const facts = [counted(run.tokens, "token")];
    if (run.speed) facts.push(`${run.speed.toFixed(0)} tokens/s`);
    if (calls) facts.push(counted(calls, "call"));
    if (run.perCall && run.expectedPerCall) {
      facts.push(`${run.perCall.toFixed(2)} tokens a call (expected ${run.expectedPerCall.toFixed(2)})`);
    }
    const fallbacks = run.totals?.fallbacks;
    const fell = typeof fallbacks === "object" && fallbacks ? Object.keys(fallbacks).join("; ") : fallbacks;
    if (fell) facts.push(`drafting stopped: ${fell}`);
    if (reason) facts.push(reason);
    return facts;
  }
}
