/* Results in block formats by two kernels: see quantised.h. The workspace holds what the first kernel needs there, then the plain result, then what the
 * quantiser needs. Pure where rows are: launches are only told where the plain result lies. */
#include "kernels/quantize/quantised.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

enum { ALIGN = 256 };             /* of the parts of the workspace: as TMA and cuBLASLt want addresses */

dw_format quantised_from(const op_attrs *attrs, dw_format result) {
    return dw_format_is_block(result) ? op_via(attrs) : result;
}

static size_t plain_bytes(const dw_tensor *plain) { return base_align_up((size_t)op_tensor_count(plain) * (size_t)dw_format_bits(plain->format) / 8, ALIGN); }

/* It writes about half as many as it reads, on a GPU at the rate of cuda_quantize_rows (kernels/quantize/README.md). */
double quantised_seconds(const chip_caps *chip, double bytes) {
    const double share = chip->kind == CHIP_GPU ? 0.853 : 0.8;
    return chip->launch_s + 1.5 * bytes / (share * chip_bytes_per_s(chip));
}

kernel_problem quantised_plain(const kernel_problem *problem, op_type *type, const op_type **out) {
    kernel_problem plain = *problem;
    *type = *problem->out[0];
    type->format = quantised_from(problem->attrs, type->format);
    type->scale_layout = DW_SCALE_plain;
    *out = type;
    plain.out = out;
    return plain;
}

void quantised_split(const kernel_run *run, quantised_runs *runs) {
    const dw_tensor *out = run->call.out[0];
    op_tensor_init(&runs->plain, quantised_from(run->call.attrs, out->format), DW_SCALE_plain, out->rank, out->dims, NULL);
    runs->tensor = &runs->plain;
    runs->first = *run;
    runs->first.call.out = &runs->tensor;
    runs->to[0] = op_set_format(OP_ATTR_to, out->format);
    runs->attrs = (op_attrs){1, runs->to};
    if (op_has_level(run->call.attrs)) runs->to[runs->attrs.count++] = op_set_real(OP_ATTR_level, op_attr_real(run->call.attrs, OP_ATTR_level));
    runs->quantise = (kernel_run){
        .call = {.context = run->call.context, .op = op_get(OP_quantize), .attrs = &runs->attrs, .symbols = run->call.symbols, .n_in = 1, .in = &runs->tensor,
                 .n_out = 1, .out = run->call.out},
        .pool = run->pool,
        .chip = run->chip,
        .invariant = run->invariant,
    };
}

double quantised_plain_bytes(const quantised_runs *runs) { return (double)plain_bytes(&runs->plain); }

size_t quantised_workspace(const quantised_runs *runs, size_t own, int64_t most_rows) {
    const kernel_run *run = &runs->first;
    const int64_t rows = kernel_result_rows(&run->call), cols = runs->plain.dims[runs->plain.rank - 1];
    dw_tensor some = runs->plain;
    if (rows > most_rows) op_tensor_init(&some, some.format, DW_SCALE_plain, 2, (int64_t[]){most_rows, cols}, NULL);
    const size_t both = base_align_up(own, ALIGN) + plain_bytes(&some);
    return run->chip->kind == CHIP_CPU ? both + quantize_workspace(&runs->quantise) : both;
}

dw_status quantised_run(quantised_runs *runs, size_t own, dw_status (*first)(const kernel_run *run)) {
    runs->plain.data = (uint8_t *)runs->first.workspace + base_align_up(own, ALIGN);
    runs->quantise.workspace = (uint8_t *)runs->plain.data + plain_bytes(&runs->plain);
    TRY(first(&runs->first));
    return quantize_run(&runs->quantise);
}

dw_status quantised_shape(const quantised_runs *runs, size_t own, kernel_launcher *launcher, dw_status (*first)(const void *kernel, kernel_launcher *launcher), const void *kernel) {
    const int64_t at = (int64_t)base_align_up(own, ALIGN);
    const kernel_run *quantise = &runs->quantise;
    cuda_mover result = cuda_mover_to(launcher, 1, &(cuda_move){KERNEL_RESULT, true, at}), operand = cuda_mover_to(launcher, 1, &(cuda_move){0, true, at});
    const num_format *info = num_info(quantise->call.out[0]->format);
    const bool in_one_pass = chip_has(quantise->chip, CHIP_tma) && info->cols > 0 && info->second == 0;   /* where cuda_quantize_rows takes rows of any length */
    TRY(first(kernel, &result.launcher));
    return in_one_pass ? quantize_rows_shape(quantise, &operand.launcher) : quantize_cuda_shape(quantise, &operand.launcher);
}
