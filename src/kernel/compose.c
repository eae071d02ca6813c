/* What goes around a way's kernel: its operands dequantised in front, its result quantised behind. No way does either by itself, and no other file puts them together. Post steps that a kernel
 * applies none of are ops of the graph by then (plan/split.c). Pure: no device, no measurement. */
#include "kernel/compose.h"

unsigned kernel_as_they_lie(const dw_format formats[2], const int64_t rows[2]) {
    (void)formats, (void)rows;
    return 0;
}

static bool is_in_blocks(int n_out, dw_format format) { return n_out > 0 && dw_format_is_block(format); }

/* Operands are dequantised along k, which lies last; those in bf16 may lie in any way, as their rows are only moved. */
static bool are_rows(const op_attrs *attrs, const dw_format formats[2]) {
    return (!op_attr_bool(attrs, OP_ATTR_at) && op_attr_bool(attrs, OP_ATTR_bt)) || (formats[0] == DW_FORMAT_bf16 && formats[1] == DW_FORMAT_bf16);
}

/* ---- a run ---- */

void compose(const kernel_way *way, const kernel_run *run, composed *c) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1];
    c->way = way;
    c->quantises = kernel_way_is(way, KERNEL_WAY_QUANTISED) && is_in_blocks(run->call.n_out, run->call.out[0]->format);
    if (c->quantises) quantised_split(run, &c->result);
    c->product = c->kernel = c->quantises ? &c->result.first : run;
    const dw_format formats[2] = {a->format, b->format};
    const int64_t rows[2] = {a->dims[a->rank - 1], b->dims[b->rank - 1]};
    c->dequantises = are_rows(run->call.attrs, formats) ? way->dequantised(formats, rows) : 0;
    if (c->dequantises == 0) return;
    dequantised_split(c->product, c->dequantises, &c->operands);
    c->kernel = &c->operands.product;
}

/* No launch is faster than memory and tensor cores allow. */
static double bound_of(const composed *c) { return kernel_run_roofline(c->product, c->kernel->call.in[0]->format, 1, 0.906); }

double kernel_in_step(double apart_s) { return 1.1 * apart_s + 1.5e-6; }

double composed_seconds(const composed *c) {
    const double behind = c->quantises ? quantised_seconds(c->product->chip, quantised_plain_bytes(&c->result)) : 0;
    const double own = c->way->seconds(c->kernel) + (c->dequantises != 0 ? dequantised_seconds(&c->operands) : 0);
    if (!kernel_way_is(c->way, KERNEL_WAY_APART)) return own + behind;
    const double bound = bound_of(c), in_step = kernel_in_step(own);
    return (in_step > bound ? in_step : bound) + behind;
}

/* Of the kernel's own, and of its operands behind that. */
static size_t kernel_bytes(const composed *c) {
    const size_t own = c->way->workspace(c->kernel);
    return c->dequantises != 0 ? own + dequantised_workspace(&c->operands) : own;
}

size_t composed_workspace(const composed *c, int64_t most_rows) { return c->quantises ? quantised_workspace(&c->result, kernel_bytes(c), most_rows) : kernel_bytes(c); }

static dw_status shape_kernel(const void *kernel, kernel_launcher *launcher) {
    const composed *c = kernel;
    return c->dequantises != 0 ? dequantised_shape(&c->operands, c->way->workspace(c->kernel), launcher, c->way->shape) : c->way->shape(c->kernel, launcher);
}

dw_status composed_shape(const composed *c, kernel_launcher *launcher) {
    return c->quantises ? quantised_shape(&c->result, kernel_bytes(c), launcher, shape_kernel, c) : shape_kernel(c, launcher);
}

void composed_describe(const composed *c, text *words) {
    for (int i = 0, count = 0; c->dequantises >> i != 0; i++)
        if ((c->dequantises >> i & 1) != 0) text_printf(words, "%s %d", count++ == 0 ? (c->dequantises & (c->dequantises - 1)) != 0 ? "operands" : "operand" : ",", i);
    if (c->dequantises != 0) text_add(words, c->quantises ? " dequantised in front, " : " dequantised in front");
    if (c->quantises) text_add(words, "result quantised behind");
}

/* ---- a problem ---- */

void compose_problem(const kernel_way *way, const kernel_problem *problem, composed_problem *c) {
    const op_type *a = problem->in[0], *b = problem->in[1];
    const dw_format formats[2] = {a->format, b->format};
    int64_t rows[2];
    c->kernel = *problem;
    if (kernel_way_is(way, KERNEL_WAY_QUANTISED) && is_in_blocks(problem->n_out, problem->out[0]->format)) c->kernel = quantised_plain(problem, &c->result, &c->out);
    if (!are_rows(problem->attrs, formats) || !dim_is_constant(a->dims[a->rank - 1], &rows[0]) || !dim_is_constant(b->dims[b->rank - 1], &rows[1])) return;
    c->kernel.dequantised = way->dequantised(formats, rows);
    if (c->kernel.dequantised == 0) return;
    for (int i = 0; i < problem->n_in; i++) c->in[i] = problem->in[i];
    for (int i = 0; i < 2; i++) {
        if ((c->kernel.dequantised >> i & 1) == 0) continue;
        c->operands[i] = *problem->in[i];
        c->operands[i].format = DW_FORMAT_bf16;
        c->operands[i].scale_layout = DW_SCALE_plain;
        c->in[i] = &c->operands[i];
    }
    c->kernel.in = c->in;
}

const char *kernel_way_variant(const kernel_way *way, const kernel_problem *problem, int index) {
    composed_problem c;
    compose_problem(way, problem, &c);
    return way->variant(&c.kernel, index);
}
