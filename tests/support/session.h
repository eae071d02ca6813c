/* Models of small graphs beside the oracle: inputs and outputs of a session's runs, and the comparison with the references. */
#ifndef SUPPORT_SESSION_H
#define SUPPORT_SESSION_H

#include "engine/engine.h"
#include "support/evaluate.h"

enum { RUN_MAX_INPUTS = 64, RUN_MAX_OUTPUTS = 300 };

/* The tensors of one run, in memory of the C library. */
typedef struct run_io {
    int input_count, output_count;
    dw_named_tensor inputs[RUN_MAX_INPUTS], outputs[RUN_MAX_OUTPUTS];
} run_io;

/* What the inputs hold: integers from -2 to 2, on which sums and products are exact, or any numbers, NaNs and infinities among them. */
typedef enum run_numbers { RUN_SMALL_INTEGERS, RUN_ANY_NUMBERS } run_numbers;

/* Inputs of a graph with its symbols at these sizes, the same for the same seed; no outputs yet. */
void run_io_create(run_io *io, const ir_graph *graph, const int64_t *symbols, run_numbers numbers, uint64_t seed);
/* Output memory of the shapes that the session tells, full of a byte that no run leaves. */
void run_io_add_outputs(run_io *io, dw_session *session);
void run_io_free(run_io *io);
const dw_tensor *run_io_output(const run_io *io, const char *name);

/* Fails the test unless status is DW_OK. */
void assert_ok(dw_context *context, dw_status status);
dw_model *model_of_text(dw_context *context, const char *text, const dw_model_options *options);
dw_session *session_of(dw_context *context, const dw_model *model, const char *dims);
/* Runs the session at these sizes and the oracle with the same inputs, and fails the test unless every output has the same bits. */
void assert_runs_as_references(dw_context *context, dw_session *session, evaluation *oracle, const ir_graph *graph, const int64_t *symbols,
                               run_numbers numbers, uint64_t seed);

#endif
