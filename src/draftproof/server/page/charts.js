// The three curves, drawn as SVG at the size that they have on the page.

import { svg } from "./dom.js";

const HEIGHT = 126;
const FEW = 5; // steps: a position that fewer have tried is drawn faintly
const BOX = { left: 38, right: 10, top: 10, bottom: 24 };

/** Draws what it is given once per frame at most, and again when its width changes. */
export class Chart {
  constructor(root, draw) {
    this.root = root;
    this.draw = draw;
    this.data = null;
    this.asked = false;
    new ResizeObserver(() => this.ask()).observe(root);
  }

  show(data) {
    this.data = data;
    this.ask();
  }

  ask() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      const width = this.root.clientWidth;
      if (!width) return;
      this.root.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
      const { parts, says } = this.draw(this.data, width);
      this.root.replaceChildren(...parts);
      this.root.setAttribute("aria-label", says);
    });
  }
}

/** Tokens of every step, their running mean, and the mean that was expected. */
export function drawCalls(run, width) {
  const { each, mean, expected } = run?.calls ?? { each: [], mean: [], expected: [] };
  const frame = new Frame(width, [1, Math.max(each.length, 10)], [0, niceTop(Math.max(4, ...each))], "step");
  const radius = each.length > 120 ? 1.6 : 2.4;
  const dots = each.map((tokens, i) =>
    svg("circle", { class: "dot", cx: frame.x(i + 1), cy: frame.y(tokens), r: radius }));
  const parts = [...frame.axes(whole), ...dots];
  if (each.length) {
    parts.push(frame.line(number(expected), "expected"), frame.line(number(mean), "accepted"));
    parts.push(frame.note(mean.at(-1).toFixed(2), each.length, mean.at(-1)));
  } else {
    parts.push(frame.empty("appears with the first answer"));
  }
  const says = each.length
    ? `${each.length} steps, ${mean.at(-1).toFixed(2)} tokens per call on average, ${expected.at(-1).toFixed(2)} expected`
    : "no steps yet";
  return { parts, says };
}

/** Bars for the measured share at each position, diamonds for its expectation, and a line above which no rule gets. */
export function drawAcceptance(positions, width) {
  const shown = positions ?? [];
  const slots = Math.max(shown.length, 5);
  const frame = new Frame(width, [0.5, slots + 0.5], [0, 1], "position in the draft");
  const parts = frame.axes((value) => `${Math.round(100 * value)}%`, shown.map((_, i) => i + 1));
  const bar = Math.min(26, 0.62 * (frame.x(2) - frame.x(1)));
  shown.forEach(({ measured, expected, limit, tried = Infinity }, i) => {
    const [x, y] = [frame.x(i + 1), frame.y(expected ?? 0)];
    const top = frame.y(measured ?? 0);
    const faint = tried < FEW ? { opacity: 0.35 } : {};
    parts.push(svg("rect", {
      class: "bar", x: x - bar / 2, y: top, width: bar, height: Math.max(0, frame.y(0) - top), rx: 2, ...faint,
    }));
    if (typeof limit === "number") {
      const high = frame.y(limit);
      parts.push(svg("line", { class: "limit", x1: x - bar / 2 - 5, x2: x + bar / 2 + 5, y1: high, y2: high, ...faint }));
    }
    if (expected === undefined || expected === null) return;
    parts.push(svg("line", { class: "expected", x1: x - bar / 2 - 3, x2: x + bar / 2 + 3, y1: y, y2: y, ...faint }));
    parts.push(svg("path", { class: "diamond", d: `M ${x} ${y - 4.5} l 4.5 4.5 l -4.5 4.5 l -4.5 -4.5 z`, ...faint }));
  });
  if (!shown.length) parts.push(frame.empty("appears with the first draft"));
  const says = shown.map(({ measured, expected, limit }, i) =>
    `position ${i + 1}: ${percent(measured)} measured, ${percent(expected)} expected, limit ${percent(limit)}`)
    .join("; ") || "no drafts yet";
  return { parts, says };
}

/** Speed over time of the last answers with and without speculation. */
export function drawSpeed(runs, width) {
  const lines = { with: runs?.with?.speeds ?? [], without: runs?.without?.speeds ?? [] };
  const points = [...lines.with, ...lines.without];
  const longest = Math.max(1, ...points.map(([time]) => time));
  const frame = new Frame(width, [0, longest], [0, niceTop(Math.max(10, ...points.map(([, speed]) => speed)))], "seconds");
  const parts = frame.axes(whole);
  const says = [];
  const ends = (name) => lines[name].at(-1)?.[1] ?? -1;
  for (const [name, other, words] of [["without", "with", "without speculation"], ["with", "without", "with speculation"]]) {
    const line = lines[name];
    if (!line.length) continue;
    const [time, speed] = line.at(-1);
    parts.push(frame.line(line, name), frame.note(speed.toFixed(0), time, speed, ends(name) < ends(other)));
    says.push(`${runs[name].speed?.toFixed(0) ?? "no"} tokens per second ${words}`);
  }
  if (!points.length) parts.push(frame.empty("Race draws both"));
  return { parts, says: says.join(", ") || "no speed yet" };
}

/** A plot's scales, axes and lines. */
class Frame {
  constructor(width, [left, right], [bottom, top], name) {
    const [w, h] = [width - BOX.left - BOX.right, HEIGHT - BOX.top - BOX.bottom];
    this.width = width;
    this.range = { left, right, bottom, top };
    this.name = name;
    this.x = (value) => round(BOX.left + (w * (value - left)) / (right - left || 1));
    this.y = (value) => round(BOX.top + (h * (top - value)) / (top - bottom || 1));
  }

  axes(format, ticks = null) {
    const { left, right, bottom, top } = this.range;
    const parts = [];
    for (const value of [bottom, (bottom + top) / 2, top]) {
      const y = this.y(value);
      parts.push(svg("line", { class: value === bottom ? "axis" : "grid", x1: BOX.left, x2: this.width - BOX.right, y1: y, y2: y }));
      parts.push(svg("text", { x: BOX.left - 6, y: y + 3.5, class: "end" }, format(value)));
    }
    const below = HEIGHT - 6;
    const marks = ticks ?? [left, right];
    const every = Math.ceil(marks.length / 10);
    marks.forEach((value, i) => {
      if (i % every === 0) {
        const side = ticks ? "middle" : value === right ? "end" : "middle";
        parts.push(svg("text", { x: this.x(value), y: below, class: side }, whole(value)));
      }
    });
    if (!ticks?.length) {
      parts.push(svg("text", { x: (BOX.left + this.width - BOX.right) / 2, y: below, class: "middle" }, this.name));
    }
    return parts;
  }

  line(points, name) {
    const path = points.map(([x, y], i) => `${i ? "L" : "M"} ${this.x(x)} ${this.y(y)}`).join(" ");
    return svg("path", { class: `line ${name}`, d: path });
  }

  /** A number at the end of a line. */
  note(text, x, y, below = false) {
    const side = this.x(x) > this.width - 40 ? "end" : "middle";
    return svg("text", { class: `note ${side}`, x: this.x(x), y: Math.max(10, this.y(y) + (below ? 15 : -7)) }, text);
  }

  empty(words) {
    return svg("text", { class: "middle empty", x: (BOX.left + this.width - BOX.right) / 2, y: 0.28 * HEIGHT }, words);
  }
}

const round = (value) => Math.round(10 * value) / 10;
const whole = (value) => `${value >= 10 || Number.isInteger(value) ? Math.round(value) : value.toFixed(1)}`;
const number = (values) => values.map((value, i) => [i + 1, value]);
const percent = (share) => (typeof share === "number" ? `${Math.round(100 * share)}%` : "unknown");

/** The next number that halves well. */
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((times) => times * power).find((top) => top >= value);
}
