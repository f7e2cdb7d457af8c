"""The fused kernels in plain PyTorch, from the laws: controls, verifiers and inverse-transform sampling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftproof import controls as apply
from draftproof.draft import Draft, Tree
from draftproof.draws import DRAWS
from draftproof.kernels.types import ChainRule, Controls, Emitted, Fault, NoiseKeys, Picked, Siblings, Walked, unpack
from draftproof.law import at, capped_ratio
from draftproof.law import sample as draw
from draftproof.noise import Lane, uniforms
from draftproof.verify import VERIFIERS
from draftproof.verify.block import weights


def law(logits: Tensor, controls: Controls, tokens: Tensor, node: int = 0) -> Tensor:
    """The laws [B, N, V] of rows [B, N, V] whose first is node `node` of a chain with drafted tokens [B, K]."""
    batch, nodes, size = logits.shape
    dtype = logits.dtype if logits.dtype == torch.float64 else torch.float32
    scores = logits.to(dtype).flatten(0, 1)

    def rows(column: Tensor) -> Tensor:  # [B, ...] -> [B * N, ...]
        return column.repeat_interleave(nodes, dim=0)

    if controls.bias is not None:
        scores = apply.add_bias(scores, rows(controls.bias))
    if controls.penalties is not None and controls.seen is not None and controls.made is not None:
        repetition, presence, frequency = (rows(column[:, None]).to(dtype) for column in controls.penalties.unbind(1))
        path = _path_counts(tokens, node, nodes, size).flatten(0, 1)
        scores = apply.penalise_repetition(scores, rows(controls.seen) + path, repetition)
        made = rows(controls.made) + path
        scores = scores - presence * (made > 0).to(dtype) - frequency * made.to(dtype)
    if controls.allowed is not None:
        keep = unpack(controls.allowed[:, node : node + nodes], size).flatten(0, 1)
        scores = apply.cut(scores, ~keep)
    scores = apply.temperature(scores, rows(controls.temperature[:, None]).to(dtype))
    if controls.truncates:
        k = rows(controls.top_k[:, None].to(torch.int64))
        scores = apply.top_k(scores, torch.where((k > 0) & (k < size), k, size))
        share, least = (rows(column[:, None]).to(dtype) for column in (controls.top_p, controls.min_p))
        scores = torch.where(share < 1, top_p(scores, share), scores)
        scores = apply.min_p(scores, least)
    return torch.as_tensor(apply.softmax(scores)).reshape(batch, nodes, size)


def top_p(scores: Tensor, mass: Tensor) -> Tensor:
    """controls.top_p, but of equal scores at the edge the larger ids are kept.

    There, as in transformers, an unstable sort decides among equals; a kernel needs a rule.
    """
    order = scores.argsort(dim=-1, stable=True)
    tail = apply.softmax(scores.gather(-1, order)).cumsum(-1) <= 1 - mass
    tail[:, -1] = False  # one token is always kept
    return torch.as_tensor(apply.cut(scores, torch.zeros_like(tail).scatter(-1, order, tail)))


def _path_counts(tokens: Tensor, node: int, nodes: int, size: int) -> Tensor:
    """[B, N, V]: how often each token occurs among the drafts on the way to each node."""
    hits = torch.nn.functional.one_hot(tokens.clamp(0, size - 1), size) * (tokens >= 0)[..., None]
    start = torch.zeros_like(hits[:, :1]) if hits.shape[1] else hits.new_zeros(len(tokens), 1, size)
    return torch.cat([start, hits.cumsum(1)], dim=1)[:, node : node + nodes].to(torch.int32)


def sound_laws(logits: Tensor, controls: Controls, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Like `law`, but zero where a row holds NaN or +inf, which no mask hides, or allows no token; and [B, N]: which
    rows have a law."""
    laws = law(logits, controls, tokens)
    sound = (logits < torch.inf).all(-1) & (laws.sum(-1) > 0)
    return torch.where(sound[..., None], laws, 0), sound


def flags(**places: Tensor) -> Tensor:
    """[B] int32: Fault flags, from a mask [B, ...] of the places of each fault, by its name."""
    fault = [where.flatten(1).any(1).to(torch.int32) * int(Fault[name]) for name, where in places.items()]
    return torch.stack(fault).sum(0, dtype=torch.int32)


def drafted(
    target: Tensor,
    draft: Tensor | None,
    tokens: Tensor,
    controls: Controls,
    rule: Tensor,
    draft_controls: Controls | None = None,
) -> tuple[Draft, Tensor, Tensor]:
    """The chain of valid drafts with its laws; the faults [B]; and which target rows have a law [B, N].

    q is zero where nothing was drafted or the law of the draft token is unknown.
    """
    p, sound = sound_laws(target, controls, tokens)
    p[..., 0] += ~sound  # any law will do: the caller checks whether the row is needed
    q = torch.zeros_like(p)
    outside, bare = tokens >= p.shape[-1], (rule == ChainRule.ONEHOT)[:, None]
    whole = impossible = torch.zeros_like(outside)
    if draft is not None:
        q[:, :-1], whole = sound_laws(draft, draft_controls or controls, tokens)
        impossible = (q[:, :-1].gather(-1, tokens.clamp(0, p.shape[-1] - 1)[..., None])[..., 0] == 0) & ~bare
    broken = ~(whole | bare)
    given = ((tokens >= 0) & ~outside).int().cumprod(1) > 0
    used = (given & ~broken).int().cumprod(1) > 0
    ends = torch.nn.functional.pad(given, (1, 0), value=True)[:, :-1] & outside
    fault = flags(TOKEN=ends, DRAFT=given & broken, IMPOSSIBLE=used & impossible)
    nodes = torch.nn.functional.pad(torch.where(used, tokens, -1), (1, 0))
    q[:, :-1] *= used[..., None]
    return Draft(Tree.chain(tokens.shape[1]), nodes, q, p), fault, sound


def verify(
    target: Tensor,
    draft: Tensor | None,
    tokens: Tensor,
    controls: Controls,
    rule: Tensor,
    noise: NoiseKeys,
    draft_controls: Controls | None = None,
    logprobs: bool = False,
    expected: bool = False,
) -> Emitted:
    """Where each sequence's draft stops, and the token after it."""
    chain, fault, sound = drafted(target, draft, tokens, controls, rule, draft_controls)
    u = [uniforms(*noise, lane, 1)[:, 0] for lane in (Lane.STOP, Lane.NEXT)]
    stop = token = torch.zeros(len(tokens), dtype=torch.int64, device=tokens.device)
    for member in map(ChainRule, sorted(set(rule.tolist()))):
        verifier = VERIFIERS[member.name.lower()]
        node = draw(verifier.stop(chain), u[0])
        stop = torch.where(rule == member, node, stop)
        token = torch.where(rule == member, draw(verifier.next(chain, node), u[1]), token)
    place = torch.arange(chain.p.shape[1], device=tokens.device)
    needed = torch.nn.functional.pad(chain.tokens[:, 1:] >= 0, (0, 1)) | (place == stop[:, None])
    lost = (needed & ~sound).any(1)
    stop, token = torch.where(lost, 0, stop), torch.where(lost, 0, token)
    out = assemble(chain.p, tokens, stop, token, logprobs)
    logprob = None if out.logprob is None else torch.where(lost[:, None], 0, out.logprob)
    reached = torch.where(lost[:, None], 0, reach(chain, rule)) if expected else None
    return out._replace(fault=fault + flags(TARGET=lost[:, None]), logprob=logprob, reach=reached)


def reach(chain: Draft, rule: Tensor) -> Tensor:
    """[B, N - 1] float32: the probability that at least so many draft tokens are accepted, given these tokens."""
    tokens = chain.tokens[:, 1:]
    p, q = (at(law[:, :-1], tokens) for law in (chain.p, chain.q))
    alone = torch.where(rule[:, None] == ChainRule.ONEHOT, p, capped_ratio(p, q)) * (tokens >= 0)
    return torch.where(rule[:, None] == ChainRule.BLOCK, weights(chain)[:, 1:], alone.cumprod(1)).float()


def pick(siblings: Siblings, noise: NoiseKeys) -> Picked:
    """The accepted child of one node, or the token instead, by optimal_binned on a star; both 0 without a law p."""
    star, fault = spread(siblings)
    verifier = VERIFIERS["optimal_binned"]
    child, token = (
        draw(law, uniforms(*noise, lane, 1)[:, 0])
        for law, lane in ((verifier.stop(star), Lane.STOP), (verifier.next(star, siblings.node * 0), Lane.NEXT))
    )
    return Picked(child, torch.where(child > 0, star.tokens.gather(1, child[:, None])[:, 0], token), fault)


def spread(siblings: Siblings) -> tuple[Draft, Tensor]:
    """The children of one node as a star with its laws, those after a child left zero; and the fault [B]."""
    target, node, draft, row, tokens, controls, draft_controls = siblings
    (p, sound), (q, whole) = _law_at(target, node, controls), _law_at(draft, row, draft_controls)
    outside = tokens >= p.shape[-1]
    inside = (tokens >= 0) & ~outside
    drawn = inside & whole
    valid = torch.where(drawn, tokens, -1)
    impossible = drawn & (q.gather(1, valid.clamp_min(0)) == 0)
    fault = flags(TARGET=~sound, TOKEN=outside, DRAFT=inside & ~drawn, IMPOSSIBLE=impossible)
    rest = p.new_zeros(len(tokens), tokens.shape[1], p.shape[-1])
    rows = [torch.cat([one[:, None], rest], dim=1) for one in (q * drawn.any(1, keepdim=True), p)]
    return Draft(Tree.star(tokens.shape[1]), torch.nn.functional.pad(valid, (1, 0)), *rows), fault


def _law_at(logits: Tensor, node: Tensor, controls: Controls) -> tuple[Tensor, Tensor]:
    """[B, V] and [B, 1]: one row of each sequence as `sound_laws` has it."""
    b = torch.arange(len(logits), device=logits.device)
    if controls.allowed is not None:
        controls = controls._replace(allowed=controls.allowed[b, node][:, None])
    laws, sound = sound_laws(logits[b, node][:, None], controls, node[:, None][:, :0])
    return laws[:, 0], sound


def guess(
    logits: Tensor, parents: Sequence[int], tree: Tree, tokens: Tensor, controls: Controls, noise: NoiseKeys
) -> None:
    """The children of some nodes, drawn without replacement into their places in tokens [B, N]."""
    rows = law(logits, controls.at(parents), tokens[:, :0])
    u = uniforms(*noise, Lane.DRAFT, tree.size)
    for i, parent in enumerate(parents):
        children = list(tree.children(parent))
        drawn = (tokens[:, parent] >= 0) | (parent == 0)
        tokens[:, children] = DRAWS["distinct"].sample(rows[:, i] * drawn[:, None], u[:, children])


def branched(
    target: Tensor,
    draft: Tensor,
    tokens: Tensor,
    tree: Tree,
    controls: Controls,
    draft_controls: Controls | None = None,
) -> tuple[Draft, Tensor]:
    """The tree with its laws, and the fault [B].

    A draft token that is outside the vocabulary, or drawn from a row without a law, counts as not drawn, and so does
    everything below it. q is zero where no child was drawn.
    """
    p, sound = sound_laws(target, controls, tokens[:, :0])
    p[..., 0] += ~sound  # as in `drafted`
    inner, whole = sound_laws(draft, (draft_controls or controls).at(tree.inner), tokens[:, :0])
    q, valid = torch.zeros_like(p), tokens.clone()
    reached = torch.ones_like(sound)  # every token on the path from the root was drawn
    outside, broken, impossible = (torch.zeros_like(sound) for _ in range(3))
    for row, node in enumerate(tree.inner):
        children = list(tree.children(node))
        x, asked = tokens[:, children], reached[:, node, None]
        outside[:, children] = asked & (x >= p.shape[-1])
        inside = asked & (x >= 0) & (x < p.shape[-1])
        broken[:, children] = inside & ~whole[:, row, None]
        drawn = reached[:, children] = inside & whole[:, row, None]
        again = (x[:, :, None] == x[:, None, :]).tril(-1).any(2)
        chance = inner[:, row].gather(1, torch.where(drawn, x, 0))
        impossible[:, children] = drawn & (again | (chance == 0))
        valid[:, children] = torch.where(drawn, x, -1)
        q[:, node] = inner[:, row] * drawn.any(1, keepdim=True)
    fault = flags(TARGET=reached & ~sound, TOKEN=outside, DRAFT=broken, IMPOSSIBLE=impossible)
    return Draft(tree, valid, q, p), fault


def traverse(
    target: Tensor,
    draft: Tensor,
    tokens: Tensor,
    tree: Tree,
    controls: Controls,
    noise: NoiseKeys,
    draft_controls: Controls | None = None,
) -> Walked:
    """Which path is accepted, and the token after it."""
    drafts, fault = branched(target, draft, tokens, tree, controls, draft_controls)
    stop = VERIFIERS["traversal"].stop(drafts)
    node = draw(stop, uniforms(*noise, Lane.STOP, 1)[:, 0])
    token = draw(VERIFIERS["traversal"].next(drafts, node), uniforms(*noise, Lane.NEXT, 1)[:, 0])
    lost = (fault & Fault.TARGET) > 0
    node, token = torch.where(lost, 0, node), torch.where(lost, 0, token)
    deepest = tree.depth[-1]
    path = torch.tensor(tree.ways, dtype=torch.int64, device=tokens.device)[node]  # [B, D]
    accepted = torch.tensor(tree.depth, device=tokens.device)[node]
    out = torch.full((len(tokens), deepest + 1), -1, dtype=torch.int64, device=tokens.device)
    out[:, :deepest] = torch.where(path > 0, tokens.gather(1, path), -1)
    out.scatter_(1, accepted[:, None], token[:, None])
    return Walked(out, accepted.to(torch.int32), path, fault, stop.float())


def assemble(p: Tensor, tokens: Tensor, stop: Tensor, token: Tensor, logprobs: bool) -> Emitted:
    """The outcome from the stopping node and the token after it."""
    padded = torch.nn.functional.pad(tokens, (0, 1), value=-1)
    place = torch.arange(p.shape[1], device=p.device)
    out = torch.where(place < stop[:, None], padded, torch.where(place == stop[:, None], token[:, None], -1))
    logprob = None
    if logprobs:
        chance = p.gather(-1, out.clamp_min(0)[..., None])[..., 0]
        logprob = torch.where(out >= 0, chance.log(), 0).to(torch.float32)
    return Emitted(out, stop.to(torch.int32), torch.zeros_like(stop, dtype=torch.int32), logprob)
