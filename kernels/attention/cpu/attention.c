/* attention on the CPU: tiles of query rows that share a kv head (tile.c), cut and spread over tasks. The rows of a tile are queries times the heads that share k and v, so decoding with grouped heads streams
 * k and v once. The products are in flash_*.c; their speed is in README.md.
 *
 * With the operands row and position (caches of several texts) a tile goes through its queries cache row by cache row. */
#include "kernels/attention/cpu/tile.h"
#include "kernels/attention/results.h"
#include "kernels/kernels.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* The rows of a part, those from first on up to end: as many as read one row of the cache. */
static void find_rows(const attention *call, int64_t first, int64_t end, part *p) {
    const op_attention_view *view = &call->view;
    op_attention_span seen = {INT64_MAX, 0};
    p->first = first;
    p->cache = view->row != NULL ? op_attention_row(view, p->batch, first / call->shared) : p->batch;
    for (; first < end; first++) {
        const int64_t query = first / call->shared;
        if (view->row != NULL && op_attention_row(view, p->batch, query) != p->cache) break;
        const op_attention_span span = op_attention_seen(view, query);
        if (span.end == span.begin) continue;
        if (span.begin < seen.begin) seen.begin = span.begin;
        if (span.end > seen.end) seen.end = span.end;
    }
    if (seen.begin > seen.end) seen.begin = seen.end;
    p->rows = (int)(first - p->first);
    p->seen = seen;
    p->end = view->position != NULL ? seen.end : call->keys;
}

/* What a task has before it: tiles, and of the first one rows. */
typedef struct cursor { int64_t tile, end, row; } cursor;

static bool next_part(const attention *call, cursor *c, part *p) {
    if (c->tile == c->end) return false;
    const int64_t groups = call->k->dims[1], of_rows = c->tile / groups, pair = c->tile / call->tiles;
    const int64_t batch = call->heads_inside ? of_rows / call->tiles : pair / groups;
    const int64_t index = call->heads_inside ? of_rows % call->tiles : call->tiles - 1 - c->tile % call->tiles;   /* the last queries see the most keys: first */
    const int64_t first = index * call->tile_rows, end = least(call->rows, first + call->tile_rows);
    *p = (part){.batch = batch, .group = call->heads_inside ? c->tile % groups : pair % groups};
    find_rows(call, first + c->row, end, p);
    c->row += p->rows;
    if (first + c->row < end) return true;
    c->tile++;
    c->row = 0;
    return true;
}

static void run_task(void *argument, int64_t task, int worker) {
    (void)worker;
    const attention *call = argument;
    const int64_t first = task * call->tiles_per_task;
    cursor left = {first, least(first + call->tiles_per_task, call->tile_count), 0};
    part next;
    tile t;
    t.call = call;
    for (int r = 0; r < TILE_ROWS; r++) t.ones[r] = 1;
    for (bool more = next_part(call, &left, &next); more;) {
        t.at = next;
        more = next_part(call, &left, &next);
        t.behind.keys = 0;
        if (more && call->heads_inside) attention_find_block(call, &next, next.seen.begin / FLASH_KEYS * FLASH_KEYS, &t.behind);
        attention_run_part(&t);
    }
}

/* Is every entry of the table a page, or -1? */
static bool has_pages(const op_attention_view *view) {
    for (int64_t row = 0; row < view->rows; row++) {
        for (int64_t i = 0; i < view->table->dims[1]; i++) {
            const int64_t page = op_attention_entry(view, row, i);
            if (page < OP_NOWHERE || page >= view->pages) return false;
        }
    }
    return true;
}

/* Do all rows, positions and pages lie within k, mask, bias and table? The reference says what does not, before it writes, or that it is not read. */
static bool fits(const attention *a) {
    const op_attention_view *view = &a->view;
    int64_t end = view->table != NULL ? view->slots : INT64_MAX;
    if (view->mask_keys > 0) end = least(end, view->mask_keys);
    if (view->bias_keys > 0) end = least(end, view->bias_keys);
    for (int64_t i = 0; i < a->q->dims[2]; i++) {
        const int64_t row = op_attention_row(view, 0, i);
        if (view->row != NULL && (row < OP_NOWHERE || row >= view->rows)) return false;
        if (row != OP_NOWHERE && view->position != NULL && op_attention_position(view, i) >= end) return false;
    }
    return view->table == NULL || has_pages(view);
}

/* Tiles as large as is good for the products; where few tokens of many texts come together, one for each token. */
static void cut_tiles(attention *a, int threads) {
    enum { TASKS_PER_THREAD = 8 };
    int64_t tiles = base_ceil_div(a->rows, TILE_ROWS);
    a->tile_rows = base_ceil_div(a->rows, tiles);
    a->tile_rows = least(base_ceil_div(a->tile_rows, FLASH_ROWS) * FLASH_ROWS, TILE_ROWS);
    if (a->view.row != NULL && a->q->dims[2] <= a->view.rows) a->tile_rows = least(a->shared, TILE_ROWS);
    a->tiles = base_ceil_div(a->rows, a->tile_rows);
    a->tile_count = a->q->dims[0] * a->k->dims[1] * a->tiles;
    a->heads_inside = a->tile_rows <= FLASH_ROWS;
    a->tiles_per_task = a->heads_inside ? base_ceil_div(a->tile_count, (int64_t)threads * TASKS_PER_THREAD) : 1;
}

/* Scales of rows in pairs are factors where bf16 does not hold them. */
static void take_blocks(attention *a) {
    const dw_tensor **const operands[] = {&a->q, &a->k, &a->v};
    for (size_t i = 0; i < COUNT_OF(operands); i++) {
        if (!dw_format_is_block((*operands[i])->format)) continue;
        a->blocks[i] = blocks_as_they_lie(*operands[i]);
        *operands[i] = &a->blocks[i];
    }
    a->second_v = 1;
    if (a->isa->pairs == NULL) return;
    a->has_factors = blocks_has_factors(a->k->format);
    a->has_value_factors = blocks_has_factors(a->v->format);
    a->product_scale *= blocks_second(a->q) * blocks_second(a->k);
    a->second_v = blocks_second(a->v);
}

static dw_status run_on(const kernel_run *run, const flash_isa *isa) {
    attention_heads heads_apart;
    const op_call *call = &attention_by_heads(run, &heads_apart)->call;
    attention a = {
        .isa = isa,
        .q = call->in[ATTENTION_Q],
        .k = call->in[ATTENTION_K],
        .v = call->in[ATTENTION_V],
        .sink = op_operand(call, ATTENTION_SINK),
        .out = call->out[0],
        .lse = call->n_out > 1 ? call->out[1] : NULL,
        .scale = (float)op_attr_real(call->attrs, OP_ATTR_scale),
        .softcap = (float)op_attr_real(call->attrs, OP_ATTR_softcap),
    };
    a.product_scale = a.scale;
    TRY(op_attention_view_of(call, &a.view));
    take_blocks(&a);
    const int64_t heads = a.q->dims[1], groups = a.k->dims[1];
    a.shared = heads / groups;
    a.rows = a.shared * a.q->dims[2];
    a.d = a.q->dims[3];
    a.e = a.v->dims[3];
    a.keys = a.view.slots;
    if (!fits(&a)) return call->op->reference(&run->call);
    if (a.rows == 0 || a.q->dims[0] == 0 || (a.e == 0 && a.lse == NULL)) return DW_OK;
    cut_tiles(&a, pool_threads(run->pool));
    pool_run(run->pool, base_ceil_div(a.tile_count, a.tiles_per_task), run_task, &a);
    return DW_OK;
}

#define RUN(name) \
    dw_status attention_##name##_run(const kernel_run *run) { return run_on(run, &flash_isa_##name); }
RUN(portable)
#if defined(__x86_64__)
RUN(avx2)
RUN(avx512)
RUN(avx512bf16)
#endif

/* ---- choosing ---- */

static bool is_taken(const op_type *type) { return type->format == DW_FORMAT_f32 || type->format == DW_FORMAT_bf16 || type->format == DW_FORMAT_f16; }

static bool is_in_blocks(const kernel_problem *problem, int operand) {
    const dw_format format = problem->in[operand]->format;
    return op_is_cache_format(format) || (operand == ATTENTION_K && format == DW_FORMAT_fp8_128x128);
}

const char *attention_reject(const kernel_problem *problem, text *why) {
    static const char *const names[] = {"q", "k", "v", "mask", "bias", "sink"};
    for (int i = 0; i < problem->n_in; i++) {
        if (i == ATTENTION_MASK || i > ATTENTION_SINK || problem->in[i] == NULL || is_taken(problem->in[i])) continue;
        if (i <= ATTENTION_V && is_in_blocks(problem, i)) continue;
        text_printf(why, "%s is %s; it takes f32, bf16 and f16, and of queries, keys and values blocks within rows", names[i], dw_format_name(problem->in[i]->format));
        return text_string(why);
    }
    if (is_taken(problem->out[0])) return NULL;
    text_printf(why, "the result is %s; it gives f32, bf16 and f16", dw_format_name(problem->out[0]->format));
    return text_string(why);
}

const char *attention_pairs_reject(const kernel_problem *problem, text *why) {
    static const char *const names[] = {"q", "k", "v"};
    for (int i = ATTENTION_Q; i <= ATTENTION_V; i++) {
        if (problem->in[i]->format == DW_FORMAT_bf16 || is_in_blocks(problem, i)) continue;
        text_printf(why, "%s is %s; it multiplies bf16", names[i], dw_format_name(problem->in[i]->format));
        return text_string(why);
    }
    if (problem->out[0]->format != DW_FORMAT_f32) return attention_reject(problem, why);
    return "the result is f32, and weights are rounded to bf16 on the way";
}

double attention_pairs_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_bf16, 0.4, 0.8); }
size_t attention_pairs_workspace(const kernel_run *run) { return kernel_no_workspace(run); }

double attention_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.6, 0.8); }

size_t attention_workspace(const kernel_run *run) { return kernel_no_workspace(run); }
