/* Uniforms by Philox4x32-10 (Salmon et al., SC 2011), the same as noise.py has. */

#include <stdint.h>

/* out [rows, count]: the first numbers of a lane, for each row's seed, request and step. */
void uniforms(const int64_t *names, long rows, long lane, long count, double *out) {
    for (long r = 0; r < rows; r++, names += 3)
        for (long i = 0; i < count; i++) {
            uint32_t c0 = i, c1 = lane, c2 = names[2], c3 = names[1];
            uint32_t k0 = names[0], k1 = (uint64_t)names[0] >> 32;
            for (int round = 0; round < 10; round++, k0 += 0x9E3779B9, k1 += 0xBB67AE85) {
                uint64_t left = (uint64_t)0xD2511F53 * c0, right = (uint64_t)0xCD9E8D57 * c2;
                c0 = (uint32_t)(right >> 32) ^ c1 ^ k0, c2 = (uint32_t)(left >> 32) ^ c3 ^ k1;
                c1 = right, c3 = left;
            }
            out[r * count + i] = ((c0 >> 5) * 67108864.0 + (c1 >> 6)) / 9007199254740992.0;
        }
}
