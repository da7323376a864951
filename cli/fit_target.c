#include "cli/fit_target.h"

#include "cli/files.h"
#include "cli/run_opts.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A result of vllm bench serve: one object that counts its prompts. */
static bool is_bench(const char *text)
{
    size_t n = strspn(text, " \t\r\n");
    return text[n] == '{' && strstr(text, "\"request_throughput\"") != NULL;
}

static bool all_started(const struct bt_bench_run *b)
{
    for (int64_t i = 0; i < b->n_requests; i++) {
        if (!isfinite(b->requests[i].start_s)) {
            return false;
        }
    }
    return b->n_requests > 0;
}

/* The requests as a trace, which is what replays read. */
static enum bt_code write_trace(const struct bt_bench_run *b, char *path, struct bt_error *err)
{
    const char *folder = getenv("TMPDIR");
    folder = folder != NULL && strlen(folder) < 40 ? folder : "/tmp";
    (void)snprintf(path, 64, "%.40s/berth-fit-XXXXXX", folder);
    int fd = mkstemp(path);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (f == NULL) {
        path[0] = '\0';
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot make a temporary file: %s", folder,
                strerror(errno));
    }
    (void)fprintf(f, "arrived_s,prompt_tokens,output_tokens,ttft_s,e2e_s\n");
    for (int64_t i = 0; i < b->n_requests; i++) {
        const struct bt_bench_request *r = &b->requests[i];
        if (!r->failed && r->output_tokens > 0) {
            (void)fprintf(f, "%.9f,%lld,%lld,%.9f,%.9f\n", r->start_s, (long long)r->input_tokens,
                          (long long)r->output_tokens, r->ttft_s, r->e2e_s);
        }
    }
    bool bad = ferror(f) != 0;
    if (fclose(f) != 0 || bad) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot write: %s", path, strerror(errno));
    }
    return BT_OK;
}

static struct bt_dist_spec always(double value)
{
    return (struct bt_dist_spec){.kind = BT_DIST_CONST, .value = value < 1 ? 1 : value};
}

/* A summary knows neither when requests came nor how long each was: the same number of requests of
 * mean length, at the rate or with the users that the benchmark was given. */
static void generate_like(const struct bt_bench_run *b, struct bt_workload_spec *w)
{
    double n = b->completed > 0 ? (double)b->completed : 1;
    *w = (struct bt_workload_spec){
        .kind = BT_WORKLOAD_GENERATED,
        .n_requests = b->completed,
        .prompt = always(round((double)b->input_tokens / n)),
        .output = always(round((double)b->output_tokens / n)),
    };
    if (b->max_concurrency > 0) {
        w->arrival = BT_ARRIVAL_CLOSED;
        w->users = (int32_t)(b->max_concurrency < b->completed ? b->max_concurrency : b->completed);
    } else if (isfinite(b->request_rate_per_s)) {
        bool poisson = isnan(b->burstiness) || b->burstiness == 1;
        w->arrival = poisson ? BT_ARRIVAL_POISSON : BT_ARRIVAL_GAMMA;
        w->cv = poisson ? 0 : 1 / sqrt(b->burstiness);
        w->rate_per_s = b->request_rate_per_s;
    } else {
        w->arrival = BT_ARRIVAL_CONSTANT;
        w->rate_per_s = 1e6; /* all at once */
    }
}

static enum bt_code use_bench(struct bt_fit_target *t, const char *path, const char *text,
                              size_t n_bytes, struct bt_world *w, struct bt_error *err)
{
    struct bt_import_text file = {text, n_bytes, path};
    BT_TRY(bt_bench_read_vllm(&file, &t->bench, err));
    memcpy(t->model, t->bench.model, sizeof t->model);
    if (t->bench.completed < 1) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s: completed: no request did", path);
    }
    t->per_request = all_started(&t->bench);
    if (!t->per_request) {
        generate_like(&t->bench, &w->workload);
        return BT_OK;
    }
    BT_TRY(write_trace(&t->bench, t->temporary, err));
    struct bt_trace_opts opts = {
        .format = BT_TRACE_CSV,
        .columns = "timestamp=arrived_s:s,prompt=prompt_tokens,output=output_tokens,ttft=ttft_s:s,"
                   "e2e=e2e_s:s",
        .keep_ticks = true};
    return bt_world_use_trace(w, t->temporary, &opts, err);
}

static enum bt_code use_trace(struct bt_fit_target *t, const struct bt_cli *cli, const char *path,
                              struct bt_world *w, struct bt_error *err)
{
    struct bt_trace_opts opts;
    BT_TRY(bt_trace_opts_read(&cli->args, &opts, err));
    BT_TRY(bt_world_use_trace(w, path, &opts, err));
    t->per_request = true;
    struct bt_measured m;
    if (bt_trace_n(w->trace) == 0 || !bt_trace_measured(w->trace, 0, &m)) {
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "%s: no measured times: name their columns, such as --columns "
                "...,ttft=COL,e2e=COL or first_token=COL,last_token=COL",
                path);
    }
    return BT_OK;
}

enum bt_code bt_fit_target_open(struct bt_fit_target *t, const struct bt_cli *cli, const char *path,
                                struct bt_world *w, struct bt_error *err)
{
    *t = (struct bt_fit_target){0};
    size_t n_bytes = 0;
    char *text = NULL;
    BT_TRY(bt_read_file(path, &text, &n_bytes, err));
    enum bt_code code = is_bench(text) ? use_bench(t, path, text, n_bytes, w, err)
                                       : use_trace(t, cli, path, w, err);
    free(text);
    if (code != BT_OK) {
        bt_fit_target_fini(t);
    }
    return code;
}

void bt_fit_target_fini(struct bt_fit_target *t)
{
    if (t->temporary[0] != '\0') {
        (void)unlink(t->temporary);
    }
    bt_bench_run_fini(&t->bench);
    *t = (struct bt_fit_target){0};
}
