/* How many threads a call gets. They meet at some two hundred barriers, and where other programs use the cores too, one
   of them is late at each by as long as the system lets those run: milliseconds. One thread alone is then many times as
   fast. So after threads were held up one works alone for a while, longer each time. */

#include <omp.h>
#include <stdatomic.h>
#include <time.h>

enum { SHORT = 1024 };                            /* rows; longer calls take so long that barriers hardly matter */
enum { FIRST_PAUSE = 512, LONGEST_PAUSE = 8192 }; /* parts of calls */

static atomic_int left, pause_after = FIRST_PAUSE; /* parts that one thread is still to compute alone, and the next time */

int threads_for(long rows) { return rows <= SHORT && left > 0 ? 1 : omp_get_max_threads(); }

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

/* What a part of a short call by several threads has shown, or that one thread has computed one. */
void learn(int threads, int held_up) {
    int pause = pause_after;
    if (threads == 1) {
        if (left > 0) left--;
    } else if (held_up) {
        left = pause;
        pause_after = 2 * pause < LONGEST_PAUSE ? 2 * pause : LONGEST_PAUSE;
    } else if (pause > FIRST_PAUSE)
        pause_after = pause / 2;
}
