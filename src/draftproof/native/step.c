/* What a step does beside calls of the target: softmax and sampling, a head's draft tokens, and their verification. */

#include "layers.c"
#include "layout.c"
#include "network.c"
#include "noise.c"

/* 16 partial sums in double precision. */
typedef struct {
    double lane[LANES];
} Doubles;

INLINE void add(Doubles *sums, Lanes x) {
    float some[LANES];
    store(x, some);
    for (int i = 0; i < LANES; i++) sums->lane[i] += some[i];
}

static inline double total_of(const Doubles *sums) {
    double total = 0;
    for (int i = 0; i < LANES; i++) total += sums->lane[i];
    return total;
}

/* out [size] = 1 for the first of the best scores, and 0 for the others. Returns whether there is one. */
static int greedy(const float *scores, long size, float *out) {
    long best = 0, bad = 0;
    for (long i = 0; i < size; i++) bad |= scores[i] != scores[i];
    for (long i = 1; i < size; i++) best = scores[i] > scores[best] ? i : best;
    bad |= scores[best] - scores[best] != 0; /* infinite */
    for (long i = 0; i < size; i++) out[i] = i == best;
    return !bad;
}

/* out [size] = softmax(scores / temperature), or the best token at temperature 0, of the tokens that the mask allows; no
   mask allows all. Returns whether the scores are finite enough for a law. */
static int law(const float *scores, const unsigned char *mask, long size, float temperature, float *out) {
    if (mask) {
        for (long i = 0; i < size; i++) out[i] = mask[i] ? scores[i] : -INFINITY;
        scores = out;
    }
    if (temperature == 0) return greedy(scores, size, out);
    float unit = 1 / temperature;
    Lanes most = filled(-INFINITY);
    Doubles sums = {0};
    for (long i = 0; i < size; i += LANES) {
        Lanes some = load_some(scores + i, size - i, -INFINITY);
        for (int p = 0; p < PARTS; p++) most.part[p] = larger(some.part[p], most.part[p]);
    }
    float best = largest_of(most);
    for (long i = 0; i < size; i += LANES) {
        if (mask && i + LANES <= size && !memcmp(mask + i, (unsigned char[LANES]){0}, LANES)) {
            store(filled(0), out + i);
            continue;
        }
        Lanes some = load_some(scores + i, size - i, -INFINITY);
        for (int p = 0; p < PARTS; p++) some.part[p] = weight_of((some.part[p] - best) * unit);
        add(&sums, some);
        store_some(some, size - i, out + i);
    }
    double total = total_of(&sums);
    float share = 1 / total;
    for (long i = 0; i < size; i++) out[i] *= share;
    return best - best == 0 && total > 0; /* false where the best score is infinite or any score is NaN */
}

/* Threads for a few parts of work, each of which is one thread's. */
static int threads_over(long parts) {
    int threads = threads_for(parts);
    return parts < threads ? parts : threads;
}

/* Laws [rows, size] of scores, with a mask or none for each row; returns how many rows have none. */
long laws(const float *scores, const unsigned char *const *masks, long rows, long size, float temperature, float *out) {
    long bad = 0;
#pragma omp parallel for schedule(static) reduction(+ : bad) num_threads(threads_over(rows)) \
    if (rows > 1 && rows * size > 65536)
    for (long r = 0; r < rows; r++)
        bad += !law(scores + r * size, masks ? masks[r] : 0, size, temperature, out + r * size);
    return bad;
}

/* The token at which the cumulated law [size] first exceeds u times its sum; -1 where there is none. Sums run in double
   precision, first over parts, so that only one part is searched token by token. */
static long draw(const float *law, long size, double u) {
    enum { PIECE = 256 };
    double parts[size / PIECE + 1], total = 0, before = 0;
    for (long i = 0; i < size; i += PIECE) {
        Doubles sums = {0};
        for (long j = i; j < size && j < i + PIECE; j += LANES) add(&sums, load_some(law + j, size - j, 0));
        total += parts[i / PIECE] = total_of(&sums);
    }
    long last = -1, i = 0;
    for (; i + PIECE < size && before + parts[i / PIECE] <= u * total; i += PIECE) before += parts[i / PIECE];
    for (; i < size; i++) {
        before += law[i];
        if (law[i] > 0) {
            last = i;
            if (before > u * total) return i;
        }
    }
    /* rounding left nothing, or the law is zero */
    for (i = last < 0 ? size - 1 : last; i >= 0 && last < 0; i--) last = law[i] > 0 ? i : -1;
    return last;
}

/* Draw a token from each row of laws [rows, size]. */
void draws(const float *laws, long rows, long size, const double *u, long *out) {
#pragma omp parallel for schedule(static) if (rows > 1 && rows * size > 65536) num_threads(threads_over(rows))
    for (long r = 0; r < rows; r++) out[r] = draw(laws + r * size, size, u[r]);
}

/* A trained head: from a state and the token after it to its next state, and to scores of its draft tokens. */
typedef struct {
    const Layer *layers; /* what the target has read goes through all of them, draft tokens through the last */
    long count;
    Linear fusion, join, output; /* the last with the norm before it */
    const float *tap_scale, *embeddings, *norm_state, *norm_embedding;
    float eps;
    const long *tokens;
} Head;

/* out [2 * width] = the norms of a state and of the embedding of the token after it, side by side. */
static void pair(const Head *head, const float *state, long token, float *out) {
    long width = head->join.outputs;
    norm(state, head->norm_state, head->eps, 1, width, out);
    norm(head->embeddings + token * width, head->norm_embedding, head->eps, 1, width, out + width);
}

/* Entries of n.tokens tokens of one text from the target's hidden states [tokens, taps, width] at them, and from the
   tokens after them. `caches` are keys and values of each layer; states [tokens, width] become the head's own. */
void catch_up(const Head *head, Sizes n, const float *features, const long *tokens, const float *cos, const float *sin,
              float *const *caches, float *states, float *work, long work_width, char *scratch) {
    long width = head->join.outputs, taps = head->fusion.width / width;
    Mask causal[head->count];
    for (long l = 0; l < head->count; l++) causal[l] = (Mask){0, 0};
    for (long i = 0; i < n.tokens * taps; i++)
        norm(features + i * width, head->tap_scale + i % taps * width, head->eps, 1, width, work + i * width);
    linear(&head->fusion, work, n.tokens, scratch, states);
    for (long i = 0; i < n.tokens; i++) pair(head, states + i * width, tokens[i], work + 2 * i * width);
    linear(&head->join, work, n.tokens, scratch, states);
    stack(n, head->count, head->layers, caches, causal, cos, sin, 0, states, 0, 0, work, work_width, scratch);
}

/* The head's state after one more token, which n describes; `state` is the one before it. */
static void read_token(const Head *head, Sizes n, long token, const float *state, const float *cos, const float *sin,
                       float *const *caches, float *next, float *work, long work_width, char *scratch) {
    const Mask all = {0, -1};
    pair(head, state, token, work);
    linear(&head->join, work, 1, scratch, next);
    stack(n, 1, head->layers + head->count - 1, caches, &all, cos, sin, 0, next, 0, 0, work, work_width, scratch);
}

/* The head's law after `count` more tokens of one text, of the draft tokens that the mask allows. states [count + 1, width]
   hold the first state; the others become those after the tokens. cos, sin and n belong to the first token. Returns the
   token that u draws, as its index among those; -1 where there is no law: a score is NaN, or none is finite. */
long follow(const Head *head, Sizes n, long count, const long *tokens, float temperature, double u,
            const unsigned char *mask, const float *cos, const float *sin, float *keys, float *values, float *states,
            float *out, float *work, long work_width, char *scratch) {
    long width = head->join.outputs, drafted = head->output.outputs;
    float *const caches[] = {keys, values};
    for (long i = 0; i < count; i++, n.start++, n.end++)
        read_token(head, n, tokens[i], states + i * width, cos + i * n.size, sin + i * n.size, caches,
                   states + (i + 1) * width, work, work_width, scratch);
    linear_where(&head->output, states + count * width, mask, scratch, out);
    return law(out, mask, drafted, temperature, out) ? draw(out, drafted, u) : -1;
}

/* How likely the target is to accept a token that was drawn with this probability: engine/eager/goals.py. */
static double chance(double q) { return 0.35 + 0.6 * q; }

/* A chain of up to `count` draft tokens after one text: draws each with its u from the head's law, and reads it. It ends
   where the next token is reached with a chance below `least`. states [count, width] hold the first state; laws [count,
   draft tokens]; guesses [count] are indices among those tokens. cos and sin belong to the first guess, those of the
   others follow; n describes the call of the first guess. Returns how many tokens were drawn, or -1 where the head's
   scores are not finite. */
long guess(const Head *head, Sizes n, long count, float temperature, double least, const double *u, const float *cos,
           const float *sin, float *keys, float *values, float *states, float *laws, long *guesses, float *work,
           long work_width, char *scratch) {
    long width = head->join.outputs, drafted = head->output.outputs;
    float *const caches[] = {keys, values};
    double reached = 1;
    for (long i = 0; i < count; i++) {
        float *law_i = laws + i * drafted;
        linear(&head->output, states + i * width, 1, scratch, law_i);
        if (!law(law_i, 0, drafted, temperature, law_i)) return -1;
        guesses[i] = draw(law_i, drafted, u[i]);
        reached *= chance(law_i[guesses[i]]);
        if (i + 1 == count || reached < least) return i + 1;
        read_token(head, n, head->tokens[guesses[i]], states + i * width, cos + i * n.size, sin + i * n.size, caches,
                   states + (i + 1) * width, work, work_width, scratch);
        n.start++, n.end++;
    }
    return count;
}

/* sum (w p - q)+ over all tokens; q [drafted] belongs to the tokens with these ids, and is zero for the others. */
static double excess(const float *p, const float *q, const long *ids, long size, long drafted, float w) {
    enum { PIECE = 256 };
    double inside = 0, left = 0, total = 0;
    for (long i = 0; i < drafted; i += PIECE) {
        float p_sums[LANES] = {0}, excess_sums[LANES] = {0};
        for (long j = i; j < drafted && j < i + PIECE; j += LANES)
            for (long k = 0; k < LANES && j + k < drafted; k++) {
                float here = p[ids[j + k]], rest = w * here - q[j + k];
                p_sums[k] += here;
                excess_sums[k] += rest > 0 ? rest : 0;
            }
        inside += sum_of(load(p_sums)), left += sum_of(load(excess_sums));
    }
    for (long i = 0; i < size; i += PIECE) {
        Lanes sums = filled(0);
        for (long j = i; j < size && j < i + PIECE; j += LANES) {
            Lanes some = load_some(p + j, size - j, 0);
            for (int k = 0; k < PARTS; k++) sums.part[k] += some.part[k];
        }
        total += sum_of(sums);
    }
    return left + w * (total > inside ? total - inside : 0);
}

/* The last accepted node of a chain of draft tokens and the token emitted after it, by block verification or, with block
   = 0, token by token: verify/block.py and verify/token.py. p [nodes, size]; q [nodes, drafted] belongs to the tokens with
   these ids; places [nodes] are the draft tokens' indices among them. stop [nodes] becomes the law of the last node. */
void verify(const float *p, const float *q, const long *ids, const long *places, long nodes, long size, long drafted,
            int block, double u_stop, double u_next, double *stop, long *node, long *token, float *residual) {
    double w[nodes], h[nodes], reach = 1, total = 0;
    w[0] = 1;
    for (long i = 1; i < nodes; i++) {
        double px = p[(i - 1) * size + ids[places[i]]], qx = q[(i - 1) * drafted + places[i]];
        px *= block ? w[i - 1] : 1;
        w[i] = px < qx ? px / qx : qx > 0;
    }
#pragma omp parallel for schedule(static) if (block && nodes > 3) num_threads(threads_over(nodes - 1))
    for (long i = 1; i < nodes; i++) {
        h[i] = w[i];
        if (block && i + 1 < nodes) {
            double z = excess(p + i * size, q + i * drafted, ids, size, drafted, w[i]), all = z + (1 - w[i]);
            h[i] = all > 0 ? z / all : 1;
        }
    }
    for (long j = 1; j < nodes; j++) { /* from the back, or from the front until one is rejected */
        long i = block ? nodes - j : j;
        stop[block ? i : i - 1] = reach * (block ? h[i] : 1 - h[i]);
        reach *= block ? 1 - h[i] : h[i];
    }
    stop[block ? 0 : nodes - 1] = reach;
    for (long i = 0; i < nodes; i++) total += stop[i];
    double before = 0;
    for (long i = 0; i < nodes && before <= u_stop * total; before += stop[i], i++)
        if (stop[i] > 0) *node = i;
    const float *row = p + *node * size, *draft = q + *node * drafted;
    float weight = block ? w[*node] : 1;
    for (long i = 0; i < size; i++) residual[i] = weight * row[i];
    for (long i = 0; *node + 1 < nodes && i < drafted; i++) {
        float rest = residual[ids[i]] - draft[i];
        residual[ids[i]] = rest > 0 ? rest : 0;
    }
    *token = draw(residual, size, u_next);
    if (*token < 0) *token = draw(row, size, u_next); /* the residual is zero up to rounding */
}
