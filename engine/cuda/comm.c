#include "engine/cuda/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef BT_HAVE_NCCL

#include <assert.h>
#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>

struct bt_cuda_comm {
    ncclComm_t comm;
};

static_assert(sizeof(struct bt_cuda_comm_id) == sizeof(ncclUniqueId), "an id is NCCL's");

/* The functions used, from the library of the machine. */
static struct {
    ncclResult_t (*get_unique_id)(ncclUniqueId *);
    ncclResult_t (*comm_init_rank)(ncclComm_t *, int, ncclUniqueId, int);
    ncclResult_t (*comm_init_all)(ncclComm_t *, int, const int *);
    ncclResult_t (*comm_destroy)(ncclComm_t);
    ncclResult_t (*all_reduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t,
                               ncclComm_t, cudaStream_t);
    const char *(*error_string)(ncclResult_t);
    char missing[192]; /* why it cannot be used; "" when it can */
} nccl;

static pthread_once_t nccl_once = PTHREAD_ONCE_INIT;

static void find(void *library, const char *name, void *function)
{
    void *p = dlsym(library, name);
    if (p == NULL && nccl.missing[0] == '\0') {
        (void)snprintf(nccl.missing, sizeof nccl.missing, "libnccl.so.2 has no %s", name);
    }
    memcpy(function, &p, sizeof p); /* ISO C has no cast from an object to a function */
}

static void load_nccl(void)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        (void)snprintf(nccl.missing, sizeof nccl.missing, "%s", dlerror());
        return;
    }
    find(library, "ncclGetUniqueId", &nccl.get_unique_id);
    find(library, "ncclCommInitRank", &nccl.comm_init_rank);
    find(library, "ncclCommInitAll", &nccl.comm_init_all);
    find(library, "ncclCommDestroy", &nccl.comm_destroy);
    find(library, "ncclAllReduce", &nccl.all_reduce);
    find(library, "ncclGetErrorString", &nccl.error_string);
}

static enum bt_code need_nccl(struct bt_error *err)
{
    (void)pthread_once(&nccl_once, load_nccl);
    if (nccl.missing[0] != '\0') {
        BT_FAIL(err, BT_ERR_MISSING, 0, "tp: several ranks need NCCL: %s", nccl.missing);
    }
    return BT_OK;
}

static enum bt_code check(ncclResult_t rc, const char *call, struct bt_error *err)
{
    if (rc != ncclSuccess) {
        BT_FAIL(err, BT_ERR_CUDA, (int64_t)rc, "nccl: %s: %s", call, nccl.error_string(rc));
    }
    return BT_OK;
}

enum bt_code bt_cuda_comm_make_id(struct bt_cuda_comm_id *id, struct bt_error *err)
{
    BT_TRY(need_nccl(err));
    ncclUniqueId nccl_id;
    BT_TRY(check(nccl.get_unique_id(&nccl_id), "ncclGetUniqueId", err));
    memcpy(id, &nccl_id, sizeof *id);
    return BT_OK;
}

static struct bt_cuda_comm *comm_of(ncclComm_t comm)
{
    struct bt_cuda_comm *c = malloc(sizeof *c);
    if (c != NULL) {
        c->comm = comm;
    }
    return c;
}

enum bt_code bt_cuda_comm_create(int32_t n_ranks, int32_t rank, const struct bt_cuda_comm_id *id,
                                 struct bt_cuda_comm **out, struct bt_error *err)
{
    BT_ASSERT(n_ranks > 0 && rank >= 0 && rank < n_ranks);
    *out = NULL;
    if (n_ranks == 1) {
        return BT_OK;
    }
    BT_TRY(need_nccl(err));
    ncclUniqueId nccl_id;
    memcpy(&nccl_id, id, sizeof nccl_id);
    ncclComm_t comm = NULL;
    BT_TRY(check(nccl.comm_init_rank(&comm, n_ranks, nccl_id, rank), "ncclCommInitRank", err));
    *out = comm_of(comm);
    if (*out == NULL) {
        (void)nccl.comm_destroy(comm);
        BT_FAIL(err, BT_ERR_NOMEM, rank, "tp: no memory for rank %d", rank);
    }
    return BT_OK;
}

enum bt_code bt_cuda_comm_create_all(int32_t n_ranks, const int32_t *devices,
                                     struct bt_cuda_comm **out, struct bt_error *err)
{
    enum { MAX_RANKS = 64 };
    BT_ASSERT(n_ranks > 0);
    memset(out, 0, (size_t)n_ranks * sizeof *out);
    if (n_ranks == 1) {
        return BT_OK;
    }
    if (n_ranks > MAX_RANKS) {
        BT_FAIL(err, BT_ERR_ARG, n_ranks, "tp: %d ranks in one process; at most %d", n_ranks,
                MAX_RANKS);
    }
    BT_TRY(need_nccl(err));
    ncclComm_t comms[MAX_RANKS] = {0};
    BT_TRY(check(nccl.comm_init_all(comms, n_ranks, devices), "ncclCommInitAll", err));
    for (int32_t i = 0; i < n_ranks; i++) {
        out[i] = comm_of(comms[i]);
        if (out[i] == NULL) {
            for (int32_t j = 0; j < n_ranks; j++) {
                (void)nccl.comm_destroy(comms[j]);
                free(out[j]);
                out[j] = NULL;
            }
            BT_FAIL(err, BT_ERR_NOMEM, i, "tp: no memory for rank %d", i);
        }
    }
    return BT_OK;
}

void bt_cuda_comm_destroy(struct bt_cuda_comm *c)
{
    if (c != NULL) {
        (void)nccl.comm_destroy(c->comm);
        free(c);
    }
}

enum bt_code bt_cuda_comm_add(struct bt_cuda_comm *c, void *x, int64_t n, enum bt_act_format type,
                              struct CUstream_st *stream, struct bt_error *err)
{
    if (c == NULL) {
        return BT_OK;
    }
    BT_ASSERT(type == BT_ACT_BF16 || type == BT_ACT_FP16 || type == BT_ACT_FP32);
    ncclDataType_t t = type == BT_ACT_BF16   ? ncclBfloat16
                       : type == BT_ACT_FP16 ? ncclFloat16
                                             : ncclFloat32;
    return check(nccl.all_reduce(x, x, (size_t)n, t, ncclSum, c->comm, stream), "ncclAllReduce",
                 err);
}

#else

static enum bt_code no_nccl(struct bt_error *err)
{
    BT_FAIL(err, BT_ERR_MISSING, 0,
            "tp: several ranks need NCCL, whose header was not there when berth was built");
}

enum bt_code bt_cuda_comm_make_id(struct bt_cuda_comm_id *id, struct bt_error *err)
{
    (void)id;
    return no_nccl(err);
}

enum bt_code bt_cuda_comm_create(int32_t n_ranks, int32_t rank, const struct bt_cuda_comm_id *id,
                                 struct bt_cuda_comm **out, struct bt_error *err)
{
    BT_ASSERT(n_ranks > 0 && rank >= 0 && rank < n_ranks);
    (void)id;
    *out = NULL;
    return n_ranks == 1 ? BT_OK : no_nccl(err);
}

enum bt_code bt_cuda_comm_create_all(int32_t n_ranks, const int32_t *devices,
                                     struct bt_cuda_comm **out, struct bt_error *err)
{
    BT_ASSERT(n_ranks > 0);
    (void)devices;
    memset(out, 0, (size_t)n_ranks * sizeof *out);
    return n_ranks == 1 ? BT_OK : no_nccl(err);
}

void bt_cuda_comm_destroy(struct bt_cuda_comm *c)
{
    BT_ASSERT(c == NULL);
}

enum bt_code bt_cuda_comm_add(struct bt_cuda_comm *c, void *x, int64_t n, enum bt_act_format type,
                              struct CUstream_st *stream, struct bt_error *err)
{
    BT_ASSERT(c == NULL);
    (void)x;
    (void)n;
    (void)type;
    (void)stream;
    (void)err;
    return BT_OK;
}

#endif
