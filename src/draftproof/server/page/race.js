// The same prompt with and without speculation, side by side.
//
// They are written one after the other, so that neither slows the other down, and each has its own clock. The replay
// then shows both at once, at the speed at which they came.

import { Answer } from "./answer.js";
import { element } from "./dom.js";
import { TokenText } from "./tokens.js";

const LANES = [["with", "With speculation", true], ["without", "Without speculation", false]];

export class Race {
  constructor() {
    this.lanes = LANES.map(([name, title, speculates]) => ({
      name, title, answer: new Answer(title, speculates),
    }));
    this.verdict = element("p", { class: "verdict" }, "");
    this.again = element("button", { type: "button", hidden: "" }, "Replay together");
    this.again.addEventListener("click", () => this.replay());
    this.element = element("div", { class: "race" }, [
      element("div", { class: "lanes" }, this.lanes.map(({ name, title, answer }) =>
        element("section", { class: `lane ${name}`, "aria-label": title }, [element("h3", {}, title), answer.element]))),
      element("div", { class: "result" }, [this.verdict, this.again]),
    ]);
  }

  get answer() {
    return this.lanes[0].answer;
  }

  tick() {
    this.lanes.forEach(({ answer }) => answer.tick());
  }

  /** Write both; `write` writes one answer. */
  async go(write) {
    const answers = this.lanes.map(({ answer }) => answer);
    for (const answer of answers) answer.wait("waits for its turn");
    try {
      for (const answer of answers) await write(answer);
    } finally {
      for (const answer of answers) if (!answer.run) answer.wait("not written");
    }
    const [fast, slow] = this.lanes.map(({ answer }) => answer.run.speed);
    if (!fast || !slow) return;
    const ratio = fast / slow;
    this.verdict.textContent =
      `${ratio.toFixed(2)} times the tokens per second with speculation: ${fast.toFixed(0)} beside ${slow.toFixed(0)}. ` +
      "Both texts are drawn from the same distribution.";
    this.again.hidden = false;
  }

  /** Show both texts again, each token at the time at which it came after the first. */
  async replay() {
    this.again.disabled = true;
    await Promise.all(this.lanes.map(({ answer, title }) => replayed(answer, title)));
    this.again.disabled = false;
  }
}

async function replayed(answer, title) {
  const { run, clock } = answer;
  const summary = [...clock.childNodes];
  const shown = answer.tokens.element;
  const nodes = [...shown.childNodes];
  const first = run.arrivals[0]?.[0] ?? 0;
  const stage = new TokenText(title).element;
  shown.replaceWith(stage);
  answer.element.classList.add("writing");
  const started = performance.now();
  while (nodes.length) {
    const time = performance.now() - started + first;
    const tokens = run.arrivals.findLast(([then]) => then <= time)?.[1] ?? 0;
    const all = time >= run.arrivals.at(-1)[0];
    while (nodes.length && (all || stage.childElementCount < tokens)) stage.append(nodes.shift());
    answer.tell(time - first, [`${tokens} tokens`]);
    await new Promise(requestAnimationFrame);
  }
  answer.element.classList.remove("writing");
  shown.append(...stage.childNodes);
  stage.replaceWith(shown);
  clock.replaceChildren(...summary);
}
