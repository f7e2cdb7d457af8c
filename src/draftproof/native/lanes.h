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

#if defined(__clang__)
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (Ints){__VA_ARGS__})
#endif

#if WIDTH == 16
#define PAIRS(a, b)                                                                                                   \
    (PICK(a, b, 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30) +                                          \
     PICK(a, b, 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31))
#elif WIDTH == 8
#define PAIRS(a, b) (PICK(a, b, 0, 2, 8, 10, 4, 6, 12, 14) + PICK(a, b, 1, 3, 9, 11, 5, 7, 13, 15))
#else
#define PAIRS(a, b) (PICK(a, b, 0, 2, 4, 6) + PICK(a, b, 1, 3, 5, 7))
#endif

/* The sums of neighbours in fours: of each of four vectors lanes 0 to 3, then 4 to 7, and so on. */
INLINE Lanes fours_of(const Lanes *x) {
    Lanes sums;
    for (int p = 0; p < PARTS; p++)
        sums.part[p] = PAIRS(PAIRS(x[0].part[p], x[1].part[p]), PAIRS(x[2].part[p], x[3].part[p]));
    return sums;
}

/* The sum of each of 16 vectors in the lane of its number, from `fours_of` four of them at a time. Neighbours are added
   until one number is left. */
INLINE Lanes sums_of(const Lanes *fours) {
    Lanes sums;
#if WIDTH == 16
#define QUADS(a, b)                                                                                                   \
    (PICK(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +                                           \
     PICK(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31))
    Floats low = QUADS(fours[0].part[0], fours[1].part[0]), high = QUADS(fours[2].part[0], fours[3].part[0]);
    sums.part[0] = QUADS(low, high);
#elif WIDTH == 8
#define HALVES_OF(a, b) (PICK(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + PICK(a, b, 4, 5, 6, 7, 12, 13, 14, 15))
    for (int q = 0; q < 2; q++) {
        const Lanes *y = fours + 2 * q;
        sums.part[q] = HALVES_OF(y[0].part[0], y[1].part[0]) + HALVES_OF(y[0].part[1], y[1].part[1]);
    }
#else
    for (int q = 0; q < 4; q++) {
        const Floats *y = fours[q].part;
        sums.part[q] = (y[0] + y[1]) + (y[2] + y[3]);
    }
#endif
    return sums;
}

/* The sum of 16 numbers, added in the same order. */
INLINE float sum_of(Lanes x) {
    Lanes same[4] = {x, x, x, x}, four = fours_of(same), fours[4] = {four, four, four, four};
    return sums_of(fours).part[0][0];
}

INLINE float largest_of(Lanes x) {
    for (int count = PARTS / 2; count; count /= 2)
        for (int p = 0; p < count; p++) x.part[p] = larger(x.part[p], x.part[p + count]);
    Floats most = x.part[0];
#if WIDTH == 16
    most = larger(most, PICK(most, most, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    most = larger(most, PICK(most, most, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
#elif WIDTH == 8
    most = larger(most, PICK(most, most, 4, 5, 6, 7, 0, 1, 2, 3));
#endif
    float some[4] = {most[0], most[1], most[2], most[3]};
    for (int count = 2; count; count /= 2)
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
