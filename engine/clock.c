#include "engine/clock.h"

#include "engine/vec.h"

#include <time.h>

/* The piece of work: 16 rows of weights brought from 16 bits to floats and multiplied with 8 rows
 * of activations, which is what a decoder spends its time on (engine/cpu/linear.c). It works in the
 * first two levels of cache. */
enum { COLUMNS = 1024, WEIGHT_ROWS = 16, ROWS = 8, TILE = 4, PIECES = 3, PERIODS = 20 };
/* What it takes on an undisturbed core of a Xeon of the fourth generation. */
static const double NOMINAL_NS = 4500;
/* Between two looks at the core's speed; where that is more, what PERIODS looks take. */
static const int64_t PERIOD_NS = 300000;

struct work_clock {
    int64_t raw_ns;     /* the thread's time when it was last read */
    int64_t due_ns;     /* and when the core's speed is looked at again */
    int64_t read_ns;    /* what reading the thread's time takes */
    double slowness;    /* of the core, then; 0: never read */
    double work_ns;     /* the clock */
    int64_t counted_ns; /* the thread's time in it */
};

static _Thread_local struct work_clock mine;

static int64_t time_of(clockid_t id)
{
    struct timespec t;
    (void)clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t thread_ns(void)
{
    return time_of(CLOCK_THREAD_CPUTIME_ID);
}

/* ---- the piece of work ---- */

struct piece {
    uint16_t weights[COLUMNS]; /* bfloat16; every row is the same one */
    bt_vec panel[WEIGHT_ROWS][COLUMNS / BT_VEC];
    bt_vec x[ROWS][COLUMNS / BT_VEC];
    float y[ROWS][WEIGHT_ROWS];
};

static _Thread_local struct piece piece;

BT_INLINE void multiply_tile(struct piece *p, int32_t row, int32_t weight_row)
{
    bt_vec acc[TILE][TILE];
    memset(acc, 0, sizeof acc);
    for (int32_t k = 0; k < COLUMNS / BT_VEC; k++) {
#pragma GCC unroll 4
        for (int32_t j = 0; j < TILE; j++) {
#pragma GCC unroll 4
            for (int32_t i = 0; i < TILE; i++) {
                acc[i][j] += p->x[row + i][k] * p->panel[weight_row + j][k];
            }
        }
    }
#pragma GCC unroll 4
    for (int32_t i = 0; i < TILE; i++) {
        bt_vec4 sums = bt_lanes_sum4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
        memcpy(&p->y[row + i][weight_row], &sums, sizeof sums);
    }
}

BT_VEC_CLONES
static void do_piece(struct piece *p)
{
    for (int32_t j = 0; j < WEIGHT_ROWS; j++) {
        float *row = (float *)p->panel[j];
        for (int32_t k = 0; k < COLUMNS; k++) {
            uint32_t bits = (uint32_t)p->weights[k] << 16;
            memcpy(&row[k], &bits, sizeof bits);
        }
    }
    for (int32_t i = 0; i < ROWS; i += TILE) {
        for (int32_t j = 0; j < WEIGHT_ROWS; j += TILE) {
            multiply_tile(p, i, j);
        }
    }
    /* The sums are read by nobody, but the next piece starts from them. */
    p->weights[0] = p->y[0][0] > 0;
}

static int64_t middle(int64_t a, int64_t b, int64_t c)
{
    int64_t low = a < b ? a : b, high = a < b ? b : a;
    return c < low ? low : c > high ? high : c;
}

/* How much longer than nominally the piece takes now. The middle of three: an interrupt hits one.
 */
static double weigh(const struct work_clock *c)
{
    int64_t ns[PIECES];
    int64_t from_ns = thread_ns();
    for (int32_t i = 0; i < PIECES; i++) {
        do_piece(&piece);
        int64_t now_ns = thread_ns();
        ns[i] = now_ns - from_ns;
        from_ns = now_ns;
    }
    return (double)(middle(ns[0], ns[1], ns[2]) - c->read_ns) / NOMINAL_NS;
}

/* ---- the clock ---- */

static void look(struct work_clock *c, int64_t now_ns)
{
    c->slowness = weigh(c);
    c->raw_ns = thread_ns();
    int64_t period_ns = PERIODS * (c->raw_ns - now_ns);
    c->due_ns = c->raw_ns + (period_ns > PERIOD_NS ? period_ns : PERIOD_NS);
}

static void start(struct work_clock *c)
{
    enum { READS = 16 };
    c->read_ns = INT64_MAX;
    for (int32_t i = 0; i < READS; i++) {
        int64_t from_ns = thread_ns();
        int64_t ns = thread_ns() - from_ns;
        c->read_ns = ns < c->read_ns ? ns : c->read_ns;
    }
    (void)weigh(c); /* memory's first use */
    look(c, thread_ns());
}

static void advance(struct work_clock *c, int64_t ns, double slowness)
{
    ns = ns > c->read_ns ? ns - c->read_ns : 0;
    c->work_ns += (double)ns / slowness;
    c->counted_ns += ns;
}

static int64_t work_ns(void)
{
    struct work_clock *c = &mine;
    if (c->slowness == 0) {
        start(c);
    }
    int64_t now_ns = thread_ns(), since_ns = now_ns - c->raw_ns;
    double slowness = c->slowness;
    c->raw_ns = now_ns;
    if (now_ns >= c->due_ns) {
        look(c, now_ns);
        /* What lies between two looks was done at the mean of both speeds. */
        slowness = 2 / (1 / slowness + 1 / c->slowness);
    }
    advance(c, since_ns, slowness);
    return (int64_t)c->work_ns;
}

int64_t bt_clock_ns(enum bt_clock clock)
{
    return clock == BT_CLOCK_WORK ? work_ns() : time_of(CLOCK_MONOTONIC);
}

double bt_clock_slowness(void)
{
    return mine.work_ns > 0 ? (double)mine.counted_ns / mine.work_ns : NAN;
}
