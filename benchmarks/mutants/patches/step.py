# ruff: noqa: E501 - a fault is one line
"""Faults in native/step.c: softmax, draws, a head's chain, verification."""

from benchmarks.mutants.mutant import Patch

FILE = "native/step.c"
FAULTS = (
    ("float unit = 1 / temperature;", "float unit = temperature;", "scores are multiplied by the temperature"),
    ("float share = 1 / total;", "float share = 1 / (total + 1e-6);", "a law sums to less than one"),
    ("return best - best == 0 && total > 0;", "return total > 0;", "scores of NaN and infinity have a law"),
    ("for (int i = 0; i < LANES; i++) total += sums->lane[i];", "for (int i = 1; i < LANES; i++) total += sums->lane[i];", "the first lane of a sum is left out"),
    ("bad += !law(scores + r * size,", "bad += !law(scores + 0 * size,", "every row gets the first row's law"),
    ("j < i + PIECE; j += LANES) add(&sums, load_some(law + j, size - j, 0));", "j < i + PIECE; j += LANES) add(&sums, load_some(law + j, size - j, 1e-3));", "lanes beyond the end of a law have mass"),
    ("before + parts[i / PIECE] <= u * total; i += PIECE)", "before + parts[i / PIECE] < u * total; i += PIECE)", "a part that ends at the uniform is searched"),
    ("        before += law[i];\n        if (law[i] > 0) {", "        before += law[i];\n        if (law[i] >= 0) {", "a token of probability zero can be drawn"),
    ("for (i = last < 0 ? size - 1 : last; i >= 0 && last < 0; i--)", "for (i = last < 0 ? 0 : last; i >= 0 && last < 0; i--)", "what rounding left over is not given to the last token"),
    ("out[r] = draw(laws + r * size, size, u[r]);", "out[r] = draw(laws + r * size, size, u[0]);", "all rows are drawn with one uniform"),
    ("guesses[i] = draw(law_i, drafted, u[i]);", "guesses[i] = draw(law_i, drafted, u[0]);", "all draft tokens of a chain are drawn with one uniform"),
    ("if (!law(law_i, drafted, temperature, law_i)) return i;", "if (!law(law_i, drafted, 1, law_i)) return i;", "a chain is drafted without its temperature"),
    ("if (!law(law_i, drafted, temperature, law_i)) return i;", "law(law_i, drafted, temperature, law_i);", "a chain goes on from scores that are not finite"),
    ("head, n, head->tokens[guesses[i]], states", "head, n, guesses[i], states", "a head reads the place of its token, not the token"),
    ("n.start++, n.end++;", "n.end++;", "a head's entries are written into one slot"),
    ("n.start++, n.end++;", "n.start++;", "a head does not see its own entries"),
    ("width, cos + i * n.size, sin + i * n.size, caches,\n                   states + (i + 1) * width, work, work_width, scratch);\n        n.start", "width, cos, sin, caches,\n                   states + (i + 1) * width, work, work_width, scratch);\n        n.start", "a head's entries are all rotated to one position"),
    ("rest = w * here - q[j + k];", "rest = here - q[j + k];", "the excess of a block is without its weight"),
    ("excess_sums[k] += rest > 0 ? rest : 0;", "excess_sums[k] += rest;", "the excess of a block takes negative parts too"),
    ("return left + w * (total > inside ? total - inside : 0);", "return left;", "tokens that cannot be drafted have no excess"),
    ("return left + w * (total > inside ? total - inside : 0);", "return left + (total > inside ? total - inside : 0);", "tokens that cannot be drafted have an excess without weight"),
    ("px *= block ? w[i - 1] : 1;", "px *= 1;", "weights of a block are not multiplied along it"),
    ("w[i] = px < qx ? px / qx : qx > 0;", "w[i] = px < qx ? px / qx : 1;", "a token that q cannot draw has weight one"),
    ("w[i] = px < qx ? px / qx : qx > 0;", "w[i] = px / qx;", "weights of a block are not capped"),
    ("ids[places[i]]], qx =", "places[i]], qx =", "p is read at a place instead of a token"),
    ("if (block && i + 1 < nodes) {", "if (block) {", "the last node of a block is asked like the others"),
    ("h[i] = all > 0 ? z / all : 1;", "h[i] = all > 0 ? z / all : 0;", "a node whose block is certain is refused"),
    ("reach *= block ? 1 - h[i] : h[i];", "reach *= block ? 1 - w[i] : h[i];", "a block is scanned on by weights"),
    ("reach * (block ? h[i] : 1 - h[i]);", "reach * (block ? w[i] : 1 - h[i]);", "a node of a block is taken by its weight"),
    ("long i = block ? nodes - j : j;", "long i = j;", "a block is scanned from the front"),
    ("before <= u_stop * total; before", "before <= u_next * total; before", "the last node is drawn with the uniform of the next token"),
    ("float weight = block ? w[*node] : 1;", "float weight = 1;", "a block's residual is without its weight"),
    ("for (long i = 0; *node + 1 < nodes && i < drafted; i++) {", "for (long i = 0; *node < nodes && i < drafted; i++) {", "q of the last node is subtracted"),
    ("for (long i = 0; *node + 1 < nodes && i < drafted; i++) {", "for (long i = 0; *node + 2 < nodes && i < drafted; i++) {", "q of the node before the last is not subtracted"),
    ("residual[ids[i]] = rest > 0 ? rest : 0;", "residual[ids[i]] = rest;", "a residual is negative"),
    ("*token = draw(residual, size, u_next);", "*token = draw(residual, size, u_stop);", "the next token is drawn with the uniform of the last node"),
    ("if (*token < 0) *token = draw(row, size, u_next);", "", "nothing is drawn where the residual vanishes"),
)  # fmt: skip
STEP = tuple(Patch(FILE, *fault) for fault in FAULTS)
