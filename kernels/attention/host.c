/* What the host halves of the GPU attentions share: which calls they refuse alike, and filling in arguments and tensor maps. Pure: knows no driver. */
#include "kernels/attention/host.h"

#include "kernels/gpu/host/host.h"

/* ---- what is refused ---- */

static bool is_half(dw_format format) { return format == DW_FORMAT_bf16 || format == DW_FORMAT_f16; }

static const char lse_reason[] = "there is a second result (lse), and it makes one";

const char *attention_reject_halves(const kernel_problem *problem, text *why) { return problem->n_out > 1 ? lse_reason : attention_reject_half_operands(problem, why); }

const char *attention_reject_half_operands(const kernel_problem *problem, text *why) {
    enum { MOST_WIDTH = 256 };
    return attention_reject_halves_beyond(problem, MOST_WIDTH, MOST_WIDTH, why);
}

const char *attention_reject_halves_beyond(const kernel_problem *problem, int most_width, int most_value_width, text *why) {
    const op_type *q = problem->in[ATTENTION_Q], *k = problem->in[ATTENTION_K], *v = problem->in[ATTENTION_V], *out = problem->out[0], *bias = problem->n_in > ATTENTION_BIAS ? problem->in[ATTENTION_BIAS] : NULL;
    int64_t width, value_width;
    if (!is_half(q->format) || k->format != q->format) {
        text_printf(why, "q is %s and k %s; both must be bf16, or f16", dw_format_name(q->format), dw_format_name(k->format));
        return text_string(why);
    }
    if (!is_half(out->format)) {
        text_printf(why, "the result is %s, and weights are rounded to 16 bits on the way", dw_format_name(out->format));
        return text_string(why);
    }
    if (bias != NULL && bias->format != DW_FORMAT_f32 && !is_half(bias->format)) return "the bias is not f32, bf16 or f16";
    if (!dim_is_constant(q->dims[3], &width) || !dim_is_constant(v->dims[3], &value_width)) return "the heads' widths are not known at plan time";
    if (width % 8 != 0 || value_width % 8 != 0 || width == 0 || value_width == 0 || width > most_width || value_width > most_value_width) {
        text_printf(why, "heads are %lld and %lld wide; it takes multiples of 8 up to %d", (long long)width, (long long)value_width, most_width);
        if (most_value_width != most_width) text_printf(why, " and %d", most_value_width);
        return text_string(why);
    }
    return NULL;
}

static bool is_taken(dw_format format) { return format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16; }

const char *attention_reject_fp32(const kernel_problem *problem, text *why) {
    const op_type *operands[] = {problem->in[ATTENTION_Q], problem->in[ATTENTION_K], problem->n_in > ATTENTION_BIAS ? problem->in[ATTENTION_BIAS] : NULL, problem->out[0]};
    int64_t width, value_width;
    if (problem->n_out > 1) return lse_reason;
    for (size_t i = 0; i < COUNT_OF(operands); i++)
        if (operands[i] != NULL && !is_taken(operands[i]->format)) {
            text_printf(why, "it takes f32, bf16 and f16, and there is %s", dw_format_name(operands[i]->format));
            return text_string(why);
        }
    if (!dim_is_constant(problem->in[ATTENTION_K]->dims[3], &width) || !dim_is_constant(problem->in[ATTENTION_V]->dims[3], &value_width)) return "the heads' widths are not known at plan time";
    if (width == 0 || value_width == 0 || width > 256 || value_width > 256) {
        text_printf(why, "heads are %lld and %lld wide; it takes up to 256", (long long)width, (long long)value_width);
        return text_string(why);
    }
    return NULL;
}

const char *attention_refuses_codes(const kernel_problem *problem, dw_format q, dw_format k, text *why) {
    const op_type *const *in = problem->in, *out = problem->out[0];
    int64_t width, value_width;
    if (in[ATTENTION_Q]->format != q || in[ATTENTION_K]->format != k || in[ATTENTION_V]->format != DW_FORMAT_bf16 || !is_half(out->format)) {
        text_printf(why, "q is %s, k %s, v %s and the result %s; of codes it multiplies %s and %s, with v in bf16 and a result of 16 bits", dw_format_name(in[ATTENTION_Q]->format),
                    dw_format_name(in[ATTENTION_K]->format), dw_format_name(in[ATTENTION_V]->format), dw_format_name(out->format), dw_format_name(q), dw_format_name(k));
        return text_string(why);
    }
    if (!dim_is_constant(in[ATTENTION_Q]->dims[3], &width) || !dim_is_constant(in[ATTENTION_V]->dims[3], &value_width)) return "the heads' widths are not known at plan time";
    if (width % 16 == 0 && value_width % 8 == 0 && width > 0 && value_width > 0 && width <= ATTENTION_CODES_WIDTH && value_width <= ATTENTION_CODES_WIDTH) return NULL;
    text_printf(why, "heads are %lld and %lld wide; of codes it takes multiples of 16 and of 8 up to %d", (long long)width, (long long)value_width, ATTENTION_CODES_WIDTH);
    return text_string(why);
}

const char *attention_refuses_scores_of_codes(const kernel_problem *problem) {
    for (int i = ATTENTION_MASK; i <= ATTENTION_BIAS && i < problem->n_in; i++)
        if (problem->in[i] != NULL) return "keys are in blocks, and there is a mask or a bias";
    return op_attr_real(problem->attrs, OP_ATTR_softcap) > 0 || !(op_attr_real(problem->attrs, OP_ATTR_scale) > 0) ? "keys are in blocks, and scores have a cap, or a scale that is not positive" : NULL;
}

kernel_problem attention_without_blocks(const kernel_problem *problem, op_type *types, const op_type **in) {
    kernel_problem plain = *problem;
    for (int i = 0; i < problem->n_in; i++) in[i] = problem->in[i];
    for (int i = ATTENTION_K; i <= ATTENTION_V && dw_format_is_block(problem->in[ATTENTION_K]->format); i++) {
        types[i - ATTENTION_K] = *problem->in[i];
        types[i - ATTENTION_K].format = DW_FORMAT_f32;
        in[i] = &types[i - ATTENTION_K];
    }
    plain.in = in;
    return plain;
}

static bool is_cached(const kernel_problem *problem) {
    for (int i = ATTENTION_ROW; i <= ATTENTION_POSITION && i < problem->n_in; i++)
        if (problem->in[i] != NULL) return true;
    return false;
}

const char *attention_refuses_cached(const kernel_problem *problem) {
    return problem->invariant && is_cached(problem) ? "its tiles are of many queries of a text, and the plan is invariant: a token has the same bits among few" : NULL;
}

const char *attention_refuses_uncached(const kernel_problem *problem) {
    return problem->invariant && !is_cached(problem) ? "it takes few queries, and the plan is invariant: these have no positions and may be many" : NULL;
}

int64_t attention_slots(const op_call *call) {
    op_attention_view view;
    return op_attention_view_of(call, &view) == DW_OK ? view.slots : 0;
}

int64_t attention_rows(const op_call *call) {
    const dw_tensor *table = op_operand(call, ATTENTION_TABLE);
    return table != NULL ? table->dims[0] : call->in[ATTENTION_K]->dims[0];
}

double attention_texts_of(const op_call *call, int64_t queries) {
    const int64_t tokens = call->in[ATTENTION_Q]->dims[2];
    if (op_operand(call, ATTENTION_ROW) == NULL || tokens < 1 || tokens > attention_rows(call)) return 1;
    return (double)(tokens < queries ? tokens : queries);
}

bool attention_is_general(const op_call *call) {
    for (int i = ATTENTION_MASK; i <= ATTENTION_BIAS; i++)
        if (i < call->n_in && call->in[i] != NULL) return true;
    return op_attr_real(call->attrs, OP_ATTR_softcap) > 0 || !(op_attr_real(call->attrs, OP_ATTR_scale) > 0);
}

const char *attention_counts_refusal(const kernel_run *run, int64_t blocks, text *why) {
    const dw_tensor *k = run->call.in[ATTENTION_K];
    const int64_t keys = attention_slots(&run->call);
    if (keys == 0 || k->dims[0] == 0 || k->dims[1] < 1) return kernel_because(why, "there are no keys");
    if (keys <= INT32_MAX / 2 && k->dims[0] <= INT32_MAX / 2 && blocks <= INT32_MAX) return NULL;
    return kernel_because(why, "%lld keys, or %lld blocks of threads, are more than it counts to", (long long)keys, (long long)blocks);
}

/* ---- arguments ---- */

static void take(kernel_launch *launch, const kernel_run *run, int index, const int64_t *dims, cuda_array *array, int64_t *strides) {
    cuda_take_array(launch, run, index, array);
    cuda_broadcast(kernel_operand(run, index), 4, dims, strides);
}

/* A mask or bias. */
static void take_scores(kernel_launch *launch, const kernel_run *run, int index, const int64_t from[4], cuda_array *array, int64_t strides[4]) {
    cuda_take_array(launch, run, index, array);
    for (int axis = 0; axis < 4; axis++) strides[axis] = from[axis];
}

static void take_operands(kernel_launch *launch, const kernel_run *run, const op_attention_view *view, attention_arguments *arguments) {
    const dw_tensor *q = run->call.in[ATTENTION_Q], *k = run->call.in[ATTENTION_K], *v = run->call.in[ATTENTION_V], *sink = kernel_operand(run, ATTENTION_SINK);
    take(launch, run, ATTENTION_Q, q->dims, &arguments->q, arguments->q_strides);
    take(launch, run, ATTENTION_K, k->dims, &arguments->k, arguments->k_strides);
    take(launch, run, ATTENTION_V, v->dims, &arguments->v, arguments->v_strides);
    take(launch, run, KERNEL_RESULT, run->call.out[0]->dims, &arguments->out, arguments->out_strides);
    arguments->has_mask = view->mask != NULL;
    arguments->has_bias = view->bias != NULL;
    arguments->has_sink = sink != NULL;
    if (view->mask != NULL) take_scores(launch, run, ATTENTION_MASK, view->mask_strides, &arguments->mask, arguments->mask_strides);
    if (view->bias != NULL) take_scores(launch, run, ATTENTION_BIAS, view->bias_strides, &arguments->bias, arguments->bias_strides);
    if (sink != NULL) cuda_take_array(launch, run, ATTENTION_SINK, &arguments->sink);
    arguments->sink_stride = sink ? sink->strides[0] : 0;
}

static void take_places(kernel_launch *launch, const kernel_run *run, const op_attention_view *view, attention_arguments *arguments) {
    arguments->keys = view->slots;
    arguments->cache_rows = view->rows;
    arguments->causal = view->causal;
    arguments->window = view->window;
    arguments->ahead = view->ahead;
    arguments->offset = view->offset;
    arguments->has_row = view->row != NULL;
    arguments->has_position = view->position != NULL;
    if (view->row != NULL) {
        arguments->row_step = view->row->strides[0];
        cuda_take_array(launch, run, ATTENTION_ROW, &arguments->row);
    }
    if (view->position != NULL) {
        arguments->position_step = view->position->strides[0];
        arguments->mask_keys = view->mask_keys;
        arguments->bias_keys = view->bias_keys;
        cuda_take_array(launch, run, ATTENTION_POSITION, &arguments->position);
    }
    if (view->table != NULL) {
        arguments->page = (int32_t)view->page;
        arguments->pages = (int32_t)view->pages;
        for (int axis = 0; axis < 2; axis++) arguments->table_strides[axis] = view->table->strides[axis];
        cuda_take_array(launch, run, ATTENTION_TABLE, &arguments->table);
    }
    cuda_take_fault(launch, &arguments->fault);
}

dw_status attention_take(kernel_launch *launch, const kernel_run *run, attention_arguments *arguments) {
    const dw_tensor *q = run->call.in[ATTENTION_Q], *k = run->call.in[ATTENTION_K], *v = run->call.in[ATTENTION_V];
    op_attention_view view;
    TRY(op_attention_view_of(&run->call, &view));
    arguments->batches = q->dims[0];
    arguments->heads = q->dims[1];
    arguments->queries = q->dims[2];
    arguments->width = q->dims[3];
    arguments->value_width = v->dims[3];
    arguments->shared_heads = q->dims[1] / k->dims[1];
    arguments->scale = (float)op_attr_real(run->call.attrs, OP_ATTR_scale);
    arguments->softcap = (float)op_attr_real(run->call.attrs, OP_ATTR_softcap);
    take_operands(launch, run, &view, arguments);
    take_places(launch, run, &view, arguments);
    return DW_OK;
}

/* The offset of the queries, bounded by op_attention_view_of, and so much more, as far as queries and keys are counted. */
static int32_t shift_of(int64_t offset, int64_t more) {
    const int64_t far = INT64_C(1) << 61, bound = INT32_MAX / 2, shift = offset + (more > far ? far : more < -far ? -far : more);
    return (int32_t)(shift > bound ? bound : shift < -bound ? -bound : shift);
}

void attention_shifts(const attention_arguments *arguments, int32_t *begin, int32_t *end) {
    const attention_arguments *p = arguments;
    *end = p->causal ? shift_of(p->offset, 1) : p->ahead > 0 ? shift_of(p->offset, p->ahead) : INT32_MAX / 2;
    *begin = p->window > 0 ? shift_of(p->offset, 1 - p->window) : -INT32_MAX / 2;
}

void attention_lie_as_a_whole(const dw_tensor *x, int64_t strides[4]) {
    strides[3] = 1;
    for (int axis = 2; axis >= 0; axis--) strides[axis] = strides[axis + 1] * x->dims[axis + 1];
}

void attention_take_blocks(kernel_launch *launch, const kernel_run *run, attention_arguments *arguments, attention_blocks *blocks) {
    const dw_tensor *k = run->call.in[ATTENTION_K], *v = run->call.in[ATTENTION_V];
    blocks->in_blocks = dw_format_is_block(k->format);
    if (!blocks->in_blocks) return;
    cuda_take_rows(launch, run, ATTENTION_K, true, &blocks->k);
    cuda_take_rows(launch, run, ATTENTION_V, true, &blocks->v);
    attention_lie_as_a_whole(k, arguments->k_strides);
    blocks->values_apart = !dw_format_is_block(v->format);
    if (!blocks->values_apart) attention_lie_as_a_whole(v, arguments->v_strides);
}

/* ---- tensor maps ---- */

enum { COLUMN = 64 };   /* elements of 16 bits in the 128 bytes that a swizzle turns */

bool attention_lies_in_pieces(const dw_tensor *x) {
    const int64_t piece = x->format == DW_FORMAT_f32 ? 4 : 8;
    if (!cuda_lies_at_16(x->data) || (x->dims[3] > 1 && x->strides[3] != 1) || x->dims[3] % piece != 0) return false;
    for (int i = 0; i < 3; i++)
        if (x->dims[i] > 1 && x->strides[i] % piece != 0) return false;
    return true;
}

bool attention_has_map(const dw_tensor *x) {
    if (!cuda_lies_at_16(x->data) || (x->dims[3] > 1 && x->strides[3] != 1)) return false;
    for (int i = 0; i < 3; i++)
        if (x->dims[i] > 1 && (x->strides[i] <= 0 || x->strides[i] % 8 != 0)) return false;
    return true;
}

void attention_take_map(kernel_launch *launch, const kernel_run *run, int index, int rows, const void *field) {
    const dw_tensor *x = kernel_operand(run, index);
    kernel_map *map = &launch->maps[launch->map_count];
    *map = (kernel_map){
        .operand = (uint16_t)index,
        .type = x->format == DW_FORMAT_bf16 ? KERNEL_MAP_BF16 : KERNEL_MAP_F16,
        .rank = 4,
        .swizzle = KERNEL_SWIZZLE_128,
        .promotion = KERNEL_PROMOTION_128,   /* a box's row: with 256 decoding takes 3 to 10 % longer */
        .box = {COLUMN, (uint32_t)rows, 1, 1},
    };
    for (int i = 0; i < 4; i++) {
        const int axis = x->rank - 1 - i;
        const bool moves = axis >= 0 && x->dims[axis] > 1 && x->strides[axis] != 0;
        map->dims[i] = moves || (axis >= 0 && x->dims[axis] == 0) ? (uint64_t)x->dims[axis] : 1;
        if (i > 0) map->strides[i - 1] = moves ? (uint64_t)(x->strides[axis] * 2) : 16;
    }
    cuda_slot(launch, KERNEL_SLOT_MAP, launch->map_count++, field, 0);
}

void attention_take_codes(kernel_launch *launch, const kernel_run *run, int index, int rows, const void *map, const void *scales) {
    const dw_tensor *x = run->call.in[index];
    const uint64_t width = (uint64_t)x->dims[3], count = (uint64_t)x->dims[2], heads = (uint64_t)x->dims[1], batches = (uint64_t)x->dims[0];
    launch->maps[launch->map_count] = (kernel_map){
        .operand = (uint16_t)index, .type = KERNEL_MAP_BYTE, .rank = 4, .swizzle = KERNEL_SWIZZLE_128, .promotion = KERNEL_PROMOTION_256,
        .dims = {width, count, heads, batches}, .strides = {width, width * count, width * count * heads}, .box = {ATTENTION_CODES_WIDTH, (uint32_t)rows, 1, 1},
    };
    cuda_slot(launch, KERNEL_SLOT_MAP, launch->map_count++, map, 0);
    cuda_slot(launch, KERNEL_SLOT_SCALES, index, scales, 0);
}

const char *attention_lacks_code_maps(const op_call *call, text *why) {
    dw_tensor out;
    op_attention_by_heads(call, &out);
    if (attention_slots(call) == 0 || call->in[ATTENTION_K]->dims[0] == 0) return kernel_because(why, "there are no keys");
    if (!attention_has_map(call->in[ATTENTION_V])) return kernel_because(why, "v does not lie in pieces of 16 bytes");
    return dw_format_is_block(out.format) || attention_has_map(&out) ? NULL : kernel_because(why, "the result does not lie in pieces of 16 bytes");
}

const char *attention_lacks_maps(const op_call *call, text *why) {
    dw_tensor out;
    op_attention_by_heads(call, &out);
    if (attention_slots(call) == 0 || call->in[ATTENTION_K]->dims[0] == 0) return kernel_because(why, "there are no keys");
    if (!attention_has_map(call->in[ATTENTION_Q]) || !attention_has_map(call->in[ATTENTION_K]) || !attention_has_map(call->in[ATTENTION_V])) return kernel_because(why, "an operand does not lie in pieces of 16 bytes");
    return dw_format_is_block(out.format) || attention_has_map(&out) ? NULL : kernel_because(why, "the result does not lie in pieces of 16 bytes");
}
