#include "cli/progress.h"

#include "cli/out.h"
#include "engine/core/error.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BAR_CELLS = 24, DRAW_EVERY_NS = 100 * 1000 * 1000 };

/* Too little has been seen below this to tell a rate. */
static const double RATE_AFTER_S = 0.5;

static int64_t now_ns(void)
{
    struct timespec t = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void bt_progress_start(struct bt_progress *p, const char *label, const char *noun, bool quiet)
{
    BT_ASSERT(label != NULL);
    *p = (struct bt_progress){
        .label = label, .noun = noun, .shown = !quiet && isatty(STDERR_FILENO) == 1};
    if (p->shown) {
        p->start_ns = now_ns();
        p->drawn_ns = p->start_ns;
    }
}

int32_t bt_progress_line(char buf[BT_PROGRESS_LINE_BYTES], const struct bt_progress *p, double done,
                         double total, double elapsed_s)
{
    BT_ASSERT(total > 0);
    double share = done <= 0 ? 0 : done >= total ? 1 : done / total;
    int filled = (int)(share * BAR_CELLS);
    char bar[BAR_CELLS + 1];
    memset(bar, '#', (size_t)filled);
    memset(bar + filled, '.', (size_t)(BAR_CELLS - filled));
    bar[BAR_CELLS] = '\0';
    char rate[BT_OUT_NUMBER_BYTES + 32] = "", left[BT_OUT_NUMBER_BYTES + 16] = "";
    if (elapsed_s >= RATE_AFTER_S && done > 0) {
        char number[BT_OUT_NUMBER_BYTES];
        if (p->noun != NULL) {
            bt_unit_format(number, done / elapsed_s, BT_UNIT_PER_S);
            (void)snprintf(rate, sizeof rate, "  %s %.24s", number, p->noun);
        }
        bt_unit_format(number, elapsed_s * (1 - share) / share, BT_UNIT_SECONDS);
        (void)snprintf(left, sizeof left, "  %s left", number);
    }
    int n = snprintf(buf, BT_PROGRESS_LINE_BYTES, "%.32s [%s] %3.0f%%%s%s", p->label, bar,
                     100 * share, rate, left);
    BT_ASSERT(n > 0);
    return n < BT_PROGRESS_LINE_BYTES ? n : BT_PROGRESS_LINE_BYTES - 1;
}

void bt_progress_update(struct bt_progress *p, double done, double total)
{
    if (!p->shown) {
        return;
    }
    int64_t now = now_ns();
    if (now - p->drawn_ns < DRAW_EVERY_NS) {
        return;
    }
    p->drawn_ns = now;
    char line[BT_PROGRESS_LINE_BYTES];
    int32_t n = bt_progress_line(line, p, done, total, (double)(now - p->start_ns) * 1e-9);
    /* A shorter line would leave the end of a longer one behind. */
    int32_t pad = p->width > n ? p->width - n : 0;
    fprintf(stderr, "\r%s%*s", line, (int)pad, "");
    fflush(stderr);
    p->width = n;
}

void bt_progress_finish(struct bt_progress *p)
{
    if (p->shown && p->width > 0) {
        fprintf(stderr, "\r%*s\r", (int)p->width, "");
        fflush(stderr);
        p->width = 0;
    }
}
