/* dropout: elements are dropped at random, and the others grow by 1 / (1 - probability). Which ones is a function of (seed, step, site, index of the element): dropping.h. So nothing is stored for
 * the gradient, which is the same op on it. An element that is dropped is multiplied by 0: NaN and infinities come through as NaN. */
#include "op/dropping.h"
#include "op/family.h"

dw_status dropout_infer(op_infer *infer) {
    const op_type *x = infer->in[0], *draw = infer->in[1];
    const double probability = op_attr_real(infer->attrs, OP_ATTR_probability);
    const int64_t site = op_attr_int(infer->attrs, OP_ATTR_site);
    int64_t size;
    TRY(op_check_number(infer, "x", x));
    TRY(op_check_float(infer, "x", x));
    if (draw->format != DW_FORMAT_i64) return base_fail(infer->context, DW_MISMATCH, "dropout: draw is %s, it must be i64", dw_format_name(draw->format));
    TRY(op_check_rank(infer, "draw", draw, 1, 1));
    if (!dim_is_constant(draw->dims[0], &size) || size != 2) return base_fail(infer->context, DW_MISMATCH, "dropout: draw must have two elements, seed and step");
    if (!(probability >= 0 && probability <= 1)) return base_fail(infer->context, DW_INVALID, "dropout: probability is %g, it must be from 0 to 1", probability);
    if (site < 0 || site > UINT32_MAX) return base_fail(infer->context, DW_INVALID, "dropout: site is %lld, it must be from 0 to 2^32 - 1", (long long)site);
    *infer->out = *x;
    return DW_OK;
}

dw_status dropout_reference(const op_call *call) {
    const dw_tensor *x = call->in[0], *draw = call->in[1], *out = call->out[0];
    const double probability = op_attr_real(call->attrs, OP_ATTR_probability), factor = dropping_factor(probability);
    const uint64_t threshold = dropping_threshold(probability);
    const uint64_t seed = (uint64_t)op_load_int_at(draw, 0), step = (uint64_t)op_load_int_at(draw, draw->strides[0]);
    const uint32_t site = (uint32_t)op_attr_int(call->attrs, OP_ATTR_site);
    walk w;
    walk_start(&w, x->rank, x->dims);
    const int at_x = walk_add(&w, x), at_out = walk_add(&w, out);
    for (uint64_t i = 0; w.left > 0; walk_next(&w), i++) {
        const double value = op_load_at(x, w.offset[at_x]);
        const bool kept = dropping_words(seed, step, site, i / DROPPING_GROUP).word[i % DROPPING_GROUP] >= threshold;
        const double grown = kept ? factor : 0;
        op_store_at(out, w.offset[at_out], x->format == DW_FORMAT_f64 ? value * grown : (double)((float)value * (float)grown));
    }
    return DW_OK;
}

/* Ten rounds of a few integer operations for four elements, and a product. */
void dropout_work(const op_call *call, op_work *work) { op_work_each(call, 25, work); }
