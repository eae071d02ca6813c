/* A token for each row of logits (the arithmetic: sampling.h), and the logarithms of probabilities; and counts of tokens. The reference sorts nothing: it finds where a row is cut bit by bit of the ordered
 * logit, each time with a look at all of them. */
#include "op/family.h"

#include <math.h>

enum { WORD = 32 };   /* ids of a word of mask */

/* ---- inference ---- */

static dw_status check_format(op_infer *infer, const char *name, const op_type *type, dw_format format) {
    if (type->format == format) return DW_OK;
    return base_fail(infer->context, DW_MISMATCH, "sample: %s is %s, it must be %s", name, dw_format_name(type->format), dw_format_name(format));
}

/* An operand with a row for each of logits, of so many columns. */
static dw_status check_settings(op_infer *infer, int operand, const char *name, dw_format format, int64_t cols) {
    const op_type *type = infer->in[operand];
    int64_t size;
    if (type == NULL) return base_fail(infer->context, DW_INVALID, "sample: %s is absent and must be there", name);
    TRY(check_format(infer, name, type, format));
    TRY(op_check_rank(infer, name, type, 2, 2));
    TRY(op_check_same_axis(infer, 0, "logits", infer->in[SAMPLE_LOGITS], name, type));
    if (dim_is_constant(type->dims[1], &size) && size == cols) return DW_OK;
    return base_fail(infer->context, DW_MISMATCH, "sample: axis 1 of %s must have size %lld", name, (long long)cols);
}

/* One that rows are picked of; the first of them says how many there are. */
static dw_status check_picked(op_infer *infer, int operand, const char *name, dw_format format, dim cols, const op_type **first) {
    const op_type *type = operand < infer->n_in ? infer->in[operand] : NULL;
    if (type == NULL) return DW_OK;
    TRY(check_format(infer, name, type, format));
    TRY(op_check_rank(infer, name, type, 2, 2));
    TRY(op_check_same(infer, operand == SAMPLE_MASK ? "the number of words that have a bit for each id" : "axis 1 of logits", cols, name, type->dims[1]));
    if (*first != NULL) return op_check_same(infer, "the number of rows that are picked of", (*first)->dims[0], name, type->dims[0]);
    *first = type;
    return DW_OK;
}

static dw_status infer_best(op_infer *infer) {
    const op_type *logits = infer->in[SAMPLE_LOGITS];
    const dim length = op_attr_dim(infer->attrs, OP_ATTR_length);
    TRY(op_check_le(infer, "length", length, "axis 1 of logits", logits->dims[1]));
    for (int i = 2; i < infer->n_out; i++) {
        infer->out[i] = (op_type){.format = i == 2 ? DW_FORMAT_i64 : DW_FORMAT_f32};
        TRY(op_add_axis(infer, &infer->out[i], logits->dims[0]));
        TRY(op_add_axis(infer, &infer->out[i], length));
    }
    return DW_OK;
}

static dw_status infer_tally(op_infer *infer) {
    const op_type *x = infer->in[TALLY_X], *ids = infer->in[TALLY_IDS], *row = infer->in[TALLY_ROW];
    TRY(op_check_rank(infer, "x", x, 2, 2));
    if (x->format != DW_FORMAT_i32) return base_fail(infer->context, DW_UNSUPPORTED, "tally: x is %s; counts are i32", dw_format_name(x->format));
    TRY(op_check_rank(infer, "ids", ids, 1, 1));
    TRY(op_check_integer(infer, "ids", ids));
    TRY(op_check_rank(infer, "row", row, 1, 1));
    TRY(op_check_integer(infer, "row", row));
    TRY(op_check_same_axis(infer, 0, "ids", ids, "row", row));
    infer->out[0] = *x;
    return DW_OK;
}

static dw_status infer_sample(op_infer *infer) {
    const op_type *logits = infer->in[SAMPLE_LOGITS], *row = SAMPLE_ROW < infer->n_in ? infer->in[SAMPLE_ROW] : NULL, *first = NULL;
    dim words;
    TRY(op_check_rank(infer, "logits", logits, 2, 2));
    if (logits->format != DW_FORMAT_f32 && logits->format != DW_FORMAT_bf16 && logits->format != DW_FORMAT_f16)
        return base_fail(infer->context, DW_UNSUPPORTED, "sample: logits are %s; cast them to f32, bf16 or f16", dw_format_name(logits->format));
    TRY(check_settings(infer, SAMPLE_PARAMETERS, "settings", DW_FORMAT_f32, SAMPLING_SETTINGS));
    TRY(check_settings(infer, SAMPLE_DRAW, "draw", DW_FORMAT_i64, 2));
    TRY_DIM(infer->context, words, dim_floordiv(infer->dims, dim_add(infer->dims, logits->dims[1], dim_constant(infer->dims, WORD - 1)), dim_constant(infer->dims, WORD)));
    TRY(check_picked(infer, SAMPLE_COUNTS, "counts", DW_FORMAT_i32, logits->dims[1], &first));
    TRY(check_picked(infer, SAMPLE_BIAS, "bias", DW_FORMAT_f32, logits->dims[1], &first));
    TRY(check_picked(infer, SAMPLE_MASK, "mask", DW_FORMAT_i32, words, &first));
    if (row != NULL) {
        TRY(op_check_rank(infer, "row", row, 1, 1));
        TRY(op_check_integer(infer, "row", row));
        TRY(op_check_same_axis(infer, 0, "logits", logits, "row", row));
        if (first == NULL) return base_fail(infer->context, DW_INVALID, "sample: row is given, but no counts, bias or mask that it could be a row of");
    } else if (first != NULL) {
        TRY(op_check_same_axis(infer, 0, "logits", logits, "what rows are picked of", first));
    }
    for (int i = 0; i < 2; i++) {
        infer->out[i] = (op_type){.format = i == 0 ? DW_FORMAT_i64 : DW_FORMAT_f32};
        TRY(op_add_axis(infer, &infer->out[i], logits->dims[0]));
    }
    return infer->n_out > 2 ? infer_best(infer) : DW_OK;
}

dw_status sample_infer(op_infer *infer) { return infer->op->id == OP_tally ? infer_tally(infer) : infer_sample(infer); }

/* ---- one row ---- */

typedef struct sample_row {
    const op_call *call;
    int64_t row, picked, count;       /* row of logits; of counts, bias and mask, -1: none; ids */
    sampling_settings settings;
    float largest;                    /* of the logits as settings make them */
} sample_row;

static int64_t at(const dw_tensor *t, int64_t row, int64_t col) { return row * t->strides[0] + col * t->strides[1]; }

/* The operand where the row has one. */
static const dw_tensor *picked_of(const sample_row *r, int operand) { return r->picked < 0 ? NULL : op_operand(r->call, operand); }

static float logit_of(const sample_row *r, int64_t id) { return (float)op_load_at(r->call->in[SAMPLE_LOGITS], at(r->call->in[SAMPLE_LOGITS], r->row, id)); }

/* As bias, counts and mask make it: -inf where the id is out. */
static float adjusted(const sample_row *r, int64_t id) {
    const dw_tensor *bias = picked_of(r, SAMPLE_BIAS), *counts = picked_of(r, SAMPLE_COUNTS), *mask = picked_of(r, SAMPLE_MASK);
    float x = logit_of(r, id);
    if (bias != NULL) x += (float)op_load_at(bias, at(bias, r->picked, id));
    if (mask != NULL && (op_load_int_at(mask, at(mask, r->picked, id / WORD)) >> id % WORD & 1) == 0) return -INFINITY;
    return counts != NULL ? sampling_penalise(x, (int32_t)op_load_int_at(counts, at(counts, r->picked, id)), &r->settings) : x;
}

static bool is_out(float x) { return x == -INFINITY; }

/* The last id that is kept, in order: larger ones in front, of equal ones the least id. */
typedef struct sample_cut { uint32_t order; int64_t id; } sample_cut;

static bool is_kept(const sample_cut *cut, float x, int64_t id) {
    const uint32_t order = sampling_order(x);
    return !is_out(x) && (order > cut->order || (order == cut->order && id <= cut->id));
}

/* How many ids, or what mass, keep so high an order within what is kept so far. */
static uint64_t sum_from(const sample_row *r, const sample_cut *cut, uint32_t order, bool masses) {
    uint64_t sum = 0;
    for (int64_t id = 0; id < r->count; id++) {
        const float x = adjusted(r, id);
        if (!is_kept(cut, x, id) || sampling_order(x) < order) continue;
        sum += masses ? (uint64_t)sampling_mass(sampling_heat(x, r->largest, r->settings.temperature)) : 1;
    }
    return sum;
}

/* Keeps the fewest ids from the front on whose sum is at least wanted; there are so many. */
static void cut_at(const sample_row *r, uint64_t wanted, bool masses, sample_cut *cut) {
    uint32_t order = 0;
    for (uint32_t bit = UINT32_C(1) << 31; bit != 0; bit >>= 1)
        if (sum_from(r, cut, order | bit, masses) >= wanted) order |= bit;
    uint64_t sum = order < UINT32_MAX ? sum_from(r, cut, order + 1, masses) : 0;
    sample_cut reached = {order, -1};
    for (int64_t id = 0; id < r->count && sum < wanted; id++) {
        const float x = adjusted(r, id);
        if (!is_kept(cut, x, id) || sampling_order(x) != order) continue;
        sum += masses ? (uint64_t)sampling_mass(sampling_heat(x, r->largest, r->settings.temperature)) : 1;
        reached.id = id;
    }
    *cut = reached;
}

/* The largest of logit over temperature and noise among what is kept. */
static int64_t draw_among(const sample_row *r, const sample_cut *cut) {
    const dw_tensor *draw = r->call->in[SAMPLE_DRAW];
    const uint64_t seed = (uint64_t)op_load_int_at(draw, at(draw, r->row, 0)), number = (uint64_t)op_load_int_at(draw, at(draw, r->row, 1));
    const float least = sampling_least_heat(r->settings.min_p);
    int64_t best = SAMPLING_NOTHING_LEFT;
    float most = 0;
    for (int64_t id = 0; id < r->count; id++) {
        const float x = adjusted(r, id), heat = sampling_heat(x, r->largest, r->settings.temperature);
        if (!is_kept(cut, x, id) || heat < least) continue;
        const float score = heat + sampling_noise(sampling_words(seed, number, (uint32_t)(id / 4)).word[id % 4]);
        if (best >= 0 && score <= most) continue;
        best = id;
        most = score;
    }
    return best;
}

static int64_t choose(sample_row *r) {
    int64_t largest = SAMPLING_NOTHING_LEFT, left = 0;
    r->largest = -INFINITY;
    for (int64_t id = 0; id < r->count; id++) {
        const float raw = logit_of(r, id), x = adjusted(r, id);
        if (isnan(raw) || raw == INFINITY || isnan(x) || x == INFINITY) return SAMPLING_NOT_FINITE;
        left += !is_out(x);
        if (x <= r->largest) continue;
        r->largest = x;
        largest = id;
    }
    if (largest < 0 || r->settings.temperature == 0) return largest;
    sample_cut cut = {0, r->count};
    if (r->settings.top_k >= 1 && r->settings.top_k < (float)left) cut_at(r, (uint64_t)r->settings.top_k, false, &cut);
    if (r->settings.top_p > 0 && r->settings.top_p < 1) cut_at(r, (uint64_t)ceil((double)r->settings.top_p * (double)sum_from(r, &cut, 0, true)), true, &cut);
    return draw_among(r, &cut);
}

/* ---- logarithms ---- */

/* Of the sum of e^logit. */
static double log_sum(const sample_row *r) {
    double largest = -INFINITY, sum = 0;
    for (int64_t id = 0; id < r->count; id++) largest = fmax(largest, (double)logit_of(r, id));
    for (int64_t id = 0; id < r->count; id++) sum += exp((double)logit_of(r, id) - largest);
    return largest + log(sum);
}

/* The id behind another one in the order of logits; -1 for before: the first. */
static int64_t next_best(const sample_row *r, int64_t before) {
    int64_t best = -1;
    for (int64_t id = 0; id < r->count; id++) {
        const uint32_t order = sampling_order(logit_of(r, id));
        if (before >= 0) {
            const uint32_t limit = sampling_order(logit_of(r, before));
            if (order > limit || (order == limit && id <= before)) continue;
        }
        if (best < 0 || order > sampling_order(logit_of(r, best))) best = id;
    }
    return best;
}

static void store_best(const sample_row *r, double sum, bool none) {
    const dw_tensor *ids = r->call->out[2], *logs = r->call->out[3];
    int64_t id = -1;
    for (int64_t i = 0; i < ids->dims[1]; i++) {
        if (!none) id = next_best(r, id);
        op_store_int_at(ids, at(ids, r->row, i), id);
        op_store_at(logs, at(logs, r->row, i), none ? (double)NAN : (double)logit_of(r, id) - sum);
    }
}

/* ---- reference ---- */

/* false: settings or the row of counts, bias and mask are out of range. */
static bool read_settings(sample_row *r) {
    const dw_tensor *row = op_operand(r->call, SAMPLE_ROW), *settings = r->call->in[SAMPLE_PARAMETERS];
    float values[SAMPLING_SETTINGS];
    int64_t rows = r->call->in[SAMPLE_LOGITS]->dims[0];
    for (int i = SAMPLE_COUNTS; i < r->call->n_in; i++)
        if (r->call->in[i] != NULL) rows = r->call->in[i]->dims[0];
    for (int i = 0; i < SAMPLING_SETTINGS; i++) values[i] = (float)op_load_at(settings, at(settings, r->row, i));
    r->settings = sampling_settings_of(values);
    r->picked = row != NULL ? op_load_int_at(row, r->row * row->strides[0]) : r->row;
    return sampling_are_good(&r->settings) && r->picked >= -1 && r->picked < rows;
}

static void tally_reference(const op_call *call) {
    const dw_tensor *ids = call->in[TALLY_IDS], *rows = call->in[TALLY_ROW], *out = call->out[0];
    walk w;
    walk_start(&w, out->rank, out->dims);
    const int to = walk_add(&w, out), from = walk_add(&w, call->in[TALLY_X]);
    for (; w.left > 0; walk_next(&w)) op_copy_at(out, w.offset[to], call->in[TALLY_X], w.offset[from]);
    for (int64_t i = 0; i < ids->dims[0]; i++) {
        const int64_t id = op_load_int_at(ids, i * ids->strides[0]), row = op_load_int_at(rows, i * rows->strides[0]);
        if (row < 0 || row >= out->dims[0] || id < 0 || id >= out->dims[1]) continue;
        op_store_int_at(out, at(out, row, id), op_load_int_at(out, at(out, row, id)) + 1);
    }
}

dw_status sample_reference(const op_call *call) {
    if (call->op->id == OP_tally) {
        tally_reference(call);
        return DW_OK;
    }
    const dw_tensor *logits = call->in[SAMPLE_LOGITS], *ids = call->out[0], *logs = call->out[1];
    if (call->n_out > 2 && call->out[2]->dims[1] > logits->dims[1])
        return base_fail(call->context, DW_INVALID, "sample: length is %lld, logits have %lld columns", (long long)call->out[2]->dims[1], (long long)logits->dims[1]);
    for (int64_t row = 0; row < logits->dims[0]; row++) {
        sample_row r = {.call = call, .row = row, .count = logits->dims[1]};
        const int64_t id = read_settings(&r) ? choose(&r) : SAMPLING_BAD_SETTINGS;
        const double sum = id < 0 ? 0 : log_sum(&r);
        op_store_int_at(ids, row * ids->strides[0], id);
        op_store_at(logs, row * logs->strides[0], id < 0 ? (double)NAN : (double)logit_of(&r, id) - sum);
        if (call->n_out > 2) store_best(&r, sum, id < 0);
    }
    return DW_OK;
}

/* An exponential and a comparison for each logit; of counts those that change, which a kernel adds to where they are. */
void sample_work(const op_call *call, op_work *work) {
    op_work_each(call, 0, work);
    if (call->op->id == OP_tally) {
        op_work_reads(call, TALLY_X, (double)call->in[TALLY_IDS]->dims[0] * sizeof(int32_t), work);
        work->bytes_written = (double)call->in[TALLY_IDS]->dims[0] * sizeof(int32_t);
        return;
    }
    work->flops = 4 * (double)op_tensor_count(call->in[SAMPLE_LOGITS]);
}
