// What is measured of one answer while it is written. No part of the page: numbers only.

const WINDOW = 1500; // milliseconds over which the speed of the moment is taken

export class Run {
  constructor(speculates) {
    this.speculates = speculates;
    this.started = performance.now();
    this.arrivals = []; // [milliseconds since the start, tokens so far]
    this.steps = [];
    this.tokens = 0;
    this.finish = "";
    this.totals = null; // of the last chunk
    this.ended = null;
  }

  get now() {
    return (this.ended ?? performance.now()) - this.started;
  }

  /** Read a chunk; returns its text and its tokens with what is known of them. */
  add(chunk) {
    const choice = chunk.choices?.[0] ?? {};
    const details = choice.draftproof ?? {};
    const text = choice.delta?.content ?? "";
    const tokens = details.tokens ?? [];
    const step = details.step;
    if (step) this.steps.push(step);
    if (tokens.length || text) {
      this.tokens += tokens.length || step?.tokens || 1;
      this.arrivals.push([this.now, this.tokens]);
    }
    if (choice.finish_reason) this.finish = choice.finish_reason;
    if (chunk.draftproof) this.totals = chunk.draftproof;
    if (chunk.usage?.completion_tokens) this.tokens = chunk.usage.completion_tokens;
    const number = this.steps.length;
    return { text, tokens: tokens.map((token, i) => ({ ...token, step: number, place: i + 1, of: tokens.length })) };
  }

  end() {
    this.ended ??= performance.now();
  }

  /** Tokens per second after the first arrival, so that the time to read the prompt does not count. */
  get speed() {
    const [first, last] = [this.arrivals[0], this.arrivals.at(-1)];
    return first && last[0] > first[0] ? (1000 * (last[1] - first[1])) / (last[0] - first[0]) : null;
  }

  /** [seconds since the first token, tokens per second over the last moments] at each arrival. */
  get speeds() {
    const points = [];
    let from = 0;
    for (const [time, tokens] of this.arrivals) {
      while (this.arrivals[from + 1]?.[0] <= time - WINDOW) from++;
      const [then, before] = this.arrivals[from];
      if (time - then > 150) points.push([(time - this.arrivals[0][0]) / 1000, (1000 * (tokens - before)) / (time - then)]);
    }
    if (points.length || !this.speed) return points;
    return [[0, this.speed], [(this.arrivals.at(-1)[0] - this.arrivals[0][0]) / 1000, this.speed]]; // too short for more
  }

  get perCall() {
    return this.totals?.tokens_per_call ?? (this.steps.length ? this.tokens / this.steps.length : null);
  }

  get expectedPerCall() {
    return this.totals?.expected_tokens_per_call ?? means(this.steps.map(expectedTokens)).at(-1) ?? null;
  }

  /** Tokens of each step, and the running means of what was written and of what was expected. */
  get calls() {
    const each = this.steps.map((step) => step.tokens ?? (step.accepted ?? 0) + 1);
    return { each, mean: means(each), expected: means(this.steps.map(expectedTokens)) };
  }

  /** For each position of the draft, over the steps that drafted so deep: the share that accepted so many, the mean of
   * the probability of that, and its limit by any exact rule, which is known of drafts that are one path. A step in which
   * the text ended says nothing: what it accepted after the end is not told. */
  get acceptance() {
    const whole = this.finish === "stop" ? this.steps.slice(0, -1) : this.steps;
    const drafted = whole.filter((step) => step.reached?.length);
    const deepest = Math.max(0, ...drafted.map((step) => step.reached.length));
    return Array.from({ length: deepest }, (_, i) => {
      const tried = drafted.filter((step) => step.reached.length > i);
      const measured = tried.filter((step) => step.accepted > i).length / tried.length;
      const expected = tried.reduce((sum, step) => sum + step.reached[i], 0) / tried.length;
      const bounded = tried.every((step) => step.limit?.length > i);
      // both are estimated from the same few drafts; the limit itself is never below what a rule reaches
      const mean = bounded ? tried.reduce((sum, step) => sum + step.limit[i], 0) / tried.length : undefined;
      const limit = bounded ? Math.max(mean, expected) : undefined;
      return { measured, expected, limit, tried: tried.length };
    });
  }
}

const expectedTokens = (step) => 1 + (step.expected ?? step.accepted ?? 0);

function means(values) {
  let sum = 0;
  return values.map((value, i) => (sum += value) / (i + 1));
}
