# ruff: noqa: E501 - a fault is one line
"""Faults in the Triton kernels: noise, draws, laws, acceptance, and what a token sees."""

from benchmarks.mutants.mutant import Patch

FAULTS = (
    ("lib/uniform.py", "tl.load(noise.step + b)", "tl.load(noise.step)", "all sequences have the first one's step"),
    ("lib/uniform.py", "tl.load(noise.request + b)", "tl.load(noise.request)", "all sequences have the first one's request"),
    ("lib/uniform.py", "(low >> 6).to(tl.float64)", "(low >> 5).to(tl.float64)", "a uniform has a bit too many, and may be one"),
    ("lib/inverse_cdf.py", "(cumulated <= threshold) & (c < last)", "(cumulated < threshold) & (c < last)", "a chunk that ends at the uniform is searched"),
    ("lib/inverse_cdf.py", "(cumulated <= threshold) & (c < last)", "(cumulated <= threshold)", "what rounding left over is behind the last chunk"),
    ("lib/inverse_cdf.py", "tl.cumsum(masses, 0) > threshold)", "tl.cumsum(masses, 0) >= threshold)", "a draw at its boundary"),
    ("lib/inverse_cdf.py", "> threshold) & (masses > 0)", "> threshold)", "a token without mass can be drawn"),
    ("lib/laws.py", "(s == law.cutoff) & (ids >= law.first)", "(s == law.cutoff) & (ids > law.first)", "of equal scores one too few is kept"),
    ("lib/laws.py", "tl.minimum(p, q) / tl.where(q > 0, q, 1.0), 0.0)", "p / tl.where(q > 0, q, 1.0), 0.0)", "acceptance is not capped"),
    ("chain/decide.py", "tl.gather(w, tl.maximum(n - 1, 0), 0)", "tl.gather(w, n, 0)", "a node has the weight of the next one"),
    ("chain/decide.py", "length = tl.min(tl.where((x >= 0) & (x < rows.vocabulary), BLOCK_N, n))", "length = tl.sum(((x >= 0) & (x < rows.vocabulary)).to(tl.int32), 0)", "a draft goes on after a gap"),
    ("chain/emit.py", "uniform(state.noise, b, state.lane, value_of(state.index))", "uniform(state.noise, b, state.lane, 0)", "all draft tokens are drawn with one uniform"),
    ("chain/state.py", "uniform(state.noise, b, STOP_LANE, 0)", "uniform(state.noise, b, state.lane, 0)", "where a draft stops and the token after it share a uniform"),
    ("tree/traversal.py", "u = uniform(noise, b, NEXT_LANE, 0)", "u = uniform(noise, b, STOP_LANE, 0)", "the token after a tree is drawn with the uniform of the last node"),
    ("tree/distinct.py", "q = tl.where(again > 0, 0.0, q).to(tl.float64)", "q = q.to(tl.float64)", "siblings may be equal"),
    ("tree/distinct.py", "uniform(noise, b, DRAFT_LANE, node)", "uniform(noise, b, DRAFT_LANE, parent)", "siblings are drawn with one uniform"),
    ("star/pick.py", "tl.where(first == n, tl.maximum(p - a, 0.0), 0.0)", "tl.maximum(p - a, 0.0)", "the residual hits equal children once each"),
    ("llama/attention.py", "visible & ((slot < node0)[None, :] | is_ancestor(bits, slot - node0))", "visible & ((slot < node0)[None, :] | (slot >= node0)[None, :])", "a node of a tree sees all nodes before it"),
    ("llama/attention.py", "norm * fade + tl.sum(share, 1), sums", "norm + tl.sum(share, 1), sums", "the normaliser of a softmax is not scaled to a larger peak"),
)  # fmt: skip
KERNELS = tuple(Patch(f"kernels/{file}", *fault) for file, *fault in FAULTS)
