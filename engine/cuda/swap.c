/* Copies of KV blocks: to the host and back on streams of their own, and on the device. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, madvise */
#include "engine/cuda/executor_impl.h"

#include <stdlib.h>
#include <sys/mman.h>

static const int64_t PIECE_BYTES = 256 << 20;

enum bt_code bt_cuda_swap_init(struct bt_cuda_swap *s, uint8_t *device_blocks, int64_t block_bytes,
                               int32_t n_host_blocks, int64_t bytes_per_s, struct bt_error *err)
{
    *s = (struct bt_cuda_swap){
        .device_blocks = device_blocks,
        .block_bytes = block_bytes,
        .n_host_blocks = n_host_blocks,
        .piece_blocks = block_bytes < PIECE_BYTES ? (int32_t)(PIECE_BYTES / block_bytes) : 1,
        .bytes_per_s = bytes_per_s,
    };
    s->n_pieces = (n_host_blocks + s->piece_blocks - 1) / s->piece_blocks;
    s->pieces = (uint8_t **)calloc((size_t)s->n_pieces + 1, sizeof *s->pieces);
    if (s->pieces == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, s->n_pieces, "cuda: swap: no memory");
    }
    for (int32_t i = 0; i < BT_SWAP_DIRS; i++) {
        BT_CUDA_TRY(cudaStreamCreateWithFlags(&s->streams[i], cudaStreamNonBlocking), err);
    }
    return BT_OK;
}

static size_t piece_bytes(const struct bt_cuda_swap *s)
{
    return (size_t)s->piece_blocks * (size_t)s->block_bytes;
}

void bt_cuda_swap_fini(struct bt_cuda_swap *s)
{
    for (int32_t i = 0; i < BT_SWAP_DIRS; i++) {
        if (s->streams[i] != NULL) {
            (void)cudaStreamSynchronize(s->streams[i]);
            (void)cudaStreamDestroy(s->streams[i]);
        }
    }
    for (int32_t i = 0; i < s->n_copies; i++) {
        (void)cudaEventDestroy(s->copies[i].done);
    }
    for (int32_t i = 0; i < s->n_spare; i++) {
        (void)cudaEventDestroy(s->spare[i]);
    }
    for (int32_t i = 0; i < s->n_pieces; i++) {
        if (s->pieces[i] != NULL) {
            (void)cudaHostUnregister(s->pieces[i]);
            (void)munmap(s->pieces[i], piece_bytes(s));
        }
    }
    free((void *)s->pieces);
    free(s->copies);
    free((void *)s->spare);
    *s = (struct bt_cuda_swap){0};
}

/* Host memory of a block; its piece is mapped in large pages and pinned when it is first used. */
static enum bt_code host_block(struct bt_cuda_swap *s, int32_t block, uint8_t **out,
                               struct bt_error *err)
{
    BT_ASSERT(block >= 0 && block < s->n_host_blocks);
    int32_t i = block / s->piece_blocks;
    size_t bytes = piece_bytes(s);
    if (s->pieces[i] == NULL) {
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            BT_FAIL(err, BT_ERR_NOMEM, (int64_t)bytes,
                    "cuda: swap: no host memory for %zu bytes more than %lld", bytes,
                    (long long)s->host_bytes);
        }
        (void)madvise(p, bytes, MADV_HUGEPAGE);
        cudaError_t rc = cudaHostRegister(p, bytes, cudaHostRegisterDefault);
        if (rc != cudaSuccess) {
            (void)munmap(p, bytes);
            return bt_cuda_fail(rc, "cudaHostRegister of swap memory", __FILE__, __LINE__, err);
        }
        s->pieces[i] = p;
        s->host_bytes += (int64_t)bytes;
    }
    *out = s->pieces[i] + (size_t)(block % s->piece_blocks) * (size_t)s->block_bytes;
    return BT_OK;
}

/* Blocks from i on that are neighbours on both sides; host blocks within one piece of memory. */
static int32_t run_length(const struct bt_cuda_swap *s, const struct bt_plan_copy *c, int32_t i)
{
    const int32_t *host = c->kind == BT_COPY_SWAP_OUT  ? c->dst
                          : c->kind == BT_COPY_SWAP_IN ? c->src
                                                       : NULL;
    int32_t n = 1;
    while (i + n < c->n_blocks && c->src[i + n] == c->src[i] + n &&
           c->dst[i + n] == c->dst[i] + n &&
           (host == NULL || host[i + n] / s->piece_blocks == host[i] / s->piece_blocks)) {
        n++;
    }
    return n;
}

static uint8_t *device_block(const struct bt_cuda_swap *s, int32_t block)
{
    return s->device_blocks + (size_t)block * (size_t)s->block_bytes;
}

static enum bt_code take_event(struct bt_cuda_swap *s, cudaEvent_t *out, struct bt_error *err)
{
    if (s->n_spare > 0) {
        *out = s->spare[--s->n_spare];
        return BT_OK;
    }
    BT_CUDA_TRY(cudaEventCreateWithFlags(out, cudaEventDisableTiming), err);
    return BT_OK;
}

static enum bt_code give_event(struct bt_cuda_swap *s, cudaEvent_t event, struct bt_error *err)
{
    if (s->n_spare == s->cap_spare) {
        int32_t cap = s->cap_spare == 0 ? 64 : 2 * s->cap_spare;
        cudaEvent_t *grown = (cudaEvent_t *)realloc((void *)s->spare, (size_t)cap * sizeof *grown);
        if (grown == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, cap, "cuda: swap: no memory");
        }
        s->spare = grown;
        s->cap_spare = cap;
    }
    s->spare[s->n_spare++] = event;
    return BT_OK;
}

/* When a copy of so many bytes would end on a link of the given rate. */
static int64_t due_ns(struct bt_cuda_swap *s, int32_t dir, int64_t bytes)
{
    if (s->bytes_per_s == 0) {
        return 0;
    }
    int64_t now_ns = bt_clock_ns(BT_CLOCK_WALL);
    int64_t from_ns = s->free_ns[dir] > now_ns ? s->free_ns[dir] : now_ns;
    s->free_ns[dir] = from_ns + (int64_t)((double)bytes * 1e9 / (double)s->bytes_per_s);
    return s->free_ns[dir];
}

static enum bt_code keep_copy(struct bt_cuda_swap *s, const struct bt_cuda_copy *c,
                              struct bt_error *err)
{
    if (s->n_copies == s->cap_copies) {
        int32_t cap = s->cap_copies == 0 ? 64 : 2 * s->cap_copies;
        struct bt_cuda_copy *grown = realloc(s->copies, (size_t)cap * sizeof *grown);
        if (grown == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, cap, "cuda: swap: no memory");
        }
        s->copies = grown;
        s->cap_copies = cap;
    }
    s->copies[s->n_copies++] = *c;
    return BT_OK;
}

enum bt_code bt_cuda_swap_start(struct bt_cuda_swap *s, const struct bt_plan_copy *c,
                                cudaEvent_t after, struct bt_error *err)
{
    bool out = c->kind == BT_COPY_SWAP_OUT;
    int32_t dir = out ? BT_SWAP_OUT : BT_SWAP_IN;
    cudaStream_t stream = s->streams[dir];
    if (out && after != NULL) {
        BT_CUDA_TRY(cudaStreamWaitEvent(stream, after, 0), err);
    }
    for (int32_t i = 0; i < c->n_blocks;) {
        int32_t n = run_length(s, c, i);
        uint8_t *host = NULL;
        BT_TRY(host_block(s, out ? c->dst[i] : c->src[i], &host, err));
        uint8_t *device = device_block(s, out ? c->src[i] : c->dst[i]);
        BT_CUDA_TRY(cudaMemcpyAsync(out ? host : device, out ? device : host,
                                    (size_t)n * (size_t)s->block_bytes,
                                    out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream),
                    err);
        i += n;
    }
    struct bt_cuda_copy copy = {.ticket = c->ticket,
                                .due_ns = due_ns(s, dir, c->n_blocks * s->block_bytes)};
    BT_TRY(take_event(s, &copy.done, err));
    BT_CUDA_TRY(cudaEventRecord(copy.done, stream), err);
    return keep_copy(s, &copy, err);
}

enum bt_code bt_cuda_swap_poll(struct bt_cuda_swap *s, uint32_t *tickets, int32_t *n,
                               struct bt_error *err)
{
    int32_t left = 0;
    for (int32_t i = 0; i < s->n_copies; i++) {
        struct bt_cuda_copy c = s->copies[i];
        bool due = c.due_ns == 0 || bt_clock_ns(BT_CLOCK_WALL) >= c.due_ns;
        cudaError_t rc = due ? cudaEventQuery(c.done) : cudaErrorNotReady;
        if (rc == cudaSuccess) {
            tickets[(*n)++] = c.ticket;
            BT_TRY(give_event(s, c.done, err));
        } else if (rc == cudaErrorNotReady) {
            (void)cudaGetLastError();
            s->copies[left++] = c;
        } else {
            return bt_cuda_fail(rc, "swap copy", __FILE__, __LINE__, err);
        }
    }
    s->n_copies = left;
    return BT_OK;
}

enum bt_code bt_cuda_swap_cow(struct bt_cuda_swap *s, const struct bt_plan_copy *c,
                              cudaStream_t stream, struct bt_error *err)
{
    for (int32_t i = 0; i < c->n_blocks;) {
        int32_t n = run_length(s, c, i);
        BT_CUDA_TRY(cudaMemcpyAsync(device_block(s, c->dst[i]), device_block(s, c->src[i]),
                                    (size_t)n * (size_t)s->block_bytes, cudaMemcpyDeviceToDevice,
                                    stream),
                    err);
        i += n;
    }
    return BT_OK;
}
