/* Rows of numbers as bytes, and products of bytes as numbers again. Every row is treated by itself, by the same
   instructions, so its result does not depend on the rows beside it. */

#include <math.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__linux__)
#define FAST __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define FAST
#endif

/* x [rows, width], times gain [width] if given, becomes low + unit * byte; affine [rows, 2] holds unit and low.
   With floor >= 0 both are divided by the root of floor^2 and the sum of the squares of x: RMSNorm. */
FAST void to_bytes(const float *x, const float *gain, float floor, long rows, long width, uint8_t *bytes,
                   float *affine) {
    for (long r = 0; r < rows; r++, x += width, bytes += width, affine += 2) {
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
}

/* In place: products [rows, width] of bytes and weights become products of what the bytes stand for; sums [width] are
   those of the weights. */
FAST void from_bytes(float *products, const float *affine, const float *sums, long rows, long width) {
    for (long r = 0; r < rows; r++, products += width, affine += 2)
        for (long i = 0; i < width; i++)
            products[i] = products[i] * affine[0] + affine[1] * sums[i];
}
