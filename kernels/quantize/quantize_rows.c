/* quantize on a GPU in one pass: the host half of quantize_rows.cu. */
#include "kernels/quantize/quantize_rows.h"

#include "kernels/common/cuda/host.h"
#include "kernels/kernels.h"

const char *quantize_rows_reject(const kernel_problem *problem, text *why) {
    const op_type *x = problem->in[0], *out = problem->out[0];
    const num_format *info = num_info(out->format);
    if (!row_parts_reads(x->format)) {
        text_printf(why, "x is %s", dw_format_name(x->format));
        return text_string(why);
    }
    const char *reason = row_parts_reject_result(out, why);
    if (reason != NULL) return reason;
    bool has_given = problem->n_in > 1 && problem->in[1] != NULL;
    if (info->second == 1 && !has_given) return "its scales depend on the whole tensor";
    return row_parts_reject_width(x->dims[x->rank - 1], why);
}

double quantize_rows_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.5, 0.8); }

size_t quantize_rows_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

dw_status quantize_rows_shape(const kernel_run *run, kernel_launcher *launcher) {
    static row_entries entries = ROW_ENTRIES("quantize_rows", ""), search_entries = ROW_ENTRIES("quantize_rows", "_search");
    kernel_launch launch;
    quantize_rows_arguments *arguments = cuda_launch(&launch, "quantize_rows", NULL, sizeof *arguments);
    const dw_tensor *x = run->call.in[0], *out = run->call.out[0];
    const num_format *info = num_info(out->format);
    cuda_nest_lines(&arguments->division.nest, x->rank - 1, 1, &x, &arguments->x_step);
    if (arguments->division.nest.count == 0) return DW_OK;
    TRY(row_parts_clear(run, launcher));
    bool searches = op_quantize_round(run->call.attrs) == NUM_ROUND_SEARCH, whole = info->cols == 0 || info->second == 2;
    row_parts_divide(&launch, run->chip, x->format, out, whole, searches ? search_entries : entries, &arguments->division);
    row_parts_take_target(&launch, run, &arguments->out);
    cuda_take_array(&launch, run, 0, &arguments->x);
    if (cuda_operand(run, 1) != NULL) cuda_slot(&launch, KERNEL_SLOT_DATA, 1, &arguments->given, 0);
    return launcher->add(launcher, &launch);
}
