/* Structural fusion: rows of fuse.def over all nodes until none applies. The rows are in activation.c, norm.c, rotary.c,
 * patches.c and linear.c; attention has a pass of its own.
 *
 *     %1 = matmul x, w {bt=true}                %1 = matmul x, w, c {bt=true,post="bias,gelu"}
 *     %2 = add %1, c                     ->     output y %1
 *     %3 = gelu %2
 *     output y %3 */
#include "pass/fuse/fuse.h"

typedef enum fuse_part { STRUCTURE, EPILOGUE } fuse_part;

static const struct { const char *name; fuse_part part; fuse_function run; } rows[] = {
#define FUSE(name, part, meaning) {#name, part, fuse_##name},
#include "pass/fuse/fuse.def"
#undef FUSE
};

/* The rows of the parts up to last. */
static dw_status run_rows(ir_graph *graph, fuse_part last, bool *changed) {
    for (size_t i = 0; i < COUNT_OF(rows);) {
        bool row_changed = false;
        dw_status status = rows[i].part > last ? DW_OK : fuse_each(graph, rows[i].name, rows[i].run, &row_changed);
        if (status != DW_OK) return status;
        *changed = *changed || row_changed;
        i = row_changed ? 0 : i + 1;
    }
    return DW_OK;
}

dw_status pass_fuse(ir_graph *graph, const pass_options *options, bool *changed) {
    (void)options;
    *changed = false;
    TRY(run_rows(graph, EPILOGUE, changed));
    return *changed ? ir_sort(graph) : DW_OK;
}

dw_status pass_structure(ir_graph *graph, const pass_options *options, bool *changed) {
    (void)options;
    *changed = false;
    TRY(run_rows(graph, STRUCTURE, changed));
    return *changed ? ir_sort(graph) : DW_OK;
}
