"""Mutants that no test can notice, because they compute the same: each with the reason."""

EQUIVALENT: dict[str, str] = {
    "law.py: at: constant, 0 -> 1": "token 0 is read at 0 * 0",
    "draft.py: Draft.guesses: constant, 0 -> 1": "no child is node 0",
    "draws.py: _one: dropped term, token * 0 -> token": "`sample` returns 0 for a row of zeros",
    "noise.py: _words: dropped term, zero + (seed[:, None] >> 32 & WORD) -> seed[:, None] >> 32 & WORD": (
        "a key of shape [B, 1] is spread over the counters by the first sum it is part of"
    ),
    "controls.py: entropy: dropped term, law * 0 -> law": "it stands where the law is not positive, so it is zero",
    "verify/nodeplan.py: the fixed tokens of the row with most siblings are counted for all rows": (
        "siblings are missing in a row only where q has no token left for them, so all that were drawn are certain, "
        "and the rule gives certain tokens the same law whether it counts them as fixed or as drawn"
    ),
    "verify/top_plus_one.py: the fixed tokens of the row with most siblings are counted for all rows": (
        "siblings are missing in a row only where q has no token left for them, so the last one that was drawn is "
        "certain: kept by the token rule, or hit by a draw from p, it has the same law"
    ),
    "verify/_select.py: the weight of a node that repeats an earlier path is not zero": (
        "such a node is never picked (of equal siblings the first is), and what is drawn below it belongs to the "
        "earlier one: its weight is multiplied by a share of zero, or not read"
    ),
    "hull.py: the law of fixed tokens is by the scale, not by the mass that was exchanged": (
        "the scale is defined as the one for which both are equal; they differ by the rounding of one product"
    ),
    "models/memo.py: a copied row is not committed with the others": (
        "it then counts as a row that the target has not computed, and catches up before the next call that needs it"
    ),
    "native/step.c: a node of probability zero may be the last": (
        "the scan ends at the node that lifts the sum above u times the total, so it has positive probability; u is "
        "less than one and the total near one, so there always is such a node"
    ),
    "native/step.c: the last part of a law may be skipped too": (
        "up to there the sums are those of the total, which u times the total does not reach; if it did, the last "
        "token that can be drawn would be taken in both cases"
    ),
    "native/step.c: scores of NaN and infinity have a law": (
        "with such a score the sum of weights is NaN, which is not positive either"
    ),
    "native/step.c: a part that ends at the uniform is searched": (
        "no token of it lifts the sum above u times the total, and the search goes on into the next part"
    ),
    "native/step.c: the last node of a block is asked like the others": (
        "q of the last node is zero, so Z is w, Z + 1 - w is one and h is w: what is taken there without a sum"
    ),
    "native/step.c: q of the last node is subtracted": "q of the last node is zero",
    "engine/eager/rows.py: noise: boolean, len(names) * count <= FEW -> not len(names) * count <= FEW": (
        "one by one and in arrays the same numbers are drawn; one of the ways is faster for few of them"
    ),
    "engine/eager/decide.py: decide: constant, 1 -> 2 (2)": (
        "a second number is drawn and not used; each has a name of its own, so the first is the same"
    ),
    "engine/eager/method.py: BySharedNoise.decide: constant, 1 -> 2": (
        "a race looks at the draft tokens and at p alone, so it does not matter whether the draft has laws"
    ),
    "verify/_pick.py: _by_ratio: constant, 8 -> 9 (3)": "all groups are renumbered alike; the others are empty",
    "verify/_pick.py: _by_ratio: constant, 1 -> 2 (2)": (
        "it is the ratio of tokens that cannot be drawn, or that p lacks and that get a group of their own"
    ),
    "engine/eager/propose.py: by_draw: swapped arguments, native.draws(np.ascontiguousarray(q), mine) -> "
    "native.draws(mine, np.ascontiguousarray(q))": (
        "uniforms are no float32 laws, so the function in C does not apply, and the core draws the same token"
    ),
    "engine/eager/decide.py: decide_chain: boolean, ids is None or (proposal.tokens < 0).any() -> ids is None and "
    "(proposal.tokens < 0).any()": (
        "it is asked where the vocabulary is reduced, for one text, whose chain is cut after its last draft token"
    ),
    "verify/_merge.py: guesses: dropped term, order * 0 -> order": (
        "it names a node for a sibling that was not drawn, which no rule accepts and whose law none looks at"
    ),
    "engine/eager/stepper.py: EagerStepper.launch: swapped arguments, EagerPending(start, rows, asked, None, "
    "failed.errors, unread) -> EagerPending(rows, start, asked, None, failed.errors, unread)": (
        "of a step that failed nobody asks when it began or which rows it had"
    ),
    "engine/graph/step.py: DeviceStep._draft_tree: constant, 1 -> 0 (2)": (
        "the token of node 0 is not read: the drafter starts from the text, and its other calls take later nodes"
    ),
    "engine/graph/runner.py: GraphStepper.launch: constant, False -> True": (
        "of a step that did not begin nobody asks whether prompts were read before it"
    ),
    "kernels/chain/emit.py: emit: arithmetic, n * u -> n / u": (
        "it stands for residuals until they are loaded, which is done before they are read; its type is the same"
    ),
    "kernels/tree/traversal.py: update_weights: arithmetic, younger & (parent_w > 0) -> younger | (parent_w > 0)": (
        "only younger siblings have an elder's c; below a node of weight zero their weight is zero whatever is loaded, "
        "and their c is read at nodes of positive weight alone"
    ),
    "audit/wealth.py: _book: arithmetic, a.stake / len(a.shares) -> a.stake * len(a.shares)": (
        "all alternatives of a family have as many shares, and its capital is divided in proportion to their stakes"
    ),
    "kernels/lib/inverse_cdf.py: a token without mass can be drawn": (
        "what is before a chunk does not exceed the threshold, so the sum first does at a token that adds to it"
    ),
    "audit/evidence.py: learned_logs: constant, 1.0 -> 0.5": (
        "where nothing is bet, what was divided by it is not used"
    ),
    "verify/csbv.py: _level: constant, 1 -> 0": (
        "where one path is left its pick looks at no number, and the weights of the cells add up to one all the same"
    ),
    "native/step.c: a node whose block is certain is refused": (
        "p equals q there and its weight is one, so the next node has weight one too, and the scan from the back "
        "ends before it"
    ),
}
