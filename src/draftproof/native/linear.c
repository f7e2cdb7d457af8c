/* Linear layers with weights as bytes or floats, and the norm before them. */

#include "attention.c"
#include "bytes.h"
#include "threads.h"

enum { GROUP = 32 };              /* columns of weights that lie together */
enum { STEP = 128, NEAR = 16384 }; /* bytes of weights that a tile reads at once; how far ahead an only tile prefetches */

/* Where a tile of rows prefetches weights while it multiplies those before: the first byte, and bytes for each STEP. */
typedef struct {
    const char *from;
    long step;
} Ahead;

/* Each tile of a group of weights prefetches its share of the group after it, so that memory never idles. An only tile
   stays so little time that it prefetches nearer ones. */
static inline Ahead ahead_of(const void *weights, long bytes, long t, long tiles) {
    long distance = tiles > 1 || bytes < NEAR ? bytes : NEAR;
    return (Ahead){(const char *)weights + distance + bytes / tiles * t, STEP / tiles};
}

/* Prefetches what goes with step i. */
static inline void prefetch(Ahead ahead, long i) {
    const char *line = ahead.from + i * ahead.step;
    __builtin_prefetch(line, 0, 2), __builtin_prefetch(line + 64, 0, 2);
}

/* A linear layer and the norm before it: x is multiplied by the gain, where there is one, and with floor >= 0 divided by
   the root of floor^2 plus the sum of its squares. The weights lie in groups of 32 columns, as bytes where there is a
   scale: [groups][depth / 4][32][4], depth being the width rounded up to a multiple of 8, otherwise as floats
   [groups][width][32]. scale, sums (of the bytes) and bias are padded to whole groups. */
typedef struct {
    const void *weights;
    const float *scale;
    const int32_t *sums;
    const float *bias, *gain;
    float floor;
    long width, outputs;
} Linear;

static inline long depth_of(const Linear *layer) { return (layer->width + 7) / 8 * 8; }

/* The sum of the squares of x [width]. */
static float squares(const float *x, long width) {
    Lanes sums = filled(0);
    for (long i = 0; i < width; i += LANES) {
        Lanes some = load_some(x + i, width - i, 0);
        for (int p = 0; p < PARTS; p++) sums.part[p] += some.part[p] * some.part[p];
    }
    return sum_of(sums);
}

/* out [rows, width] = x / sqrt(mean(x^2) + eps) * weight. */
void norm(const float *x, const float *weight, float eps, long rows, long width, float *out) {
    for (long r = 0; r < rows; r++, x += width, out += width) {
        float shrink = 1 / sqrtf(squares(x, width) / width + eps);
        for (long i = 0; i < width; i++) out[i] = x[i] * shrink * weight[i];
    }
}

/* out [width] = silu(gate) * up, which lie side by side in gate_up [2 * width]. */
static void gate_row(const float *gate_up, long width, float *out) {
    for (long i = 0; i < width; i += LANES) {
        Lanes gate = load_some(gate_up + i, width - i, 0), up = load_some(gate_up + width + i, width - i, 0);
        for (int p = 0; p < PARTS; p++) gate.part[p] = gate.part[p] / (1 + exp_of(-gate.part[p])) * up.part[p];
        store_some(gate, width - i, out + i);
    }
}

void gate(const float *gate_up, long rows, long width, float *out) {
    for (long r = 0; r < rows; r++) gate_row(gate_up + r * 2 * width, width, out + r * width);
}

/* Quantises x [width] times gain [width] to bytes: low + unit * byte. With floor >= 0 unit and low are divided by the
   root of floor^2 plus the sum of the squares of x: RMSNorm. */
static void to_bytes(const Linear *layer, const float *x, uint8_t *bytes, float *affine) {
    typedef uint8_t Bytes __attribute__((vector_size(WIDTH), aligned(1), may_alias));
    long width = layer->width, whole = width / WIDTH * WIDTH;
    const float *gain = layer->gain, floor = layer->floor;
    Floats lows = spread(INFINITY), highs = spread(-INFINITY);
    float low = INFINITY, high = -INFINITY;
    for (long i = 0; i < whole; i += WIDTH) {
        Floats z = *(const Floats *)(x + i);
        if (gain) z *= *(const Floats *)(gain + i);
        lows = smaller(lows, z), highs = larger(highs, z);
    }
    for (int i = 0; i < WIDTH; i++) low = lows[i] < low ? lows[i] : low, high = highs[i] > high ? highs[i] : high;
    for (long i = whole; i < width; i++) {
        float z = gain ? x[i] * gain[i] : x[i];
        low = z < low ? z : low, high = z > high ? z : high;
    }
    float unit = (high - low) / 255, steps = unit > 1e-30f ? 1 / unit : 0; /* what is smaller is as good as constant */
    for (long i = 0; i < whole; i += WIDTH) {
        Floats z = *(const Floats *)(x + i);
        if (gain) z *= *(const Floats *)(gain + i);
        z = (z - low) * steps + 0.5f;
        *(Bytes *)(bytes + i) = __builtin_convertvector(__builtin_convertvector(z, Ints), Bytes);
    }
    for (long i = whole; i < width; i++) {
        float z = gain ? x[i] * gain[i] : x[i];
        bytes[i] = (int32_t)((z - low) * steps + 0.5f);
    }
    for (long i = width; i < depth_of(layer); i++) bytes[i] = 0;
    float total = squares(x, width), shrink = floor < 0 ? 1 : 1 / sqrtf(floor * floor + total);
    affine[0] = unit * shrink;
    affine[1] = isnan(total) ? NAN : low * shrink; /* neither the bytes nor their bounds show NaN */
}

/* What WIDTH columns from n on are for one row, from the sums of products of bytes. */
INLINE void finish(Ints whole, const Linear *layer, long n, const float *affine, float *out) {
    Ints sums = *(const Ints *)(layer->sums + n);
    Floats scale = *(const Floats *)(layer->scale + n);
    Floats y = __builtin_convertvector(whole, Floats) * scale * affine[0];
    y = y + affine[1] * (__builtin_convertvector(sums, Floats) * scale);
    if (layer->bias) y += *(const Floats *)(layer->bias + n);
    *(Floats *)out = y;
}

/* COUNT rows of bytes times 16 * HALVES columns. PHASES partial sums hide how long an instruction takes. */
#define TILE(COUNT, PHASES)                                                                                           \
    static void tile##COUNT(const uint8_t *bytes, const float *affine, const int8_t *weights, const Linear *layer,    \
                            long n, long stride, Ahead ahead, float *out) {                                           \
        enum { ACROSS = HALVES * PARTS };                                                                             \
        long depth = depth_of(layer);                                                                                 \
        Ints sum[COUNT][PHASES][ACROSS];                                                                              \
        for (int r = 0; r < COUNT; r++)                                                                               \
            for (int p = 0; p < PHASES; p++)                                                                          \
                for (int c = 0; c < ACROSS; c++) sum[r][p][c] = (Ints){0};                                            \
        for (long k = 0; k < depth; k += 4 * PHASES)                                                                  \
            for (int p = 0; p < PHASES; p++) {                                                                        \
                const int8_t *w = weights + GROUP * (k + 4 * p);                                                      \
                Row rows[COUNT];                                                                                      \
                if (COUNT > 1) prefetch(ahead, k / 4 + p);                                                            \
                for (int r = 0; r < COUNT; r++) rows[r] = take_row(bytes + r * depth + k + 4 * p);                    \
                for (int c = 0; c < ACROSS; c++) {                                                                    \
                    Columns columns = take_columns(w + 4 * WIDTH * c);                                                \
                    for (int r = 0; r < COUNT; r++) sum[r][p][c] = add_products(sum[r][p][c], rows[r], columns);      \
                }                                                                                                     \
            }                                                                                                         \
        for (int r = 0; r < COUNT; r++)                                                                               \
            for (int c = 0; c < ACROSS; c++) {                                                                        \
                Ints whole = sum[r][0][c];                                                                            \
                for (int p = 1; p < PHASES; p++) whole += sum[r][p][c];                                               \
                if (OFFSET) whole += OFFSET * *(const Ints *)(layer->sums + n + WIDTH * c);                           \
                finish(whole, layer, n + WIDTH * c, affine + 2 * r, out + r * stride + WIDTH * c);                    \
            }                                                                                                         \
    }
TILE(1, 2) TILE(2, 1) TILE(3, 1) TILE(4, 1) TILE(5, 1) TILE(6, 1) TILE(7, 1) TILE(8, 1)

/* Rows of the next tile if `most` fit into one: tiles of equal height, because those of few rows are slow. */
static inline long tile_rows(long rows, long most) {
    long tiles = (rows + most - 1) / most;
    return (rows + tiles - 1) / tiles;
}

#include "tiles.h"

typedef void Tile(const uint8_t *, const float *, const int8_t *, const Linear *, long, long, Ahead, float *);
static Tile *const TILES[] = {tile1, tile2, tile3, tile4, tile5, tile6, tile7, tile8};

#if WIDTH == 16
int has_floats(void) { return 1; }

/* COUNT rows times 32 columns of weights, laid out as [width][32]. Every COUNT uses two partial sums, so that a row's
   result is the same whatever is beside it. */
#define FLOATS(COUNT)                                                                                                 \
    static void floats##COUNT(const float *x, const float *weights, long width, Ahead ahead, float *out) {            \
        __m512 sum[COUNT][2][2];                                                                                      \
        for (int r = 0; r < COUNT; r++)                                                                               \
            for (int p = 0; p < 2; p++) sum[r][p][0] = sum[r][p][1] = _mm512_setzero_ps();                            \
        for (long k = 0; k < width; k += 2)                                                                           \
            for (int p = 0; p < 2; p++) {                                                                             \
                const float *w = weights + GROUP * (k + p);                                                           \
                prefetch(ahead, k + p);                                                                               \
                __m512 w0 = _mm512_loadu_ps(w), w1 = _mm512_loadu_ps(w + 16);                                         \
                for (int r = 0; r < COUNT; r++) {                                                                     \
                    __m512 one = _mm512_set1_ps(x[r * width + k + p]);                                                \
                    sum[r][p][0] = _mm512_fmadd_ps(one, w0, sum[r][p][0]);                                            \
                    sum[r][p][1] = _mm512_fmadd_ps(one, w1, sum[r][p][1]);                                            \
                }                                                                                                     \
            }                                                                                                         \
        for (int r = 0; r < COUNT; r++)                                                                               \
            for (int half = 0; half < 2; half++)                                                                      \
                _mm512_storeu_ps(out + GROUP * r + 16 * half, _mm512_add_ps(sum[r][0][half], sum[r][1][half]));       \
    }
FLOATS(1) FLOATS(2) FLOATS(3) FLOATS(4) FLOATS(5) FLOATS(6)

typedef void FloatTile(const float *, const float *, long, Ahead, float *);
static FloatTile *const FLOAT_TILES[] = {floats1, floats2, floats3, floats4, floats5, floats6};
#else
int has_floats(void) { return 0; } /* there are too few registers */
#endif

/* Row r of x as the tiles read it, in scratch: floats for [rows, width + 8], and two more for each row. */
static void prepare(const Linear *layer, const float *x, long r, long rows, char *scratch) {
    long width = layer->width, depth = depth_of(layer);
    if (layer->scale) {
        float *affine = (float *)(scratch + rows * depth);
        to_bytes(layer, x, (uint8_t *)scratch + r * depth, affine + 2 * r);
        return;
    }
    float *out = (float *)scratch + r * width;
    float shrink = layer->floor < 0 ? 1 : 1 / sqrtf(layer->floor * layer->floor + squares(x, width));
    for (long i = 0; i < width; i++) out[i] = layer->gain ? x[i] * shrink * layer->gain[i] : x[i] * shrink;
}

/* Group g of the columns of out [rows, outputs] = prepared rows @ weights + bias; `tiled` by AMX. */
static void multiply_group(const Linear *layer, const char *scratch, long rows, int tiled, long g, float *out) {
    long depth = depth_of(layer), outputs = layer->outputs, n = GROUP * g;
    long rest = outputs - n < GROUP ? outputs - n : GROUP;
    if (layer->scale) {
        const float *affine = (const float *)(scratch + rows * depth);
        const int8_t *weights = (const int8_t *)layer->weights + n * depth;
        if (tiled) {
            multiply_tiles((const uint8_t *)scratch, affine, weights, layer, n, rows, rest, outputs, out + n);
            return;
        }
        float some[8 * GROUP];
        long tiles = (rows + TALL - 1) / TALL, t = 0;
        for (long r = 0, count; r < rows; r += count, t++) {
            count = tile_rows(rows - r, TALL);
            Ahead ahead = ahead_of(weights, GROUP * depth, t, tiles);
            float *to = rest == GROUP ? out + r * outputs + n : some;
            for (int c = 0; c < GROUP; c += LANES * HALVES)
                TILES[count - 1]((const uint8_t *)scratch + r * depth, affine + 2 * r, weights + 4 * c, layer, n + c,
                                 rest == GROUP ? outputs : GROUP, ahead, to + c);
            for (long i = 0; rest < GROUP && i < count; i++)
                for (long c = 0; c < rest; c++) out[(r + i) * outputs + n + c] = some[GROUP * i + c];
        }
        return;
    }
#if WIDTH == 16
    float some[6 * GROUP];
    long width = layer->width;
    const float *bias = layer->bias ? layer->bias + n : layer->bias;
    const float *weights = (const float *)layer->weights + n * width;
    long tiles = (rows + 5) / 6, t = 0;
    for (long r = 0, count; r < rows; r += count, t++) {
        count = tile_rows(rows - r, 6);
        Ahead ahead = ahead_of(weights, GROUP * width * sizeof(float), t, tiles);
        FLOAT_TILES[count - 1]((const float *)scratch + r * width, weights, width, ahead, some);
        for (long i = 0; i < count; i++)
            for (long c = 0; c < rest; c++)
                out[(r + i) * outputs + n + c] = some[GROUP * i + c] + (bias ? bias[c] : 0);
    }
#endif
}

/* All groups. Called by all threads together. */
static void multiply(const Linear *layer, const char *scratch, long rows, float *out) {
    long groups = (layer->outputs + GROUP - 1) / GROUP;
    int tiled = fits_tiles(layer, rows);
    if (tiled) open_tiles(rows);
    if (rows <= 32) {
#pragma omp for schedule(static)
        for (long g = 0; g < groups; g++) multiply_group(layer, scratch, rows, tiled, g, out);
    } else { /* so long that a thread may be interrupted, and others can go on */
#pragma omp for schedule(guided)
        for (long g = 0; g < groups; g++) multiply_group(layer, scratch, rows, tiled, g, out);
    }
    if (tiled) close_tiles();
}

/* out [rows, outputs] of x [rows, width]. */
void linear(const Linear *layer, const float *x, long rows, char *scratch, float *out) {
#pragma omp parallel if (rows * layer->width * layer->outputs > 65536) num_threads(threads_for(rows))
    {
#pragma omp for schedule(static)
        for (long r = 0; r < rows; r++) prepare(layer, x + r * layer->width, r, rows, scratch);
        multiply(layer, scratch, rows, out);
    }
}

/* The same for one row, where the mask [outputs] allows some of a group of outputs; the other groups are left alone. */
static void linear_where(const Linear *layer, const float *x, const unsigned char *mask, char *scratch, float *out) {
    prepare(layer, x, 0, 1, scratch);
#pragma omp parallel for schedule(static) if (layer->width * layer->outputs > 65536) num_threads(threads_for(1))
    for (long g = 0; g < (layer->outputs + GROUP - 1) / GROUP; g++) {
        int some = 0;
        for (long i = GROUP * g; i < GROUP * (g + 1) && i < layer->outputs; i++) some |= mask[i];
        if (some) multiply_group(layer, scratch, 1, 0, g, out);
    }
}
