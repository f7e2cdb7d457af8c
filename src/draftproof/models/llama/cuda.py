"""Parts of a layer as Triton kernels, for calls of few tokens on a GPU: what draftproof.native is on a CPU.

A call of few tokens takes as long as its weights take to be read, and then some microseconds for every kernel. torch
needs some thirty of them for a layer, mostly for attention. Here it is eight, four of which are cuBLAS's products; or
one for all layers of a small network, a drafter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn

from draftproof import kernels

TOKENS = 64  # of a row in a call, or nodes of a tree
QUERIES, BYTES = 128, 128 * 128 * 2  # of a program at most; those of a head of keys are split if there are more
PARTS = 8  # of them
BLOCK = 64  # slots that are looked at at once
CHUNK = 256  # slots, more than which are split among programs
WIDTH, ROWS, FEW = 2048, 64, 2  # of a small network; its tokens in all; those that are multiplied without tensor cores
COLUMNS = 8  # of a product, that a program makes at a time
ASKING = 64  # queries of a row for a head of its keys
ENTRIES = 2048  # of a slot, that a program moves
PROGRAMS, SPLITS = 264, 32  # that a call makes if there is work for them; of a row and head at most


class Causal(NamedTuple):
    """The mask of straight texts by its rule, for `attend`: a token sees the slots up to its own.

    Slot 0 is seen by tokens in slot 0 alone.
    """

    own: torch.Tensor  # [B, T] int64 slots of the tokens, ascending by one, but that 0 may be repeated
    window: int | None = None  # slots that a token sees at most

    @property
    def tokens(self) -> int:
        """T."""
        return self.own.shape[1]

    def over(self, slots: torch.Tensor) -> torch.Tensor:
        """[B, T, S]: the same written out, which of these slots [S] each token sees."""
        own = self.own[..., None]
        seen = (slots <= own) & ((slots > 0) | (own == 0))
        return seen if self.window is None else seen & (own - slots < self.window)


class Branching(NamedTuple):
    """The mask of a tree's nodes by its rule: a node sees the text before the root, its ancestors and itself.

    Node n of the tree is in slot root + n, in this call or from one before it; slot 0 is no part of a text.
    """

    root: torch.Tensor  # [B] int64 slot of node 0
    number: torch.Tensor  # [T] int64 the nodes of this call, ascending
    depth: torch.Tensor  # [T] int64
    above: torch.Tensor  # [T] int64: bit n says whether node n is the node itself or one of its ancestors
    window: int | None = None  # slots of a straight text that a node sees at most; more than the tree is deep

    @property
    def tokens(self) -> int:
        """T."""
        return len(self.number)

    @property
    def own(self) -> torch.Tensor:
        """[B, T] slots of the nodes."""
        return self.root[:, None] + self.number

    def over(self, slots: torch.Tensor) -> torch.Tensor:
        """[B, T, S]: the same written out, which of these slots [S] each node sees."""
        node = (slots - self.root[:, None])[:, None]  # [B, 1, S]
        inside = (self.above[:, None] >> node.clamp(0, TOKENS - 1)) & 1 > 0
        seen = (slots > 0) & ((node < 0) | ((node < TOKENS) & inside))
        place = (self.root[:, None] + self.depth)[..., None]  # in a straight text
        return seen if self.window is None else seen & (place - slots < self.window)


Rule: TypeAlias = Causal | Branching


def fits(blocks: Any, tokens: int) -> bool:
    """Whether these layers can do a call of so many tokens a row by the kernels here."""
    if not len(blocks) or tokens > TOKENS or not kernels.available():
        return False
    shape, weight = blocks[0].shape, blocks[0].norm_in.weight
    return (
        weight.is_cuda
        and weight.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and shape.size in (16, 32, 64, 128)
        and _parts(tokens, shape.heads // shape.shared, shape.size * weight.element_size()) <= PARTS
        and all(type(linear) is nn.Linear for block in blocks for linear in block.linears)
    )


def angles(positions: torch.Tensor, frequencies: torch.Tensor, scale: float, dtype: torch.dtype) -> list[torch.Tensor]:
    """Cosine and sine of llama.Rotation [B, 1, T, size], at positions [B, T]."""
    from draftproof.kernels.lib import launching  # imports Triton
    from draftproof.kernels.llama import attention as layer

    positions, (batch, tokens), size = positions.contiguous(), positions.shape, 2 * len(frequencies)
    made = [torch.empty(batch, 1, tokens, size, dtype=dtype, device=positions.device) for _ in range(2)]
    with launching.current(positions.device):
        layer.angles[(batch * tokens,)](positions, frequencies, *made, scale, D=size, num_warps=1)
    return made


def attend(joint: torch.Tensor, rotation: Any, rule: Rule, store: Any, heads: int, shared: int) -> torch.Tensor:
    """Queries, keys and values side by side [B, T, ...] -> [B, T, heads * size].

    Queries and keys are turned, and keys and values kept in the store (a layer of a SlotCache), as Block says it.
    """
    from draftproof.kernels.lib import launching  # imports Triton
    from draftproof.kernels.llama import attention as layer

    batch, tokens, width = joint.shape
    size, group = width // (heads + 2 * shared), heads // shared
    if not store.is_initialized:
        new = joint.view(batch, tokens, -1, size).transpose(1, 2)[:, -shared:]
        store.lazy_initialization(new, new)
    keys, values = store.keys[store.cache.first :], store.values[store.cache.first :]
    parts = _parts(tokens, group, size * joint.element_size())
    some, slots = -(-tokens // parts), store.keys.shape[2]  # tokens of a program
    queries = _power(some * group)
    splits = max(min(PROGRAMS // (batch * shared * parts), SPLITS, -(-slots // CHUNK)), 1)
    out = joint.new_empty(batch, tokens, heads * size)
    count = batch * shared * parts * splits * queries
    peaks, norms, sums = (joint.new_empty(count * width, dtype=torch.float32) for width in (1, 1, size))
    early = launching.may_overlap(joint.device)
    large = queries * size > 4096 or joint.element_size() == 4  # for the registers of four warps
    places: tuple[torch.Tensor | None, ...]
    if isinstance(rule, Branching):
        places = rule.number, rule.depth, rule.root, rule.above
    else:
        own = rule.own.contiguous()
        places = own, own, None, None
    with launching.current(joint.device):
        layer.attend[(shared * parts, splits, batch)](
            joint, rotation.cos.contiguous(), rotation.sin.contiguous(), *places,
            keys, values, out, peaks, norms, sums, store.arrived, rule.window or 0, math.log2(math.e) / math.sqrt(size),
            tokens, some, group, heads, splits, slots,
            D=size, M=queries, NEW=_power(tokens), BLOCK=BLOCK // 2 if large else BLOCK, CHUNK=CHUNK,
            WINDOW=rule.window is not None, EARLY=early, num_warps=8 if large else 4, launch_pdl=early,
        )  # fmt: skip
    return out


def whole(x: torch.Tensor, shape: Any, masks: Sequence[Any], stores: Sequence[Any]) -> bool:
    """Whether `network` takes tokens [B, T, width] through layers of this shape: a small network, few tokens."""
    rule = masks[0]
    return (
        isinstance(rule, Rule)
        and rule.window is None
        and all(mask is rule for mask in masks)
        and all(store is not None for store in stores)
        and x.shape[0] * x.shape[1] <= ROWS
        and x.shape[1] * shape.heads <= ASKING * shape.shared
        and max(shape.width, shape.heads * shape.size, shape.inner) <= WIDTH
        and x.element_size() == 2
        and x.is_cuda
        and torch.cuda.get_device_capability(x.device) >= (9, 0)  # for its memory
    )


def network(x: torch.Tensor, blocks: Any, rotation: Any, rule: Rule, stores: Sequence[Any]) -> torch.Tensor:
    """x [B, T, width] through all these layers in one launch."""
    from draftproof.kernels.lib import launching
    from draftproof.kernels.llama.megakernel import network as kernel

    shape, (batch, tokens, width), rows = blocks[0].shape, x.shape, x.shape[0] * x.shape[1]
    size, heads, shared, inner = shape.size, shape.heads, shape.shared, shape.inner
    x, table, slots = x.clone(), _addresses(x, blocks, stores), stores[0].keys.shape[2]
    queries, splits = _power(tokens * heads // shared), -(-slots // CHUNK)
    # sizes of programs; a warp has a column of its own where rows are few, and 8 of them divide half a head
    many = rows > FEW
    most, warps, block, wide = (_power(rows), 4, 64, 128) if many else (rows, 8, 256, 256)
    count = batch * shared * splits * queries
    parts = [x.new_empty(each, dtype=torch.float32) for each in (count, count, count * size)]
    told, scratch = 0, list[torch.Tensor | None]([None] * 5)
    if many:
        squares = x.new_empty(rows * -(-width // COLUMNS), dtype=torch.float32)
        gained, *others = (x.new_empty(rows * each) for each in (width, heads * size, heads * size, inner))
        scratch = [gained, squares, *others]
    else:  # words are twice as wide as the numbers in them
        each = (2 * heads + 2 * shared) * size + 2 * width + inner
        told = rows * (width + len(blocks) * each) * x.element_size() // 2
    zeros = torch.zeros(told + 1 + len(blocks) * batch * shared, dtype=torch.int32, device=x.device)
    words, arrived = zeros[:told].view(torch.int32 if x.element_size() == 2 else torch.int64), zeros[told:]
    tree = (rule.root, rule.above) if isinstance(rule, Branching) else (None, None)
    programs = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1
    with launching.current(x.device):
        kernel[(programs,)](
            x, *scratch, rotation.cos.contiguous(), rotation.sin.contiguous(),
            rule.own.contiguous(), *tree, table, *parts, arrived, words, len(blocks), batch, tokens, shape.eps,
            math.log2(math.e) / math.sqrt(size), splits, slots,
            WIDTH=width, H=heads, SHARED=shared, D=size, INNER=inner, BIASED=shape.bias,
            M=most, MANY=many, BN=COLUMNS, BG=2 * COLUMNS, BK=block, BI=wide,
            QUERIES=queries, BP=_power(batch), BLOCK=CHUNK, PROGRAMS=programs,
            num_warps=warps, launch_cooperative_grid=x.is_cuda,
        )  # fmt: skip
    return x


def follows(buffers: Sequence[torch.Tensor]) -> bool:
    """Whether entries of these buffers can be moved by `follow`."""
    return kernels.available() and all(buffer.is_cuda and buffer.dtype == buffers[0].dtype for buffer in buffers)


def follow(cache: Any, root: torch.Tensor, path: torch.Tensor, count: torch.Tensor) -> None:
    """What SlotCache.follow says, in one launch."""
    from draftproof.kernels.lib import launching
    from draftproof.kernels.llama.compact_cache import follow as kernel

    buffers = cache.buffers
    found = [[buffer.data_ptr(), buffer.shape[1], buffer.shape[3]] for buffer in buffers]
    if cache.places is None or cache.places[0] != found:
        cache.places = found, torch.tensor(found, dtype=torch.int64, device=path.device)
    chunks = -(-max(heads * width for _, heads, width in found) // ENTRIES)
    with launching.current(path.device):
        kernel[(len(buffers), chunks, len(path))](
            cache.places[1], buffers[0], root.contiguous(), path.contiguous(), count.contiguous(),
            buffers[0].shape[2], path.shape[1], BLOCK=ENTRIES, num_warps=4,
        )  # fmt: skip


def _addresses(x: torch.Tensor, blocks: Any, stores: Sequence[Any]) -> torch.Tensor:
    """Where weights, keys and values of each layer are, a row as kernels.network says; kept with the cache."""
    cache, shape = stores[0].cache, blocks[0].shape
    found = []
    for block, store in zip(blocks, stores, strict=True):
        if not store.is_initialized:
            one = x.new_empty((1, shape.shared, 1, shape.size))
            store.lazy_initialization(one, one)
        weights = [linear.weight for linear in block.linears] + [block.norm_in.weight, block.norm_mlp.weight]
        entries = [part[cache.first :] for part in (store.keys, store.values)]
        bias = weights[0] if block.qkv.bias is None else block.qkv.bias
        found.append([tensor.data_ptr() for tensor in (*weights, *entries, bias)])
    if cache.addresses is None or cache.addresses[0] != found:
        cache.addresses = found, torch.tensor(found, dtype=torch.int64, device=x.device)
    return cache.addresses[1]  # type: ignore[no-any-return]


def enter(
    states: torch.Tensor,
    parent: torch.Tensor | None,
    tokens: torch.Tensor,
    number: torch.Tensor | None,
    embeddings: torch.Tensor,
    norms: tuple[nn.RMSNorm, nn.RMSNorm],
) -> torch.Tensor:
    """The norms of a state and, beside it, of the embedding of the token after it: [B, T, 2 * width] in one launch.

    States [B, S, width] and tokens [B, N] are taken as `parent` [T] and `number` [T] say, or one after another; a token
    below 0 is nobody's.
    """
    from draftproof.kernels.lib import launching
    from draftproof.kernels.llama import attention as layer

    (batch, given, width), early = states.shape, launching.may_overlap(states.device)
    count = tokens.shape[1] if number is None else len(number)
    out = states.new_empty(batch, count, 2 * width)
    block = _power(width)
    with launching.current(states.device):
        layer.enter[(batch * count, 2)](
            states.contiguous(), parent, tokens.contiguous(), number, embeddings, norms[0].weight, norms[1].weight, out,
            norms[0].eps or 0.0, norms[1].eps or 0.0, count, given, tokens.shape[1], width,
            W=block, EARLY=early, num_warps=8 if block > 1024 else 4, launch_pdl=early,
        )  # fmt: skip
    return out


def norm(x: torch.Tensor, weights: nn.RMSNorm) -> torch.Tensor:
    """RMSNorm of x [B, T, width]."""
    return _norm(x, None, weights)[1]


def add_norm(x: torch.Tensor, added: torch.Tensor, weights: nn.RMSNorm) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of both [B, T, width], and its RMSNorm."""
    return _norm(x, added, weights)


def gate(joint: torch.Tensor) -> torch.Tensor:
    """[B, T, 2 * width] -> silu(first half) * second half."""
    from draftproof.kernels.lib import launching
    from draftproof.kernels.llama import attention as layer

    width, block = joint.shape[-1] // 2, 1024
    out = joint.new_empty(*joint.shape[:-1], width)
    early = launching.may_overlap(joint.device)
    with launching.current(joint.device):
        layer.gate[(joint.numel() // (2 * width), -(-width // block))](
            joint, out, width, W=block, EARLY=early, num_warps=4, launch_pdl=early
        )
    return out


def _norm(x: torch.Tensor, added: torch.Tensor | None, weights: nn.RMSNorm) -> tuple[torch.Tensor, torch.Tensor]:
    from draftproof.kernels.lib import launching
    from draftproof.kernels.llama import attention as layer

    x, width = x.contiguous(), x.shape[-1]
    total, out = x if added is None else torch.empty_like(x), torch.empty_like(x)
    block, early = _power(width), launching.may_overlap(x.device)
    with launching.current(x.device):
        layer.norm[(x.numel() // width,)](
            x, added, weights.weight, total, out, weights.eps or 0.0, width,
            W=block, EARLY=early, num_warps=8 if block > 1024 else 4, launch_pdl=early,
        )  # fmt: skip
    return total, out


def _parts(tokens: int, group: int, size: int) -> int:
    """How many programs share the queries of so many tokens, which have a group of them of so many bytes each."""
    most = min(QUERIES, BYTES // size)  # queries of a program
    return -(-tokens // max(most // group, 1))


def _power(count: int) -> int:
    """The next power of 2, at least 16: sides of matrices that are multiplied."""
    return max(16, 1 << (count - 1).bit_length())
