/* cache_write and cache_update: tokens into the rows of caches, and on the way there keys and queries are turned; where a result takes over its cache's memory nothing
 * else moves. A task is a head, so tokens that go to one place do so in order. A row of a cache in blocks is turned and rounded to its own format first, and quantised from there. */
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/move/move.h"
#include "kernels/quantize/rows.h"
#include "kernels/rotary/rotary.h"

enum { ALONE = 16384 };       /* elements that one thread moves faster than several are woken */

static bool is_quantised_from(dw_format format) { return format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16; }

const char *cache_reject(const kernel_problem *problem, text *why) {
    const int64_t width = op_attr_int(problem->attrs, OP_ATTR_width);
    for (int i = problem->op->id == OP_cache_write ? (int)CACHE_Y : (int)UPDATE_KEYS; i <= (problem->op->id == OP_cache_write ? (int)CACHE_Y : (int)UPDATE_VALUES); i++) {
        if (!dw_format_is_block(problem->out[0]->format) || is_quantised_from(problem->in[i]->format)) continue;
        text_printf(why, "operand %d is %s; it quantises f32, bf16 and f16", i, dw_format_name(problem->in[i]->format));
        return text_string(why);
    }
    if (problem->op->id == OP_cache_write || problem->n_in <= UPDATE_COS || problem->in[UPDATE_COS] == NULL) return NULL;
    if (problem->in[UPDATE_KEYS]->format == DW_FORMAT_f64) return "keys are f64, which is computed in double";
    if (width <= CPU_BLOCK) return NULL;
    text_printf(why, "width is %lld, rows of up to %d are rotated", (long long)width, CPU_BLOCK);
    return text_string(why);
}

double cache_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.3, 0.6); }

size_t cache_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* Tokens along axis 2 of from go to their places in to, or in their order where to is no cache. */
typedef struct cache_part {
    const dw_tensor *from, *to;
    bool cached, turned;
    rotary_rows turn;
    quantize_row_function quantize;   /* of a cache in blocks; else NULL */
    num_matrix blocks;
    num_scaling scaling;
    int64_t steps[DW_MAX_RANK];       /* of to */
} cache_part;

typedef struct cache_job {
    op_cache_places places;
    int count;
    cache_part parts[3];
} cache_job;

/* count numbers from element `from` on, widened. */
static void widen(const dw_tensor *x, int64_t from, int64_t stride, int64_t count, float *values) {
    const uint16_t *codes = (const uint16_t *)x->data + from;
    if (stride == 1 && x->format == DW_FORMAT_bf16) num_bf16_to_f32_row(codes, values, count);
    else if (stride == 1 && x->format == DW_FORMAT_f16) num_f16_to_f32_row(codes, values, count);
    else
        for (int64_t c = 0; c < count; c++)
            values[c] = x->format == DW_FORMAT_f32 ? ((const float *)x->data)[from + c * stride] : x->format == DW_FORMAT_bf16 ? num_bf16_to_f32(codes[c * stride]) : num_f16_to_f32(codes[c * stride]);
}

/* The row that begins at element at of a cache in blocks. */
static void put_blocks(const cache_part *part, int64_t token, int64_t first, int64_t at) {
    const dw_tensor *from = part->from;
    const int64_t cols = from->dims[3];
    float values[CPU_BLOCK], turned[CPU_BLOCK];
    if (part->turned) {
        const int64_t dims[] = {cols};
        dw_tensor row;
        rotary_rows turn = part->turn;
        op_tensor_init(&row, from->format, DW_SCALE_plain, 1, dims, turned);
        turn.out = &row;
        turn.out_step = 1;
        rotary_turn_row(&turn, (int64_t[4]){0, first, token * op_tensor_step(turn.cosine, 1), token * op_tensor_step(turn.sine, 1)});
        widen(&row, 0, 1, cols, values);
    } else {
        widen(from, first, from->strides[3], cols, values);
    }
    quantize_one_row(part->quantize, values, &part->scaling, &part->blocks, at / cols);
}

static void put_row(const cache_part *part, int64_t token, int64_t head, int64_t at) {
    const dw_tensor *from = part->from, *to = part->to;
    const int64_t first = head * from->strides[1] + token * from->strides[2];
    if (part->quantize != NULL) {
        put_blocks(part, token, first, at);
        return;
    }
    const int64_t bytes = (int64_t)cpu_element_bytes(to->format);
    if (part->turned) {
        rotary_turn_row(&part->turn, (int64_t[4]){at, first, token * op_tensor_step(part->turn.cosine, 1), token * op_tensor_step(part->turn.sine, 1)});
    } else if (from->strides[3] == 1 && to->strides[3] == 1) {
        memcpy(cpu_at(to, at), cpu_at(from, first), (size_t)(from->dims[3] * bytes));
    } else {
        for (int64_t c = 0; c < from->dims[3]; c++) memcpy(cpu_at(to, at + c * to->strides[3]), cpu_at(from, first + c * from->strides[3]), (size_t)bytes);
    }
}

static void head_task(void *argument, int64_t head, int worker) {
    (void)worker;
    const cache_job *job = argument;
    const cache_part *part = job->parts;
    for (; head >= part->from->dims[1]; part++) head -= part->from->dims[1];
    const int64_t *steps = part->steps;
    for (int64_t i = 0; i < part->from->dims[2]; i++) {
        const op_cache_slot place = part->cached ? op_cache_slot_of(&job->places, i) : (op_cache_slot){0, i};
        if (place.row != OP_NOWHERE) put_row(part, i, head, place.row * steps[0] + head * steps[1] + place.slot * steps[2]);
    }
}

static bool part_is_cached(const op_call *call, int to) { return to < (call->op->id == OP_cache_update ? 2 : 1); }

/* A cache in blocks lies as a whole, whatever its strides say. */
static void take_blocks(cache_part *part, const kernel_run *run) {
    const dw_tensor *to = part->to;
    part->quantize = quantize_row_of(run->chip);
    part->blocks = op_tensor_matrix(to);
    part->scaling = (num_scaling){.round = NUM_ROUND_UP, .has_second = num_info(to->format)->second == 1};
    part->steps[3] = 1;
    for (int axis = 2; axis >= 0; axis--) part->steps[axis] = part->steps[axis + 1] * to->dims[axis + 1];
}

/* The cache as it is before tokens come. */
static void begin_cache(const kernel_run *run, int index) {
    const dw_tensor *from = run->call.in[index], *to = run->call.out[index];
    num_parts parts;
    if (!dw_format_is_block(to->format)) {
        if (to->data != from->data) move_copy(run->pool, to, from);
        return;
    }
    const float second = op_cache_second(from);
    if (to->data != from->data && num_layout(to->format, to->scale_layout, to->rank, to->dims, &parts)) {
        memcpy(to->data, from->data, parts.data_bytes);
        memcpy(to->scales, from->scales, parts.scale_bytes);
    }
    if (to->second != NULL) *to->second = second;
}

static void add_part(cache_job *job, const kernel_run *run, int from, int to, bool turned) {
    const op_call *call = &run->call;
    cache_part *part = &job->parts[job->count++];
    *part = (cache_part){.from = call->in[from], .to = call->out[to], .cached = part_is_cached(call, to), .turned = turned};
    memcpy(part->steps, part->to->strides, sizeof part->steps);
    if (dw_format_is_block(part->to->format)) take_blocks(part, run);
    if (!turned) return;
    part->turn = (rotary_rows){
        .rows = cpu_rows_of(run->chip), .x = part->from, .cosine = call->in[UPDATE_COS], .sine = call->in[UPDATE_SIN], .out = part->to,
        .width = op_attr_int(call->attrs, OP_ATTR_width), .cols = part->from->dims[3],
        .x_step = part->from->strides[3], .cos_step = op_tensor_step(call->in[UPDATE_COS], 0), .sin_step = op_tensor_step(call->in[UPDATE_SIN], 0), .out_step = part->to->strides[3],
        .interleaved = op_attr_bool(call->attrs, OP_ATTR_interleaved),
    };
}

/* Is the width within the rows? The reference says that it is not; and quantises rows that are longer than is worked on here. */
static bool fits(const cache_job *job) {
    for (int p = 0; p < job->count; p++)
        if ((job->parts[p].turned && job->parts[p].turn.width > job->parts[p].turn.cols) || (job->parts[p].quantize != NULL && job->parts[p].from->dims[3] > CPU_BLOCK)) return false;
    return true;
}

dw_status cache_run(const kernel_run *run) {
    const op_call *call = &run->call;
    const bool both = call->op->id == OP_cache_update, turned = both && op_operand(call, UPDATE_COS) != NULL;
    cache_job job = {.places = op_cache_places_of(call)};
    add_part(&job, run, both ? (int)UPDATE_KEYS : (int)CACHE_Y, 0, turned);
    if (both) add_part(&job, run, UPDATE_VALUES, 1, false);
    if (both && op_operand(call, UPDATE_QUERIES) != NULL) add_part(&job, run, UPDATE_QUERIES, 2, turned);
    if (!fits(&job)) return call->op->reference(call);
    TRY(op_cache_check(call, &job.places));
    int64_t heads = 0, elements = 0;
    for (int p = 0; p < job.count; p++) {
        if (job.parts[p].cached) begin_cache(run, p);
        heads += job.parts[p].from->dims[1];
        elements += op_tensor_count(job.parts[p].from);
    }
    if (elements == 0) return DW_OK;
    if (elements > ALONE) {
        pool_run(run->pool, heads, head_task, &job);
    } else {
        for (int64_t head = 0; head < heads; head++) head_task(&job, head, 0);
    }
    return DW_OK;
}
