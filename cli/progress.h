/* A progress bar with rate and time left, on stderr.
 *
 * Shown only when stderr is a terminal and the user did not ask for quiet; otherwise every call
 * costs a branch. Drawn at most ten times a second, wiped when done, so that nothing of it stays in
 * a log. Threading: one thread at a time.
 */
#ifndef BT_CLI_PROGRESS_H
#define BT_CLI_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bt_progress {
    const char *label; /* borrowed: what is being done, "replay" */
    const char *noun;  /* borrowed: what is counted, "requests"; NULL: only the share is shown */
    bool shown;        /* stderr is a terminal and not quiet */
    int64_t start_ns;  /* monotonic */
    int64_t drawn_ns;  /* when last drawn */
    int32_t width;     /* of the line last drawn */
};

/* Starts the clock; draws nothing yet. */
void bt_progress_start(struct bt_progress *p, const char *label, const char *noun, bool quiet);

/* `done` of `total` units (> 0), both growing as more becomes known; draws when it is time to. */
void bt_progress_update(struct bt_progress *p, double done, double total);

/* Wipes the bar. May be called again. */
void bt_progress_finish(struct bt_progress *p);

enum { BT_PROGRESS_LINE_BYTES = 160 };

/* The line that is drawn for `done` of `total` units after elapsed_s seconds. Returns its length.
 */
int32_t bt_progress_line(char buf[BT_PROGRESS_LINE_BYTES], const struct bt_progress *p, double done,
                         double total, double elapsed_s);

#ifdef __cplusplus
}
#endif

#endif
