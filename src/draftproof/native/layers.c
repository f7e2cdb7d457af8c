/* Layers of the Llama family. Every row is computed by itself and by the same instructions, so its result does not depend
   on the rows beside it. */

#include <math.h>
#include <stdint.h>

/* exp(x) with a relative error below 1e-6; larger and smaller results are clamped to 2^126 and 2^-126. */
static inline float exponential(float x) {
    float t = x * 1.44269504f;
    t = t > -126 ? t : -126;
    t = t < 126 ? t : 126;
    float whole = rintf(t), f = t - whole;
    union {
        int32_t bits;
        float number;
    } power = {((int32_t)whole + 127) << 23};
    float p = 0.00133335581f + f * 0.000154035304f;
    p = 0.0555041087f + f * (0.00961812911f + f * p);
    return power.number * (1 + f * (0.693147181f + f * (0.240226507f + f * p)));
}

/* out [width] = silu(gate) * up, which lie side by side in gate_up [2 * width]. */
static inline void gate_row(const float *gate_up, long width, float *out) {
    for (long i = 0; i < width; i++) out[i] = gate_up[i] / (1 + exponential(-gate_up[i])) * gate_up[width + i];
}

void gate(const float *gate_up, long rows, long width, float *out) {
    for (long r = 0; r < rows; r++) gate_row(gate_up + r * 2 * width, width, out + r * width);
}

/* Sizes of a call. */
typedef struct {
    long batch, tokens, heads, kv_heads, size; /* `heads` of queries; all of `size` numbers */
    long room, start;                          /* slots of a row of the cache; the first one that is written */
    long begin, end;                           /* slots that are read */
    long mask_row, mask_token;                 /* strides */
} Sizes;

enum { AHEAD = 4096 }; /* bytes: how far ahead weights are prefetched */

typedef float Lanes __attribute__((vector_size(64), aligned(4)));
typedef int32_t Whole __attribute__((vector_size(64), aligned(4)));

static inline Lanes choose(Whole where, Lanes yes, Lanes no) { return (Lanes)((where & (Whole)yes) | (~where & (Whole)no)); }
static inline Lanes larger(Lanes a, Lanes b) { return choose(a > b, a, b); }

/* exp of numbers that are not positive; zero below -60: products of smaller results would be denormal, and slow. */
static inline Lanes exponentials(Lanes x) {
    const Lanes zero = {0};
    Lanes t = choose(x < -60, zero - 60, x);
    Whole whole = __builtin_convertvector(t * 1.44269504f - 0.5f, Whole); /* the nearest */
    Lanes f = t * 1.44269504f - __builtin_convertvector(whole, Lanes), p = 0.00133335581f + f * 0.000154035304f;
    p = 0.0555041087f + f * (0.00961812911f + f * p);
    p = 1 + f * (0.693147181f + f * (0.240226507f + f * p));
    return choose(x < -60, zero, (Lanes)((whole + 127) << 23) * p);
}

/* The sum of each of 16 vectors, in the lane of its number. */
static inline Lanes sums_of(Lanes *x) {
#ifdef __clang__ /* its shuffles are spelled differently */
    Lanes sums = {0};
    for (int j = 0; j < 16; j++)
        for (int i = 0; i < 16; i++) sums[j] += x[j][i];
    return sums;
#else
    const Whole even[] = {{0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30},
                          {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29},
                          {0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27},
                          {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}};
    for (int stage = 0; stage < 4; stage++)
        for (int i = 0; i < 8 >> stage; i++)
            x[i] = __builtin_shuffle(x[2 * i], x[2 * i + 1], even[stage]) +
                   __builtin_shuffle(x[2 * i], x[2 * i + 1], even[stage] + (1 << stage));
    return x[0];
#endif
}

/* Dot products of a query with 16 keys from `key` on, of which only the first `left` exist. */
static inline Lanes dots(const float *query, const float *key, long left, long size) {
    Lanes part[16], sums = {0};
    for (int j = 0; j < 16; j++) {
        const float *k = key + (j < left ? j : 0) * size;
        if (size % 16) {
            for (long i = 0; i < size; i++) sums[j] += query[i] * k[i];
            continue;
        }
        part[j] = *(const Lanes *)query * *(const Lanes *)k;
        for (long i = 16; i < size; i += 16) part[j] += *(const Lanes *)(query + i) * *(const Lanes *)(k + i);
    }
    return size % 16 ? sums : sums_of(part);
}

/* out [size] += weights [count] @ values [count, size]. */
static inline void add_weighted(const float *weights, const float *values, long count, long size, float *out) {
    long i = 0;
    for (; i + 64 <= size; i += 64) { /* 64 columns at a time stay in registers */
        Lanes *y = (Lanes *)(out + i), a = y[0], b = y[1], c = y[2], d = y[3];
        for (long s = 0; s < count; s++) {
            const Lanes *v = (const Lanes *)(values + s * size + i);
            a += weights[s] * v[0], b += weights[s] * v[1], c += weights[s] * v[2], d += weights[s] * v[3];
        }
        y[0] = a, y[1] = b, y[2] = c, y[3] = d;
    }
    for (; i < size; i++)
        for (long s = 0; s < count; s++) out[i] += weights[s] * values[s * size + i];
}

/* Attention of one token: out [group, size] from a group of queries [group, size] and the keys and values [count, size]
   that they share; weights [group, whole] is scratch, whole being the count rounded up to whole lanes. A masked slot has
   a weight of exactly zero, and sums run in the order of slots, so what is masked behind the last visible slot does not
   change a bit. Slots are taken in small parts, so that the whole group finds them in the nearest cache. */
static inline void attend_token(const float *query, const float *keys, const float *values, const float *mask,
                                long count, long size, long group, float *weights, float *out) {
    enum { PART = 32 };
    float scale = 1 / sqrtf(size);
    long whole = (count + 15) / 16 * 16;
    for (long s = 0; s < count; s += 16) {
        Lanes hidden = {0};
        long left = count - s < 16 ? count - s : 16;
        for (long j = 0; mask && j < left; j++) hidden[j] = mask[s + j];
        for (long j = left; j < 16; j++) hidden[j] = -INFINITY;
        for (long g = 0; g < group; g++)
            *(Lanes *)(weights + g * whole + s) = scale * dots(query + g * size, keys + s * size, left, size) + hidden;
    }
    for (long g = 0; g < group; g++) {
        Lanes *mine = (Lanes *)(weights + g * whole), most = mine[0], sums = {0};
        float largest = -INFINITY, total = 0;
        for (long s = 1; s < whole / 16; s++) most = larger(mine[s], most);
        for (int i = 0; i < 16; i++) largest = most[i] > largest ? most[i] : largest;
        for (long s = 0; s < whole / 16; s++) sums += mine[s] = exponentials(mine[s] - largest);
        for (int i = 0; i < 16; i++) total += sums[i];
        for (long s = 0; s < whole / 16; s++) mine[s] /= total;
        for (long i = 0; i < size; i++) out[g * size + i] = 0;
    }
    for (long s = 0; s < count; s += PART)
        for (long g = 0; g < group; g++)
            add_weighted(weights + g * whole + s, values + s * size, count - s < PART ? count - s : PART, size,
                         out + g * size);
}

/* qkv [batch, tokens, heads + 2 * kv_heads, size] holds queries, keys and values. Rotates the queries and keys of one
   token by cos and sin [batch, tokens, size] in place, and writes keys and values [rows, kv_heads, room, size] into its
   slot of slots [batch, tokens], or from n->start on. */
static void rotate_and_store(const Sizes *n, long at, float *qkv, const float *cos, const float *sin,
                             const long *slots, float *keys, float *values) {
    long half = n->size / 2, all = n->heads + 2 * n->kv_heads;
    const float *c = cos + at * n->size, *s = sin + at * n->size;
    long slot = slots ? slots[at] : n->start + at % n->tokens, row = at / n->tokens;
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

/* Attention of every token: out [batch, tokens, heads, size]. The mask [batch, tokens, end - begin] is added to the
   scores. Called by all threads together. */
static void attend_all(const Sizes *n, const float *qkv, const float *keys, const float *values, const float *mask,
                       float *out) {
    long all = n->heads + 2 * n->kv_heads, count = n->end - n->begin, group = n->heads / n->kv_heads;
#pragma omp for collapse(3) schedule(static)
    for (long b = 0; b < n->batch; b++)
        for (long h = 0; h < n->kv_heads; h++)
            for (long t = 0; t < n->tokens; t++) {
                float weights[group * (count + 15)];
                long start = ((b * n->kv_heads + h) * n->room + n->begin) * n->size;
                long at = b * n->tokens + t;
                const float *query = qkv + (at * all + h * group) * n->size;
                const float *bias = mask ? mask + b * n->mask_row + t * n->mask_token : mask;
                float *y = out + (at * n->heads + h * group) * n->size;
                if (n->size == 64) /* the usual size, as a constant for the compiler */
                    attend_token(query, keys + start, values + start, bias, count, 64, group, weights, y);
                else
                    attend_token(query, keys + start, values + start, bias, count, n->size, group, weights, y);
            }
}

void attend(Sizes n, float *qkv, const float *cos, const float *sin, const long *slots, float *keys, float *values,
            const float *mask, float *out) {
#pragma omp parallel if (n.batch * n.tokens * n.heads * (n.end - n.begin) > 4096)
    {
#pragma omp for schedule(static)
        for (long at = 0; at < n.batch * n.tokens; at++) rotate_and_store(&n, at, qkv, cos, sin, slots, keys, values);
        attend_all(&n, qkv, keys, values, mask, out);
    }
}

/* out [rows, width] = x / sqrt(mean(x^2) + eps) * weight. */
void norm(const float *x, const float *weight, float eps, long rows, long width, float *out) {
    for (long r = 0; r < rows; r++, x += width, out += width) {
        float square = 0;
        for (long i = 0; i < width; i++) square += x[i] * x[i];
        float shrink = 1 / sqrtf(square / width + eps);
        for (long i = 0; i < width; i++) out[i] = x[i] * shrink * weight[i];
    }
}

/* COUNT rows times 32 columns of weights, laid out as [width][32]. Every COUNT uses two partial sums, so that a row's
   result is the same whatever is beside it. */
#define FLOATS(COUNT)                                                                                                \
    static void floats##COUNT(const float *x, const float *weights, long width, float *out) {                        \
        Lanes sum[COUNT][2][2] = {0};                                                                                \
        for (long k = 0; k < width; k += 2)                                                                          \
            for (int p = 0; p < 2; p++) {                                                                            \
                const Lanes *w = (const Lanes *)(weights + 32 * (k + p));                                            \
                for (int r = 0; r < COUNT; r++) {                                                                    \
                    sum[r][p][0] += x[r * width + k + p] * w[0];                                                     \
                    sum[r][p][1] += x[r * width + k + p] * w[1];                                                     \
                }                                                                                                    \
            }                                                                                                        \
        for (int r = 0; r < COUNT; r++)                                                                              \
            for (int half = 0; half < 2; half++)                                                                     \
                ((Lanes *)out)[2 * r + half] = sum[r][0][half] + sum[r][1][half];                                    \
    }
FLOATS(1) FLOATS(2) FLOATS(3) FLOATS(4) FLOATS(5) FLOATS(6)

typedef void Floats(const float *, const float *, long, float *);
static Floats *const FLOATS[] = {floats1, floats2, floats3, floats4, floats5, floats6};

#ifdef __AVX512F__
int has_floats(void) { return 1; }
#else
int has_floats(void) { return 0; } /* without AVX-512 there are too few registers */
#endif

#ifdef __AVX512VNNI__ /* bytes are multiplied and summed without saturation */
#include <immintrin.h>

int has_linear(void) { return 1; }

/* Quantises x [width] times gain [width] to bytes: low + unit * byte. With floor >= 0 unit and low are divided by the
   root of floor^2 plus the sum of the squares of x: RMSNorm. */
static void to_bytes(const float *x, const float *gain, float floor, long width, uint8_t *bytes, float *affine) {
    __m512 low = _mm512_set1_ps(INFINITY), high = _mm512_set1_ps(-INFINITY), square = _mm512_setzero_ps();
    for (long i = 0; i < width; i += 16) {
        __mmask16 some = width - i < 16 ? (1 << (width - i)) - 1 : 0xffff;
        __m512 z = _mm512_maskz_loadu_ps(some, x + i);
        square = _mm512_fmadd_ps(z, z, square);
        if (gain) z = _mm512_mul_ps(z, _mm512_maskz_loadu_ps(some, gain + i));
        low = _mm512_mask_min_ps(low, some, low, z);
        high = _mm512_mask_max_ps(high, some, high, z);
    }
    float least = _mm512_reduce_min_ps(low), unit = (_mm512_reduce_max_ps(high) - least) / 255;
    __m512 steps = _mm512_set1_ps(unit > 0 ? 1 / unit : 0), half = _mm512_set1_ps(0.5f);
    low = _mm512_set1_ps(least);
    for (long i = 0; i < width; i += 16) {
        __mmask16 some = width - i < 16 ? (1 << (width - i)) - 1 : 0xffff;
        __m512 z = _mm512_maskz_loadu_ps(some, x + i);
        if (gain) z = _mm512_mul_ps(z, _mm512_maskz_loadu_ps(some, gain + i));
        z = _mm512_fmadd_ps(_mm512_sub_ps(z, low), steps, half);
        _mm512_mask_cvtusepi32_storeu_epi8(bytes + i, some, _mm512_cvttps_epi32(z));
    }
    float total = _mm512_reduce_add_ps(square), shrink = floor < 0 ? 1 : 1 / sqrtf(floor * floor + total);
    affine[0] = unit * shrink;
    affine[1] = isnan(total) ? NAN : least * shrink; /* neither the bytes nor their bounds show NaN */
}

/* COUNT rows times 32 columns of weights, laid out as [width / 4][32][4]. */
#define TILE(COUNT, PHASES)                                                                                          \
    static void tile##COUNT(const uint8_t *bytes, const float *affine, const int8_t *weights,                   \
                                 const float *scale, const float *sums, const float *bias, long width, float *out,   \
                                 long stride, __mmask16 left, __mmask16 right) {                                     \
        __m512i sum[COUNT][PHASES][2];                                                                               \
        for (int r = 0; r < COUNT; r++)                                                                              \
            for (int p = 0; p < PHASES; p++) sum[r][p][0] = sum[r][p][1] = _mm512_setzero_si512();                   \
        for (long k = 0; k < width; k += 4 * PHASES)                                                                 \
            for (int p = 0; p < PHASES; p++) {                                                                       \
                const int8_t *w = weights + 32 * (k + 4 * p);                                                        \
                __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 64);                                 \
                if (COUNT > 5) /* arithmetic takes so long that memory would idle */                                 \
                    _mm_prefetch(w + AHEAD, _MM_HINT_T1), _mm_prefetch(w + AHEAD + 64, _MM_HINT_T1);                 \
                for (int r = 0; r < COUNT; r++) {                                                                    \
                    __m512i x = _mm512_set1_epi32(*(const int32_t *)(bytes + r * width + k + 4 * p));                \
                    sum[r][p][0] = _mm512_dpbusd_epi32(sum[r][p][0], x, w0);                                         \
                    sum[r][p][1] = _mm512_dpbusd_epi32(sum[r][p][1], x, w1);                                         \
                }                                                                                                    \
            }                                                                                                        \
        for (int r = 0; r < COUNT; r++, out += stride)                                                               \
            for (int half = 0; half < 2; half++) {                                                                   \
                __m512i whole = sum[r][0][half];                                                                     \
                for (int p = 1; p < PHASES; p++) whole = _mm512_add_epi32(whole, sum[r][p][half]);                   \
                __m512 unit = _mm512_set1_ps(affine[2 * r]), low = _mm512_set1_ps(affine[2 * r + 1]);                \
                __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_loadu_ps(scale + 16 * half));             \
                y = _mm512_fmadd_ps(y, unit, _mm512_mul_ps(low, _mm512_loadu_ps(sums + 16 * half)));                 \
                if (bias) y = _mm512_add_ps(y, _mm512_loadu_ps(bias + 16 * half));                                   \
                _mm512_mask_storeu_ps(out + 16 * half, half ? right : left, y);                                      \
            }                                                                                                        \
    }
TILE(1, 2) TILE(2, 1) TILE(3, 1) TILE(4, 1) TILE(5, 1) TILE(6, 1) TILE(7, 1) TILE(8, 1)

typedef void Tile(const uint8_t *, const float *, const int8_t *, const float *, const float *, const float *, long,
                  float *, long, __mmask16, __mmask16);
static Tile *const TILES[] = {tile1, tile2, tile3, tile4, tile5, tile6, tile7, tile8};

#else
int has_linear(void) { return 0; }
#endif

/* A linear layer and the norm before it: x is multiplied by the gain, where there is one, and with floor >= 0 divided by
   the root of floor^2 plus the sum of its squares. The weights lie in groups of 32 columns, as bytes where there is a
   scale; scale, sums (of the weights) and bias are padded to whole groups. */
typedef struct {
    const void *weights;
    const float *scale, *sums, *bias, *gain;
    float floor;
    long width, outputs;
} Linear;

/* Row r of x as the tiles read it, in scratch: floats for [rows, width], and two more for each row. */
static void prepare(const Linear *layer, const float *x, long r, long rows, char *scratch) {
    long width = layer->width;
#ifdef __AVX512VNNI__
    if (layer->scale) {
        float *affine = (float *)(scratch + rows * width);
        to_bytes(x, layer->gain, layer->floor, width, (uint8_t *)scratch + r * width, affine + 2 * r);
        return;
    }
#endif
    float *out = (float *)scratch + r * width, square = 0;
    for (long i = 0; i < width; i++) square += x[i] * x[i];
    float shrink = layer->floor < 0 ? 1 : 1 / sqrtf(layer->floor * layer->floor + square);
    for (long i = 0; i < width; i++) out[i] = layer->gain ? x[i] * shrink * layer->gain[i] : x[i] * shrink;
}

/* Rows of the next tile if `most` fit into one: tiles of equal height, because those of few rows are slow. */
static inline long tile_rows(long rows, long most) {
    long tiles = (rows + most - 1) / most;
    return (rows + tiles - 1) / tiles;
}

/* out [rows, outputs] = prepared rows @ weights + bias. Called by all threads together. */
static void multiply(const Linear *layer, const char *scratch, long rows, float *out) {
    long width = layer->width, outputs = layer->outputs, groups = (outputs + 31) / 32;
#pragma omp for schedule(static)
    for (long g = 0; g < groups; g++) {
        long n = 32 * g, rest = outputs - n;
        const float *bias = layer->bias ? layer->bias + n : layer->bias;
#ifdef __AVX512VNNI__
        if (layer->scale) {
            const float *affine = (const float *)(scratch + rows * width);
            __mmask16 left = rest >= 16 ? 0xffff : (1 << rest) - 1;
            __mmask16 right = rest >= 32 ? 0xffff : rest <= 16 ? 0 : (1 << (rest - 16)) - 1;
            const int8_t *weights = (const int8_t *)layer->weights + n * width;
            for (long r = 0, count; r < rows; r += count) {
                count = tile_rows(rows - r, 8);
                TILES[count - 1]((const uint8_t *)scratch + r * width, affine + 2 * r, weights, layer->scale + n,
                                 layer->sums + n, bias, width, out + r * outputs + n, outputs, left, right);
            }
            continue;
        }
#endif
        float tile[6 * 32];
        for (long r = 0, count; r < rows; r += count) {
            count = tile_rows(rows - r, 6);
            FLOATS[count - 1]((const float *)scratch + r * width, (const float *)layer->weights + n * width, width,
                              tile);
            for (long i = 0; i < count; i++)
                for (long c = 0; c < 32 && c < rest; c++)
                    out[(r + i) * outputs + n + c] = tile[32 * i + c] + (bias ? bias[c] : 0);
        }
    }
}

/* out [rows, outputs] of x [rows, width]. */
void linear(const Linear *layer, const float *x, long rows, char *scratch, float *out) {
#pragma omp parallel if (rows * layer->width * layer->outputs > 65536)
    {
#pragma omp for schedule(static)
        for (long r = 0; r < rows; r++) prepare(layer, x + r * layer->width, r, rows, scratch);
        multiply(layer, scratch, rows, out);
    }
}

typedef struct {
    Linear qkv, out, gate_up, down; /* the first and the third with the norms before them */
} Layer;

/* Consecutive layers: x [batch, tokens, width] in place, and the input of each layer in states [layers, ...] unless that
   is null. `caches` are keys and values of each layer, masks one for each; work [rows, 2 * work_width + width] and
   scratch are for intermediate results. */
void stack(Sizes n, long layers, const Layer *all, float *const *caches, const float *const *masks, const float *cos,
           const float *sin, const long *slots, float *x, float *states, float *work, long work_width, char *scratch) {
    long rows = n.batch * n.tokens, width = all->qkv.width;
    float *joint = work, *branch = joint + rows * work_width, *added = branch + rows * work_width;
#pragma omp parallel if (rows * width * all->gate_up.outputs > 65536)
    {
        for (long l = 0; l < layers; l++) {
            const Layer *layer = all + l;
            long inner = layer->down.width, heads = n.heads * n.size;
#pragma omp for schedule(static)
            for (long r = 0; r < rows; r++) {
                float *row = x + r * width;
                for (long i = 0; l && i < width; i++) row[i] += added[r * width + i];
                for (long i = 0; states && i < width; i++) states[(l * rows + r) * width + i] = row[i];
                prepare(&layer->qkv, row, r, rows, scratch);
            }
            multiply(&layer->qkv, scratch, rows, joint);
#pragma omp for schedule(static)
            for (long r = 0; r < rows; r++)
                rotate_and_store(&n, r, joint, cos, sin, slots, caches[2 * l], caches[2 * l + 1]);
            attend_all(&n, joint, caches[2 * l], caches[2 * l + 1], masks ? masks[l] : 0, branch);
#pragma omp for schedule(static)
            for (long r = 0; r < rows; r++) prepare(&layer->out, branch + r * heads, r, rows, scratch);
            multiply(&layer->out, scratch, rows, added);
#pragma omp for schedule(static)
            for (long r = 0; r < rows; r++) {
                float *row = x + r * width;
                for (long i = 0; i < width; i++) row[i] += added[r * width + i];
                prepare(&layer->gate_up, row, r, rows, scratch);
            }
            multiply(&layer->gate_up, scratch, rows, joint);
#pragma omp for schedule(static)
            for (long r = 0; r < rows; r++) {
                gate_row(joint + r * 2 * inner, inner, branch + r * inner);
                prepare(&layer->down, branch + r * inner, r, rows, scratch);
            }
            multiply(&layer->down, scratch, rows, added);
        }
#pragma omp for schedule(static)
        for (long i = 0; i < rows * width; i++) x[i] += added[i];
    }
}
