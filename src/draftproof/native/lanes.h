/* Sixteen floats at a time, on registers of any width.

   Only additions, multiplications, divisions and roots are used, each rounded by itself and in a fixed order, and the one
   function that needs more, exp, is written out. So every processor computes the same bits, and torch can too
   (models/llama/ordered.py). That takes a compiler that neither fuses nor reorders: see FLAGS in build.py. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define WIDTH 16 /* floats in a register */
#elif defined(__AVX2__)
#define WIDTH 8
#else
#define WIDTH 4
#endif
#define LANES 16
#define PARTS (LANES / WIDTH)
#define INLINE static inline __attribute__((always_inline))

typedef float Floats __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef struct {
    Floats part[PARTS];
} Lanes;

INLINE Floats spread(float x) { return x - (Floats){0}; }

/* larger, smaller: the second where either is NaN; zero_below: y, but zero where x is below the limit. */
#if WIDTH == 16
INLINE Floats larger(Floats a, Floats b) { return (Floats)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE Floats smaller(Floats a, Floats b) { return (Floats)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE Floats zero_below(Floats x, float limit, Floats y) {
    return (Floats)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(limit), _CMP_NLT_UQ), (__m512)y);
}
#else
INLINE Floats choose(Ints where, Floats yes, Floats no) {
    return (Floats)((where & (Ints)yes) | (~where & (Ints)no));
}
INLINE Floats larger(Floats a, Floats b) { return choose(a > b, a, b); }
INLINE Floats smaller(Floats a, Floats b) { return choose(a < b, a, b); }
INLINE Floats zero_below(Floats x, float limit, Floats y) { return (Floats)(~(x < limit) & (Ints)y); }
#endif

INLINE Lanes load(const float *x) {
    Lanes y;
    for (int p = 0; p < PARTS; p++) y.part[p] = *(const Floats *)(x + WIDTH * p);
    return y;
}

INLINE void store(Lanes x, float *out) {
    for (int p = 0; p < PARTS; p++) *(Floats *)(out + WIDTH * p) = x.part[p];
}

/* The first `left` numbers from x on, followed by `others` where that is less than 16. */
INLINE Lanes load_some(const float *x, long left, float others) {
    float some[LANES];
    if (left >= LANES) return load(x);
    for (int i = 0; i < LANES; i++) some[i] = i < left ? x[i] : others;
    return load(some);
}

INLINE void store_some(Lanes x, long left, float *out) {
    float some[LANES];
    if (left >= LANES) {
        store(x, out);
        return;
    }
    store(x, some);
    for (long i = 0; i < left; i++) out[i] = some[i];
}

INLINE Lanes filled(float x) {
    Lanes y;
    for (int p = 0; p < PARTS; p++) y.part[p] = spread(x);
    return y;
}

/* Neighbours are added until one number is left. */
INLINE float sum_of(Lanes x) {
    float some[LANES];
    store(x, some);
    for (int count = LANES / 2; count; count /= 2)
        for (int i = 0; i < count; i++) some[i] = some[2 * i] + some[2 * i + 1];
    return some[0];
}

INLINE float largest_of(Lanes x) {
    float some[LANES];
    store(x, some);
    for (int count = LANES / 2; count; count /= 2)
        for (int i = 0; i < count; i++) some[i] = some[i] > some[i + count] ? some[i] : some[i + count];
    return some[0];
}

/* 2^t, for t from -126 to 126. */
INLINE Floats power_of(Floats t) {
    const float round = 12582912; /* 1.5 * 2^23: what is added to it is rounded to a whole number, in its last bits */
    Floats shifted = t + round, f = t - (shifted - round);
    Floats p = 0.00133335581f + f * 0.000154035304f;
    p = 0.0555041087f + f * (0.00961812911f + f * p);
    p = 1 + f * (0.693147181f + f * (0.240226507f + f * p));
    return (Floats)(((Ints)shifted << 23) + (127 << 23)) * p;
}

/* exp(x) with a relative error below 1e-6; larger and smaller results are clamped to 2^126 and 2^-126. */
INLINE Floats exp_of(Floats x) {
    Floats t = larger(spread(-126), x * 1.44269504f); /* the second where that is NaN */
    return power_of(smaller(spread(126), t));
}

/* The same for numbers that are not positive; zero below -60: products of smaller results would be denormal, and slow. */
INLINE Floats weight_of(Floats x) { return zero_below(x, -60, power_of(x * 1.44269504f)); }

#if defined(__clang__)
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (Ints){__VA_ARGS__})
#endif

/* The sum of each of 16 vectors, in the lane of its number, added as `sum_of` does. */
INLINE Lanes sums_of(const Lanes *x) {
    Lanes sums;
#if WIDTH == 16
#define PAIRS(a, b)                                                                                                   \
    (PICK(a, b, 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30) +                                          \
     PICK(a, b, 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31))
#define QUADS(a, b)                                                                                                   \
    (PICK(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +                                           \
     PICK(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31))
    Floats four[4]; /* of four vectors each: sums of lanes 0 to 3, then of 4 to 7, and so on */
    for (int q = 0; q < 4; q++) {
        const Lanes *y = x + 4 * q;
        Floats a = PAIRS(y[0].part[0], y[1].part[0]), b = PAIRS(y[2].part[0], y[3].part[0]);
        four[q] = PAIRS(a, b);
    }
    Floats low = QUADS(four[0], four[1]), high = QUADS(four[2], four[3]);
    sums.part[0] = QUADS(low, high);
#elif WIDTH == 8
#define PAIRS(a, b) (PICK(a, b, 0, 2, 8, 10, 4, 6, 12, 14) + PICK(a, b, 1, 3, 9, 11, 5, 7, 13, 15))
    for (int q = 0; q < 2; q++) { /* eight of the vectors */
        Floats half[2];
        for (int p = 0; p < 2; p++) { /* eight of their lanes */
            Floats four[2];
            for (int i = 0; i < 2; i++) {
                const Lanes *y = x + 8 * q + 4 * i;
                Floats a = PAIRS(y[0].part[p], y[1].part[p]), b = PAIRS(y[2].part[p], y[3].part[p]);
                four[i] = PAIRS(a, b);
            }
            half[p] = PICK(four[0], four[1], 0, 1, 2, 3, 8, 9, 10, 11) + PICK(four[0], four[1], 4, 5, 6, 7, 12, 13, 14, 15);
        }
        sums.part[q] = half[0] + half[1];
    }
#else
#define PAIRS(a, b) (PICK(a, b, 0, 2, 4, 6) + PICK(a, b, 1, 3, 5, 7))
    for (int q = 0; q < 4; q++) { /* four of the vectors */
        Floats four[4];
        for (int p = 0; p < 4; p++) {
            const Lanes *y = x + 4 * q;
            Floats a = PAIRS(y[0].part[p], y[1].part[p]), b = PAIRS(y[2].part[p], y[3].part[p]);
            four[p] = PAIRS(a, b);
        }
        sums.part[q] = (four[0] + four[1]) + (four[2] + four[3]);
    }
#endif
    return sums;
}
