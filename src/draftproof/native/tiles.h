/* Products of bytes by AMX, where the processor has it: of 16 rows with 16 columns, 64 bytes of each, in one instruction.
   Sums of integers are exact, so the results are those of other instructions. */

#if defined(__AMX_INT8__) && defined(__linux__) && WIDTH == 16
#include <sys/syscall.h>
#include <unistd.h>

enum { HIGH = 16, SQUARE = HIGH * HIGH }; /* most rows of a tile, and sums in one */
enum { DEEP = 64, FEWEST = 14 };         /* bytes of a row, and how many rows tiles are faster for */

/* Linux gives the large registers to processes that ask for them. */
static int tiles_granted(void) {
    enum { ASK = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    static int granted = -1;
    if (granted < 0) granted = !syscall(SYS_arch_prctl, ASK, TILE_DATA);
    return granted;
}

static int fits_tiles(const Linear *layer, long rows) {
    return layer->scale && rows >= FEWEST && depth_of(layer) % DEEP == 0 && tiles_granted();
}

/* Registers 0 to 3 are for sums, 4 and 5 for rows, 6 and 7 for columns. Each thread sets its own. */
static void open_tiles(long rows) {
    long height = tile_rows(rows, HIGH);
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int i = 0; i < 8; i++) shape.bytes[i] = DEEP, shape.rows[i] = i < 6 ? height : HIGH;
    _tile_loadconfig(&shape);
}

static void close_tiles(void) { _tile_release(); }

/* The sums of products of the rows of bytes from `first` on, and of as many from `second` on unless that is null, with 32
   columns of weights: [2][2][16][16], by the two of either, row and column. */
static void tile_sums(const uint8_t *first, const uint8_t *second, const int8_t *weights, long depth, Ahead ahead,
                      int32_t *sum) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long k = 0; k < depth; k += DEEP) {
        const int8_t *w = weights + GROUP * k;
        for (int i = 0; i < DEEP / 4; i++) prefetch(ahead, k / 4 + i);
        _tile_loadd(6, w, 4 * GROUP);
        _tile_loadd(7, w + 2 * GROUP, 4 * GROUP);
        _tile_loadd(4, first + k, depth);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        if (!second) continue;
        _tile_loadd(5, second + k, depth);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    _tile_stored(0, sum, 4 * HIGH);
    _tile_stored(1, sum + SQUARE, 4 * HIGH);
    if (!second) return;
    _tile_stored(2, sum + 2 * SQUARE, 4 * HIGH);
    _tile_stored(3, sum + 3 * SQUARE, 4 * HIGH);
}

/* Some columns of out [rows, stride], at most 32. All tiles are equally high: the last may overlap the one before, and
   computes the same again. */
static void multiply_tiles(const uint8_t *bytes, const float *affine, const int8_t *weights, const Linear *layer, long n,
                           long rows, long columns, long stride, float *out) {
    long depth = depth_of(layer), height = tile_rows(rows, HIGH), tiles = (rows + height - 1) / height;
    int32_t sum[4 * SQUARE];
    for (long t = 0; t < tiles; t += 2) {
        long last = rows - height, count = t + 1 < tiles ? 2 : 1;
        long at[2] = {height * t < last ? height * t : last, height * (t + 1) < last ? height * (t + 1) : last};
        const uint8_t *second = count > 1 ? bytes + at[1] * depth : 0;
        Ahead ahead = ahead_of(weights, GROUP * depth, t / 2, (tiles + 1) / 2);
        tile_sums(bytes + at[0] * depth, second, weights, depth, ahead, sum);
        for (long i = 0; i < count; i++)
            for (long r = at[i]; r < at[i] + height; r++) {
                const int32_t *whole = sum + 2 * SQUARE * i + HIGH * (r - at[i]);
                float some[GROUP], *to = columns < GROUP ? some : out + r * stride;
                finish(*(const Ints *)whole, layer, n, affine + 2 * r, to);
                finish(*(const Ints *)(whole + SQUARE), layer, n + WIDTH, affine + 2 * r, to + WIDTH);
                for (long c = 0; columns < GROUP && c < columns; c++) out[r * stride + c] = some[c];
            }
    }
}

#else

static int fits_tiles(const Linear *layer, long rows) { return 0; }
static void open_tiles(long rows) {}
static void close_tiles(void) {}
static void multiply_tiles(const uint8_t *bytes, const float *affine, const int8_t *weights, const Linear *layer, long n,
                           long rows, long columns, long stride, float *out) {}

#endif
