"""Faults that once passed the tests of their area."""

from benchmarks.mutants.mutant import Patch

DECIDE, PROPOSE = "engine/eager/decide.py", "engine/eager/propose.py"
EAGER = (
    Patch(DECIDE, "Lane.SELECT", "Lane.STOP", "a selector's choices share the number of the last accepted node"),
    Patch(DECIDE, "Lane.SELECT", "Lane.DRAFT", "a selector's choices share the numbers of the draft tokens"),
    Patch(
        DECIDE,
        "float(noise(key, Lane.NEXT, 1)[0, 0])",
        "float(noise(key, Lane.STOP, 1)[0, 0])",
        "a chain verified in C uses the number of the last accepted node again for the emitted token",
    ),
    Patch(
        DECIDE,
        "own = None if draft.own is None else draft.own[index]",
        "own = None",
        "a draft of some rows forgets which of several drafters each token is from",
    ),
    Patch(
        PROPOSE,
        """                failure = first_line(error)
                break
            level_laws, read""",
        """                failure = first_line(error)
                tokens[:, 1:] = -1
                break
            level_laws, read""",
        "when a drafter fails, the tokens drawn before are thrown away",
    ),
    Patch(
        "engine/eager/rows.py",
        "widest = xp.result_type(p, *moved)",
        "widest = p.dtype",
        "the draft's laws are rounded to the precision of the target's",
    ),
    Patch(
        "engine/eager/step.py",
        "target_laws(logits[b : b + 1], [row], tree, tokens[b : b + 1], own)",
        "target_laws(logits[b : b + 1], [row], tree, tokens[b:b], own)",
        "a row that is tried alone has no draft tokens, so rows that could go on fail too",
    ),
)
MODELS = (
    Patch(
        "models/memo.py",
        "if source in self.computed and target not in self.computed:",
        "if source in self.computed and target in self.computed:",
        "a copied row is not committed with the others",
    ),
    Patch(
        "models/hf.py",
        "        table[node] |= table[tree.parent[node]]\n",
        "        table[node] |= table[tree.parent[node]]\n"
        "        table[node, [n for n in tree.children(tree.parent[node]) if n < node]] = True\n",
        "a node of a tree sees its elder siblings",
    ),
    Patch(
        "models/llama/masks.py",
        "seen = (slots > 0) & ((node < 0) | ((node < TREE_NODES) & inside))",
        "seen = (slots > 0) & ((node < 0) | ((node < TREE_NODES) & (inside | (node < self.depth[:, None]))))",
        "in a call of fixed shape a node sees nodes that are no ancestors",
    ),
)
RULES = (
    Patch(
        "verify/nodeplan.py",
        "for b, many in enumerate(siblings(tokens).tolist()):",
        "for b, many in enumerate([int(siblings(tokens).max())] * tokens.shape[0]):",
        "the fixed tokens of the row with most siblings are counted for all rows",
    ),
    Patch(
        "verify/top_plus_one.py",
        "count = siblings(tokens)",
        "count = siblings(tokens) * 0 + xp.max(siblings(tokens))",
        "the fixed tokens of the row with most siblings are counted for all rows",
    ),
    Patch(
        "verify/_select.py",
        "xp.where((x >= 0) & (merged.first[:, node] == node), w, w * 0)",
        "xp.where(x >= 0, w, w * 0)",
        "the weight of a node that repeats an earlier path is not zero",
    ),
)
DRAWS = (
    Patch(
        "draws.py",
        "units = xp.astype(q * 2**40, xp.int64)",
        "units = q * 2**40",
        "the number of fixed tokens is decided on a sum of floats",
    ),
)
HULL = (
    Patch(
        "hull.py",
        "law[fixed] = (a - law).sum() * p[fixed] / sure",
        "law[fixed] = scale * p[fixed]",
        "the law of fixed tokens is by the scale, not by the mass that was exchanged",
    ),
    Patch(
        "hull.py",
        "(sure + np.cumsum(p[order]))).max()",
        "(sure + np.cumsum(p[order]))).max() / 2",
        "the scale of an exchange is half of what it should be",
    ),
)
STEP = "native/step.c"
NATIVE = (
    Patch(STEP, "i < nodes && before <= u_stop * total;", "i < nodes && before < u_stop * total;", "no node at u = 0"),
    Patch(STEP, "if (stop[i] > 0) *node = i;", "*node = i;", "a node of probability zero may be the last"),
    Patch(STEP, "if (before > u * total) return i;", "if (before >= u * total) return i;", "a draw at its boundary"),
    Patch(
        STEP,
        "i + PIECE < size && before + parts[i / PIECE] <= u * total;",
        "i < size && before + parts[i / PIECE] <= u * total;",
        "the last part of a law may be skipped too",
    ),
    Patch(
        STEP,
        "i + PIECE < size && before + parts[i / PIECE] <= u * total;",
        "i + PIECE < size && before <= u * total;",
        "parts of a law are skipped one too far",
    ),
    Patch(STEP, "all = z + (1 - w[i]);", "all = z;", "block verification without 1 - w"),
)
AUDIT = (
    Patch(
        "audit/wealth.py",
        "whole = sum(CAPITAL.get(family, 1.0) for family in stakes)",
        "whole = max(CAPITAL.get(family, 1.0) for family in stakes)",
        "the capital of all bets is more than one",
    ),
    Patch(
        "audit/evidence.py",
        "    if tolerance:\n",
        "    if False:\n",
        "the tolerance is not charged to the learned tables",
    ),
)
