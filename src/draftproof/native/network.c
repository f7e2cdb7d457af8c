/* A call of a whole network of the Llama family, from ids to logits. */

typedef struct {
    const Layer *layers;
    long count;
    const float *embeddings, *norm; /* of every token; before the output rows */
    float eps;
    Linear output;
} Network;

/* The tokens [n.tokens] of one text, at these positions, which are rows of cos and sin; logits of the last `keep`.
   x [tokens, width] becomes the states after all layers, normed: of all tokens if `all`, else of those. What is not said
   here is as `stack` has it. */
void network(const Network *net, Sizes n, const long *ids, const long *positions, const float *cos, const float *sin,
             float *const *caches, const Mask *masks, long keep, int all, float *x, float *states, const long *kept,
             float *logits, float *work, long work_width, char *scratch) {
    long width = net->layers->qkv.width, size = n.size, first = n.tokens - keep;
    float *angles = malloc(2 * n.tokens * size * sizeof(float)), *other = angles + n.tokens * size;
    for (long i = 0; i < n.tokens; i++) {
        memcpy(x + i * width, net->embeddings + ids[i] * width, width * sizeof(float));
        memcpy(angles + i * size, cos + positions[i] * size, size * sizeof(float));
        memcpy(other + i * size, sin + positions[i] * size, size * sizeof(float));
    }
    stack(n, net->count, net->layers, caches, masks, angles, other, 0, x, states, kept, work, work_width, scratch);
    float *some = all ? x : x + first * width;
    norm(some, net->norm, net->eps, all ? n.tokens : keep, width, some);
    linear(&net->output, x + first * width, keep, scratch, logits);
    free(angles);
}
