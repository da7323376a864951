/* What a gemm holds, for the files that load layers (linear_load.cu) and run them (linear.cu).
 * Internal to engine/cuda. */
#ifndef BT_ENGINE_CUDA_LINEAR_GEMM_CUH
#define BT_ENGINE_CUDA_LINEAR_GEMM_CUH

#include "engine/cuda/linear_parts.cuh"

#include <cublas_v2.h>

enum {
    STAGING_BYTES = 16 << 20, /* of pinned memory, twice: one is filled while the other travels */
    PANEL_BYTES = 64 << 20,   /* expanded weights at a time: they should stay in a large L2 */
    ACC_BYTES = 64 << 20,     /* sums of INT8 products at a time */
    CUBLAS_BYTES = 32 << 20,  /* cuBLAS' own recommendation for Hopper */
    SHAPES = 64,
    SHAPE_LAYERS = 64, /* layers of one shape over which a measurement rotates */
    BUCKETS = 24,      /* m = 1, 2, 4 .. 2^22, and max_rows */
    MAX_TILES = 1 << 16,
    BLOCK_PARTIAL = 2 << 16, /* most bytes of sums that a block of threads leaves to another */
};

enum kernel {
    KERNEL_CUBLAS,  /* cuBLAS on the numbers as they are, or expanded to 16 bits */
    KERNEL_GENERAL, /* linear_general_int8 */
    KERNEL_WIDE,    /* linear_skinny with K shared out among 1, 2, 4 warps */
    KERNEL_SQUARE,
    KERNEL_DEEP,
    KERNEL_WGMMA_1, /* linear_wgmma with 1, 2 halves */
    KERNEL_WGMMA_2,
    KERNEL_CLUSTER_1, /* by clusters */
    KERNEL_CLUSTER_2,
    KERNEL_TILES_160, /* linear_tiles with so many outputs */
    KERNEL_TILES_256,
    KERNELS,
};

/* Layers that are alike for the kernels. */
struct shape {
    struct bt_cuda_linear layers[SHAPE_LAYERS]; /* copies: the memory is the arena's */
    int32_t n_layers;
    enum kernel choice[BUCKETS];
    float us[BUCKETS]; /* of the choice; 0: not measured */
};

struct bt_cuda_gemm {
    struct bt_cuda_gemm_opts o;
    bool bf16;
    cublasHandle_t blas;
    cudaStream_t stream; /* that blas is set to */
    bool has_stream;
    void *blas_workspace;
    void *panel; /* NULL until a layer needs it */
    void *acc;
    struct linear_skinny_place place;
    uint8_t *rows; /* gathered and widened rows of x */
    int64_t rows_bytes;
    void *staging[2]; /* pinned */
    cudaEvent_t staged[2];
    int32_t next_staging;
    struct shape *shapes;
    int32_t n_shapes;
};

/* Finds or makes the row of the table of shapes, and notes the layer for measurements. */
enum bt_code linear_add_shape(struct bt_cuda_gemm *g, struct bt_cuda_linear *l,
                              struct bt_error *err);

#endif
