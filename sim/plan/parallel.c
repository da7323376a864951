#include "sim/plan/parallel.h"

#include <pthread.h>
#include <stdbool.h>

enum { MAX_THREADS = 256 };

struct parallel {
    pthread_mutex_t lock;
    int64_t next, n;
    int64_t failed_at; /* least number of a task that failed; n: none */
    enum bt_code code;
    struct bt_error err;
    enum bt_code (*task)(void *ctx, int64_t i, struct bt_error *err);
    void *ctx;
};

static void *work(void *arg)
{
    struct parallel *p = arg;
    for (;;) {
        (void)pthread_mutex_lock(&p->lock);
        int64_t i = p->next < p->n && p->next < p->failed_at ? p->next++ : -1;
        (void)pthread_mutex_unlock(&p->lock);
        if (i < 0) {
            return NULL;
        }
        struct bt_error err = {0};
        enum bt_code code = p->task(p->ctx, i, &err);
        if (code != BT_OK) {
            (void)pthread_mutex_lock(&p->lock);
            if (i < p->failed_at) {
                p->failed_at = i;
                p->code = code;
                p->err = err;
            }
            (void)pthread_mutex_unlock(&p->lock);
        }
    }
}

enum bt_code bt_parallel_for(int32_t jobs, int64_t n,
                             enum bt_code (*task)(void *ctx, int64_t i, struct bt_error *err),
                             void *ctx, struct bt_error *err)
{
    struct parallel p = {.n = n, .failed_at = n, .code = BT_OK, .task = task, .ctx = ctx};
    if (pthread_mutex_init(&p.lock, NULL) != 0) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "threads: no memory for a lock");
    }
    pthread_t threads[MAX_THREADS];
    int32_t n_threads = 0;
    int32_t want = jobs > MAX_THREADS ? MAX_THREADS : jobs;
    while (n_threads < want - 1 && n_threads < n - 1) {
        if (pthread_create(&threads[n_threads], NULL, work, &p) != 0) {
            break; /* fewer threads do the same work */
        }
        n_threads++;
    }
    (void)work(&p);
    for (int32_t i = 0; i < n_threads; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    (void)pthread_mutex_destroy(&p.lock);
    if (p.code != BT_OK && err != NULL && err->code == BT_OK) {
        *err = p.err;
    }
    return p.code;
}
