/* attention by cuDNN: prefill of known sizes, as each of its plans is for one shape. Pure: knows no driver. */
#include "kernels/attention/host.h"
#include "kernels/attention/results.h"
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/library/cudnn.h"

/* ---- what is taken ---- */

static bool is_half(dw_format format) { return format == DW_FORMAT_bf16 || format == DW_FORMAT_f16; }

/* Everything that a plan is made for. Positions and rows are none of it: they lie in device memory. */
typedef struct known { int64_t batches, heads, shared, queries, keys, width, value_width, offset; } known;

static bool find_known(const kernel_problem *problem, known *z) {
    const op_type *q = problem->in[ATTENTION_Q], *k = problem->in[ATTENTION_K], *v = problem->in[ATTENTION_V];
    dim offset = op_attr_dim(problem->attrs, OP_ATTR_offset);
    z->offset = 0;
    return dim_is_constant(q->dims[0], &z->batches) && dim_is_constant(q->dims[1], &z->heads) && dim_is_constant(q->dims[2], &z->queries) && dim_is_constant(q->dims[3], &z->width) &&
           dim_is_constant(k->dims[1], &z->shared) && dim_is_constant(k->dims[2], &z->keys) && dim_is_constant(v->dims[3], &z->value_width) &&
           (offset == NULL || dim_is_constant(offset, &z->offset));
}

static const char *reject_operands(const kernel_problem *problem, text *why) {
    static const char *const others[] = {"mask", "bias", "sink", "row", "position", "table"};
    const op_type *q = problem->in[ATTENTION_Q], *k = problem->in[ATTENTION_K], *out = problem->out[0];
    for (int i = ATTENTION_MASK; i < problem->n_in; i++) {
        if (problem->in[i] == NULL) continue;
        text_printf(why, "it takes no operand '%s'", others[i - ATTENTION_MASK]);
        return text_string(why);
    }
    if (problem->n_out > 1) return "there is a second result (lse), and it makes one";
    if (!is_half(q->format) || k->format != q->format || out->format != q->format) {
        text_printf(why, "q is %s, k %s and the result %s; all must be bf16, or f16", dw_format_name(q->format), dw_format_name(k->format), dw_format_name(out->format));
        return text_string(why);
    }
    return NULL;
}

/* Where the keys that a query sees end, behind its own position. */
static int64_t shift_of(const op_attrs *attrs, int64_t offset) {
    const int64_t ahead = op_attr_int(attrs, OP_ATTR_ahead);
    return offset + (op_attr_bool(attrs, OP_ATTR_causal) || ahead == 0 ? 0 : ahead - 1);
}

/* A query that sees no key would become NaN, so none may be possible. */
static const char *reject_masks(const kernel_problem *problem, const known *z) {
    const op_attrs *attrs = problem->attrs;
    if (op_attr_real(attrs, OP_ATTR_softcap) > 0) return "it has no softcap";
    if (!(op_attr_real(attrs, OP_ATTR_scale) > 0)) return "the scale is not positive";
    if (z->offset < 0 || z->offset > INT32_MAX || op_attr_int(attrs, OP_ATTR_ahead) > INT32_MAX || shift_of(attrs, z->offset) > INT32_MAX) return "the offset is negative, so that queries see nothing, or out of range";
    if (op_attr_int(attrs, OP_ATTR_window) == 0) return NULL;
    if (!op_attr_bool(attrs, OP_ATTR_causal)) return "a window goes with causal=true: without it some versions are wrong";
    if (op_attr_int(attrs, OP_ATTR_window) > 1 << 24) return "the window is beyond what it counts to";
    return z->queries != z->keys || z->offset != 0 ? "a window wants as many queries as keys, and no offset" : NULL;
}

const char *attention_cudnn_refuses(const kernel_problem *problem, text *why) {
    known z;
    const char *reason = reject_operands(problem, why);
    if (reason != NULL) return reason;
    if (!find_known(problem, &z)) return "it makes a plan for one shape, and the sizes are not known at plan time";
    if (z.batches < 1 || z.heads < 1 || z.queries < 1 || z.keys < 1) return "there is nothing to compute";
    if (z.shared < 1 || z.heads % z.shared != 0) return "the heads of k do not divide those of q";
    if (z.batches > INT32_MAX || z.heads > INT32_MAX || z.queries > INT32_MAX || z.keys > INT32_MAX) return "a size is beyond what it counts to";
    if (z.width % 8 != 0 || z.value_width % 8 != 0 || z.width < 8 || z.value_width < 8 || z.width > 256 || z.value_width > 256) {
        text_printf(why, "heads are %lld and %lld wide; it takes multiples of 8 up to 256", (long long)z.width, (long long)z.value_width);
        return text_string(why);
    }
    return reject_masks(problem, &z);
}

double attention_cudnn_seconds(const kernel_run *run) { return 3e-6 + kernel_run_roofline(run, run->call.in[ATTENTION_Q]->format, 0.717, 0.853); }

size_t attention_cudnn_workspace(const kernel_run *run) {
    (void)run;
    return CUDNN_WORKSPACE + CUDNN_ALIGN;
}

const char *attention_cudnn_takes(const kernel_run *run, text *why) { return attention_lacks_maps(&run->call, why); }

/* ---- the launch ---- */

static void take_strides(const dw_tensor *x, int64_t *strides) {
    for (int i = 0; i < 3; i++) strides[i] = x->strides[i];
}

static void take_sizes(const kernel_run *run, const op_attention_view *view, cudnn_sizes *z) {
    const dw_tensor *q = run->call.in[ATTENTION_Q], *k = run->call.in[ATTENTION_K], *v = run->call.in[ATTENTION_V];
    *z = (cudnn_sizes){.batches = q->dims[0], .heads = q->dims[1], .shared_heads = q->dims[1] / k->dims[1], .queries = q->dims[2], .keys = view->slots, .width = q->dims[3],
                       .value_width = v->dims[3], .shift = shift_of(run->call.attrs, view->offset), .window = view->window,
                       .type = q->format == DW_FORMAT_bf16 ? CUDNN_BF16 : CUDNN_F16, .windowed = view->window > 0};
    z->bounded = view->causal || view->ahead > 0;
    if (!z->bounded) z->shift = 0;
    take_strides(q, z->q);
    take_strides(k, z->k);
    take_strides(v, z->v);
    take_strides(run->call.out[0], z->out);
}

dw_status attention_cudnn_shape(const kernel_run *run, kernel_launcher *launcher) {
    attention_heads heads;
    run = attention_by_heads(run, &heads);
    op_attention_view view;
    kernel_launch launch;
    TRY(op_attention_view_of(&run->call, &view));
    cudnn_attention *a = cuda_launch(&launch, NULL, "attention_cudnn", sizeof *a);
    launch.library = "cudnn";
    launch.prepare = cudnn_prepare;
    launch.enqueue = cudnn_enqueue;
    take_sizes(run, &view, &a->sizes);
    a->scale = (float)op_attr_real(run->call.attrs, OP_ATTR_scale);
    cuda_slot(&launch, KERNEL_SLOT_DATA, ATTENTION_Q, &a->q, 0);
    cuda_slot(&launch, KERNEL_SLOT_DATA, ATTENTION_K, &a->k, 0);
    cuda_slot(&launch, KERNEL_SLOT_DATA, ATTENTION_V, &a->v, 0);
    cuda_slot(&launch, KERNEL_SLOT_DATA, KERNEL_RESULT, &a->out, 0);
    cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &a->workspace, 0);
    return launcher->add(launcher, &launch);
}
