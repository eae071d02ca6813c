/* One op without a graph: the kernel is chosen as for a model and runs on the CPU at once. What ops mean: docs/ops.md. */
#ifndef DEEPWELL_OPS_H
#define DEEPWELL_OPS_H

#include "deepwell/device.h"
#include "deepwell/format.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Shapes of the results of an op: fills format, rank, dims and strides of outputs[0..output_count). attributes: as in a graph's text, "bt=true,post=\"bias,gelu\"";
 * may be "". Operands that are absent are NULL. */
DW_API dw_status dw_op_shapes(dw_context *context, const char *op, const char *attributes, int input_count, const dw_tensor *const *inputs,
                              int output_count, dw_tensor *outputs);
/* Runs it: outputs have the shapes that dw_op_shapes returns, and memory of the caller's. registry may be NULL. */
DW_API dw_status dw_op_run(dw_context *context, const char *op, const char *attributes, const dw_registry *registry, int input_count,
                           const dw_tensor *const *inputs, int output_count, const dw_tensor *const *outputs);
/* Bytes that a tensor of this format and shape takes in one piece (data, then scales, then second-level scales); and the pointers into such a piece. */
DW_API dw_status dw_tensor_bytes(dw_context *context, const dw_tensor *shape, uint64_t *bytes);
DW_API dw_status dw_tensor_place(dw_context *context, dw_tensor *tensor, void *memory);

#ifdef __cplusplus
}
#endif
#endif
