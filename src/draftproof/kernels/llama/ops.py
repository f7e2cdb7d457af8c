"""Launchers of the Llama kernels: tensors in, tensors out."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from draftproof.kernels.lib import launching
from draftproof.kernels.llama import attention, elementwise, limits, prefill
from draftproof.kernels.llama import compact_cache as compaction
from draftproof.kernels.llama import megakernel as whole

LOG2_E = math.log2(math.e)


class Heads(NamedTuple):
    """Heads of an attention layer."""

    query: int
    kv: int
    size: int

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.query // self.kv


class LayerSizes(NamedTuple):
    """Sizes of a layer, as the megakernel is compiled for them."""

    heads: Heads
    inner: int  # width of the MLP
    eps: float
    biased: bool  # queries, keys and values have a bias


# cosine and sine of rotary positions, [B, 1, T, size] each; the first half of the sines is negated
Rotation: TypeAlias = tuple[Tensor, Tensor]
# keys and values of one layer of a cache, [rows, kv_heads, slots, size] each
Entries: TypeAlias = tuple[Tensor, Tensor]


class Decoded(NamedTuple):
    """New tokens by their slots, or new nodes of a tree by their numbers, and what they see (decode_attention)."""

    slots: Tensor  # [B, T] slots; of a tree [T] node numbers
    straight: Tensor  # the same; of a tree [T] depths
    root: Tensor | None = None  # [B] slot of node 0
    ancestors: Tensor | None = None  # [T] bit n says whether node n is seen
    window: int | None = None  # slots that a token sees at most


def rotary_angles(positions: Tensor, frequencies: Tensor, scale: float, dtype: torch.dtype) -> Rotation:
    """Cosine and sine of positions [B, T]."""
    positions, (batch, tokens), size = positions.contiguous(), positions.shape, 2 * len(frequencies)
    cos, sin = (torch.empty(batch, 1, tokens, size, dtype=dtype, device=positions.device) for _ in range(2))
    with launching.current(positions.device):
        elementwise.rotary_angles[(batch * tokens,)](positions, frequencies, cos, sin, scale, D=size, num_warps=1)
    return cos, sin


def rms_norm(x: Tensor, norm: nn.RMSNorm) -> Tensor:
    """RMSNorm of x [B, T, width]."""
    return _norm(x, None, norm)[1]


def add_rms_norm(x: Tensor, residual: Tensor, norm: nn.RMSNorm) -> tuple[Tensor, Tensor]:
    """The sum of both [B, T, width], and its RMSNorm."""
    return _norm(x, residual, norm)


def _norm(x: Tensor, residual: Tensor | None, norm: nn.RMSNorm) -> tuple[Tensor, Tensor]:
    x, width = x.contiguous(), x.shape[-1]
    total, out = x if residual is None else torch.empty_like(x), torch.empty_like(x)
    block, early = _power(width), launching.may_overlap(x.device)
    with launching.current(x.device):
        elementwise.rms_norm[(x.numel() // width,)](
            x, residual, norm.weight, total, out, norm.eps or 0.0, width,
            W=block, EARLY=early, num_warps=8 if block > 1024 else 4, launch_pdl=early,
        )  # fmt: skip
    return total, out


def silu_gate(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [B, T, 2 * width]."""
    width, block = gate_up.shape[-1] // 2, 1024
    out = gate_up.new_empty(*gate_up.shape[:-1], width)
    early = launching.may_overlap(gate_up.device)
    with launching.current(gate_up.device):
        elementwise.silu_gate[(gate_up.numel() // (2 * width), -(-width // block))](
            gate_up, out, width, W=block, EARLY=early, num_warps=4, launch_pdl=early
        )
    return out


class Taken(NamedTuple):
    """Which states and tokens a level of a tree reads."""

    parent: Tensor  # [T] among the states
    number: Tensor  # [T] among the tokens


def head_inputs(
    states: Tensor, tokens: Tensor, embeddings: Tensor, norms: tuple[nn.RMSNorm, nn.RMSNorm], taken: Taken | None = None
) -> Tensor:
    """RMSNorms of a state and, beside it, of the embedding of the token after it: [B, T, 2 * width] in one launch.

    States [B, S, width] and tokens [B, N] go together one by one, or as `taken` says; a token of -1 was not drawn, and
    any will do.
    """
    (batch, given, width), early = states.shape, launching.may_overlap(states.device)
    parent, number = (None, None) if taken is None else taken
    count = tokens.shape[1] if number is None else len(number)
    out = states.new_empty(batch, count, 2 * width)
    block = _power(width)
    with launching.current(states.device):
        elementwise.head_inputs[(batch * count, 2)](
            states.contiguous(), parent, tokens.contiguous(), number, embeddings, norms[0].weight, norms[1].weight, out,
            norms[0].eps or 0.0, norms[1].eps or 0.0, count, given, tokens.shape[1], width,
            W=block, EARLY=early, num_warps=8 if block > 1024 else 4, launch_pdl=early,
        )  # fmt: skip
    return out


def decode_attention(
    qkv: Tensor, rotation: Rotation, new: Decoded, entries: Entries, arrivals: Tensor, heads: Heads
) -> Tensor:
    """Queries, keys and values side by side [B, T, ...] -> attention output [B, T, heads * size].

    Queries and keys are rotated, and keys and values written into the cache.

    arrivals  [rows * kv_heads * QUERY_PARTS] int32, zero before and after
    """
    batch, tokens, _ = qkv.shape
    size, group, kv_heads = heads.size, heads.group, heads.kv
    parts = limits.query_parts(tokens, group, size * qkv.element_size())
    some, slots = -(-tokens // parts), entries[0].shape[2]  # tokens of a program
    queries = _power(some * group)
    splits = max(min(limits.PROGRAMS // (batch * kv_heads * parts), limits.SPLITS, -(-slots // limits.CHUNK)), 1)
    out = qkv.new_empty(batch, tokens, heads.query * size)
    count = batch * kv_heads * parts * splits * queries
    scratch = (qkv.new_empty(count * width, dtype=torch.float32) for width in (1, 1, size))
    early = launching.may_overlap(qkv.device)
    large = queries * size > 4096 or qkv.element_size() == 4  # for the registers of four warps
    with launching.current(qkv.device):
        attention.decode_attention[(kv_heads * parts, splits, batch)](
            qkv, *_contiguous(rotation), new.slots, new.straight, new.root, new.ancestors,
            *entries, out, *scratch, arrivals, new.window or 0, LOG2_E / math.sqrt(size),
            tokens, some, group, heads.query, splits, slots,
            D=size, M=queries, NEW=_power(tokens), BLOCK=limits.BLOCK // 2 if large else limits.BLOCK,
            CHUNK=limits.CHUNK, WINDOW=new.window is not None, EARLY=early, num_warps=8 if large else 4,
            launch_pdl=early,
        )  # fmt: skip
    return out


class PackedTokens(NamedTuple):
    """Where the tokens of packed prompts go in the cache."""

    slots: Tensor  # [T]
    rows: Tensor  # [T]
    window: int | None = None  # tokens that a token sees at most


def prefill_attention(qkv: Tensor, rotation: Rotation, new: PackedTokens, entries: Entries, heads: Heads) -> Tensor:
    """As decode_attention, for whole prompts packed into one row: [1, T, ...] -> [1, T, heads * size]."""
    (_, count, _), size, early = qkv.shape, heads.size, launching.may_overlap(qkv.device)
    wide = qkv.element_size() == 4  # the registers have no room for many queries
    queries = limits.PREFILL_QUERIES // 4 if wide else limits.PREFILL_QUERIES
    tokens = 1 << max(queries // heads.group, 1).bit_length() - 1  # of a program
    out = qkv.new_empty(1, count, heads.query * size)
    with launching.current(qkv.device):
        prefill.prefill_attention[(-(-count // tokens), heads.kv)](
            qkv, *_contiguous(rotation), new.slots.contiguous(), new.rows.contiguous(),
            *entries, out, new.window or 0, LOG2_E / math.sqrt(size), count, heads.group, heads.query,
            entries[0].shape[2],
            D=size, TOKENS=tokens, M=max(16, 1 << (tokens * heads.group - 1).bit_length()),
            BLOCK=32 if wide or size > 64 else 64, WINDOW=new.window is not None, EARLY=early,
            num_warps=4, num_stages=1, launch_pdl=early,
        )  # fmt: skip
    return out


def megakernel(x: Tensor, rotation: Rotation, new: Decoded, table: Tensor, room: int, sizes: LayerSizes) -> Tensor:
    """x [B, T, width] through all layers of a table of addresses [layers, 9], in one launch.

    new     `slots` are [B, T] for nodes of a tree too, and there is no window
    room    slots of a row of the cache
    """
    (batch, tokens, width), rows, layers = x.shape, x.shape[0] * x.shape[1], len(table)
    heads, inner = sizes.heads, sizes.inner
    size, kv_heads, x = heads.size, heads.kv, x.clone()
    queries, splits = _power(tokens * heads.group), -(-room // limits.CHUNK)
    # sizes of programs; a warp has a column of its own where rows are few, and 8 of them divide half a head
    many = rows > limits.GEMV_ROWS
    most, warps, block, wide = (_power(rows), 4, 64, 128) if many else (rows, 8, 256, 256)
    count = batch * kv_heads * splits * queries
    partials = [x.new_empty(each, dtype=torch.float32) for each in (count, count, count * size)]
    mailed, scratch = 0, list[Tensor | None]([None] * 5)
    if many:
        squares = x.new_empty(rows * -(-width // limits.COLUMNS), dtype=torch.float32)
        attended = heads.query * size
        gained, *others = (x.new_empty(rows * each) for each in (width, attended, attended, inner))
        scratch = [gained, squares, *others]
    else:  # words are twice as wide as the numbers in them
        each = (2 * heads.query + 2 * kv_heads) * size + 2 * width + inner
        mailed = rows * (width + layers * each) * x.element_size() // 2
    zeros = torch.zeros(mailed + 1 + layers * batch * kv_heads, dtype=torch.int32, device=x.device)
    mail, arrivals = zeros[:mailed].view(torch.int32 if x.element_size() == 2 else torch.int64), zeros[mailed:]
    programs = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1
    with launching.current(x.device):
        whole.megakernel[(programs,)](
            x, *scratch, *_contiguous(rotation),
            new.slots.contiguous(), new.root, new.ancestors, table, *partials, arrivals, mail,
            layers, batch, tokens, sizes.eps, LOG2_E / math.sqrt(size), splits, room,
            WIDTH=width, H=heads.query, KV_HEADS=kv_heads, D=size, INNER=inner, BIASED=sizes.biased,
            M=most, MANY=many, BN=limits.COLUMNS, BG=2 * limits.COLUMNS, BK=block, BI=wide,
            QUERIES=queries, BP=_power(batch), BLOCK=limits.CHUNK, PROGRAMS=programs,
            num_warps=warps, launch_cooperative_grid=x.is_cuda,
        )  # fmt: skip
    return x


class Buffers(NamedTuple):
    """Buffers [rows, heads, slots, width] of a cache, whose entries move together."""

    table: Tensor  # [buffers, 3] int64, on the device: address, heads, width
    like: Tensor  # one of the buffers
    widest: int  # numbers of a slot

    @staticmethod
    def of(buffers: list[Tensor]) -> Buffers:
        rows = [[buffer.data_ptr(), buffer.shape[1], buffer.shape[3]] for buffer in buffers]
        table = torch.tensor(rows, dtype=torch.int64, device=buffers[0].device)
        return Buffers(table, buffers[0], max(heads * width for _, heads, width in rows))


def compact_cache(buffers: Buffers, root: Tensor, path: Tensor, count: Tensor) -> None:
    """Move the first count [B] nodes of each path [B, D] to the slots after the root's [B]."""
    chunks = -(-buffers.widest // limits.MOVED)
    with launching.current(path.device):
        compaction.compact_cache[(len(buffers.table), chunks, len(path))](
            buffers.table, buffers.like, root.contiguous(), path.contiguous(), count.contiguous(),
            buffers.like.shape[2], path.shape[1], BLOCK=limits.MOVED, num_warps=4,
        )  # fmt: skip


def _contiguous(rotation: Rotation) -> Rotation:
    return rotation[0].contiguous(), rotation[1].contiguous()


def _power(count: int) -> int:
    """The next power of 2, at least 16: sides of matrices that are multiplied."""
    return max(16, 1 << (count - 1).bit_length())
