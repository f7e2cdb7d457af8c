/* Layers of the Llama family. Every row is computed by itself and by the same instructions, so its result does not depend
   on the rows beside it. */

#include "linear.c"

typedef struct {
    Linear qkv, out, gate_up, down; /* the first and the third with the norms before them */
} Layer;

/* Consecutive layers over the tokens of a call. Tokens that are padding are left out: `live` are the others. */
typedef struct {
    Sizes n;
    Live live;
    const Layer *layers;
    float *const *caches;
    const Mask *masks;
    const float *cos, *sin;
    const long *slots;
    float *x, *states;              /* [batch, tokens, width]; the inputs of some layers, or null */
    const long *kept;               /* which of `states` the input of each layer is; -1 for none */
    float *joint, *branch, *added; /* intermediate results; `added` is still to be added to x */
    Seen *seen;
    char *scratch;
    long step; /* tokens that attention takes at once */
} Call;

enum { LAYERS_AT_ONCE = 6 }; /* layers after which threads that are held up are noticed */

/* One layer. Called by all threads together. */
static void run_layer(const Call *call, long l, float *own) {
    const Layer *layer = call->layers + l;
    const Mask *mask = call->masks + l;
    Sizes n = call->n;
    long rows = call->live.count, places = n.batch * n.tokens, width = layer->qkv.width;
    long inner = layer->down.width, heads = n.heads * n.size;
    float *x = call->x, *joint = call->joint, *branch = call->branch, *added = call->added;
    float *keys = call->caches[2 * l], *values = call->caches[2 * l + 1];
    int another = !l || mask->added != mask[-1].added || mask->window != mask[-1].window;
#pragma omp for schedule(static)
    for (long r = 0; r < rows; r++) {
        long at = call->live.at[r];
        float *row = x + at * width;
        for (long i = 0; l && i < width; i++) row[i] += added[r * width + i];
        float *state = call->states && call->kept[l] >= 0 ? call->states + (call->kept[l] * places + at) * width : 0;
        for (long i = 0; state && i < width; i++) state[i] = row[i];
        prepare(&layer->qkv, row, r, rows, call->scratch);
    }
    multiply(&layer->qkv, call->scratch, rows, joint);
#pragma omp for schedule(static)
    for (long r = 0; r < rows; r++) {
        float *qkv = joint + r * layer->qkv.outputs;
        rotate_and_store(&n, call->live.at[r], qkv, call->cos, call->sin, call->slots, keys, values);
        if (another) call->seen[r] = look(&n, mask, call->slots, call->live.at[r]);
    }
    attend_all(&n, call->live, joint, keys, values, mask, call->seen, call->step, own, branch);
#pragma omp for schedule(static)
    for (long r = 0; r < rows; r++) prepare(&layer->out, branch + r * heads, r, rows, call->scratch);
    multiply(&layer->out, call->scratch, rows, added);
#pragma omp for schedule(static)
    for (long r = 0; r < rows; r++) {
        float *row = x + call->live.at[r] * width;
        for (long i = 0; i < width; i++) row[i] += added[r * width + i];
        prepare(&layer->gate_up, row, r, rows, call->scratch);
    }
    multiply(&layer->gate_up, call->scratch, rows, joint);
#pragma omp for schedule(static)
    for (long r = 0; r < rows; r++) {
        gate_row(joint + r * 2 * inner, inner, branch + r * inner);
        prepare(&layer->down, branch + r * inner, r, rows, call->scratch);
    }
    multiply(&layer->down, call->scratch, rows, added);
}

/* Consecutive layers: x [batch, tokens, width] in place. The input of a layer goes to states [some, ...] where `kept` has
   its place there, and nowhere for -1 or without states. Padding stays as it is. `caches` are keys and values of each
   layer, masks one for each; work [rows, 2 * work_width + width] and scratch are for intermediate results. */
void stack(Sizes n, long layers, const Layer *all, float *const *caches, const Mask *masks, const float *cos,
           const float *sin, const long *slots, float *x, float *states, const long *kept, float *work, long work_width,
           char *scratch) {
    Live live = live_tokens(&n, slots);
    long rows = live.count, places = n.batch * n.tokens, width = all->qkv.width;
    float *branch = work + rows * work_width, *added = branch + rows * work_width;
    Seen *seen = malloc(rows * sizeof(Seen));
    Call call = {n, live, all, caches, masks, cos, sin, slots, x, states, kept, work, branch, added, seen, scratch, 0};
    long weights = width * all->gate_up.outputs;
    for (long l = 0; states && rows < places && l < layers; l++)
        if (kept[l] >= 0) memcpy(states + kept[l] * places * width, x, places * width * sizeof(float));
    for (long first = 0; first < layers; first += LAYERS_AT_ONCE) {
        int threads = rows * weights > 65536 ? threads_for(rows) : 1, held_up = 0;
        double begun = seconds(CLOCK_MONOTONIC);
        call.step = balanced(&n, threads);
#pragma omp parallel num_threads(threads) reduction(| : held_up)
        {
            Watch start = watch();
            float *own = malloc(attention_scratch(&n) * sizeof(float));
            for (long l = first; l < layers && l < first + LAYERS_AT_ONCE; l++) run_layer(&call, l, own);
            free(own);
            held_up = was_held_up(start);
        }
        double now = seconds(CLOCK_MONOTONIC);
        if (rows <= SHORT && rows * weights > 65536 && first + LAYERS_AT_ONCE <= layers)
            learn(now, rows, threads, (now - begun) / weights, held_up);
    }
    for (long r = 0; r < rows; r++)
        for (long i = 0; i < width; i++) x[live.at[r] * width + i] += added[r * width + i];
    free(seen);
    release(live);
}
