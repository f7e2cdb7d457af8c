/* Attention with a KV cache of numbered slots. A token adds up what it sees in the order of slots, and nothing else is
   touched, so its result depends neither on the call it is part of nor on where its path lies in a tree. */

#include "lanes.h"
#include <limits.h>
#include <omp.h>

/* Sizes of a call. */
typedef struct {
    long batch, tokens, heads, kv_heads, size; /* `heads` of queries; all of `size` numbers */
    long room, start;                          /* slots of a row of the cache; the first one that is written */
    long begin, end;                           /* slots that are read */
    long mask_row, mask_token;                 /* strides */
    long padded;                               /* whether tokens in slot 0 are padding, which is not computed */
} Sizes;

/* The tokens of a call that are computed, row by row: `at` [count] says where each stands in the call, and those of row b
   are the ones from starts[b] to starts[b + 1]. */
typedef struct {
    long count, *at, *starts;
} Live;

/* What tokens see. With window >= 0 the slots up to their own, except slot 0, which only padding sees; the last `window`
   of them if that is not zero. Otherwise the slots whose `added` [batch, tokens, end - begin] is not hugely negative; it
   is added to the scores. Without it, all that are read. */
typedef struct {
    const float *added;
    long window;
} Mask;

/* What one token sees: `run` slots from the first on, and after a gap perhaps some more before `last`. */
typedef struct {
    long first, run, last;
} Seen;

static const float HIDDEN = -1e30f;

static inline long slot_of(const Sizes *n, const long *slots, long at) {
    return slots ? slots[at] : n->start + at % n->tokens;
}

static Live live_tokens(const Sizes *n, const long *slots) {
    Live live = {0, malloc(n->batch * n->tokens * sizeof(long)), malloc((n->batch + 1) * sizeof(long))};
    for (long at = 0; at < n->batch * n->tokens; at++) {
        if (at % n->tokens == 0) live.starts[at / n->tokens] = live.count;
        if (!n->padded || slot_of(n, slots, at)) live.at[live.count++] = at;
    }
    live.starts[n->batch] = live.count;
    return live;
}

static void release(Live live) { free(live.at), free(live.starts); }

/* The row of a mask that belongs to a token, by slot; null where there is none. */
static inline const float *row_of(const Sizes *n, const Mask *mask, long at) {
    if (mask->window >= 0 || !mask->added) return 0;
    return mask->added + at / n->tokens * n->mask_row + at % n->tokens * n->mask_token - n->begin;
}

static Seen look(const Sizes *n, const Mask *mask, const long *slots, long at) {
    Seen seen = {n->begin, n->end - n->begin, n->end};
    const float *row = row_of(n, mask, at);
    if (mask->window >= 0) {
        long own = slot_of(n, slots, at), first = own > 0;
        if (mask->window && own - mask->window + 1 > first) first = own - mask->window + 1;
        return (Seen){first, own + 1 - first, own + 1};
    }
    if (!row) return seen;
    while (seen.first < seen.last && row[seen.first] < HIDDEN) seen.first++;
    while (seen.last > seen.first && row[seen.last - 1] < HIDDEN) seen.last--;
    for (seen.run = 0; seen.first + seen.run < seen.last && row[seen.first + seen.run] >= HIDDEN;) seen.run++;
    return seen;
}

enum { BESIDE = WIDTH == 16 ? 3 : 1 }; /* queries that are multiplied with a key while it is in a register */

/* Dot products of some queries [size] with 16 keys [16, size]. */
INLINE void dots(const int queries, const float *const *query, const float *keys, long size, Lanes *out) {
    Lanes fours[BESIDE][4];
    for (int f = 0; f < 4; f++) {
        Lanes part[BESIDE][4];
#pragma GCC unroll 4 /* or its sums are kept in memory */
        for (int j = 0; j < 4; j++)
            for (long i = 0; i < size; i += LANES) {
                Lanes k = load_some(keys + (4 * f + j) * size + i, size - i, 0);
                for (int q = 0; q < queries; q++) {
                    Lanes x = load_some(query[q] + i, size - i, 0);
                    for (int p = 0; p < PARTS; p++) {
                        if (i) part[q][j].part[p] += x.part[p] * k.part[p];
                        else part[q][j].part[p] = x.part[p] * k.part[p];
                    }
                }
            }
        for (int q = 0; q < queries; q++) fours[q][f] = fours_of(part[q]);
    }
    for (int q = 0; q < queries; q++) out[q] = sums_of(fours[q]);
}

/* Scores [whole lanes] become exp(score - largest); returns their sum. */
INLINE float weigh(float *scores, long count) {
    Lanes most = load(scores), sums = filled(0);
    for (long s = LANES; s < count; s += LANES) {
        Lanes some = load(scores + s);
        for (int p = 0; p < PARTS; p++) most.part[p] = larger(some.part[p], most.part[p]);
    }
    Floats largest = spread(largest_of(most));
    for (long s = 0; s < count; s += LANES) {
        Lanes some = load(scores + s);
        for (int p = 0; p < PARTS; p++) sums.part[p] += some.part[p] = weight_of(some.part[p] - largest);
        store(some, scores + s);
    }
    return sum_of(sums);
}

enum { TOGETHER = WIDTH == 16 ? 4 : 2 }; /* queries whose sums stay in registers */

/* `across` registers of columns from column i on, of what add_weighted does. */
INLINE void add_columns(const int queries, const int across, const float *weights, long stride, const float *values,
                        long count, long size, float *const *out, long i) {
    Floats sum[4][4];
    for (int q = 0; q < queries; q++)
        for (int c = 0; c < across; c++) sum[q][c] = *(Floats *)(out[q] + i + c * WIDTH);
    for (long s = 0; s < count; s++)
        for (int c = 0; c < across; c++) {
            Floats value = *(const Floats *)(values + s * size + i + c * WIDTH);
            for (int q = 0; q < queries; q++) sum[q][c] += weights[q * stride + s] * value;
        }
    for (int q = 0; q < queries; q++)
        for (int c = 0; c < across; c++) *(Floats *)(out[q] + i + c * WIDTH) = sum[q][c];
}

/* For QUERIES queries: out [size] += weights [count] @ values [count, size], slot after slot. A function of its own each,
   so that its sums stay in registers. */
#define ADD_WEIGHTED(QUERIES)                                                                                         \
    static __attribute__((noinline)) void add_weighted##QUERIES(const float *weights, long stride, const float *values, \
                                                                long count, long size, float *const *out) {           \
        long i = 0;                                                                                                   \
        for (; i + 4 * WIDTH <= size; i += 4 * WIDTH)                                                                 \
            add_columns(QUERIES, 4, weights, stride, values, count, size, out, i);                                    \
        for (; i + 2 * WIDTH <= size; i += 2 * WIDTH)                                                                 \
            add_columns(QUERIES, 2, weights, stride, values, count, size, out, i);                                    \
        for (; i + WIDTH <= size; i += WIDTH) add_columns(QUERIES, 1, weights, stride, values, count, size, out, i);  \
        for (; i < size; i++)                                                                                         \
            for (int q = 0; q < QUERIES; q++)                                                                         \
                for (long s = 0; s < count; s++) out[q][i] += weights[q * stride + s] * values[s * size + i];         \
    }
ADD_WEIGHTED(1) ADD_WEIGHTED(2) ADD_WEIGHTED(3) ADD_WEIGHTED(4)

typedef void AddWeighted(const float *, long, const float *, long, long, float *const *);
static AddWeighted *const ADD_WEIGHTED[] = {add_weighted1, add_weighted2, add_weighted3, add_weighted4};

enum { TOKENS = 8, PART = 32 }; /* tokens, and slots, that are worked on while they are in the nearest cache */
enum { AHEAD = 4 * LANES };     /* slots whose keys are prefetched before they are worked on */

/* One head of keys and values, and the queries of some tokens that share it and see slots from the same one on. */
typedef struct {
    long count, group;          /* tokens; queries of each */
    const float *query[TOKENS]; /* [group, size] of each */
    float *out[TOKENS];         /* [group, size] of each */
    long visible[TOKENS];       /* how many slots each sees */
    const float *added;         /* a row of the mask, by slot; then there is a single token, as where there is a gap */
    long first, run;            /* the slots before the gap, if there is one */
    const int32_t *scattered;   /* those after it */
    const float *keys, *values; /* [room, size] */
    long room;
} Work;

INLINE long slot_at(const Work *work, long s) {
    return s < work->run ? work->first + s : work->scattered[s - work->run];
}

/* Prefetches 16 entries: they often begin a new page, where a processor does not go on prefetching by itself. */
INLINE void prefetch_entries(const float *entries, long size) {
    for (long i = 0; i < LANES * size; i += LANES) __builtin_prefetch(entries + i, 0, 2);
}

/* Scores of slots s to s + 15 of one query of token t, or BESIDE of them, from query g on: out [count, whole]. */
INLINE void score_some(const Work *work, long count, long t, long g, long size, const float *keys, long s, float *out,
                       long whole) {
    const float *query[BESIDE], scale = 1 / sqrtf(size);
    Lanes product[BESIDE];
    for (long q = 0; q < count; q++) query[q] = work->query[t] + (g + q) * size;
    if (count == BESIDE)
        dots(BESIDE, query, keys, size, product);
    else
        dots(1, query, keys, size, product);
    for (long q = 0, left = work->visible[t] - s; q < count; q++, out += whole) {
        for (int p = 0; p < PARTS; p++) product[q].part[p] *= scale;
        store(product[q], out);
        for (long j = 0; work->added && j < left && j < LANES; j++) out[j] += work->added[slot_at(work, s + j)];
        for (long j = left; j < LANES; j++) out[j] = -INFINITY;
    }
}

/* Weights [tokens * group, whole] and their sums; `some` [16, size] is scratch. */
INLINE void score(const Work *work, long size, long whole, float *some, float *weights, float *sums) {
    long group = work->group, most = 0;
    for (long t = 0; t < work->count; t++) most = work->visible[t] > most ? work->visible[t] : most;
    for (long s = 0; s < most; s += LANES) {
        const float *keys = work->keys + (work->first + s) * size;
        prefetch_entries(keys + AHEAD * size, size);
        prefetch_entries(work->values + (work->first + s) * size, size);
        if (s + LANES > work->run || work->first + s + LANES > work->room) { /* not side by side, or beyond the end */
            for (long j = 0; j < LANES; j++)
                for (long i = 0; i < size; i++)
                    some[j * size + i] = s + j < most ? work->keys[slot_at(work, s + j) * size + i] : 0;
            keys = some;
        }
        for (long t = 0; t < work->count; t++) {
            long left = work->visible[t] - s;
            for (long g = 0, count; left > 0 && g < group; g += count) {
                count = group - g < BESIDE ? 1 : BESIDE;
                score_some(work, count, t, g, size, keys, s, weights + (t * group + g) * whole + s, whole);
            }
        }
    }
    for (long t = 0; t < work->count; t++)
        for (long g = 0; g < group; g++)
            sums[t * group + g] = weigh(weights + (t * group + g) * whole, work->visible[t]);
}

/* out = weights @ values / sums. */
INLINE void gather(const Work *work, long size, long whole, const float *weights, const float *sums) {
    long group = work->group, queries = work->count * group, most = 0;
    for (long t = 0; t < work->count; t++) {
        most = work->visible[t] > most ? work->visible[t] : most;
        for (long i = 0; i < group * size; i++) work->out[t][i] = 0;
    }
    for (long s = 0, step; s < most; s += step) {
        step = s < work->run ? (work->run - s < PART ? work->run - s : PART) : 1;
        const float *values = work->values + slot_at(work, s) * size;
        for (long q = 0; q < queries; q += TOGETHER) {
            const float *from = weights + q * whole + s;
            float *to[TOGETHER];
            long left[TOGETHER], all = step, count = queries - q < TOGETHER ? queries - q : TOGETHER;
            for (long i = 0; i < count; i++) {
                long t = (q + i) / group;
                to[i] = work->out[t] + (q + i) % group * size;
                left[i] = work->visible[t] - s < step ? work->visible[t] - s : step;
                all = left[i] < all ? left[i] : all;
            }
            if (all < 0) all = 0;
            ADD_WEIGHTED[count - 1](from, whole, values, all, size, to);
            for (long i = 0; i < count; i++) /* what only some of them see */
                if (left[i] > all)
                    add_weighted1(from + i * whole + all, whole, values + all * size, left[i] - all, size, to + i);
        }
    }
    for (long q = 0; q < queries; q++)
        for (long i = 0; i < size; i++) work->out[q / group][q % group * size + i] /= sums[q];
}

INLINE void attend_some(const Work *work, long size, long whole, float *scratch) {
    float *weights = scratch, *sums = weights + work->count * work->group * whole;
    score(work, size, whole, sums + work->count * work->group, weights, sums);
    gather(work, size, whole, weights, sums);
}

/* Tokens that read the cache together; fewer where their weights would not stay in a cache either. */
static inline long together(const Sizes *n) {
    long group = n->heads / n->kv_heads, most = (1 << 16) / (group * (n->end + LANES));
    most = most < TOKENS ? most : TOKENS;
    most = most < n->tokens ? most : n->tokens;
    return most > 1 ? most : 1;
}

/* How many parts the tokens come in, by `step` of each head. */
static inline long parts_of(const Sizes *n, long step) {
    return n->batch * n->kv_heads * ((n->tokens + step - 1) / step);
}

/* Tokens that read the cache together, so that threads have as much to do as each other where there are few parts. */
static long balanced(const Sizes *n, long threads) {
    long most = together(n), best = most, least = LONG_MAX;
    for (long step = most; 2 * step >= most && parts_of(n, most) < 4 * threads; step--) {
        long longest = (parts_of(n, step) + threads - 1) / threads * step;
        if (longest < least) best = step, least = longest;
    }
    return best;
}

/* Floats of scratch that each thread needs in `attend_all`. */
static inline long attention_scratch(const Sizes *n) {
    return together(n) * (n->heads / n->kv_heads) * (n->end + LANES + 1) + LANES * n->size + n->end;
}

/* Attention of every live token: qkv [live, heads + 2 * kv_heads, size], out [live, heads, size]; scratch is the thread's
   own. Called by all threads together. */
static void attend_all(const Sizes *n, Live live, const float *qkv, const float *keys, const float *values,
                       const Mask *mask, const Seen *seen, long step, float *scratch, float *out) {
    long all = n->heads + 2 * n->kv_heads, group = n->heads / n->kv_heads;
    long tiles = (n->tokens + step - 1) / step, whole = (n->end + LANES - 1) / LANES * LANES;
    int32_t *scattered = (int32_t *)scratch;
    float *rest = scratch + n->end;
#pragma omp for collapse(3) schedule(dynamic) /* later tokens see more */
    for (long b = 0; b < n->batch; b++)
        for (long h = 0; h < n->kv_heads; h++)
            for (long tile = 0; tile < tiles; tile++) {
                long start = (b * n->kv_heads + h) * n->room * n->size;
                Work work = {.group = group, .room = n->room, .scattered = scattered};
                work.keys = keys + start, work.values = values + start;
                long first = live.starts[b] + tile * step, end = live.starts[b + 1];
                end = end < first + step ? end : first + step;
                for (long t = first; t < end; t++) {
                    long i = work.count++;
                    const Seen *mine = seen + t, *next = mine + 1;
                    int gap = mine->first + mine->run < mine->last;
                    work.query[i] = qkv + (t * all + h * group) * n->size;
                    work.out[i] = out + (t * n->heads + h * group) * n->size;
                    work.added = row_of(n, mask, live.at[t]);
                    work.first = mine->first, work.visible[i] = mine->run;
                    work.run = i && work.run > mine->run ? work.run : mine->run;
                    for (long s = mine->first + mine->run; gap && s < mine->last; s++)
                        if (work.added[s] >= HIDDEN) scattered[work.visible[i]++ - mine->run] = s;
                    if (t + 1 < end && !work.added && next->first == work.first) continue;
                    if (n->size == 64) /* usual sizes, as constants for the compiler */
                        attend_some(&work, 64, whole, rest);
                    else if (n->size == 32)
                        attend_some(&work, 32, whole, rest);
                    else if (n->size == 128)
                        attend_some(&work, 128, whole, rest);
                    else
                        attend_some(&work, n->size, whole, rest);
                    work.count = 0;
                }
            }
}

/* qkv [heads + 2 * kv_heads, size] are queries, keys and values of the token that stands at `at` in the call. Rotates
   queries and keys by cos and sin [batch, tokens, size] in place, and writes keys and values [rows, kv_heads, room, size]
   into its slot of slots [batch, tokens], or from n->start on. */
static void rotate_and_store(const Sizes *n, long at, float *qkv, const float *cos, const float *sin,
                             const long *slots, float *keys, float *values) {
    long half = n->size / 2, all = n->heads + 2 * n->kv_heads;
    const float *c = cos + at * n->size, *s = sin + at * n->size;
    long slot = slot_of(n, slots, at), row = at / n->tokens;
    for (long h = 0; h < all; h++) {
        float *x = qkv + h * n->size;
        for (long i = 0; h < n->heads + n->kv_heads && i < half; i++) {
            float left = x[i], right = x[i + half];
            x[i] = left * c[i] + right * s[i];
            x[i + half] = right * c[i + half] + left * s[i + half];
        }
        if (h >= n->heads) {
            float *entry = h < n->heads + n->kv_heads ? keys : values;
            entry += ((row * n->kv_heads + (h - n->heads) % n->kv_heads) * n->room + slot) * n->size;
            for (long i = 0; i < n->size; i++) entry[i] = x[i];
        }
    }
}

/* Rotation, then attention, of calls without padding: out [batch, tokens, heads, size]. */
void attend(Sizes n, float *qkv, const float *cos, const float *sin, const long *slots, float *keys, float *values,
            Mask mask, float *out) {
    Live live = live_tokens(&n, slots);
    long rows = live.count, width = (n.heads + 2 * n.kv_heads) * n.size;
    Seen *seen = malloc(rows * sizeof(Seen));
    long step = balanced(&n, omp_get_max_threads());
#pragma omp parallel if (rows * n.heads * (n.end - n.begin) > 4096)
    {
        float *scratch = malloc(attention_scratch(&n) * sizeof(float));
#pragma omp for schedule(static)
        for (long r = 0; r < rows; r++) {
            rotate_and_store(&n, live.at[r], qkv + r * width, cos, sin, slots, keys, values);
            seen[r] = look(&n, &mask, slots, live.at[r]);
        }
        attend_all(&n, live, qkv, keys, values, &mask, seen, step, scratch, out);
        free(scratch);
    }
    free(seen);
    release(live);
}
