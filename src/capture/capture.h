/* Capture: exported PyTorch programs and safetensors files become graphs and weights.
 * Reads foreign bytes and trusts none of them; runs nothing and optimises nothing: the graph says what the program said, free of views that
 * are written through and of in-place ops. */
#ifndef CAPTURE_CAPTURE_H
#define CAPTURE_CAPTURE_H

#include "ir/ir.h"

/* Zero-initialise, then set what matters. */
typedef struct capture_options {
    const char *model;      /* which models/<name>.json of an archive that holds several; default: the only one, or "model" */
} capture_options;

/* The note of a graph whose program had collectives of its own: each rank's weights and numbers are its own, so that graphs of ranks may differ in them. */
#define CAPTURE_PARALLEL "parallel"

/* The archive that torch.export.save writes (torch 2.9 and later) as a graph; options may be NULL. Weights are mapped from the file, never
 * copied, and named as the module names them, and their records sealed with the archive's checksums; the file stays mapped until ir_weights_free. The record extra/tokenizer becomes the note
 * "tokenizer". On failure *graph is NULL, and weights may hold some of the file's tensors. */
dw_status capture_pt2(dw_context *context, const char *path, const capture_options *options, ir_weights *weights, ir_graph **graph);

/* The same from an archive in memory that the caller keeps valid while weights lives; source is the name used in messages. */
dw_status capture_pt2_read(dw_context *context, const char *source, const void *bytes, size_t length, const capture_options *options,
                           ir_weights *weights, ir_graph **graph);

/* The exported-program JSON of such an archive from memory; source is the name used in messages. Parameters, buffers and constants take
 * their tensors from weights by name; one that is missing there is an error when a node needs it. What the export's
 * example had along symbolic axes of inputs becomes the note IR_NOTE_EXAMPLE. */
dw_status capture_program(dw_context *context, const char *source, const char *json, size_t length, ir_weights *weights, ir_graph **graph);

/* One row of what is supported, in the order of aten.def. */
typedef struct capture_operator {
    const char *target;     /* "aten.add.Tensor" */
    const char *arguments;  /* names and defaults, as PyTorch's schema has them */
    const char *becomes;    /* in words: the ops that it turns into */
    bool in_place;          /* the form with a trailing underscore is read too */
} capture_operator;

int capture_operator_count(void);
capture_operator capture_operator_at(int index);

/* ---- safetensors (safetensors.c) ---- */

/* All tensors of the file, mapped until ir_weights_free. Every size, offset and type is checked. On failure some may have been added. */
dw_status safetensors_open(dw_context *context, const char *path, ir_weights *weights);
/* The same from bytes that the caller keeps valid while weights lives. */
dw_status safetensors_read(dw_context *context, const char *source, const void *bytes, size_t length, ir_weights *weights);
/* Writes count tensors of element formats of whole bytes (any strides), whole or not at all. metadata: pairs of key and value, ended by
 * NULL; may be NULL. */
dw_status safetensors_write(dw_context *context, const char *path, int count, const char *const *names, const dw_tensor *const *tensors,
                            const char *const *metadata);

#endif
