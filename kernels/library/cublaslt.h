/* cuBLASLt among the files here: what is loaded, and one product as the arguments of a launch. */
#ifndef KERNELS_LIBRARY_CUBLASLT_H
#define KERNELS_LIBRARY_CUBLASLT_H

#include "kernel/kernel.h"
#include "kernels/library/cublaslt_abi.h"

/* What the library's choice for a product follows from: all of it but the operands' addresses, of which it is told by how much they are aligned, and which are there. */
typedef struct cublaslt_key {
    int64_t sizes[9];                 /* m, n, k, strides, batch strides */
    int32_t kinds[10];                /* batches, transposes, types, scale modes, epilogue, candidate */
    uint32_t alignments[4];           /* of a, b, c and d */
    uint32_t there;                   /* c, bias, scales of a, scales of b, by bits */
    uint32_t unused;
} cublaslt_key;

/* Choices that were made, each at the place that its key's hash says; a later one takes it over. Asking the library takes it a tenth of a millisecond and more, and a model asks for the same product once a layer
 * whenever the number of rows changes. */
enum { CUBLASLT_KEPT = 256 };
typedef struct cublaslt_kept { cublaslt_key key; cublaslt_candidate chosen; bool is_there; } cublaslt_kept;

typedef struct cublaslt {
#define CUBLASLT_CALL(returns, name, parameters) returns (*name) parameters;
#include "kernels/library/cublaslt.def"
#undef CUBLASLT_CALL
    cublaslt_handle handle;
    cublaslt_kept kept[CUBLASLT_KEPT];
} cublaslt;

/* Of what the library proposes for a product, the first so many can be asked for. */
enum { CUBLASLT_CANDIDATES = 8 };
/* What it gets to work in: its own advice for Hopper, from a multiple of 256 bytes on. */
enum { CUBLASLT_WORKSPACE = 32 << 20, CUBLASLT_WORKSPACE_ALIGN = 256 };

/* d [m,n] = epilogue(a b + c + bias), each matrix stored by columns, the next column so many elements behind. Transposed, a lies as [k,m], b as [n,k].
 * A zero address: there is no such operand. */
typedef struct cublaslt_product {
    uint64_t a, b, c, d, bias, scales_a, scales_b;
    uint64_t workspace;                                   /* CUBLASLT_WORKSPACE bytes behind the next multiple of their alignment */
    int64_t m, n, k, stride_a, stride_b, stride_d;        /* c lies as d */
    int64_t batch_a, batch_b, batch_d;                    /* elements from one batch to the next */
    int32_t batches, transpose_a, transpose_b;
    int32_t type, type_d, type_bias;                      /* cublaslt_type; of a and b the same */
    int32_t mode_a, mode_b;                               /* cublaslt_scale_mode, where there are scales */
    int32_t epilogue;                                     /* cublaslt_epilogue, joined */
    int32_t candidate;                                    /* which of those proposed; past the last: the last */
} cublaslt_product;

/* Makes the call that a launch with such arguments is. UNSUPPORTED: the library proposes nothing for it. */
dw_status cublaslt_enqueue(const kernel_library_call *call);

/* As kernels/library.def names them. */
dw_status cublaslt_open(dw_context *context, void *loaded, void **own);
void cublaslt_close(dw_context *context, void *own);
void cublaslt_tell_version(const void *own, char *words, size_t size);

#endif
