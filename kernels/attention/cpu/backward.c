/* attention_backward on the CPU, in fp32. A task is the keys of one head of k in one batch, with all heads of q that share it: blocks of 64 keys, and within each blocks of 64 queries, whose weights
 * are made again from lse. Five products a pair of blocks, by those of attention's forward (flash.h):
 *
 *     scores [queries,keys] = Q K^T        dweights [queries,keys] = dout V^T
 *     dV += weights^T dout                 dK += dscores^T Q             dQ += dscores K
 *
 * dV and dK of a block of keys and dQ of all queries are kept in fp32 until they are whole, so every sum has one order: the same bits at any number of threads. Nothing of the size [s,t] is kept.
 * Where a block holds a NaN or an infinity, the last three products are made key by key, of those that are seen alone. Measured speed: README.md. */
#include <math.h>
#include <string.h>

#include "kernels/attention/cpu/flash.h"
#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"

enum { BLOCK = FLASH_KEYS };

typedef struct backward {
    const op_call *call;
    op_attention_view view;
    const flash_isa *isa;
    const cpu_rows *rows;
    int64_t heads, groups, shared, queries, keys, d, e, d_room, e_room;   /* room: widths up to a multiple of 16 */
    float scale, softcap;
    float *dq, *tiles;                   /* [b,h,s,d_room]; of each worker */
    size_t tile_floats;
} backward;

/* A worker's memory: rows of BLOCK. */
typedef struct tiles {
    float *k, *k_turned, *v_turned, *v, *dk, *dv, *q, *dout;
    float *weights, *pulls, *turned;     /* [BLOCK][BLOCK]; pulls: dweights, then the gradients of q . k */
    float *lse, *share, *part;           /* [shared,s]; part: what weights are of e^(score - lse) */
    uint8_t seen[BLOCK][BLOCK];
    float ones[FLASH_ROWS];
    bool is_finite;
} tiles;

static int64_t room_of(int64_t width) { return base_ceil_div(width, 16) * 16; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static size_t tile_floats_of(const backward *b) { return (size_t)(BLOCK * (5 * b->d_room + 5 * b->e_room) + 3 * BLOCK * BLOCK + 3 * room_of(b->shared * b->queries)); }

static void place_tiles(const backward *b, int worker, tiles *t) {
    float *at = b->tiles + (size_t)worker * b->tile_floats;
    float **const by_d[] = {&t->k, &t->k_turned, &t->dk, &t->q}, **const by_e[] = {&t->v, &t->v_turned, &t->dv, &t->dout}, **const square[] = {&t->weights, &t->pulls, &t->turned};
    for (size_t i = 0; i < COUNT_OF(by_d); i++, at += BLOCK * b->d_room) *by_d[i] = at;
    for (size_t i = 0; i < COUNT_OF(by_e); i++, at += BLOCK * b->e_room) *by_e[i] = at;
    for (size_t i = 0; i < COUNT_OF(square); i++, at += BLOCK * BLOCK) *square[i] = at;
    t->lse = at;
    t->share = at + room_of(b->shared * b->queries);
    t->part = t->share + room_of(b->shared * b->queries);
    for (int i = 0; i < FLASH_ROWS; i++) t->ones[i] = 1;
}

/* ---- rows in and out ---- */

static int64_t begin_of(const dw_tensor *x, int64_t batch, int64_t head, int64_t row) { return batch * x->strides[0] + head * x->strides[1] + row * x->strides[2]; }

static void load_row(const backward *b, const dw_tensor *x, int64_t offset, int64_t width, float *to) {
    for (int64_t at = 0; at < width; at += CPU_BLOCK) {
        const int64_t count = least(width - at, CPU_BLOCK);
        const float *from = cpu_load(b->rows, x, offset + at * x->strides[3], x->strides[3], count, to + at);
        if (from != to + at) memcpy(to + at, from, (size_t)count * sizeof *to);
    }
}

static void store_row(const backward *b, const float *from, const dw_tensor *x, int64_t offset, int64_t width) {
    for (int64_t at = 0; at < width; at += CPU_BLOCK) cpu_store(b->rows, from + at, x, offset + at * x->strides[3], x->strides[3], least(width - at, CPU_BLOCK));
}

/* count rows of width elements, zeros behind them up to [BLOCK][room]. false: one is not finite. */
static bool load_block(const backward *b, const dw_tensor *x, int64_t batch, int64_t head, int64_t first, int64_t count, int64_t width, int64_t room, float *to) {
    float test = 0;
    for (int64_t i = 0; i < BLOCK; i++) {
        float *row = to + i * room;
        if (i < count) load_row(b, x, begin_of(x, batch, head, first + i), width, row);
        const int64_t filled = i < count ? width : 0;
        memset(row + filled, 0, (size_t)(room - filled) * sizeof *row);
        for (int64_t j = 0; j < filled; j++) test += row[j] * 0;
    }
    return test == 0;
}

/* [BLOCK][width] as [width][BLOCK]. */
static void turn(const backward *b, const float *x, int64_t room, int64_t count, int64_t width, float *turned) {
    for (int first = 0; first < BLOCK; first += FLASH_TURN) {
        const int64_t left = count - first;
        b->isa->transpose(left < 0 ? 0 : (int)least(left, FLASH_TURN), width, x + first * room, room, NULL, first, turned);
    }
}

/* ---- products ---- */

static void make_scores(const backward *b, int64_t rows, int64_t width, const float *x, int64_t room, const float *keys, float *scores) {
    for (int64_t r = 0; r < rows; r += FLASH_ROWS) b->isa->scores((int)least(rows - r, FLASH_ROWS), FLASH_KEYS, width, x + r * room, room, keys, 0, scores + r * BLOCK);
}

/* out [rows][room] += weights [rows][inner] x [inner][room] */
static void add_product(const backward *b, const tiles *t, int64_t rows, int64_t inner, const float *weights, const float *x, int64_t room, float *out) {
    for (int64_t r = 0; r < rows; r += FLASH_ROWS) {
        for (int64_t at = 0; at < room; at += FLASH_COLUMNS)
            b->isa->values((int)least(rows - r, FLASH_ROWS), (int)inner, (int)least(room - at, FLASH_COLUMNS), weights + r * BLOCK, x + at, room, NULL, t->ones, out + r * room + at, room);
    }
}

static void add_scaled(float factor, const float *x, int64_t count, float *to) {
    for (int64_t i = 0; i < count; i++) to[i] += factor * x[i];
}

/* The three products, pair by pair, of pairs that are seen: what is not seen may be NaN. */
static void add_pairs(const backward *b, const tiles *t, int64_t queries, int64_t keys, float *dq) {
    for (int64_t r = 0; r < queries; r++) {
        for (int64_t key = 0; key < keys; key++) {
            if (!t->seen[r][key]) continue;
            const float weight = t->weights[r * BLOCK + key], pull = t->pulls[r * BLOCK + key];
            add_scaled(weight, t->dout + r * b->e_room, b->e, t->dv + key * b->e_room);
            add_scaled(pull, t->q + r * b->d_room, b->d, t->dk + key * b->d_room);
            add_scaled(pull, t->k + key * b->d_room, b->d, dq + r * b->d_room);
        }
    }
}

/* ---- a pair of blocks ---- */

/* Where a block lies. */
typedef struct place { int64_t batch, head, row, query, queries, key, keys; } place;

/* Which keys of the block row r of it sees, between begin and end. false: none. */
static bool find_seen(const backward *b, const place *at, int64_t r, tiles *t, int64_t *begin, int64_t *end) {
    const op_attention_span span = op_attention_seen(&b->view, at->query + r);
    const dw_tensor *mask = b->view.mask;
    bool any = false;
    *begin = span.begin > at->key ? span.begin - at->key : 0;
    *end = least(span.end - at->key, at->keys);
    memset(t->seen[r], 0, BLOCK);
    if (*begin >= *end) return false;
    if (mask == NULL) return memset(t->seen[r] + *begin, 1, (size_t)(*end - *begin)), true;
    const int64_t *strides = b->view.mask_strides, offset = at->batch * strides[0] + at->head * strides[1] + (at->query + r) * strides[2] + at->key * strides[3];
    for (int64_t i = *begin; i < *end; i++) any |= t->seen[r][i] = ((const uint8_t *)mask->data)[offset + i * strides[3]] != 0;
    return any;
}

static void load_bias(const backward *b, const place *at, int64_t r, int64_t begin, int64_t end, float *bias) {
    const int64_t *strides = b->view.bias_strides, offset = at->batch * strides[0] + at->head * strides[1] + (at->query + r) * strides[2] + at->key * strides[3];
    const float *from = cpu_load(b->rows, b->view.bias, offset + begin * strides[3], strides[3], end - begin, bias + begin);
    if (from != bias + begin) memcpy(bias + begin, from, (size_t)(end - begin) * sizeof *bias);
}

/* Scores and dweights of row r become weights, and the gradients of q . k. */
static void pull_row(const backward *b, const place *at, int64_t r, int64_t begin, int64_t end, tiles *t) {
    float *score = t->weights + r * BLOCK, *pull = t->pulls + r * BLOCK, bias[BLOCK], slope[BLOCK];
    const uint8_t *seen = t->seen[r];
    const float lse = t->lse[at->row + r], share = t->share[at->row + r], part = t->part[at->row + r], scale = b->scale;
    for (int64_t i = begin; i < end; i++) score[i] *= scale;
    for (int64_t i = begin; i < end; i++) slope[i] = scale;
    for (int64_t i = begin; i < end && b->softcap > 0; i++) {
        const float x = score[i] / b->softcap, u = expf(-2 * fabsf(x));
        score[i] = b->softcap * tanhf(x);
        slope[i] = scale * (4 * u / ((1 + u) * (1 + u)));   /* 1 - tanh(x)^2, which would cancel */
    }
    if (b->view.bias != NULL) {
        load_bias(b, at, r, begin, end, bias);
        for (int64_t i = begin; i < end; i++) score[i] = bias[i] <= OP_ATTENTION_HIDES ? bias[i] : score[i] + bias[i];
    }
    b->rows->exp_sum(score + begin, lse, score + begin, end - begin);
    for (int64_t i = 0; i < BLOCK; i++) {
        const bool is_seen = seen[i] != 0 && i >= begin && i < end;
        score[i] = is_seen ? score[i] * part : 0;
        pull[i] = is_seen ? score[i] * (pull[i] - share) * slope[i >= begin && i < end ? i : begin] : 0;
    }
}

static void run_pair(const backward *b, const place *at, tiles *t) {
    float *dq = b->dq + ((at->batch * b->heads + at->head) * b->queries + at->query) * b->d_room;
    int64_t begin[BLOCK], end[BLOCK];
    bool any = false, shows[BLOCK];
    for (int64_t r = 0; r < at->queries; r++) any |= shows[r] = find_seen(b, at, r, t, &begin[r], &end[r]) && t->lse[at->row + r] != -INFINITY;
    if (!any) return;
    const op_call *call = b->call;
    const bool q_finite = load_block(b, call->in[ATTENTION_BACKWARD_Q], at->batch, at->head, at->query, at->queries, b->d, b->d_room, t->q);
    const bool is_finite = load_block(b, call->in[ATTENTION_BACKWARD_DOUT], at->batch, at->head, at->query, at->queries, b->e, b->e_room, t->dout) && q_finite && t->is_finite;
    make_scores(b, at->queries, b->d, t->q, b->d_room, t->k_turned, t->weights);
    make_scores(b, at->queries, b->e, t->dout, b->e_room, t->v_turned, t->pulls);
    for (int64_t r = 0; r < at->queries; r++) {
        if (shows[r]) {
            pull_row(b, at, r, begin[r], end[r], t);
        } else {
            memset(t->seen[r], 0, BLOCK);
            memset(t->weights + r * BLOCK, 0, BLOCK * sizeof *t->weights);
            memset(t->pulls + r * BLOCK, 0, BLOCK * sizeof *t->pulls);
        }
    }
    if (!is_finite) {
        add_pairs(b, t, at->queries, at->keys, dq);
        return;
    }
    add_product(b, t, at->queries, at->keys, t->pulls, t->k, b->d_room, dq);
    turn(b, t->weights, BLOCK, at->queries, BLOCK, t->turned);
    add_product(b, t, at->keys, at->queries, t->turned, t->dout, b->e_room, t->dv);
    turn(b, t->pulls, BLOCK, at->queries, BLOCK, t->turned);
    add_product(b, t, at->keys, at->queries, t->turned, t->q, b->d_room, t->dk);
}

/* ---- a task ---- */

/* Of a query whose keys are all hidden by finite numbers, whose lse has lost how many they are: 1 over the sum of e^(score - lse). Their scores are the bias. 1 for any other. */
static float part_of(const backward *b, int64_t batch, int64_t head, int64_t query, float lse) {
    if (b->view.bias == NULL || !isfinite(lse) || lse > OP_ATTENTION_HIDES) return 1;
    const op_attention_span span = op_attention_seen(&b->view, query);
    const int64_t *of_bias = b->view.bias_strides, *of_mask = b->view.mask_strides;
    const int64_t bias = batch * of_bias[0] + head * of_bias[1] + query * of_bias[2], mask = batch * of_mask[0] + head * of_mask[1] + query * of_mask[2];
    float sum = 0, value;
    for (int64_t key = span.begin; key < span.end; key++) {
        if (b->view.mask != NULL && ((const uint8_t *)b->view.mask->data)[mask + key * of_mask[3]] == 0) continue;
        const float *from = cpu_load(b->rows, b->view.bias, bias + key * of_bias[3], of_bias[3], 1, &value);
        sum += expf(*from - lse);
    }
    return 1 / sum;
}

/* lse, and dout . out, of all queries of the heads. */
static void measure(const backward *b, int64_t batch, int64_t group, tiles *t) {
    const op_call *call = b->call;
    const dw_tensor *out = call->in[ATTENTION_BACKWARD_OUT], *dout = call->in[ATTENTION_BACKWARD_DOUT], *lse = call->in[ATTENTION_BACKWARD_LSE];
    for (int64_t i = 0; i < b->shared * b->queries; i++) {
        const int64_t head = group * b->shared + i / b->queries, query = i % b->queries;
        double sum = 0;
        for (int64_t at = 0; at < b->e; at += CPU_BLOCK) {
            float of_out[CPU_BLOCK], of_dout[CPU_BLOCK];
            const int64_t count = least(b->e - at, CPU_BLOCK);
            const float *x = cpu_load(b->rows, out, begin_of(out, batch, head, query) + at * out->strides[3], out->strides[3], count, of_out);
            const float *y = cpu_load(b->rows, dout, begin_of(dout, batch, head, query) + at * dout->strides[3], dout->strides[3], count, of_dout);
            for (int64_t j = 0; j < count; j++) sum += (double)x[j] * (double)y[j];
        }
        t->share[i] = (float)sum;
        t->lse[i] = ((const float *)lse->data)[batch * lse->strides[0] + head * lse->strides[1] + query * lse->strides[2]];
        t->part[i] = part_of(b, batch, head, query, t->lse[i]);
    }
}

static void run_keys(const backward *b, int64_t batch, int64_t group, int64_t key, int64_t keys, tiles *t) {
    const dw_tensor *k = b->call->in[ATTENTION_BACKWARD_K], *v = b->call->in[ATTENTION_BACKWARD_V], *dk = b->call->out[1], *dv = b->call->out[2];
    const bool k_finite = load_block(b, k, batch, group, key, keys, b->d, b->d_room, t->k), v_finite = load_block(b, v, batch, group, key, keys, b->e, b->e_room, t->v);
    t->is_finite = k_finite && v_finite;
    turn(b, t->k, b->d_room, keys, b->d, t->k_turned);
    turn(b, t->v, b->e_room, keys, b->e, t->v_turned);
    memset(t->dk, 0, (size_t)(BLOCK * b->d_room) * sizeof *t->dk);
    memset(t->dv, 0, (size_t)(BLOCK * b->e_room) * sizeof *t->dv);
    for (int64_t i = 0; i < b->shared; i++) {
        for (int64_t query = 0; query < b->queries; query += BLOCK) {
            const place at = {batch, group * b->shared + i, i * b->queries + query, query, least(b->queries - query, BLOCK), key, keys};
            run_pair(b, &at, t);
        }
    }
    for (int64_t i = 0; i < keys; i++) {
        store_row(b, t->dk + i * b->d_room, dk, begin_of(dk, batch, group, key + i), b->d);
        store_row(b, t->dv + i * b->e_room, dv, begin_of(dv, batch, group, key + i), b->e);
    }
}

static void run_task(void *argument, int64_t task, int worker) {
    const backward *b = argument;
    const int64_t batch = task / b->groups, group = task % b->groups, first = (batch * b->heads + group * b->shared) * b->queries;
    const dw_tensor *dq = b->call->out[0];
    tiles t;
    place_tiles(b, worker, &t);
    memset(b->dq + first * b->d_room, 0, (size_t)(b->shared * b->queries * b->d_room) * sizeof *b->dq);
    measure(b, batch, group, &t);
    for (int64_t key = 0; key < b->keys; key += BLOCK) run_keys(b, batch, group, key, least(b->keys - key, BLOCK), &t);
    for (int64_t i = 0; i < b->shared * b->queries; i++)
        store_row(b, b->dq + (first + i) * b->d_room, dq, begin_of(dq, batch, group * b->shared + i / b->queries, i % b->queries), b->d);
}

/* ---- the row ---- */

static bool is_taken(dw_format format) { return format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16; }

const char *attention_backward_reject(const kernel_problem *problem, text *why) {
    static const char *const names[] = {"q", "k", "v", "out", "lse", "dout", "mask", "bias"};
    for (int i = 0; i < problem->n_in; i++) {
        if (i == ATTENTION_BACKWARD_MASK || problem->in[i] == NULL || is_taken(problem->in[i]->format)) continue;
        text_printf(why, "%s is %s; it takes f32, bf16 and f16", names[i], dw_format_name(problem->in[i]->format));
        return text_string(why);
    }
    return problem->n_out > 3 ? "the gradient of the bias is asked for" : NULL;
}

double attention_backward_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.5, 0.8); }

static dw_status start(const kernel_run *run, backward *b) {
    const op_call *call = &run->call;
    const dw_tensor *q = call->in[ATTENTION_BACKWARD_Q], *k = call->in[ATTENTION_BACKWARD_K], *v = call->in[ATTENTION_BACKWARD_V];
    const dw_tensor *in[ATTENTION_OPERANDS];
    *b = (backward){
        .call = call, .rows = cpu_rows_of(run->chip), .isa = &flash_isa_portable, .heads = q->dims[1], .groups = k->dims[1], .queries = q->dims[2], .keys = k->dims[2], .d = q->dims[3],
        .e = v->dims[3], .d_room = room_of(q->dims[3]), .e_room = room_of(v->dims[3]), .scale = (float)op_attr_real(call->attrs, OP_ATTR_scale),
        .softcap = (float)op_attr_real(call->attrs, OP_ATTR_softcap),
    };
#if defined(__x86_64__)
    if (chip_has(run->chip, CHIP_avx2)) b->isa = &flash_isa_avx2;
    if (chip_has(run->chip, CHIP_avx512)) b->isa = &flash_isa_avx512;
#endif
    const op_call forward = op_attention_forward(call, in);
    TRY(op_attention_view_of(&forward, &b->view));
    b->shared = b->heads / b->groups;
    b->tile_floats = tile_floats_of(b);
    return DW_OK;
}

static size_t dq_floats(const backward *b) { return (size_t)(b->call->in[0]->dims[0] * b->heads * b->queries * b->d_room); }

size_t attention_backward_workspace(const kernel_run *run) {
    backward b;
    if (start(run, &b) != DW_OK) return 0;
    return (dq_floats(&b) + b.tile_floats * (size_t)pool_threads(run->pool)) * sizeof(float);
}

dw_status attention_backward_run(const kernel_run *run) {
    backward b;
    TRY(start(run, &b));
    b.dq = run->workspace;
    b.tiles = b.dq + dq_floats(&b);
    pool_run(run->pool, run->call.in[0]->dims[0] * b.groups, run_task, &b);
    return DW_OK;
}
