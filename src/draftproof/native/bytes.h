/* Sums of products of bytes, exact on every processor: four unsigned bytes of a row with four signed ones of each of
   WIDTH columns. Instructions that saturate are not used. */

#if defined(__AVX512VNNI__) && WIDTH == 16

typedef __m512i Row, Columns;
INLINE Row take_row(const uint8_t *x) { return _mm512_set1_epi32(*(const int32_t *)x); }
INLINE Columns take_columns(const int8_t *w) { return _mm512_loadu_si512(w); }
INLINE Ints add_products(Ints sum, Row x, Columns w) { return (Ints)_mm512_dpbusd_epi32((__m512i)sum, x, w); }
enum { TALL = 8, HALVES = 2, OFFSET = 0 };

#elif defined(__AVXVNNI__) && WIDTH == 8

typedef __m256i Row, Columns;
INLINE Row take_row(const uint8_t *x) { return _mm256_set1_epi32(*(const int32_t *)x); }
INLINE Columns take_columns(const int8_t *w) { return _mm256_loadu_si256((const __m256i_u *)w); }
INLINE Ints add_products(Ints sum, Row x, Columns w) { return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, x, w); }
enum { TALL = 3, HALVES = 2, OFFSET = 0 };

#elif defined(__SSE2__) && (WIDTH < 16 || defined(__AVX512BW__))

/* bytes of even and of odd number become 16-bit integers, whose products two instructions add up */
#if WIDTH == 16
#define OF_WIDTH(name) _mm512_##name
typedef __m512i Register;
INLINE Register take(const void *x) { return _mm512_loadu_si512(x); }
#elif WIDTH == 8
#define OF_WIDTH(name) _mm256_##name
typedef __m256i Register;
INLINE Register take(const void *x) { return _mm256_loadu_si256((const __m256i_u *)x); }
#else
#define OF_WIDTH(name) _mm_##name
typedef __m128i Register;
INLINE Register take(const void *x) { return _mm_loadu_si128((const __m128i_u *)x); }
#endif
typedef struct {
    Register even, odd;
} Row, Columns;
INLINE Row take_row(const uint8_t *x) {
    Register four = OF_WIDTH(set1_epi32)(*(const int32_t *)x);
    Row row = {(Register)((Ints)four & 0x00ff00ff), OF_WIDTH(srli_epi16)(four, 8)};
    return row;
}
INLINE Columns take_columns(const int8_t *w) {
    Register four = take(w);
    Columns columns = {OF_WIDTH(srai_epi16)(OF_WIDTH(slli_epi16)(four, 8), 8), OF_WIDTH(srai_epi16)(four, 8)};
    return columns;
}
INLINE Ints add_products(Ints sum, Row x, Columns w) {
    return sum + (Ints)OF_WIDTH(madd_epi16)(x.even, w.even) + (Ints)OF_WIDTH(madd_epi16)(x.odd, w.odd);
}
enum { TALL = 2, HALVES = WIDTH > 4 ? 2 : 1, OFFSET = 0 };

#elif defined(__ARM_NEON)

/* signed bytes: 128 less than those of the row, so sums start from 128 times those of the columns */
typedef int8x16_t Row, Columns;
INLINE Row take_row(const uint8_t *x) {
    return vreinterpretq_s8_s32(vdupq_n_s32(*(const int32_t *)x ^ (int32_t)0x80808080));
}
INLINE Columns take_columns(const int8_t *w) { return vld1q_s8(w); }
#if defined(__ARM_FEATURE_DOTPROD)
INLINE Ints add_products(Ints sum, Row x, Columns w) { return (Ints)vdotq_s32((int32x4_t)sum, x, w); }
#else
INLINE Ints add_products(Ints sum, Row x, Columns w) {
    int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(w)));
    int32x4_t high = vpaddlq_s16(vmull_s8(vget_high_s8(x), vget_high_s8(w)));
    return sum + (Ints)vcombine_s32(vpadd_s32(vget_low_s32(low), vget_high_s32(low)),
                                    vpadd_s32(vget_low_s32(high), vget_high_s32(high)));
}
#endif
enum { TALL = 4, HALVES = 1, OFFSET = 128 };

#else /* any other processor */

typedef struct {
    int32_t byte[4];
} Row;
typedef struct {
    Ints byte[4];
} Columns;
INLINE Row take_row(const uint8_t *x) {
    Row row = {{x[0], x[1], x[2], x[3]}};
    return row;
}
INLINE Columns take_columns(const int8_t *w) {
    Columns columns;
    for (int i = 0; i < 4; i++)
        for (int c = 0; c < WIDTH; c++) columns.byte[i][c] = w[4 * c + i];
    return columns;
}
INLINE Ints add_products(Ints sum, Row x, Columns w) {
    for (int i = 0; i < 4; i++) sum += x.byte[i] * w.byte[i];
    return sum;
}
enum { TALL = 2, HALVES = 1, OFFSET = 0 };

#endif
