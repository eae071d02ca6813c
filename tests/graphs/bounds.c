/* What the results of a kernel are held to, beside those of the op's reference on the same operands.
 *
 * Results that are chosen or moved, integers, truths and quantised operands are equal. What is computed may differ by 1e-5 of the largest number in its row and
 * half a place of its format on both sides, as in conformance. Where terms cancel or a function is steep, that is too little: then by four times as much as the
 * reference's result moves when the operands do, each by 2^-21 of itself at random (2^-12 where matrix units add products of 8-bit floats, as they keep few bits of sums); of
 * attention's bias, each score's own; of its values of 16 bits on a device, and of those that the CPU multiplies in pairs, half a place, as weights are rounded to their format. Sums of
 * numbers beyond 1e30, which may overflow on the way, are not compared.
 * What a product, a norm or attention quantises itself may be one code away. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "ir/internal.h"
#include "tests/graphs/steps.h"

enum { PERTURBED_RUNS = 24 };

/* ---- tensors ---- */

static bool is_block(const dw_tensor *t) { return dw_format_is_block(t->format) != 0; }

static dw_status new_like(arena *arena, const dw_tensor *t, dw_tensor *made) { return graphs_tensor(arena, t->format, t->scale_layout, t->rank, t->dims, made); }

static int64_t offset_of(const dw_tensor *t, const int64_t *index) {
    int64_t offset = 0;
    for (int i = 0; i < t->rank; i++) offset += index[i] * t->strides[i];
    return offset;
}

dw_status copy_of(arena *arena, const dw_tensor *from, dw_tensor *to) {
    TRY(new_like(arena, from, to));
    num_parts parts;
    num_layout(from->format, from->scale_layout, from->rank, from->dims, &parts);
    if (is_block(from) || dw_format_bits(from->format) < 8 || op_tensor_is_contiguous(from)) {
        memcpy(to->data, from->data, parts.data_bytes);
        if (parts.scale_bytes > 0) memcpy(to->scales, from->scales, parts.scale_bytes);
        if (parts.second_bytes > 0) memcpy(to->second, from->second, parts.second_bytes);
        return DW_OK;
    }
    const size_t size = (size_t)dw_format_bits(from->format) / 8;
    int64_t index[DW_MAX_RANK] = {0};
    for (int64_t i = 0, count = op_tensor_count(to); i < count; i++, op_tensor_next(to, index))
        memcpy((uint8_t *)to->data + (size_t)i * size, (const uint8_t *)from->data + (size_t)offset_of(from, index) * size, size);
    return DW_OK;
}

/* Are the bytes the same? b is contiguous. */
bool has_bits(const dw_tensor *a, const dw_tensor *b) {
    num_parts parts;
    num_layout(b->format, b->scale_layout, b->rank, b->dims, &parts);
    if (is_block(b) || dw_format_bits(b->format) < 8 || op_tensor_is_contiguous(a))
        return memcmp(a->data, b->data, parts.data_bytes) == 0 && (parts.scale_bytes == 0 || memcmp(a->scales, b->scales, parts.scale_bytes) == 0) &&
               (parts.second_bytes == 0 || memcmp(a->second, b->second, parts.second_bytes) == 0);
    const size_t size = (size_t)dw_format_bits(b->format) / 8;
    int64_t index[DW_MAX_RANK] = {0};
    for (int64_t i = 0, count = op_tensor_count(b); i < count; i++, op_tensor_next(b, index))
        if (memcmp((const uint8_t *)a->data + (size_t)offset_of(a, index) * size, (const uint8_t *)b->data + (size_t)i * size, size) != 0) return false;
    return true;
}

static double element(const dw_tensor *t, const int64_t *index) { return is_number(t->format) ? op_tensor_load(t, index) : (double)op_tensor_load_int(t, index); }
static bool is_same_number(double x, double y) { return x == y || (isnan(x) && isnan(y)); }

bool has_numbers(const dw_tensor *a, const dw_tensor *b) {
    if (has_bits(a, b)) return true;
    if (!is_number(b->format)) return false;
    int64_t index[DW_MAX_RANK] = {0};
    for (int64_t i = 0, count = op_tensor_count(b); i < count; i++, op_tensor_next(b, index)) {
        const double x = element(a, index), y = element(b, index);
        if (!is_same_number(x, y) || (!isnan(x) && signbit(x) != signbit(y))) return false;
    }
    return true;
}

/* ---- references ---- */

dw_status run_reference(const stepping *s, const ir_node *node, const dw_tensor *const *in, dw_tensor *out) {
    const dw_tensor *outs[KERNEL_MAX_RESULTS];
    for (int i = 0; i < node->n_out; i++) outs[i] = &out[i];
    const op_call call = {.context = s->c->context, .op = op_get(node->op), .attrs = &node->attrs, .symbols = s->symbols, .n_in = node->n_in, .in = in, .n_out = node->n_out, .out = outs};
    return call.op->reference(&call);
}

dw_status new_results(stepping *s, arena *arena, const ir_node *node, dw_tensor *out) {
    for (int i = 0; i < node->n_out; i++) {
        dw_tensor shape;
        TRY(op_tensor_bind(s->c->context, &node->out[i]->type, s->symbols, NULL, &shape));
        TRY(new_like(arena, &shape, &out[i]));
    }
    return DW_OK;
}

/* ---- bounds ---- */

static bool is_exact(const ir_node *node, dw_format format) {
    return !is_number(format) || node->op == OP_cast || node->op == OP_quantize || evaluation_keeps_elements(node->op);
}

/* An operand moved by amount of itself, at random, in a format that has room for that. */
static dw_status moved_operand(arena *arena, const dw_tensor *from, bool widen, double amount, uint64_t seed, dw_tensor *to) {
    dw_tensor wide = *from;
    if (widen && is_number(from->format) && from->format != DW_FORMAT_f64) {
        wide.format = DW_FORMAT_f32;
        wide.scale_layout = DW_SCALE_plain;
    }
    if (!is_number(from->format) || (!widen && is_block(from))) return copy_of(arena, from, to);
    TRY(new_like(arena, &wide, to));
    const double place = ldexp(1, -num_info(wide.format)->mantissa_bits), by = amount > place ? amount : place;
    int64_t index[DW_MAX_RANK] = {0};
    for (int64_t i = 0, count = op_tensor_count(from); i < count; i++, op_tensor_next(from, index)) {
        const double x = op_tensor_load(from, index), sign = num_random(seed, (uint64_t)i) & 1 ? 1 : -1;
        op_tensor_store(to, index, isfinite(x) && fabs(x) < num_info(wide.format)->max / 4 ? x * (1 + sign * by) : x);
    }
    return DW_OK;
}

/* The bias of attention, one for each score: a score is rounded where the bias is added. */
static dw_status spread_bias(arena *arena, const ir_node *node, const dw_tensor *const *in, const dw_tensor *bias, dw_tensor *to) {
    const bool placed = node->n_in > ATTENTION_POSITION && in[ATTENTION_POSITION] != NULL;
    const int64_t batch = in[1]->dims[0], keys = placed ? (bias->rank > 0 ? bias->dims[bias->rank - 1] : 1) : in[1]->dims[2];
    const int64_t dims[] = {batch, in[0]->dims[1], in[0]->dims[2], keys};
    TRY(graphs_tensor(arena, DW_FORMAT_f32, DW_SCALE_plain, 4, dims, to));
    int64_t index[DW_MAX_RANK] = {0}, at[DW_MAX_RANK] = {0};
    for (int64_t i = 0, count = op_tensor_count(to); i < count; i++, op_tensor_next(to, index)) {
        for (int d = 0; d < bias->rank; d++) at[d] = bias->dims[d] == 1 ? 0 : index[4 - bias->rank + d];
        op_tensor_store(to, index, op_tensor_load(bias, at));
    }
    return DW_OK;
}

/* ---- chains ---- */

static bool is_rough(op_id op) { return op_has(op, OP_TRAIT_APPROXIMATE | OP_TRAIT_QUOTIENT); }

static bool chain_of(dw_context *context, const ir_node *node, op_chain *chain) {
    dw_format formats[OP_CHAIN_OPERANDS];
    if (node->op != OP_chain) return false;
    for (int i = 0; i < node->n_in; i++) formats[i] = ir_in(node, i)->type.format;
    return op_chain_parse(context, ir_attr_text(node, OP_ATTR_steps), node->n_in, formats, chain) == DW_OK;
}

/* Does one of its steps make a jump, as rounding and comparisons do, of what another one approximates? Then any result is as good. */
static bool chain_jumps(dw_context *context, const ir_node *node) {
    op_chain chain;
    bool rough[OP_CHAIN_STEPS] = {false};
    if (!chain_of(context, node, &chain)) return false;
    for (int i = 0; i < chain.count; i++) {
        const op_chain_step *step = &chain.steps[i];
        bool reads = false;
        const bool jumps = !is_number(step->format) || op_has(step->op, OP_TRAIT_JUMPS);
        for (int k = 0; k < step->n_in; k++) reads |= step->in[k].kind == OP_CHAIN_STEP && rough[step->in[k].index];
        if (reads && jumps) return true;
        rough[i] = reads || is_rough(step->op);
    }
    return false;
}

static dw_status run_chain_step(stepping *s, arena *arena, const op_chain_step *step, const dw_tensor *const *in, const dw_tensor *results, const dw_tensor *shape, double amount, uint64_t seed, dw_tensor *out) {
    dw_tensor numbers[OP_CHAIN_READS];
    const dw_tensor *ins[OP_CHAIN_READS];
    const op_attr to = op_set_format(OP_ATTR_to, step->to);
    const op_attrs attrs = {step->to != DW_FORMAT_COUNT, &to};
    for (int k = 0; k < step->n_in; k++) {
        const op_chain_read *read = &step->in[k];
        ins[k] = read->kind == OP_CHAIN_OPERAND ? in[read->index] : read->kind == OP_CHAIN_STEP ? &results[read->index] : &numbers[k];
        if (read->kind != OP_CHAIN_NUMBER) continue;
        TRY(graphs_tensor(arena, read->format, DW_SCALE_plain, 0, NULL, &numbers[k]));
        num_store(read->format, numbers[k].data, 0, read->number, false);
    }
    TRY(graphs_tensor(arena, step->format, DW_SCALE_plain, shape->rank, shape->dims, out));
    const dw_tensor *outs[] = {out};
    const op_call call = {.context = s->c->context, .op = op_get(step->op), .attrs = &attrs, .symbols = s->symbols, .n_in = step->n_in, .in = ins, .n_out = 1, .out = outs};
    TRY(call.op->reference(&call));
    if (!is_rough(step->op) || num_info(step->format)->class != NUM_FLOAT) return DW_OK;
    const double by = fmax(amount, ldexp(1, -num_info(step->format)->mantissa_bits)), least = num_decode(step->format, 1);   /* a place of subnormal numbers */
    for (int64_t i = 0, count = op_tensor_count(out); i < count; i++) {
        const double y = num_load(step->format, out->data, i), sign = num_random(seed, (uint64_t)i) & 1 ? 1 : -1;
        const double tail = op_has(step->op, OP_TRAIT_TAILS) && op_tensor_count(ins[0]) == count ? fabs(num_load(ins[0]->format, ins[0]->data, i)) : 0;
        const bool vanishes = (fabs(y) <= amount / 2 * tail || fabs(y) < FLT_MIN) && (num_random(seed + 7, (uint64_t)i) & 1) != 0;   /* its logarithm or reciprocal, or its product with an infinity, is another then */
        if (vanishes) num_store(step->format, out->data, i, copysign(0, y), false);
        else if (isfinite(y) && fabs(y) < num_info(step->format)->max / 4) num_store(step->format, out->data, i, y + sign * (by * fabs(y) + amount / 2 * tail + least), false);
    }
    return DW_OK;
}

/* The chain step by step, each approximate one off by amount; what one leaves within what its tail loses, or below fp32's normal numbers, may be 0. */
static dw_status run_moved_chain(stepping *s, arena *arena, const op_chain *chain, const dw_tensor *const *in, double amount, uint64_t seed, dw_tensor *out) {
    dw_tensor results[OP_CHAIN_STEPS];
    for (int i = 0; i < chain->count; i++) TRY(run_chain_step(s, arena, &chain->steps[i], in, results, out, amount, seed + (uint64_t)i * 31, &results[i]));
    *out = results[chain->count - 1];
    return DW_OK;
}

/* ---- moved operands ---- */

typedef struct moved { double *by; double *low, *high; bool *nan; double tail; } moved;

/* How large the operand of a function that loses its tails is: of a product, at most, with what its post steps make of it. */
static double tail_of(dw_context *context, const ir_node *node, const dw_tensor *const *in) {
    op_post_list post;
    if (op_has(node->op, OP_TRAIT_TAILS)) return evaluation_largest(in[0]);
    if ((node->op != OP_matmul && node->op != OP_grouped_matmul) || op_post_parse(context, ir_attr_text(node, OP_ATTR_post), &post) != DW_OK) return 0;
    double size = evaluation_largest(in[0]) * evaluation_largest(in[1]) * (double)in[0]->dims[in[0]->rank - (ir_bool(node, OP_ATTR_at) ? 2 : 1)], tail = 0;
    for (int i = 0, operand = node->op == OP_matmul ? 2 : 3; i < post.count; i++) {
        const double x = op_post_operand_of(post.steps[i]) != OP_POST_NONE && operand < node->n_in ? evaluation_largest(in[operand++]) : 0;
        const bool halves = op_post_halves(post.steps[i]);
        if (post.steps[i] == OP_POST_mul || halves) tail *= fmax(1, halves ? size : x);
        if (op_has(op_post_op(post.steps[i]), OP_TRAIT_TAILS) || halves) tail = fmax(tail, size) * (halves ? fmax(1, size) : 1);
        if (post.steps[i] == OP_POST_tanh) tail = fmax(tail, 1); /* 1 - 2 / (1 + exp(2 y)) */
        size = post.steps[i] == OP_POST_mul ? size * x : halves ? size * size : size + x;
    }
    return tail;
}

static double half_place(dw_format format) {
    const num_format *info = num_info(format);
    return info->class == NUM_FLOAT && info->bits <= 16 ? ldexp(1, -info->mantissa_bits - 1) : 0;
}

/* Does the kernel round attention's weights to the format of its values? */
static bool rounds_weights(const stepping *s) { return s->c->device != NULL || (s->row != NULL && strcmp(s->row->name, "attention_avx512bf16") == 0); }

/* How far operand i is moved. Rounding attention's weights moves the sums just as rounding the values would. */
static double amount_of(const stepping *s, const ir_node *node, int i, double amount) {
    const bool weighted = rounds_weights(s) && node->op == OP_attention && i == ATTENTION_V;
    return weighted ? fmax(amount, half_place(ir_in(node, i)->type.format)) : amount;
}

/* On a device capped scores are off by as much of the cap as 1 - 2 / (1 + exp(2 y)) loses, and what is less than the least normal number of fp32 may be 0. */
static double attention_tail(const ir_node *node, const dw_tensor *const *in) {
    if (node->op != OP_attention) return 0;
    return ldexp(ir_real(node, OP_ATTR_softcap) * evaluation_largest(in[2]), -23) + ldexp(1, -126);
}

/* The gradients of norms add squares, as norms do, and rows. */
static bool is_norm_backward(const ir_node *node) { return node->op == OP_layer_norm_backward || node->op == OP_rms_norm_backward; }

/* The gradient of a norm's operand is a difference of terms, which may cancel however the operands move: layer_norm of two elements has almost none. Each row may be off by a part of its terms. */
static void add_norm_terms(const ir_node *node, int result, const dw_tensor *const *in, moved *m) {
    if (!is_norm_backward(node) || result != 0) return;
    const int64_t count = op_tensor_count(in[0]), length = in[0]->dims[in[0]->rank - 1];
    const double dy = evaluation_largest(in[1]) * (node->n_in > 2 && in[2] != NULL ? evaluation_largest(in[2]) : 1);
    double sum = 0, squares = 0;
    int64_t index[DW_MAX_RANK] = {0};
    for (int64_t i = 0; i < count; i++, op_tensor_next(in[0], index)) {
        const double x = op_tensor_load(in[0], index);
        sum += x;
        squares += x * x;
        if (i % length != length - 1) continue;
        const double mean = node->op == OP_layer_norm_backward ? sum / (double)length : 0, variance = fmax(squares / (double)length - mean * mean, 0);
        m->by[i / length] += ldexp(dy / sqrt(variance + ir_real(node, OP_ATTR_eps)), -24);       /* four times of which are allowed */
        sum = squares = 0;
    }
}

/* The reference's result over moved operands: how far each row goes, and what becomes of each element. */
static dw_status measure_moved(stepping *s, arena *arena, const ir_node *node, int result, const dw_tensor *const *in, const dw_tensor *expected, double amount, bool widen, moved *m) {
    const int64_t count = op_tensor_count(expected), length = expected->rank > 0 && expected->dims[expected->rank - 1] > 0 ? expected->dims[expected->rank - 1] : 1;
    TRY_NEW(m->by, arena, count / length + 1);
    TRY_NEW(m->low, arena, count + 1);
    TRY_NEW(m->high, arena, count + 1);
    TRY_NEW(m->nan, arena, count + 1);
    for (int run = 0; run <= PERTURBED_RUNS; run++) {
        const dw_tensor *ins[KERNEL_MAX_OPERANDS] = {0};
        dw_tensor moved_in[KERNEL_MAX_OPERANDS], out[KERNEL_MAX_RESULTS];
        for (int i = 0; i < node->n_in; i++) {
            if (in[i] == NULL) continue;
            dw_tensor spread = *in[i];
            if (widen && node->op == OP_attention && i == ATTENTION_BIAS) TRY(spread_bias(arena, node, in, in[i], &spread));
            TRY(moved_operand(arena, &spread, widen, run == 0 ? 0 : amount_of(s, node, i, amount), s->seed + (uint64_t)run * 977 + (uint64_t)i, &moved_in[i]));
            ins[i] = run == 0 && !widen ? in[i] : &moved_in[i];
        }
        TRY(new_results(s, arena, node, out));
        for (int i = 0; i < node->n_out && widen; i++)
            if (is_number(out[i].format) && out[i].format != DW_FORMAT_f64) TRY(graphs_tensor(arena, DW_FORMAT_f32, DW_SCALE_plain, out[i].rank, out[i].dims, &out[i]));
        op_chain chain;
        if (run > 0 && chain_of(s->c->context, node, &chain)) TRY(run_moved_chain(s, arena, &chain, ins, amount, s->seed + (uint64_t)run * 1009, &out[0]));
        else TRY(run_reference(s, node, ins, out));
        int64_t index[DW_MAX_RANK] = {0};
        for (int64_t i = 0; i < count; i++, op_tensor_next(expected, index)) {
            const double x = element(&out[result], index), y = element(expected, index);
            m->nan[i] = m->nan[i] || isnan(x);
            m->low[i] = run == 0 ? x : fmin(m->low[i], x);
            m->high[i] = run == 0 ? x : fmax(m->high[i], x);
            if (isfinite(x) && isfinite(y) && run > 0) m->by[i / length] = fmax(m->by[i / length], fabs(x - y));
        }
    }
    return DW_OK;
}

/* The least number that the format tells from 0. */
static double least(dw_format format) {
    const num_format *info = num_info(format);
    return info->class == NUM_FLOAT ? ldexp(1, 1 - info->bias - info->mantissa_bits) : 0;
}

/* What a kernel that quantises its own result may differ by: a code, and the least code of the block. */
static double code_bound(dw_format format, double x, double largest) {
    const int bits = num_info(num_info(format)->element)->mantissa_bits;
    return 1.01 * ldexp(fabs(x), -bits) + largest * (bits <= 1 ? 0.26 : ldexp(1, -bits - 4));
}

/* Every element within its bound; words say the first that is not. moved: NULL at first. */
static bool within(stepping *s, const ir_node *node, const dw_tensor *got, const dw_tensor *expected, const moved *m, text *words) {
    const int64_t count = op_tensor_count(expected), length = expected->rank > 0 && expected->dims[expected->rank - 1] > 0 ? expected->dims[expected->rank - 1] : 1;
    const bool exact = is_exact(node, expected->format);
    int64_t index[DW_MAX_RANK] = {0}, ahead[DW_MAX_RANK] = {0};
    double largest = 0;
    for (int64_t i = 0; i < count; i++, op_tensor_next(expected, index)) {
        if (i % length == 0) {
            largest = 0;
            for (int64_t k = 0; k < length; k++, op_tensor_next(expected, ahead)) {
                const double y = fabs(element(expected, ahead));
                if (isfinite(y) && y > largest) largest = y;
            }
        }
        const double x = element(got, index), y = element(expected, index);
        if (is_same_number(x, y)) continue;
        double bound = exact ? 0 : is_block(expected) ? code_bound(expected->format, y, largest) : 1e-5 * largest + 2 * half_place(expected->format) * fabs(y) + least(expected->format);
        if (m != NULL) {
            bound += 4 * m->by[i / length] + m->tail;
            if (x >= m->low[i] && x <= m->high[i]) continue;
            if (m->nan[i]) continue;
            if (fabs(x) > 0.9 * num_info(expected->format)->max && (m->low[i] < -0.9 * num_info(expected->format)->max || m->high[i] > 0.9 * num_info(expected->format)->max)) continue;
            if (bound > 0.1 * largest && s->c->counting) s->c->vague++;
        }
        if (isfinite(x) && isfinite(y) && fabs(x - y) <= bound) continue;
        text_printf(words, "element %lld is %.9g, the reference has %.9g (largest of its row %.3g, bound %.3g)", (long long)i, x, y, largest, bound);
        return false;
    }
    return true;
}

static bool multiplies_8_bits(const ir_node *node) {
    for (int i = 0; i < 2 && (node->op == OP_matmul || node->op == OP_grouped_matmul || node->op == OP_mqa_logits); i++) {
        const dw_format format = ir_in(node, i)->type.format;
        if (dw_format_bits(format) <= 8) return true;
    }
    return false;
}

/* May its sums overflow although its results do not? */
static bool sums_too_much(const ir_node *node, const dw_tensor *const *in) {
    if (node->op == OP_attention)
        return evaluation_largest(in[ATTENTION_Q]) * evaluation_largest(in[ATTENTION_K]) * (double)in[ATTENTION_Q]->dims[3] > FLT_MAX || evaluation_largest(in[ATTENTION_V]) > 1e30;   /* biases may be as large as they like */
    if ((op_get(node->op)->traits & (OP_TRAIT_CONTRACTION | OP_TRAIT_REDUCE | OP_TRAIT_ROWWISE)) == 0 && !is_norm_backward(node) && node->op != OP_sum_squares) return false;
    for (int k = 0; k < node->n_in; k++) {
        int64_t index[DW_MAX_RANK] = {0};
        for (int64_t i = 0, count = in[k] != NULL && is_number(in[k]->format) ? op_tensor_count(in[k]) : 0; i < count; i++, op_tensor_next(in[k], index)) {
            const double x = fabs(op_tensor_load(in[k], index));
            if (isfinite(x) && x > 1e30) return true;
        }
    }
    return false;
}

/* On a device the fast norms add squares in fp32, as kernels/norm/README.md says. */
static bool loses_squares(const stepping *s, const ir_node *node, const dw_tensor *const *in) {
    if (s->c->device == NULL || (node->op != OP_layer_norm && node->op != OP_rms_norm)) return false;
    const double largest = evaluation_largest(in[0]) + (node->n_out > 1 ? evaluation_largest(in[node->n_in - 1]) : 0);
    return largest > 0x1p60 || (largest < 0x1p-45 && ir_real(node, OP_ATTR_eps) < 0x1p-100);
}

bool agrees(stepping *s, const ir_node *node, int result, const dw_tensor *got, const dw_tensor *expected, const dw_tensor *const *in, text *words) {
    if (s->c->counting) s->c->steps++;
    if (within(s, node, got, expected, NULL, words)) return true;
    if (node->op != OP_chain && is_exact(node, expected->format)) return false;
    if (sums_too_much(node, in) || loses_squares(s, node, in) || chain_jumps(s->c->context, node)) return true;
    arena scratch;
    moved m = {0};
    arena_init(&scratch, s->c->context);
    const double amount = s->c->device != NULL && multiplies_8_bits(node) ? 0x1p-12 : 0x1p-21;
    text_free(words);
    text_init(words, s->c->context);
    dw_status status = measure_moved(s, &scratch, node, result, in, expected, amount, node->op != OP_chain, &m);
    if (status != DW_OK) status = measure_moved(s, &scratch, node, result, in, expected, amount, false, &m);
    const op_call call = {.op = op_get(node->op), .attrs = &node->attrs, .n_in = node->n_in, .in = in};
    m.tail = evaluation_lost(&call) + ldexp(tail_of(s->c->context, node, in), -23) + (s->c->device != NULL ? attention_tail(node, in) : 0);
    if (status == DW_OK) add_norm_terms(node, result, in, &m);
    const bool held = status == DW_OK && within(s, node, got, expected, &m, words);
    if (status != DW_OK) text_add(words, dw_context_error(s->c->context));
    arena_free(&scratch);
    return held;
}
