// The text of an answer as tokens, and the panel that says of one token how it was drawn.

import { element } from "./dom.js";

const KINDS = {
  accepted: "Accepted: the drafter proposed this token and the model accepted it.",
  corrected: "Corrected: the draft token here was rejected; this one was drawn in its place.",
  plain: "Plain: drawn from the model without a draft token.",
};
const facts = new WeakMap(); // element -> what the server said of its token

/** A text that grows token by token. One token can have the focus, and the arrow keys move it. */
export class TokenText {
  constructor(label) {
    this.element = element("div", { class: "tokens", role: "group", "aria-label": label });
    this.text = "";
    this.waiting = []; // tokens whose text has not come: it may be half a character, or the beginning of a stop string
  }

  /** Show exactly this text, each part of it as the token that it belongs to. */
  add(text, tokens) {
    this.text += text;
    this.waiting.push(...tokens);
    let rest = text;
    let unmatched = null;
    while (rest && this.waiting.length) {
      const token = this.waiting.shift();
      const place = token.text ? rest.indexOf(token.text) : -1;
      if (place === 0 || (place > 0 && unmatched)) {
        if (place) this.show(rest.slice(0, place), unmatched);
        this.show(token.text, token);
        rest = rest.slice(place + token.text.length);
        unmatched = null;
      } else {
        unmatched = token;
      }
    }
    if (rest) this.show(rest, unmatched ?? { kind: "plain" });
  }

  show(text, token) {
    const kind = token.kind in KINDS ? token.kind : "plain";
    const first = !this.element.firstElementChild;
    const [, space, word] = text.match(/^(\s*)([^]*)$/); // the space before a word is not underlined
    const shape = word ? kind : /\n/.test(text) ? `${kind} break` : kind;
    const span = element("span", { class: `token ${shape}`, tabindex: first ? "0" : "-1" }, word || text);
    facts.set(span, { ...token, kind, text });
    this.element.append(...(word && space ? [space, span] : [span]));
  }
}

/** The panel beside the token that is pointed at or has the focus, in all texts inside `root`. */
export class Inspector {
  constructor(root, panel) {
    this.root = root;
    this.panel = panel;
    this.token = null;
    const at = (event) => event.target.closest?.(".tokens .token");
    root.addEventListener("pointerover", (event) => event.pointerType === "mouse" && at(event) && this.open(at(event)));
    root.addEventListener("pointerout", () => this.closeSoon());
    root.addEventListener("click", (event) => at(event) && choose(at(event)));
    root.addEventListener("focusin", (event) => at(event) && this.open(at(event)));
    root.addEventListener("focusout", () => this.closeSoon());
    root.addEventListener("keydown", (event) => at(event) && this.move(event, at(event)));
    panel.addEventListener("pointerenter", () => clearTimeout(this.timer));
    panel.addEventListener("pointerleave", () => this.closeSoon());
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.close());
    document.addEventListener("scroll", () => this.token && this.place(this.token), { capture: true, passive: true });
    window.addEventListener("resize", () => this.close());
  }

  open(token) {
    clearTimeout(this.timer);
    if (token === this.token || !facts.has(token)) return;
    this.close();
    this.token = token;
    token.classList.add("open");
    token.setAttribute("aria-describedby", this.panel.id);
    this.panel.replaceChildren(...describe(facts.get(token)));
    this.panel.hidden = false;
    this.place(token);
  }

  place(token) {
    const [box, panel, gap] = [token.getClientRects()[0] ?? token.getBoundingClientRect(), this.panel, 8];
    const seen = this.root.getBoundingClientRect();
    if (box.bottom < Math.max(0, seen.top) || box.top > Math.min(innerHeight, seen.bottom)) return this.close();
    const left = Math.min(Math.max(gap, box.left - 12), innerWidth - panel.offsetWidth - gap);
    const below = box.bottom + gap;
    const top = below + panel.offsetHeight < innerHeight - gap ? below : Math.max(gap, box.top - gap - panel.offsetHeight);
    panel.style.left = `${left}px`;
    panel.style.top = `${top}px`;
  }

  closeSoon() {
    clearTimeout(this.timer);
    const stays = () => document.activeElement === this.token && this.token.matches(":focus-visible");
    this.timer = setTimeout(() => this.token && !stays() && this.close(), 120);
  }

  close() {
    clearTimeout(this.timer);
    this.token?.classList.remove("open");
    this.token?.removeAttribute("aria-describedby");
    this.token = null;
    this.panel.hidden = true;
  }

  move(event, token) {
    const next = {
      ArrowRight: () => token.nextElementSibling,
      ArrowLeft: () => token.previousElementSibling,
      ArrowDown: () => inLine(token, +1),
      ArrowUp: () => inLine(token, -1),
      Home: () => token.parentElement.firstElementChild,
      End: () => token.parentElement.lastElementChild,
    }[event.key]?.();
    if (next === undefined) return;
    event.preventDefault();
    if (next) choose(next);
  }
}

/** Give a token the focus; from now on Tab comes back to it. */
function choose(token) {
  token.parentElement.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
  token.setAttribute("tabindex", "0");
  token.scrollIntoView({ block: "nearest" }); // before the panel is placed beside it
  token.focus({ preventScroll: true });
}

/** The token above or below this one. */
function inLine(token, direction) {
  const from = token.getClientRects()[0];
  if (!from) return null;
  let best = null;
  const step = direction > 0 ? "nextElementSibling" : "previousElementSibling";
  for (let other = token[step]; other; other = other[step]) {
    const box = other.getClientRects()[0];
    if (!box || Math.abs(box.top - from.top) < from.height / 2) continue;
    if (best && Math.abs(box.top - best.top) > best.height / 2) break;
    const distance = Math.abs(box.left - from.left);
    if (!best || distance < best.distance) best = { other, distance, top: box.top, height: box.height };
  }
  return best?.other ?? null;
}

function describe(token) {
  const parts = [
    element("p", { class: "head" }, [
      element("code", {}, visible(token.text)),
      element("span", { class: "where" }, token.step ? `step ${token.step}, token ${token.place} of ${token.of}` : ""),
    ]),
    element("p", { class: `how ${token.kind}` }, KINDS[token.kind]),
  ];
  if (token.logprob === undefined) return parts;
  parts.push(
    element("dl", {}, [
      element("div", {}, [element("dt", {}, "p, model"), element("dd", {}, percent(token.logprob))]),
      element("div", {}, [element("dt", {}, "q, drafter"), element("dd", {}, percent(token.draft_logprob))]),
    ]),
  );
  const top = token.top ?? [];
  if (!top.length) return parts;
  const drawn = top.some(([text, logprob]) => isDrawn(token, text, logprob));
  const rows = drawn ? top : [...top, [token.text, token.logprob]];
  parts.push(element("table", {}, [
    element("caption", {}, "The model's likeliest tokens here"),
    element("tbody", {}, rows.map(([text, logprob]) => alternative(text, logprob, isDrawn(token, text, logprob)))),
  ]));
  return parts;
}

const isDrawn = (token, text, logprob) => text === token.text && logprob === token.logprob;

function alternative(text, logprob, drawn) {
  const bar = element("span", { class: "bar" });
  bar.style.width = `${(100 * chance(logprob)).toFixed(1)}%`;
  return element("tr", drawn ? { class: "drawn" } : {}, [
    element("th", { scope: "row" }, [
      element("code", {}, visible(text)), drawn ? element("span", { class: "unseen" }, " (drawn)") : "",
    ]),
    element("td", { class: "track" }, bar),
    element("td", { class: "number" }, percent(logprob)),
  ]);
}

const chance = (logprob) => (logprob === null || logprob === undefined ? 0 : Math.exp(logprob));

function percent(logprob) {
  if (logprob === null || logprob === undefined) return "none";
  const share = 100 * Math.exp(logprob);
  if (share > 99.95 && share < 100) return "> 99.9%";
  return share < 0.01 ? "< 0.01%" : `${share.toFixed(share < 1 ? 2 : 1)}%`;
}

/** A token's text with its spaces and line breaks to be seen. */
function visible(text) {
  return text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥") || "∅";
}
