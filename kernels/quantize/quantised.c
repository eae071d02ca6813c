/* Results in block formats by two kernels: see quantised.h. The workspace holds what the first kernel needs there, then the plain result, then what the
 * quantiser needs. Pure where rows are: launches are only told where the plain result lies. */
#include "kernels/quantize/quantised.h"

#include "kernels/common/cuda/host.h"
#include "kernels/kernels.h"

enum { ALIGN = 256 };             /* of the parts of the workspace: as the copy engine and cuBLASLt want addresses */

dw_format quantised_from(const op_attrs *attrs, dw_format result) {
    return dw_format_is_block(result) ? op_via(attrs) : result;
}

static size_t plain_bytes(const dw_tensor *plain) { return base_align_up((size_t)op_tensor_count(plain) * (size_t)dw_format_bits(plain->format) / 8, ALIGN); }

size_t quantised_bytes(size_t own, const dw_tensor *plain) { return base_align_up(own, ALIGN) + plain_bytes(plain); }

/* It writes about half as many as it reads, on a GPU at the rate of cuda_quantize_rows (kernels/quantize/README.md). */
double quantised_seconds(const chip_caps *chip, double bytes) {
    const double share = chip->kind == CHIP_GPU ? 0.853 : 0.8;
    return chip->launch_s + 1.5 * bytes / (share * chip_bytes_per_s(chip));
}

/* ---- choosing ---- */

/* The problem of the plain result; type and pointer are its result's. */
static kernel_problem plain_problem(const kernel_problem *problem, op_type *type, const op_type **out) {
    kernel_problem plain = *problem;
    *type = *problem->out[0];
    type->format = quantised_from(problem->attrs, type->format);
    type->scale_layout = DW_SCALE_plain;
    *out = type;
    plain.out = out;
    return plain;
}

const char *quantised_reject(const kernel_problem *problem, text *why, const char *(*reject)(const kernel_problem *problem, text *why)) {
    op_type type;
    const op_type *out;
    const kernel_problem plain = plain_problem(problem, &type, &out);
    return reject(&plain, why);
}

double quantised_cost(const kernel_problem *problem, double (*cost)(const kernel_problem *problem)) {
    op_type type;
    const op_type *out;
    const kernel_problem plain = plain_problem(problem, &type, &out);
    dw_tensor result;
    if (problem->symbols == NULL || op_tensor_bind(problem->context, &type, problem->symbols, NULL, &result) != DW_OK) return cost(&plain);
    return cost(&plain) + quantised_seconds(problem->chip, (double)plain_bytes(&result));
}

/* ---- the two runs ---- */

typedef struct two_runs {
    dw_tensor plain;
    const dw_tensor *tensor;      /* plain: the result of the first, the operand of the second */
    op_attr to;
    op_attrs attrs;
    kernel_run first, quantise;
} two_runs;

/* The second one's operand has no address yet. */
static void make_runs(const kernel_run *run, two_runs *runs) {
    const dw_tensor *out = run->call.out[0];
    op_tensor_init(&runs->plain, quantised_from(run->call.attrs, out->format), DW_SCALE_plain, out->rank, out->dims, NULL);
    runs->tensor = &runs->plain;
    runs->first = *run;
    runs->first.call.out = &runs->tensor;
    runs->to = op_set_format(OP_ATTR_to, out->format);
    runs->attrs = (op_attrs){1, &runs->to};
    runs->quantise = (kernel_run){
        .call = {.context = run->call.context, .op = op_get(OP_quantize), .attrs = &runs->attrs, .symbols = run->call.symbols, .n_in = 1, .in = &runs->tensor,
                 .n_out = 1, .out = run->call.out},
        .pool = run->pool,
        .chip = run->chip,
    };
}

static size_t own_bytes(const two_runs *runs, size_t (*workspace)(const kernel_run *run)) { return base_align_up(workspace(&runs->first), ALIGN); }

size_t quantised_workspace(const kernel_run *run, size_t (*workspace)(const kernel_run *run)) {
    two_runs runs;
    make_runs(run, &runs);
    const size_t both = quantised_bytes(workspace(&runs.first), &runs.plain);
    return run->chip->kind == CHIP_CPU ? both + quantize_workspace(&runs.quantise) : both;
}

dw_status quantised_run(const kernel_run *run, size_t (*workspace)(const kernel_run *run), dw_status (*first)(const kernel_run *run)) {
    two_runs runs;
    make_runs(run, &runs);
    runs.plain.data = (uint8_t *)run->workspace + own_bytes(&runs, workspace);
    runs.quantise.workspace = (uint8_t *)runs.plain.data + plain_bytes(&runs.plain);
    TRY(first(&runs.first));
    return quantize_run(&runs.quantise);
}

/* ---- launches ---- */

dw_status quantised_shape(const kernel_run *run, kernel_launcher *launcher, size_t (*workspace)(const kernel_run *run),
                          dw_status (*first)(const kernel_run *run, kernel_launcher *launcher)) {
    two_runs runs;
    make_runs(run, &runs);
    const int64_t at = (int64_t)own_bytes(&runs, workspace);
    cuda_mover result = cuda_mover_to(launcher, 1, &(cuda_move){KERNEL_RESULT, true, at}), operand = cuda_mover_to(launcher, 1, &(cuda_move){0, true, at});
    const num_format *info = num_info(run->call.out[0]->format);
    const bool in_one_pass = (run->chip->features >> CHIP_tma & 1) != 0 && info->cols > 0 && info->second == 0;   /* where cuda_quantize_rows takes rows of any length */
    TRY(first(&runs.first, &result.launcher));
    return in_one_pass ? quantize_rows_shape(&runs.quantise, &operand.launcher) : quantize_cuda_shape(&runs.quantise, &operand.launcher);
}
