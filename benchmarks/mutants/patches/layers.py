# ruff: noqa: E501 - a fault is one line
"""Faults in native/attention.c, layers.c, linear.c, layout.c: what a token sees, where its entries go, its arithmetic."""

from benchmarks.mutants.mutant import Patch

SEEN = (
    ("return slots ? slots[at] : n->start + at % n->tokens;", "return slots ? slots[at] : n->start;", "all tokens of a call go to one slot"),
    ("at / n->tokens * n->mask_row + at", "at", "every row has the first row's mask"),
    ("first = own > 0;", "first = 0;", "a text sees the padding"),
    ("own - mask->window + 1 > first) first = own - mask->window + 1;", "own - mask->window > first) first = own - mask->window;", "a window is one slot too wide"),
    ("return (Seen){first, own + 1 - first, own + 1};", "return (Seen){first, own - first, own};", "a token does not see itself"),
    ("return (Seen){first, own + 1 - first, own + 1};", "return (Seen){first, own + 2 - first, own + 2};", "a token sees the one after it"),
    ("row[seen.first + seen.run] >= HIDDEN;) seen.run++;", "1;) seen.run++;", "a node of a tree sees what lies between its ancestors"),
    ("if (work.added[s] >= HIDDEN) scattered", "if (1) scattered", "a node of a tree sees all nodes between its ancestors and itself"),
    ("if (another) call->seen[r]", "if (!l) call->seen[r]", "all layers have the first layer's window"),
    ("(h - n->heads) % n->kv_heads) * n->room + slot)", "(h - n->heads) % n->kv_heads) * n->room + slot + 1)", "entries are written one slot too far"),
    ("h < n->heads + n->kv_heads && i < half; i++) {", "h < n->heads && i < half; i++) {", "keys are not rotated"),
    ("if (!n->padded || slot_of(n, slots, at)) live", "if (slot_of(n, slots, at) > 1 || !n->padded) live", "the first token of a text counts as padding"),
    ("work.added = row_of(n, mask, live.at[t]);", "work.added = row_of(n, mask, t);", "beside padding a token has another one's mask"),
    ("long start = (b * n->kv_heads + h) * n->room * n->size;", "long start = h * n->room * n->size;", "all rows read the first row's cache"),
)  # fmt: skip
ATTENTION = tuple(Patch("native/layers.c" if "another" in fault[0] else "native/attention.c", *fault) for fault in SEEN)
LAYERS = (
    Patch("native/layers.c", "for (long i = 0; l && i < width; i++) row[i] += added", "for (long i = 0; 0 && i < width; i++) row[i] += added", "a layer's result is not added to the stream"),
    Patch("native/layers.c", "*keys = call->caches[2 * l], *values = call->caches[2 * l + 1];", "*keys = call->caches[0], *values = call->caches[1];", "all layers write into the first layer's cache"),
    Patch("native/layers.c", "rotate_and_store(&n, call->live.at[r], qkv,", "rotate_and_store(&n, r, qkv,", "beside padding entries go to other tokens' slots"),
    Patch("native/layers.c", "x[live.at[r] * width + i] += added[r * width + i];", "x[r * width + i] += added[r * width + i];", "beside padding a token gets another one's result"),
    Patch("native/linear.c", "some |= mask[i];", "some = mask[i];", "the scores of a group are left out by its last token"),
    Patch("native/linear.c", "if (layer->bias) y += *(const Floats *)(layer->bias + n);", "", "a quantised layer forgets its bias"),
    Patch("native/noise.c", "c2 = names[2], c3 = names[1];", "c2 = names[1], c3 = names[2];", "request and step change places in the name of a number"),
    Patch("native/noise.c", "(uint64_t)names[0] >> 32;", "0;", "the high half of a seed does not count"),
    Patch("native/step.c", "if (i + 1 == count || reached < least) return i + 1;", "if (i + 1 == count) return i + 1;", "a chain goes on where its next token is unlikely to be reached"),
    Patch("native/network.c", "cos + positions[i] * size", "cos + i * size", "tokens are rotated by their place in the call"),
    Patch("native/network.c", "net->eps, all ? n.tokens : keep, width, some);", "net->eps, keep, width, some);", "not all states that a head reads are normed"),
)  # fmt: skip
