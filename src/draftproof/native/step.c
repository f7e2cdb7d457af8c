/* What a step does beside calls of the target: laws and draws, the guesses of a head, and what becomes of them. */

#include "layers.c"

typedef double Doubles __attribute__((vector_size(128), aligned(4)));

/* Up to 16 numbers from x on, filled up with others. */
static inline Lanes some(const float *x, long left, float others) {
    Lanes made = {0};
    if (left >= 16) return *(const Lanes *)x;
    made += others;
    for (long i = 0; i < left; i++) made[i] = x[i];
    return made;
}

static inline double sum(Doubles x) {
    double total = 0;
    for (int i = 0; i < 16; i++) total += x[i];
    return total;
}

/* out [size] = exp(scores / temperature), scaled to sum to one. Whether the scores are such that it does. */
static int law(const float *scores, long size, float temperature, float *out) {
    float best = -INFINITY, unit = 1 / temperature;
    Lanes most = some(scores, 0, -INFINITY);
    Doubles sums = {0};
    for (long i = 0; i < size; i += 16) most = larger(some(scores + i, size - i, -INFINITY), most);
    for (int i = 0; i < 16; i++) best = most[i] > best ? most[i] : best;
    for (long i = 0; i < size; i += 16) {
        Lanes made = exponentials((some(scores + i, size - i, -INFINITY) - best) * unit);
        sums += __builtin_convertvector(made, Doubles);
        if (size - i >= 16)
            *(Lanes *)(out + i) = made;
        else
            for (long j = i; j < size; j++) out[j] = made[j - i];
    }
    double total = sum(sums);
    float share = 1 / total;
    for (long i = 0; i < size; i++) out[i] *= share;
    return best - best == 0 && total > 0; /* false where the best is infinite, or any is no number */
}

/* Laws [rows, size] of scores; how many rows have none. */
long laws(const float *scores, long rows, long size, float temperature, float *out) {
    long bad = 0;
#pragma omp parallel for schedule(static) reduction(+ : bad) if (rows > 1 && rows * size > 65536)
    for (long r = 0; r < rows; r++) bad += !law(scores + r * size, size, temperature, out + r * size);
    return bad;
}

/* The token at which the cumulated law [size] first exceeds u times its sum; -1 where there is none. Sums run in double
   precision, first over parts, so that only one part is looked at token by token. */
static long draw(const float *law, long size, double u) {
    enum { PART = 256 };
    double parts[size / PART + 1], total = 0, before = 0;
    for (long i = 0; i < size; i += PART) {
        Doubles sums = {0};
        for (long j = i; j < size && j < i + PART; j += 16)
            sums += __builtin_convertvector(some(law + j, size - j, 0), Doubles);
        total += parts[i / PART] = sum(sums);
    }
    long last = -1, i = 0;
    for (; i + PART < size && before + parts[i / PART] <= u * total; i += PART) before += parts[i / PART];
    for (; i < size; i++) {
        before += law[i];
        if (law[i] > 0) {
            last = i;
            if (before > u * total) return i;
        }
    }
    for (i = last < 0 ? size - 1 : last; i >= 0 && last < 0; i--) last = law[i] > 0 ? i : -1; /* rounding, or no law */
    return last;
}

/* A token for each row of laws [rows, size]. */
void draws(const float *laws, long rows, long size, const double *u, long *out) {
#pragma omp parallel for schedule(static) if (rows > 1 && rows * size > 65536)
    for (long r = 0; r < rows; r++) out[r] = draw(laws + r * size, size, u[r]);
}

/* A trained head's way from a state and the token after it to its next state, and to scores of the tokens it knows. */
typedef struct {
    const Layer *layer;
    Linear join, output; /* the second with the norm before it */
    const float *embeddings, *norm_state, *norm_embedding;
    float eps;
    const long *names;
} Head;

/* A chain of `count` guesses after one text: draws each with its u from the law of the head, and reads it. states [count,
   width] hold the first one; laws [count, tokens known], guesses [count], as places among those tokens. cos and sin are
   the angles of the first guess, others follow; n is the place of the first guess. How many guesses were made: fewer
   than `count` where the head says something that is no law. */
long guess(const Head *head, Sizes n, long count, float temperature, const double *u, const float *cos, const float *sin,
           float *keys, float *values, float *states, float *laws, long *guesses, float *work, long work_width,
           char *room) {
    long width = head->join.outputs, known = head->output.outputs;
    float *const stores[] = {keys, values};
    for (long i = 0; i < count; i++) {
        float *mine = laws + i * known;
        linear(&head->output, states + i * width, 1, room, mine);
        if (!law(mine, known, temperature, mine)) return i;
        guesses[i] = draw(mine, known, u[i]);
        if (i + 1 == count) break;
        const float *word = head->embeddings + head->names[guesses[i]] * width;
        norm(states + i * width, head->norm_state, head->eps, 1, width, work);
        norm(word, head->norm_embedding, head->eps, 1, width, work + width);
        float *next = states + (i + 1) * width;
        linear(&head->join, work, 1, room, next);
        stack(n, 1, head->layer, stores, 0, cos + i * n.size, sin + i * n.size, 0, next, 0, work, work_width, room);
        n.start++, n.used++;
    }
    return count;
}

/* sum (w p - q)+ over all tokens, of which q [known] has those with these names; the others' q is zero. */
static double excess(const float *p, const float *q, const long *names, long size, long known, float w) {
    enum { PART = 256 };
    double inside = 0, left = 0, total = 0;
    for (long i = 0; i < known; i += PART) {
        float some = 0, more = 0;
        for (long j = i; j < known && j < i + PART; j++) {
            float here = p[names[j]], rest = w * here - q[j];
            some += here;
            more += rest > 0 ? rest : 0;
        }
        inside += some, left += more;
    }
    for (long i = 0; i < size; i += PART) {
        float some = 0;
        for (long j = i; j < size && j < i + PART; j++) some += p[j];
        total += some;
    }
    return left + w * (total > inside ? total - inside : 0);
}

/* The last node accepted of a chain of guesses and the token emitted after it, by block verification or, with block = 0,
   token by token: verify/block.py and verify/token.py, in all tokens. p [nodes, size]; q [nodes, known] of the tokens
   with these names; places [nodes] of the guesses among them. stop [nodes] becomes the law of the last node. */
void verify(const float *p, const float *q, const long *names, const long *places, long nodes, long size, long known,
            int block, double u_stop, double u_next, double *stop, long *node, long *token, float *room) {
    double w[nodes], h[nodes], reach = 1, total = 0;
    w[0] = 1;
    for (long i = 1; i < nodes; i++) {
        double px = p[(i - 1) * size + names[places[i]]], qx = q[(i - 1) * known + places[i]];
        px *= block ? w[i - 1] : 1;
        w[i] = px < qx ? px / qx : qx > 0;
    }
#pragma omp parallel for schedule(static) if (block && nodes > 3)
    for (long i = 1; i < nodes; i++) {
        h[i] = w[i];
        if (block && i + 1 < nodes) {
            double z = excess(p + i * size, q + i * known, names, size, known, w[i]), all = z + (1 - w[i]);
            h[i] = all > 0 ? z / all : 1;
        }
    }
    for (long j = 1; j < nodes; j++) { /* from the back, or from the front until one is refused */
        long i = block ? nodes - j : j;
        stop[block ? i : i - 1] = reach * (block ? h[i] : 1 - h[i]);
        reach *= block ? 1 - h[i] : h[i];
    }
    stop[block ? 0 : nodes - 1] = reach;
    for (long i = 0; i < nodes; i++) total += stop[i];
    double before = 0;
    for (long i = 0; i < nodes && before <= u_stop * total; before += stop[i], i++)
        if (stop[i] > 0) *node = i;
    const float *row = p + *node * size, *guessed = q + *node * known;
    float weight = block ? w[*node] : 1;
    for (long i = 0; i < size; i++) room[i] = weight * row[i];
    for (long i = 0; *node + 1 < nodes && i < known; i++) {
        float rest = room[names[i]] - guessed[i];
        room[names[i]] = rest > 0 ? rest : 0;
    }
    *token = draw(room, size, u_next);
    if (*token < 0) *token = draw(row, size, u_next); /* nothing is left but by rounding */
}
