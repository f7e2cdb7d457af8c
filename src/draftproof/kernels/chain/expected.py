# mypy: ignore-errors
"""How far a chain of draft tokens goes on average, without the noise of one draw.

Verification sums the residual only of those rows at which its one uniform may stop; the law of the node at which block
verification stops needs the sum of every row that a draft token follows. So these rows are read once more, by a launch
of their own.
"""

import torch
import triton
import triton.language as tl

from draftproof.kernels.lib import launching
from draftproof.kernels.lib.codes import BLOCK_RULE, ONEHOT_RULE
from draftproof.kernels.lib.launching import cdiv, next_power_of_2
from draftproof.kernels.lib.laws import LawPair, SummaryPtrs, acceptance, load_law, probability
from draftproof.kernels.lib.recording import launch
from draftproof.kernels.lib.rows import LogitRows, element, load_scores
from draftproof.kernels.types import Controls, Summary

TILE = 1024  # tokens at a time, ...
SPAN = 8192  # ... of so many that a program sums


def stop_law(
    target: torch.Tensor,  # [B, K + 1, V]
    draft: torch.Tensor,  # [B, K, V]
    tokens: torch.Tensor,  # [B, K]
    controls: Controls,
    rule: torch.Tensor,  # [B]
    laws: Summary,  # of the target's rows; that after the last draft token is not read
    draft_laws: Summary,
) -> torch.Tensor:
    """[B, K + 1] float32: the probability that the draft stops at each node."""
    batch, drafts, size = draft.shape
    tokens = tokens.contiguous()
    pair = LawPair(
        rows=LogitRows.of(target, tokens, controls),
        laws=SummaryPtrs.of(laws, controls),
        draft_rows=LogitRows.of(draft, tokens, controls),
        draft_laws=SummaryPtrs.of(draft_laws, controls),
    )
    parts, block = cdiv(size, SPAN), next_power_of_2(drafts + 1)
    sums = torch.empty(batch, drafts, parts, device=target.device)
    law = torch.empty(batch, drafts + 1, device=target.device)
    with launching.current(target.device):
        if drafts > 1:
            launch(
                sum_residuals, (batch * (drafts - 1) * parts,),
                pair, rule, sums, drafts, parts, BLOCK_N=block, TILE=TILE, SPAN=SPAN, num_warps=4,
            )  # fmt: skip
        launch(
            combine, (batch,),
            pair, rule, sums, law, drafts, parts, BLOCK_N=block, BLOCK_PARTS=next_power_of_2(parts), num_warps=1,
        )  # fmt: skip
    return law


@triton.jit
def chances(pair, rule, b, K, BLOCK_N: tl.constexpr):
    """[BLOCK_N]: p and q of the draft token after each row, and whether there is one whose law is known."""
    n = tl.arange(0, BLOCK_N)
    x = tl.load(pair.rows.tokens_ptr + b * K + n, mask=n < K, other=-1)
    drawn = (x >= 0) & (x < pair.rows.vocabulary)
    p_law = load_law(pair.rows, pair.laws, b, n, drawn)
    ids = tl.where(drawn, x, 0)
    p = probability(pair.laws, load_scores(pair.rows, b, n, ids, drawn), ids, p_law)
    q, scale = p * 0, p * 0
    if pair.draft_rows.logits_ptr is not None:
        q_law = load_law(pair.draft_rows, pair.draft_laws, b, n, drawn)
        q = probability(pair.draft_laws, load_scores(pair.draft_rows, b, n, ids, drawn), ids, q_law)
        scale = q_law.scale
    q = tl.where(rule == ONEHOT_RULE, 1.0, q)
    follows = drawn & (tl.where(rule == ONEHOT_RULE, 1.0, scale) > 0)
    return tl.where(follows, p, 0.0).to(tl.float64), tl.where(follows, q, 0.0).to(tl.float64), follows


@triton.jit
def weights(p, q, K, BLOCK_N: tl.constexpr):
    """[BLOCK_N]: w of each node, the probability that at least the draft tokens up to it are accepted."""
    n = tl.arange(0, BLOCK_N)
    w = tl.where(n == 0, 1.0, 0.0).to(tl.float64)
    for k in range(K):
        w = tl.where(n == k + 1, acceptance(element(w, k) * element(p, k), element(q, k)), w)
    return w


@triton.jit(do_not_specialize=["K", "parts"])
def sum_residuals(pair, rule_ptr, sums_ptr, K, parts, BLOCK_N: tl.constexpr, TILE: tl.constexpr, SPAN: tl.constexpr):
    """The residual (w p - q)+ of one span of row n, for block verification and where a draft token follows the row."""
    part = tl.program_id(0) % parts
    n = 1 + tl.program_id(0) // parts % (K - 1)
    b = (tl.program_id(0) // (parts * (K - 1))).to(tl.int64)
    rule = tl.load(rule_ptr + b)
    p, q, follows = chances(pair, rule, b, K, BLOCK_N)
    w = element(weights(p, q, K, BLOCK_N), n).to(tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    if (rule == BLOCK_RULE) & (w > 0) & (element(follows.to(tl.int32), n) > 0):
        p_law = load_law(pair.rows, pair.laws, b, n, True)
        q_law = load_law(pair.draft_rows, pair.draft_laws, b, n, True)
        for o in range(part * SPAN, tl.minimum((part + 1) * SPAN, pair.rows.vocabulary), TILE):
            ids = o + tl.arange(0, TILE)
            inside = ids < pair.rows.vocabulary
            ours = probability(pair.laws, load_scores(pair.rows, b, n, ids, inside), ids, p_law)
            theirs = probability(pair.draft_laws, load_scores(pair.draft_rows, b, n, ids, inside), ids, q_law)
            total += tl.maximum(w * ours - theirs, 0.0)
    tl.store(sums_ptr + (b * K + n) * parts + part, tl.sum(total, 0))


@triton.jit(do_not_specialize=["K", "parts"])
def combine(
    pair, rule_ptr, sums_ptr, law_ptr, K, parts, BLOCK_N: tl.constexpr, BLOCK_PARTS: tl.constexpr
):  # fmt: skip
    """The law of one sequence: token by token from the front, or by blocks from the back."""
    b = tl.program_id(0).to(tl.int64)
    rule = tl.load(rule_ptr + b)
    n, part = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_PARTS)
    p, q, follows = chances(pair, rule, b, K, BLOCK_N)
    w = weights(p, q, K, BLOCK_N)
    inner = follows & (n > 0)
    mask = inner[:, None] & (part < parts)[None, :]
    sums = tl.load(sums_ptr + (b * K + n[:, None]) * parts + part[None, :], mask=mask, other=0.0).to(tl.float64)
    residual = tl.where(inner, tl.sum(sums, 1), w)  # at the end of a draft q is zero, so all of w is left
    whole = residual + (1.0 - w)
    h = tl.where(whole > 0, residual / tl.where(whole > 0, whole, 1.0), 1.0)
    accepted = acceptance(p, q)
    law = tl.zeros((BLOCK_N,), tl.float64)
    reach = tl.full((), 1.0, tl.float64)
    if rule == BLOCK_RULE:
        for i in range(K):
            node = K - i
            taken = reach * element(h, node)
            law = tl.where(n == node, taken, law)
            reach -= taken
        law = tl.where(n == 0, reach, law)
    else:
        for node in range(K + 1):
            kept = element(accepted, node)
            law = tl.where(n == node, reach * (1.0 - kept), law)
            reach *= kept
    tl.store(law_ptr + b * (K + 1) + n, law.to(tl.float32), mask=n <= K)
