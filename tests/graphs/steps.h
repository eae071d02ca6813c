/* A model of a graph that is run step after step (steps.c), and what the results of a kernel are held to (bounds.c). */
#ifndef STEPS_H
#define STEPS_H

#include "tests/graphs/graphs.h"

enum { MOST_SYMBOLS = 64 };

typedef struct stepping {
    checks *c;
    const char *device;
    const engine_program *program;
    const plan *plan;
    chip_caps load_chip;
    arena arena;
    uint64_t seed;
    int64_t symbols[MOST_SYMBOLS];
    dw_tensor *truth;             /* by plan_value index: what the step wrote, contiguous; data NULL: not yet */
    plan_binding binding;
    const kernel_row *row;        /* whose results are compared */
    dw_tensor *inputs, *outputs, *states;
    void **input_data, **output_data, **state_data;
    uint8_t *workspace;
    size_t workspace_bytes;
    struct region *regions;       /* of the device */
    int region_count;
} stepping;

/* What lies under any strides, contiguous. */
dw_status copy_of(arena *arena, const dw_tensor *from, dw_tensor *to);
/* Has a, of any strides, the bits of b, which is contiguous? */
bool has_bits(const dw_tensor *a, const dw_tensor *b);
/* The same, but that one NaN is as good as another: folded by the reference or made by a kernel. */
bool has_numbers(const dw_tensor *a, const dw_tensor *b);

/* Tensors for all results of a node, contiguous. */
dw_status new_results(stepping *s, arena *arena, const ir_node *node, dw_tensor *out);
dw_status run_reference(const stepping *s, const ir_node *node, const dw_tensor *const *in, dw_tensor *out);
/* Is a result within the bounds of what the reference makes of the same operands? words: where it is not. */
bool agrees(stepping *s, const ir_node *node, int result, const dw_tensor *got, const dw_tensor *expected, const dw_tensor *const *in, text *words);

#endif
