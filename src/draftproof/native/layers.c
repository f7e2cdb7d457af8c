/* Layers of the Llama family. Every row is computed by itself and by the same instructions, so its result does not depend
   on the rows beside it. */

#include "linear.c"

typedef struct {
    Linear qkv, out, gate_up, down; /* the first and the third with the norms before them */
} Layer;

/* Consecutive layers: x [batch, tokens, width] in place, and the input of each layer in states [layers, ...] unless that
   is null. Padding stays as it is. `caches` are keys and values of each layer, masks one for each; work [rows, 2 * work_width + width] and
   scratch are for intermediate results. */
void stack(Sizes n, long layers, const Layer *all, float *const *caches, const Mask *masks, const float *cos,
           const float *sin, const long *slots, float *x, float *states, float *work, long work_width, char *scratch) {
    Live live = live_tokens(&n, slots);
    long rows = live.count, places = n.batch * n.tokens, width = all->qkv.width;
    for (long l = 0; states && rows < places && l < layers; l++)
        memcpy(states + l * places * width, x, places * width * sizeof(float));
    float *joint = work, *branch = joint + rows * work_width, *added = branch + rows * work_width;
    Seen *seen = malloc(rows * sizeof(Seen));
#pragma omp parallel if (rows * width * all->gate_up.outputs > 65536)
    {
        float *own = malloc(attention_scratch(&n) * sizeof(float));
        for (long l = 0; l < layers; l++) {
            const Layer *layer = all + l;
            const Mask *mask = masks + l;
            long inner = layer->down.width, heads = n.heads * n.size;
            int another = !l || mask->added != mask[-1].added || mask->window != mask[-1].window;
#pragma omp for schedule(static)
            for (long r = 0; r < rows; r++) {
                float *row = x + live.at[r] * width;
                for (long i = 0; l && i < width; i++) row[i] += added[r * width + i];
                for (long i = 0; states && i < width; i++) states[(l * places + live.at[r]) * width + i] = row[i];
                prepare(&layer->qkv, row, r, rows, scratch);
            }
            multiply(&layer->qkv, scratch, rows, joint);
#pragma omp for schedule(static)
            for (long r = 0; r < rows; r++) {
                float *qkv = joint + r * layer->qkv.outputs;
                rotate_and_store(&n, live.at[r], qkv, cos, sin, slots, caches[2 * l], caches[2 * l + 1]);
                if (another) seen[r] = look(&n, mask, slots, live.at[r]);
            }
            attend_all(&n, live, joint, caches[2 * l], caches[2 * l + 1], mask, seen, own, branch);
#pragma omp for schedule(static)
            for (long r = 0; r < rows; r++) prepare(&layer->out, branch + r * heads, r, rows, scratch);
            multiply(&layer->out, scratch, rows, added);
#pragma omp for schedule(static)
            for (long r = 0; r < rows; r++) {
                float *row = x + live.at[r] * width;
                for (long i = 0; i < width; i++) row[i] += added[r * width + i];
                prepare(&layer->gate_up, row, r, rows, scratch);
            }
            multiply(&layer->gate_up, scratch, rows, joint);
#pragma omp for schedule(static)
            for (long r = 0; r < rows; r++) {
                gate_row(joint + r * 2 * inner, inner, branch + r * inner);
                prepare(&layer->down, branch + r * inner, r, rows, scratch);
            }
            multiply(&layer->down, scratch, rows, added);
        }
#pragma omp for schedule(static)
        for (long r = 0; r < rows; r++)
            for (long i = 0; i < width; i++) x[live.at[r] * width + i] += added[r * width + i];
        free(own);
    }
    free(seen);
    release(live);
}
