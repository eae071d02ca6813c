/* cuDNN among the files here: what is loaded, and one attention as the arguments of a launch. */
#ifndef KERNELS_LIBRARY_CUDNN_H
#define KERNELS_LIBRARY_CUDNN_H

#include "kernel/kernel.h"
#include "kernels/library/cudnn_abi.h"

/* What a plan gets to work in, from a multiple of CUDNN_ALIGN bytes on; operands lie at multiples of CUDNN_OPERAND_ALIGN. */
enum { CUDNN_WORKSPACE = 4 << 20, CUDNN_ALIGN = 256, CUDNN_OPERAND_ALIGN = 16 };

/* The sizes that a plan of cuDNN's is for. out [b,h,s,e] = softmax(q k^T * scale, of the keys that are seen) v, with q [b,h,s,d], k [b,g,t,d], v [b,g,t,e]; shared_heads is h / g. Query i sees keys up to
 * i + shift where bounded, and from i + shift + 1 - window on where windowed. Strides in elements, of all axes but the last, whose elements are neighbours. */
typedef struct cudnn_sizes {
    int64_t batches, heads, shared_heads, queries, keys, width, value_width;
    int64_t q[3], k[3], v[3], out[3];
    int64_t shift, window;
    int32_t type;                     /* cudnn_data, of all four */
    int32_t bounded, windowed, unused;
} cudnn_sizes;

typedef struct cudnn_attention {
    uint64_t q, k, v, out, workspace;
    cudnn_sizes sizes;
    float scale;
    int32_t unused;
} cudnn_attention;

/* What the parts of a variant pack are known by, in the order in which cudnn_attention_pack gives them. */
enum { CUDNN_ID_Q = 1, CUDNN_ID_K, CUDNN_ID_V, CUDNN_ID_OUT, CUDNN_ID_SCALE, CUDNN_ID_HIDDEN, CUDNN_ID_SHIFT, CUDNN_ID_WINDOW, CUDNN_ID_INNER };

/* A plan that was built; kept as long as the library, as graphs hold what it launches. */
typedef struct cudnn_built { struct cudnn_built *next; cudnn_sizes sizes; cudnn_desc plan; int64_t workspace_bytes; } cudnn_built;

typedef struct cudnn {
#define CUDNN_CALL(returns, name, parameters) returns (*name) parameters;
#include "kernels/library/cudnn.def"
#undef CUDNN_CALL
    cudnn_handle handle;              /* NULL until a first plan is asked for: it takes memory of the GPU */
    cudnn_built *built;
} cudnn;

/* "cuDNN: Finalize of the plan failed: CUDNN_STATUS_.. (3000): what the library says of it" */
dw_status cudnn_fail(dw_context *context, const cudnn *dnn, cudnn_status status, const char *call, const char *what);
#define CUDNN_TRY(context, dnn, what, call, ...)                                                             \
    do {                                                                                                     \
        cudnn_status cudnn_try_ = (dnn)->call(__VA_ARGS__);                                                  \
        if (cudnn_try_ != CUDNN_OK) return cudnn_fail((context), (dnn), cudnn_try_, "cudnn" #call, (what));  \
    } while (0)

/* The operation graph of an attention (cudnn_graph.c). The caller destroys it; NULL on failure. */
dw_status cudnn_attention_graph(dw_context *context, const cudnn *dnn, const cudnn_sizes *sizes, cudnn_desc *graph);

/* Of a launch with cudnn_attention as arguments: builds the plan for its sizes where there is none yet, outside of any capture; and makes the call. UNSUPPORTED: the library has no
 * engine for it. */
dw_status cudnn_prepare(const kernel_library_call *call);
dw_status cudnn_enqueue(const kernel_library_call *call);

/* As kernels/library.def names them. */
dw_status cudnn_open(dw_context *context, void *loaded, void **own);
void cudnn_close(dw_context *context, void *own);
void cudnn_tell_version(const void *own, char *words, size_t size);

#endif
