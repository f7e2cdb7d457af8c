/* Weights [outputs, width] laid out in groups of 32 outputs, as the layers read them. What is missing in the last group
   is zero. */

enum { COLUMNS = 64 }; /* that are worked on at a time */

/* out [width] = the largest absolute value in each column. */
void column_maxima(const float *weight, long outputs, long width, float *out) {
#pragma omp parallel for
    for (long first = 0; first < width; first += COLUMNS) {
        long count = width - first < COLUMNS ? width - first : COLUMNS;
        float most[COLUMNS] = {0};
        for (long n = 0; n < outputs; n++)
            for (long k = 0; k < count; k++) {
                float size = fabsf(weight[n * width + first + k]);
                most[k] = size > most[k] ? size : most[k];
            }
        for (long k = 0; k < count; k++) out[first + k] = most[k];
    }
}

/* out [groups][width][32] */
void lay_out_floats(const float *weight, long outputs, long width, float *out) {
#pragma omp parallel for
    for (long group = 0; group < (outputs + GROUP - 1) / GROUP; group++)
        for (long first = 0; first < width; first += COLUMNS)
            for (long k = first; k < width && k < first + COLUMNS; k++)
                for (long r = 0; r < GROUP; r++) {
                    long n = group * GROUP + r;
                    out[(group * width + k) * GROUP + r] = n < outputs ? weight[n * width + k] : 0;
                }
}

/* The weights, times smoothing [width] where there is one, in units of their row's scale: out [groups][deep / 4][32][4]
   with `deep` columns, a multiple of 4, of which those after `width` are zero; scale [outputs], and sums [outputs] of the
   rounded weights. */
void lay_out_bytes(const float *weight, const float *smoothing, long outputs, long width, long deep, int8_t *out,
                   float *scale, int32_t *sums) {
#pragma omp parallel for
    for (long n = 0; n < (outputs + GROUP - 1) / GROUP * GROUP; n++) {
        const float *row = weight + n * width;
        int32_t *quads = (int32_t *)(out + n / GROUP * GROUP * deep) + n % GROUP;
        float most = 1e-30f;
        for (long k = 0; n < outputs && k < width; k++) {
            float size = fabsf(smoothing ? row[k] * smoothing[k] : row[k]);
            most = size > most ? size : most;
        }
        float unit = most / 127;
        int32_t total = 0;
        for (long first = 0; first < deep; first += COLUMNS) {
            union {
                int8_t bytes[COLUMNS];
                int32_t quads[COLUMNS / 4];
            } part = {{0}};
            long count = deep - first < COLUMNS ? deep - first : COLUMNS;
            for (long k = 0; n < outputs && k < count && first + k < width; k++)
                part.bytes[k] = rintf((smoothing ? row[first + k] * smoothing[first + k] : row[first + k]) / unit);
            for (long k = 0; k < count; k++) total += part.bytes[k];
            for (long k = 0; k < count / 4; k++) quads[(first / 4 + k) * GROUP] = part.quads[k];
        }
        scale[n] = n < outputs ? unit : 0;
        sums[n] = n < outputs ? total : 0;
    }
}
