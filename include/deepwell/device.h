/* What this machine has, and kernels that the caller adds. */
#ifndef DEEPWELL_DEVICE_H
#define DEEPWELL_DEVICE_H

#include "deepwell/format.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void (*dw_device_sink)(void *user, const char *text, size_t length);

/* CPU, GPUs, the features and formats that Deepwell can use of them, and what it cannot and why. */
DW_API dw_status dw_probe(dw_context *context, int json, dw_device_sink sink, void *user);

/* A chip that planning knows by name, here or not: its features, and its rates, nominal and as somebody measured them. NOT_FOUND lists the names. */
DW_API dw_status dw_chip(dw_context *context, const char *name, int json, dw_device_sink sink, void *user);

/* ---- registered kernels ---- */

typedef struct dw_registry dw_registry;

/* What a kernel is called with: operands and results with shapes, strides and memory of the CPU, valid during the call. Absent operands are NULL.
 * post: the epilogue list of the op, as in docs/ops.md; a kernel registered without can_post is never given one: the steps become ops of their own behind it. attributes: the op's others as a
 * JSON object, "{\"bt\":true}", sizes as the numbers they are in this call; absent ones have their defaults (docs/ops.md). */
typedef struct dw_kernel_call {
    const char *op;
    const char *post;
    int input_count, output_count;
    const dw_tensor *const *inputs;
    const dw_tensor *const *outputs;
    int threads;
    void *user;
    const char *attributes;
} dw_kernel_call;

/* A kernel of the caller's. It is chosen wherever it accepts, before Deepwell's own. Of one that no op of a model took the context's log is warned, with the reasons. */
typedef struct dw_kernel_options {
    const char *name;           /* unique in the registry */
    const char *op;             /* NULL: "matmul" */
    const char *precision;      /* the format of its operands ("f32", "mxfp8", ..); NULL: any */
    int64_t min_size;           /* least number of multiply-adds (least number of elements for other ops) known at plan time; 0: any */
    int can_post;               /* it applies post lists itself */
    dw_status (*run)(const dw_kernel_call *call);
    void *user;
} dw_kernel_options;

DW_API dw_status dw_registry_create(dw_context *context, dw_registry **registry);
DW_API void dw_registry_destroy(dw_registry *registry);
DW_API dw_status dw_registry_add(dw_registry *registry, const dw_kernel_options *options);

#ifdef __cplusplus
}
#endif
#endif
