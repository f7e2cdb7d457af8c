/* How many threads a call gets. They meet at some two hundred barriers, and where other programs use the cores too, one
   of them is late at each by as long as the system lets those run: milliseconds. One thread alone is then many times as
   fast. So after threads were held up one works alone for a while, if that is faster, longer each time. */

#include <omp.h>
#include <time.h>

enum { SHORT = 1024, SIZES = 11 }; /* rows of a call; longer ones take so long that barriers hardly matter */
static const double FIRST_PAUSE = 0.25, LONGEST_PAUSE = 4; /* seconds in which one thread works alone */

/* What parts of calls have shown to the thread that makes the calls. */
typedef struct {
    double until, pause;                 /* when several threads are used again, and for how long they rest the next time */
    double several[SIZES], alone[SIZES]; /* usual cost of a part by several threads and by one, by the number of rows */
} Experience;

static _Thread_local Experience known;

/* Seconds by a clock: CLOCK_MONOTONIC, or the time that this thread has run, CLOCK_THREAD_CPUTIME_ID. */
static double seconds(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

typedef struct {
    double whole, own;
} Watch;

static Watch watch(void) { return (Watch){seconds(CLOCK_MONOTONIC), seconds(CLOCK_THREAD_CPUTIME_ID)}; }

/* Whether this thread had to wait for a core since then. One that waits at a barrier runs all the while. */
static int was_held_up(Watch start) {
    Watch now = watch();
    double whole = now.whole - start.whole, waited = whole - (now.own - start.own);
    return waited > 3e-3 && waited > 0.3 * whole;
}

int threads_at(double now, long rows) { return rows <= SHORT && now < known.until ? 1 : omp_get_max_threads(); }

static int threads_for(long rows) { return threads_at(seconds(CLOCK_MONOTONIC), rows); }

/* What part of a call of up to SHORT rows has shown: its cost, which is time by the size of the layers, and whether some
   of its threads were held up. */
void learn(double now, long rows, int threads, double cost, int held_up) {
    int size = 0;
    while (rows >>= 1) size++;
    double *usual = (threads > 1 ? known.several : known.alone) + size, pause = FIRST_PAUSE;
    *usual = *usual ? *usual + ((cost < 8 * *usual ? cost : 8 * *usual) - *usual) / 8 : cost;
    if (threads > 1 && held_up && (!known.alone[size] || known.alone[size] < known.several[size])) {
        if (known.pause > pause) pause = known.pause;
        known.until = now + pause;
        known.pause = 2 * pause < LONGEST_PAUSE ? 2 * pause : LONGEST_PAUSE;
    } else if (threads > 1 && !held_up)
        known.pause /= 2;
}
