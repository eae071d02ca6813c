/* mqa_logits on the CPU. A task is a few queries of a batch, about 256 rows of q with all heads, and up to 1024 positions of keys, in blocks of 64 whose keys are transposed once for all of them:
 *
 *     scores [6,64] = q [6,d] keys [d,64]     by the products of attention (kernels/attention/cpu/flash.h), in fp32 or of pairs of bf16
 *     sums [64] += weights[row] * max(scores[row] * factor, 0)     row by row, in the order of heads
 *
 * Scores are stored nowhere else. Sums run over d and over heads in order, and tasks share nothing, so the bits depend neither on threads nor on the other queries of the call.
 * Elements of 8 bits, and MX, are numbers of bf16, so with AVX-512 BF16 their products are exact. Measured speed: README.md. */
#include <math.h>
#include <string.h>

#include "kernels/attention/cpu/blocks.h"
#include "kernels/attention/cpu/flash.h"
#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"

enum { BLOCK = FLASH_KEYS, TILE_ROWS = 256, TASK_KEYS = 1024 };

typedef struct job {
    const op_call *call;
    op_mqa_view view;
    const flash_isa *isa;
    const cpu_rows *rows;
    dw_tensor q, k;                  /* with the strides that their elements lie by */
    int64_t heads, queries, d, room; /* room: d up to a multiple of 32 */
    int64_t tile_queries, tiles, parts;
    uint8_t *scratch;
    size_t worker_bytes;
} job;

/* A worker's memory. Operands of products are floats, or codes of bf16 where the instruction set multiplies pairs. */
typedef struct tile {
    float *row;                      /* [room] */
    float *weights;                  /* [tile_queries,heads] */
    void *q, *keys, *turned;         /* [tile_queries * heads,room], [BLOCK,room], [room,BLOCK] */
} tile;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static size_t aligned(size_t bytes) { return base_align_up(bytes, 64); }

/* ---- memory ---- */

static size_t element_bytes(const job *j) { return j->isa->pairs != NULL ? 2 : 4; }

static size_t place(const job *j, uint8_t *at, tile *t) {
    const size_t rows = (size_t)(j->tile_queries * j->heads), room = (size_t)j->room, bytes = element_bytes(j);
    const size_t sizes[] = {room * sizeof(float), rows * sizeof(float), rows * room * bytes, BLOCK * room * bytes, BLOCK * room * bytes};
    void **const parts[] = {(void **)&t->row, (void **)&t->weights, &t->q, &t->keys, &t->turned};
    size_t total = 0;
    for (size_t i = 0; i < COUNT_OF(sizes); total += aligned(sizes[i]), i++)
        if (at != NULL) *parts[i] = at + total;
    return total;
}

/* ---- operands ---- */

/* A part of a row in any format of blocks, by the number of its first element. */
static void load_any(const dw_tensor *x, int64_t from, int64_t count, float *to) {
    int64_t index[DW_MAX_RANK];
    for (int axis = x->rank - 1; axis >= 0; axis--) {
        index[axis] = from % x->dims[axis];
        from /= x->dims[axis];
    }
    for (int64_t i = 0; i < count; i++, index[x->rank - 1]++) to[i] = (float)op_tensor_load(x, index);
}

static void load(const job *j, const dw_tensor *x, int64_t offset, int64_t stride, int64_t count, float *to) {
    if (dw_format_is_block(x->format)) {
        if (op_is_cache_format(x->format)) blocks_floats(x, offset, count, to);
        else load_any(x, offset, count, to);
        return;
    }
    for (int64_t at = 0; at < count; at += CPU_BLOCK) {
        const int64_t here = least(count - at, CPU_BLOCK);
        const float *from = cpu_load(j->rows, x, offset + at * stride, stride, here, to + at);
        if (from != to + at) memcpy(to + at, from, (size_t)here * sizeof *to);
    }
}

/* A row of bf16, or of e4m3 that an instruction set unpacks, as bf16. false: it does not lie so. */
static bool load_codes(const job *j, const dw_tensor *x, int64_t offset, uint16_t *to) {
    if (x->strides[3] != 1 || (x->format != DW_FORMAT_bf16 && x->format != DW_FORMAT_e4m3)) return false;
    const flash_codes codes = {.element = x->format, .codes = cpu_at(x, offset), .block = 32};
    if (x->format == DW_FORMAT_bf16) memcpy(to, codes.codes, (size_t)j->d * sizeof *to);
    else if (!j->isa->pairs->unpack(&codes, 1, j->d, to, j->room)) return false;
    memset(to + j->d, 0, (size_t)(j->room - j->d) * sizeof *to);
    return true;
}

/* Row `index` of an operand of products from an offset of x on, zeros behind it. */
static void load_row(const job *j, tile *t, const dw_tensor *x, int64_t offset, void *to, int64_t index) {
    if (j->isa->pairs != NULL && load_codes(j, x, offset, (uint16_t *)to + index * j->room)) return;
    float *row = j->isa->pairs != NULL ? t->row : (float *)to + index * j->room;
    load(j, x, offset, x->strides[3], j->d, row);
    memset(row + j->d, 0, (size_t)(j->room - j->d) * sizeof *row);
    if (j->isa->pairs != NULL) j->rows->to_bf16(row, (uint16_t *)to + index * j->room, j->room);
}

static void load_queries(const job *j, tile *t, int64_t batch, int64_t first, int64_t count) {
    const dw_tensor *weights = j->call->in[MQA_WEIGHTS];
    for (int64_t i = 0; i < count; i++) {
        load(j, weights, batch * weights->strides[0] + (first + i) * weights->strides[1], weights->strides[2], j->heads, t->weights + i * j->heads);
        for (int64_t head = 0; head < j->heads; head++)
            load_row(j, t, &j->q, batch * j->q.strides[0] + (first + i) * j->q.strides[1] + head * j->q.strides[2], t->q, i * j->heads + head);
    }
}

/* Keys of positions that somebody sees, and their factors. */
typedef struct block {
    int64_t first;
    int count;
    bool there[BLOCK];
    float factor[BLOCK];
} block;

static void load_keys(const job *j, tile *t, int64_t batch, op_attention_span seen, block *b) {
    const dw_tensor *factor = j->view.factor;
    for (int i = 0; i < BLOCK; i++) {
        const bool is_seen = i < b->count && b->first + i >= seen.begin && b->first + i < seen.end;
        const op_cache_slot at = is_seen ? op_mqa_key(&j->view, batch, b->first + i) : (op_cache_slot){OP_NOWHERE, 0};
        b->there[i] = at.row != OP_NOWHERE;
        b->factor[i] = (float)j->view.scale;
        if (!b->there[i]) {
            memset((uint8_t *)t->keys + (size_t)(i * j->room) * element_bytes(j), 0, (size_t)j->room * element_bytes(j));
            continue;
        }
        load_row(j, t, &j->k, at.row * j->k.strides[1] + at.slot * j->k.strides[2], t->keys, i);
        float own = 1;
        if (factor != NULL) load(j, factor, at.row * factor->strides[0] + at.slot * factor->strides[1], 1, 1, &own);
        b->factor[i] *= own;
    }
    for (int at = 0; at < BLOCK; at += FLASH_TURN) {
        if (j->isa->pairs != NULL) j->isa->pairs->transpose(FLASH_TURN, j->room / 2, (const uint16_t *)t->keys + at * j->room, j->room, NULL, at, t->turned);
        else j->isa->transpose(FLASH_TURN, j->room, (const float *)t->keys + at * j->room, j->room, NULL, at, t->turned);
    }
}

/* ---- one query, one block ---- */

static void weigh(const job *j, const tile *t, int64_t query, const block *b, float sums[BLOCK]) {
    float scores[FLASH_ROWS * BLOCK];
    const float *weights = t->weights + query * j->heads;
    memset(sums, 0, BLOCK * sizeof *sums);
    for (int64_t head = 0; head < j->heads; head += FLASH_ROWS) {
        const int64_t row = query * j->heads + head;
        const int count = (int)least(j->heads - head, FLASH_ROWS);
        if (j->isa->pairs != NULL) j->isa->pairs->scores(count, FLASH_KEYS, j->room / 2, (const uint32_t *)t->q + row * (j->room / 2), j->room / 2, t->turned, 0, scores);
        else j->isa->scores(count, FLASH_KEYS, j->room, (const float *)t->q + row * j->room, j->room, t->turned, 0, scores);
        for (int i = 0; i < count; i++) j->rows->add_positive(scores + i * BLOCK, b->factor, weights[head + i], sums, BLOCK);
    }
}

static void store(const job *j, int64_t batch, int64_t query, const block *b, op_attention_span seen, float sums[BLOCK]) {
    const dw_tensor *out = j->call->out[0];
    for (int i = 0; i < b->count; i++)
        if (!b->there[i] || b->first + i < seen.begin || b->first + i >= seen.end) sums[i] = -INFINITY;
    cpu_store(j->rows, sums, out, batch * out->strides[0] + query * out->strides[1] + b->first * out->strides[2], out->strides[2], b->count);
}

static op_attention_span seen_by_any(const job *j, int64_t batch, int64_t first, int64_t count, int64_t from, int64_t end) {
    op_attention_span all = {INT64_MAX, 0};
    for (int64_t i = 0; i < count; i++) {
        const op_attention_span seen = op_mqa_seen(&j->view, batch, first + i);
        const int64_t begin = seen.begin > from ? seen.begin : from, last = least(seen.end, end);
        if (begin >= last) continue;
        all.begin = least(all.begin, begin);
        all.end = last > all.end ? last : all.end;
    }
    return all;
}

static void run_task(void *argument, int64_t task, int worker) {
    const job *j = argument;
    tile t;
    place(j, j->scratch + (size_t)worker * j->worker_bytes, &t);
    const int64_t from = task % j->parts * TASK_KEYS, end = least(from + TASK_KEYS, j->view.keys), at = task / j->parts;
    const int64_t batch = at / j->tiles, first = at % j->tiles * j->tile_queries, count = least(j->queries - first, j->tile_queries);
    if (seen_by_any(j, batch, first, count, from, end).end > 0) load_queries(j, &t, batch, first, count);
    for (block b = {.first = from}; b.first < end; b.first += BLOCK) {
        b.count = (int)least(end - b.first, BLOCK);
        const op_attention_span any = seen_by_any(j, batch, first, count, b.first, b.first + b.count);
        float sums[BLOCK] = {0};
        if (any.end > 0) load_keys(j, &t, batch, any, &b);
        else memset(b.there, 0, sizeof b.there);
        for (int64_t i = 0; i < count; i++) {
            const op_attention_span seen = op_mqa_seen(&j->view, batch, first + i);
            if (any.end > 0 && seen.begin < b.first + b.count && seen.end > b.first) weigh(j, &t, i, &b, sums);
            store(j, batch, first + i, &b, seen, sums);
        }
    }
}

/* ---- a run ---- */

/* [1,..] of a tensor of rank 3, and in blocks with strides in elements. */
static dw_tensor of_rank_4(const dw_tensor *x) {
    dw_tensor made = *x;
    for (int axis = x->rank; axis > 0 && x->rank == 3; axis--) {
        made.dims[axis] = x->dims[axis - 1];
        made.strides[axis] = x->strides[axis - 1];
    }
    if (x->rank == 3) made.dims[0] = 1;
    made.rank = 4;
    return dw_format_is_block(x->format) ? blocks_as_they_lie(&made) : made;
}

static job job_of(const kernel_run *run, const flash_isa *isa) {
    const op_call *call = &run->call;
    const dw_tensor *q = call->in[MQA_Q];
    job j = {.call = call, .view = op_mqa_view_of(call), .isa = isa, .rows = cpu_rows_of(run->chip), .q = of_rank_4(q), .k = of_rank_4(call->in[MQA_K]), .heads = q->dims[2],
             .queries = q->dims[1], .d = q->dims[3], .room = base_ceil_div(q->dims[3], 32) * 32, .scratch = run->workspace};
    j.tile_queries = j.heads >= TILE_ROWS || j.heads == 0 ? 1 : TILE_ROWS / j.heads;
    j.tiles = base_ceil_div(j.queries, j.tile_queries);
    j.parts = base_ceil_div(j.view.keys, TASK_KEYS);
    j.worker_bytes = place(&j, NULL, &(tile){0});
    return j;
}

static dw_status run_on(const kernel_run *run, const flash_isa *isa) {
    const job j = job_of(run, isa);
    for (int64_t batch = 0; batch < j.call->in[MQA_Q]->dims[0]; batch++)
        for (int64_t query = 0; query < j.queries; query++) TRY(op_mqa_check(j.call, &j.view, batch, query));
    pool_run(run->pool, j.call->in[MQA_Q]->dims[0] * j.tiles * j.parts, run_task, (void *)&j);
    return DW_OK;
}

static size_t workspace_of(const kernel_run *run, const flash_isa *isa) { return job_of(run, isa).worker_bytes * (size_t)pool_threads(run->pool); }

#define RUN(name) \
    dw_status mqa_logits_##name##_run(const kernel_run *run) { return run_on(run, &flash_isa_##name); }
RUN(portable)
#if defined(__x86_64__)
RUN(avx2)
RUN(avx512)
RUN(avx512bf16)
#else
static const flash_isa flash_isa_avx512bf16 = {.pairs = NULL};
#endif

/* ---- choosing ---- */

static const char *const names[] = {"q", "k", "weights", "factor"};

static bool is_taken(dw_format format) { return dw_format_is_block(format) || (format != DW_FORMAT_f64 && cpu_is_plain(format)); }

const char *mqa_logits_reject(const kernel_problem *problem, text *why) {
    const dw_format to = problem->out[0]->format;
    for (int i = 0; i <= MQA_FACTOR && i < problem->n_in; i++) {
        if (problem->in[i] == NULL || is_taken(problem->in[i]->format)) continue;
        return kernel_because(why, "%s is %s; it takes f32, 16 and 8 bits, and of q and k blocks", names[i], dw_format_name(problem->in[i]->format));
    }
    return to == DW_FORMAT_f64 ? "the result is f64, which is computed in double" : NULL;
}

/* Numbers that bf16 holds: MX by their scales, nvfp4 but for its second level, fp8_1x128 not. */
static bool is_of_bf16(dw_format format) {
    if (dw_format_is_block(format)) return num_info(format)->scale == DW_FORMAT_e8m0;
    return format == DW_FORMAT_bf16 || dw_format_bits(format) == 8;
}

const char *mqa_logits_pairs_reject(const kernel_problem *problem, text *why) {
    for (int i = MQA_Q; i <= MQA_K; i++) {
        if (is_of_bf16(problem->in[i]->format)) continue;
        return kernel_because(why, "%s is %s, which are no numbers of bf16", names[i], dw_format_name(problem->in[i]->format));
    }
    return mqa_logits_reject(problem, why);
}

double mqa_logits_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.5, 0.8); }
double mqa_logits_pairs_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_bf16, 0.4, 0.8); }
size_t mqa_logits_workspace(const kernel_run *run) { return workspace_of(run, &flash_isa_portable); }
size_t mqa_logits_pairs_workspace(const kernel_run *run) { return workspace_of(run, &flash_isa_avx512bf16); }
