/* A linear layer on rows of numbers, with weights and activations of 8 bits. Sums of bytes are exact, and every row is
   treated by itself by the same instructions, so its result does not depend on the rows beside it. */

#include <math.h>
#include <stdint.h>

#ifdef __AVX512VNNI__ /* the processor multiplies bytes and sums them without saturation */
#include <immintrin.h>

int available(void) { return 1; }

/* x [width] times gain [width] becomes low + unit * byte. With floor >= 0 both are divided by the root of floor^2 and
   the sum of the squares of x: RMSNorm. */
static void to_bytes(const float *x, const float *gain, float floor, long width, uint8_t *bytes, float *affine) {
    float low = INFINITY, high = -INFINITY, square = 0;
    for (long i = 0; i < width; i++) {
        float z = gain ? x[i] * gain[i] : x[i];
        low = z < low ? z : low;
        high = z > high ? z : high;
        square += x[i] * x[i];
    }
    float unit = (high - low) / 255, steps = unit > 0 ? 1 / unit : 0;
    for (long i = 0; i < width; i++) {
        float z = gain ? x[i] * gain[i] : x[i];
        bytes[i] = (uint8_t)(int32_t)((z - low) * steps + 0.5f);
    }
    float shrink = floor < 0 ? 1 : 1 / sqrtf(floor * floor + square);
    affine[0] = unit * shrink;
    affine[1] = low * shrink;
}

/* COUNT rows times 32 columns of weights, which lie as [width / 4][32][4]. */
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

/* out [rows, outputs] = x [rows, width] @ weights + bias. The weights lie in groups of 32 columns; scale, sums (of the
   weights) and bias are filled up to whole groups. width is a multiple of 8; bytes [rows, width] and affine [rows, 2]
   are room to work in. */
void linear(const float *x, const float *gain, float floor, long rows, long width, const int8_t *weights,
            const float *scale, const float *sums, const float *bias, long outputs, uint8_t *bytes, float *affine,
            float *out) {
    for (long r = 0; r < rows; r++) to_bytes(x + r * width, gain, floor, width, bytes + r * width, affine + 2 * r);
    long groups = (outputs + 31) / 32;
#pragma omp parallel for schedule(static) if (rows * width * outputs > 65536)
    for (long g = 0; g < groups; g++) {
        long n = 32 * g, rest = outputs - n;
        __mmask16 left = rest >= 16 ? 0xffff : (1 << rest) - 1;
        __mmask16 right = rest >= 32 ? 0xffff : rest <= 16 ? 0 : (1 << (rest - 16)) - 1;
        for (long r = 0, count; r < rows; r += count) {
            count = rows - r < 8 ? rows - r : 8;
            TILES[count - 1](bytes + r * width, affine + 2 * r, weights + n * width, scale + n, sums + n,
                             bias ? bias + n : bias, width, out + r * outputs + n, outputs, left, right);
        }
    }
}

#else
int available(void) { return 0; }
void linear(void) {}
#endif
