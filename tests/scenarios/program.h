/* The built program as tests use it: run, its streams and exit status, its JSON. Every test process
 * has a folder and a store of its own, removed at its end.
 */
#ifndef BT_TESTS_SCENARIOS_PROGRAM_H
#define BT_TESTS_SCENARIOS_PROGRAM_H

#include <jansson.h>

#include <stddef.h>

struct outcome {
    int status; /* exit status */
    const char *out, *err;
};

/* Runs "berth ARGS" in the source folder. What it printed is valid until the next run. */
struct outcome program_run(const char *args);

/* The outcome of the last run. */
const struct outcome *program_last(void);

/* Runs it with --json, expects the exit status (-1: an answer, yes or no), and gives the document
 * (owned by the caller). */
json_t *program_json(const char *args, int status);

/* Runs it, and expects the exit status, the message on stderr, and nothing on stdout. */
void program_refuses(const char *args, int status, const char *message);

/* A path in the test's folder; four of them are valid at a time. */
const char *program_path(const char *name);

/* Writes a file into the test's folder and gives its path. */
const char *program_write(const char *name, const char *text);

/* A file of the source tree (owned by the caller). */
char *program_source_text(const char *path);

/* Member by a path such as "metrics.ttft_s.p99"; the test fails where there is none. Borrowed. */
const json_t *json_at(const json_t *doc, const char *path);
double json_number_at(const json_t *doc, const char *path);
const char *json_text_at(const json_t *doc, const char *path);

/* The first row of a list, by path, whose text `member` is `value`; the test fails where there is
 * none. Borrowed. */
const json_t *json_row(const json_t *doc, const char *list, const char *member, const char *value);

/* The run of this label in an answer of simulate. Borrowed. */
const json_t *run_labelled(const json_t *doc, const char *label);

/* A metric of that run. */
double run_metric(const json_t *doc, const char *label, const char *metric);

#endif
