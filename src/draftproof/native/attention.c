/* Attention with a KV cache of numbered slots. A token adds up what it sees in the order of slots, and nothing else is
   touched, so its result depends neither on the call it is part of nor on where its path lies in a tree. */

#include "lanes.h"

/* Sizes of a call. */
typedef struct {
    long batch, tokens, heads, kv_heads, size; /* `heads` of queries; all of `size` numbers */
    long room, start;                          /* slots of a row of the cache; the first one that is written */
    long begin, end;                           /* slots that are read */
    long mask_row, mask_token;                 /* strides */
} Sizes;

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

/* Dot products of a query with 16 keys. */
INLINE Lanes dots(const float *query, const float *const *keys, long size) {
    Lanes part[LANES];
    for (int j = 0; j < LANES; j++) {
        const float *key = keys[j];
        for (long i = 0; i < size; i += LANES) {
            Lanes q = load_some(query + i, size - i, 0), k = load_some(key + i, size - i, 0);
            for (int p = 0; p < PARTS; p++) {
                if (i) part[j].part[p] += q.part[p] * k.part[p];
                else part[j].part[p] = q.part[p] * k.part[p];
            }
        }
    }
    return sums_of(part);
}

enum { PART = 32 };                                             /* slots whose values are added in one go */
#define COLUMNS (WIDTH == 16 ? 4 : 8)                           /* registers for sums */

/* out [size] += weights [count] @ rows of values [count, size]. */
INLINE void add_weighted(const float *weights, const float *const *rows, long count, long size, float *out) {
    long i = 0;
    for (; i + COLUMNS * WIDTH <= size; i += COLUMNS * WIDTH) {
        Floats sum[COLUMNS];
        for (int c = 0; c < COLUMNS; c++) sum[c] = *(Floats *)(out + i + c * WIDTH);
        for (long s = 0; s < count; s++)
            for (int c = 0; c < COLUMNS; c++) sum[c] += weights[s] * *(const Floats *)(rows[s] + i + c * WIDTH);
        for (int c = 0; c < COLUMNS; c++) *(Floats *)(out + i + c * WIDTH) = sum[c];
    }
    for (; i + WIDTH <= size; i += WIDTH) {
        Floats sum = *(Floats *)(out + i);
        for (long s = 0; s < count; s++) sum += weights[s] * *(const Floats *)(rows[s] + i);
        *(Floats *)(out + i) = sum;
    }
    for (; i < size; i++)
        for (long s = 0; s < count; s++) out[i] += weights[s] * rows[s][i];
}

/* Softmax of scores [whole], whole lanes. */
INLINE void softmax(float *scores, long whole) {
    Lanes most = load(scores), sums = filled(0);
    for (long s = LANES; s < whole; s += LANES) {
        Lanes some = load(scores + s);
        for (int p = 0; p < PARTS; p++) most.part[p] = larger(some.part[p], most.part[p]);
    }
    Floats largest = spread(largest_of(most));
    for (long s = 0; s < whole; s += LANES) {
        Lanes some = load(scores + s);
        for (int p = 0; p < PARTS; p++) sums.part[p] += some.part[p] = weight_of(some.part[p] - largest);
        store(some, scores + s);
    }
    Floats total = spread(sum_of(sums));
    for (long s = 0; s < whole; s += WIDTH) *(Floats *)(scores + s) /= total;
}

enum { TOKENS = 8 }; /* of one row that read keys and values together, while those are in the nearest cache */

/* One head of keys and values, and the queries of some tokens that share it. */
typedef struct {
    long count, group;            /* tokens; queries of each */
    const float *query[TOKENS];   /* [group, size] of each */
    const float *added[TOKENS];   /* rows of the mask, by slot, or null */
    Seen seen[TOKENS];
    long visible[TOKENS];         /* how many slots each sees */
    const int32_t *scattered;     /* slots after the gap; then there is a single token */
    const float *keys, *values;   /* [slots, size] */
    float *out[TOKENS];           /* [group, size] of each */
} Work;

INLINE long slot_at(const Work *work, long t, long s) {
    return s < work->seen[t].run ? work->seen[t].first + s : work->scattered[s - work->seen[t].run];
}

INLINE void attend_some(const Work *work, long size, long whole, float *weights) {
    long group = work->group, most = 0;
    float scale = 1 / sqrtf(size);
    for (long t = 0; t < work->count; t++) most = work->visible[t] > most ? work->visible[t] : most;
    for (long s = 0; s < most; s += LANES)
        for (long t = 0; t < work->count; t++) {
            const float *keys[LANES];
            float added[LANES];
            long left = work->visible[t] - s;
            if (left <= 0) continue;
            for (int j = 0; j < LANES; j++) {
                long slot = slot_at(work, t, j < left ? s + j : s);
                keys[j] = work->keys + slot * size;
                added[j] = j >= left ? -INFINITY : work->added[t] ? work->added[t][slot] : 0;
            }
            for (long g = 0; g < group; g++) {
                Lanes score = dots(work->query[t] + g * size, keys, size), more = load(added);
                for (int p = 0; p < PARTS; p++) score.part[p] = scale * score.part[p] + more.part[p];
                store(score, weights + (t * group + g) * whole + s);
            }
        }
    for (long t = 0; t < work->count; t++)
        for (long g = 0; g < group; g++) {
            softmax(weights + (t * group + g) * whole, (work->visible[t] + LANES - 1) / LANES * LANES);
            for (long i = 0; i < size; i++) work->out[t][g * size + i] = 0;
        }
    for (long s = 0; s < most; s += PART)
        for (long t = 0; t < work->count; t++) {
            const float *rows[PART];
            long left = work->visible[t] - s < PART ? work->visible[t] - s : PART;
            for (long j = 0; j < left; j++) rows[j] = work->values + slot_at(work, t, s + j) * size;
            for (long g = 0; left > 0 && g < group; g++)
                add_weighted(weights + (t * group + g) * whole + s, rows, left, size, work->out[t] + g * size);
        }
}

/* Tokens that read the cache together; fewer where their weights would not stay in a cache either. */
static inline long together(const Sizes *n) {
    long group = n->heads / n->kv_heads, most = (1 << 16) / (group * (n->end + LANES));
    most = most < TOKENS ? most : TOKENS;
    most = most < n->tokens ? most : n->tokens;
    return most > 1 ? most : 1;
}

/* Floats of scratch that each thread needs in `attend_all`. */
static inline long attention_scratch(const Sizes *n) {
    return (together(n) * (n->heads / n->kv_heads) + 1) * (n->end + LANES);
}

/* Attention of every token: out [batch, tokens, heads, size]; scratch is the thread's own. Called by all threads
   together. */
static void attend_all(const Sizes *n, const float *qkv, const float *keys, const float *values, const Mask *mask,
                       const Seen *seen, float *scratch, float *out) {
    long all = n->heads + 2 * n->kv_heads, group = n->heads / n->kv_heads, step = together(n);
    long tiles = (n->tokens + step - 1) / step, whole = (n->end + LANES - 1) / LANES * LANES;
    int32_t *scattered = (int32_t *)(scratch + step * group * whole);
#pragma omp for collapse(3) schedule(static, 1) /* later tokens see more, so neighbours go to different threads */
    for (long b = 0; b < n->batch; b++)
        for (long h = 0; h < n->kv_heads; h++)
            for (long tile = 0; tile < tiles; tile++) {
                long from = tile * step, to = from + step < n->tokens ? from + step : n->tokens;
                long start = (b * n->kv_heads + h) * n->room * n->size;
                Work work = {.group = group, .scattered = scattered, .keys = keys + start, .values = values + start};
                for (long t = from; t < to; t++) {
                    long at = b * n->tokens + t, i = work.count++;
                    const Seen *mine = seen + at;
                    work.query[i] = qkv + (at * all + h * group) * n->size;
                    work.out[i] = out + (at * n->heads + h * group) * n->size;
                    work.added[i] = row_of(n, mask, at);
                    work.seen[i] = *mine;
                    work.visible[i] = mine->run;
                    int gap = mine->first + mine->run < mine->last;
                    if (gap && i) { /* alone, in the next round */
                        work.count--, t--;
                    } else if (gap) {
                        for (long s = mine->first + mine->run; s < mine->last; s++)
                            if (work.added[i][s] >= HIDDEN) scattered[work.visible[i]++ - mine->run] = s;
                    }
                    if (!gap && t + 1 < to) continue;
                    if (n->size == 64) /* usual sizes, as constants for the compiler */
                        attend_some(&work, 64, whole, scratch);
                    else if (n->size == 32)
                        attend_some(&work, 32, whole, scratch);
                    else if (n->size == 128)
                        attend_some(&work, 128, whole, scratch);
                    else
                        attend_some(&work, n->size, whole, scratch);
                    work.count = 0;
                }
            }
}

/* qkv [batch, tokens, heads + 2 * kv_heads, size] holds queries, keys and values. Rotates the queries and keys of one
   token by cos and sin [batch, tokens, size] in place, and writes keys and values [rows, kv_heads, room, size] into its
   slot of slots [batch, tokens], or from n->start on. */
static void rotate_and_store(const Sizes *n, long at, float *qkv, const float *cos, const float *sin,
                             const long *slots, float *keys, float *values) {
    long half = n->size / 2, all = n->heads + 2 * n->kv_heads;
    const float *c = cos + at * n->size, *s = sin + at * n->size;
    long slot = slot_of(n, slots, at), row = at / n->tokens;
    for (long h = 0; h < all; h++) {
        float *x = qkv + (at * all + h) * n->size;
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

/* Rotation, then attention: out [batch, tokens, heads, size]. */
void attend(Sizes n, float *qkv, const float *cos, const float *sin, const long *slots, float *keys, float *values,
            Mask mask, float *out) {
    long rows = n.batch * n.tokens;
    Seen *seen = malloc(rows * sizeof(Seen));
#pragma omp parallel if (rows * n.heads * (n.end - n.begin) > 4096)
    {
        float *scratch = malloc(attention_scratch(&n) * sizeof(float));
#pragma omp for schedule(static)
        for (long at = 0; at < rows; at++) {
            rotate_and_store(&n, at, qkv, cos, sin, slots, keys, values);
            seen[at] = look(&n, &mask, slots, at);
        }
        attend_all(&n, qkv, keys, values, &mask, seen, scratch, out);
        free(scratch);
    }
    free(seen);
}
