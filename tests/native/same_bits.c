/* Runs the functions of draftproof.native on numbers made by a formula and prints a hash of each result. */

#include "../../src/draftproof/native/step.c"

#include <stdio.h>

static uint32_t state = 1;

static float number(void) { /* from -4 to 4, exact in a float */
    state = state * 1664525 + 1013904223;
    return (float)(int32_t)(state >> 8) / (1 << 21) - 4;
}

static float *numbers(long count) {
    float *made = malloc(count * sizeof(float));
    for (long i = 0; i < count; i++) made[i] = number();
    return made;
}

static void say(const char *name, long size, const void *data, long bytes) {
    uint64_t hash = 14695981039346656037u;
    for (long i = 0; i < bytes; i++) hash = (hash ^ ((const uint8_t *)data)[i]) * 1099511628211u;
    printf("%s %ld %016llx\n", name, size, (unsigned long long)hash);
}

static Linear made(long width, long outputs, int normed) {
    long depth = (width + 7) / 8 * 8, groups = (outputs + GROUP - 1) / GROUP;
    int8_t *weights = calloc(groups * GROUP, depth);
    int32_t *sums = calloc(groups * GROUP, sizeof(int32_t));
    for (long n = 0; n < outputs; n++)
        for (long k = 0; k < width; k++) {
            int8_t w = (int8_t)(number() * 31.7f);
            if (k < 9) w = n % 2 ? 127 : -127; /* where instructions could saturate */
            sums[n] += w;
            weights[((n / GROUP * (depth / 4) + k / 4) * GROUP + n % GROUP) * 4 + k % 4] = w;
        }
    float *scale = numbers(groups * GROUP);
    for (long n = 0; n < groups * GROUP; n++) scale[n] = scale[n] * scale[n] * 1e-3f + 1e-4f;
    Linear layer = {weights, scale, sums, normed ? 0 : numbers(groups * GROUP), normed ? numbers(width) : 0,
                    normed ? 0.3f : -1, width, outputs};
    return layer;
}

int main(void) {
    for (long width = 3; width < 200; width = width * 3 / 2 + 1) {
        float *x = numbers(9 * width), *out = numbers(9 * width), *gain = numbers(width);
        norm(x, gain, 1e-5f, 9, width, out);
        say("norm", width, out, 9 * width * 4);
        gate(x, 4, width, out);
        say("gate", width, out, 4 * width * 4);
        for (int normed = 0; normed < 2; normed++)
            for (long rows = 1; rows < 10; rows += 4) {
                Linear layer = made(width, 2 * width + 5, normed);
                char *scratch = malloc(rows * (width + 16) * 4);
                float *y = numbers(rows * layer.outputs);
                linear(&layer, x, rows, scratch, y);
                say("linear", width, y, rows * layer.outputs * 4);
            }
        law(x, 0, width, 0.8f, out);
        say("law", width, out, width * 4);
    }
    for (long size = 20; size < 130; size = size == 20 ? 32 : 2 * size) {
        enum { TEXT = 70, HEADS = 6, SHARED = 2, TOKENS_READ = 11 };
        Sizes n = {1, TOKENS_READ, HEADS, SHARED, size, TEXT, TEXT - TOKENS_READ, 0, TEXT, 0, TEXT};
        float *qkv = numbers(TOKENS_READ * (HEADS + 2 * SHARED) * size), *mask = numbers(TOKENS_READ * TEXT);
        float *keys = numbers(SHARED * TEXT * size), *values = numbers(SHARED * TEXT * size);
        float *cosines = numbers(TOKENS_READ * size), *sines = numbers(TOKENS_READ * size);
        float *out = numbers(TOKENS_READ * HEADS * size);
        for (long i = 0; i < TOKENS_READ * TEXT; i++) mask[i] = mask[i] > 2 && i % TEXT ? -3e38f : 0;
        const Mask masks[] = {{0, 0}, {0, 13}, {mask, -1}, {0, -1}};
        for (int i = 0; i < 4; i++) {
            attend(n, qkv, cosines, sines, 0, keys, values, masks[i], out);
            say("attend", size, out, TOKENS_READ * HEADS * size * 4);
            say("keys", size, keys, SHARED * TEXT * size * 4);
        }
    }
    return 0;
}
