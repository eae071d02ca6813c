/* A plan's graph run node by node on the CPU, every value kept, and each of its kernels on a device beside it, on the CPU's operands. Values are contiguous and
 * nothing is packed or computed in place, so it is slow, and its sums may be added in another order than a run's. */
#ifndef LAB_STEPWISE_H
#define LAB_STEPWISE_H

#include "lab/perturb.h"
#include "lab/lab.h"

/* What one kernel of the device made of the CPU's operands, over all its steps. */
typedef struct stepwise_row {
    const char *kernel;                   /* the row, or the way of it that ran */
    dw_format format;             /* of its results */
    bool exact;                   /* a quantiser, or results in integers: bit for bit */
    int calls;
    double worst, bound;          /* the largest error beside the largest result, of the step where it is nearest to its bound; worst of an exact one: how many elements differ */
    int node;                     /* that step */
    const char *module;
} stepwise_row;

typedef struct stepwise {
    dw_context *context;
    const engine_program *program;/* for the device's chip, its constants on the host: */
    engine_program own;           /* this one, with constants of its own, where the program's are on the device alone */
    engine_constants constants;
    device *device;               /* NULL: the CPU alone */
    chip_caps cpu;
    pool *pool;
    arena arena, run;             /* run: the values of the last run */
    int64_t *symbols;
    dw_tensor *values;            /* by plan_value index */
    perturb_distance *off;        /* by plan_value index, of the runs on the device so far; zeros where there was none */
    const char *runs_as;                  /* the last call on the device */
    stepwise_row *rows;
    size_t row_count, row_room;
} stepwise;

/* program outlives it. */
dw_status stepwise_create(dw_context *context, const engine_program *program, device *device, stepwise *made);
void stepwise_free(stepwise *steps);
/* What is perturbed in a run, by 1e-7 of itself: an element that has no place for so little moves by its last place, as rarely as makes up for it. */
typedef enum stepwise_perturbed {
    STEPWISE_NOTHING,
    STEPWISE_INPUT,               /* floating-point inputs, and what is looked up in tables of weights */
    STEPWISE_SUMS                 /* and the results of products, norms, softmax, attention and reductions, as another order of their sums would; where a kernel of the device
                                   * was seen to be further off on the CPU's operands (matrix units keep few bits of sums of 8-bit floats), by as much */
} stepwise_perturbed;

/* One run on these inputs; on the device, too, where there is one. */
dw_status stepwise_run(stepwise *steps, int input_count, const dw_named_tensor *inputs, stepwise_perturbed perturbed, uint64_t seed);
const dw_tensor *stepwise_output(const stepwise *steps, size_t index);

#endif
