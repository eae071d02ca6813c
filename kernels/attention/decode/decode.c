/* Attention of few queries on tensor cores (mma.sync): the host half of decode.cu. What it takes, how long, how a call is divided, and the launch. Pure: knows no driver. */
#include "kernels/attention/decode/decode.h"

#include "kernels/attention/decode/divide.h"
#include "kernels/attention/host.h"
#include "kernels/attention/results.h"
#include "kernels/cache/host.h"
#include "kernels/gpu/host/host.h"

typedef struct decode_entry {
    dw_format format;
    const char *entry;
    int width, value_width, rows, stages, blocks;
    bool general;
    int codes;
    bool writes;
} decode_entry;

/* Of a format narrower ones first, and of those that are as wide ones of fewer rows. */
static const decode_entry entries[] = {
#define ATTENTION_DECODE(name, ...) {DW_FORMAT_bf16, "attention_decode_bf16_" #name, __VA_ARGS__},
#include "kernels/attention/decode/decode.def"
#undef ATTENTION_DECODE
#define ATTENTION_DECODE(name, ...) {DW_FORMAT_f16, "attention_decode_f16_" #name, __VA_ARGS__},
#include "kernels/attention/decode/decode.def"
#undef ATTENTION_DECODE
};

static int codes_of(dw_format format) { return format == DW_FORMAT_fp8_1x128 ? DECODE_E4M3 : format == DW_FORMAT_mxfp8 ? DECODE_MXFP8 : format == DW_FORMAT_nvfp4 ? DECODE_NVFP4 : DECODE_PLAIN; }

static uint32_t shared_bytes(const decode_entry *e) {
    const int stage = e->codes ? 2 * DECODE_KEYS * DECODE_ROW_BYTES(e->codes) + DECODE_SCALE_BYTES : DECODE_KEYS * (e->width + e->value_width) * 2;
    return (uint32_t)(DECODE_WARPS * e->stages * stage + e->width * e->rows * 2 + DECODE_BARRIER_BYTES + DECODE_STATE_BYTES + (e->writes ? DECODE_OWN_BYTES : 0));
}

/* The first whose ring finds room on the chip; else, so that what it lacks is said, the first. NULL: none is for the call, as none writes a token of more rows. */
static const decode_entry *find_entry(const kernel_run *run) {
    const op_call *call = &run->call;
    const chip_caps *chip = run->chip;
    const dw_tensor *q = call->in[ATTENTION_Q], *v = call->in[ATTENTION_V];
    const bool general = attention_is_general(call);
    const int codes = codes_of(call->in[ATTENTION_K]->format);
    const int64_t rows = decode_divide(call, DECODE_ROWS).rows;
    const decode_entry *first = NULL;
    for (size_t i = 0; i < COUNT_OF(entries); i++) {
        const decode_entry *e = &entries[i];
        if (e->format != q->format || e->general != general || e->codes != codes || e->writes != (run->write != NULL) || q->dims[3] > e->width || v->dims[3] > e->value_width || rows > e->rows) continue;
        if (shared_bytes(e) <= chip->shared_bytes) return e;
        if (first == NULL) first = e;
    }
    return first;
}

/* ---- what is taken ---- */

/* Of keys and values in blocks: fp8_1x128 whose row of a head has one scale, and lies in pieces of 16 bytes; mxfp8 and nvfp4 of heads as wide as entries, which position alone hides. */
static const char *refuses_blocks(const kernel_problem *problem, text *why) {
    const op_type *k = problem->in[ATTENTION_K], *v = problem->in[ATTENTION_V];
    op_type types[2];
    const op_type *in[ATTENTION_OPERANDS];
    int64_t width, value_width;
    if (codes_of(k->format) == DECODE_PLAIN || k->format != v->format) {
        text_printf(why, "k is %s and v %s; of blocks it reads fp8_1x128, mxfp8 and nvfp4, both of one format", dw_format_name(k->format), dw_format_name(v->format));
        return text_string(why);
    }
    if (k->scale_layout != DW_SCALE_plain || v->scale_layout != DW_SCALE_plain) return "scales of k and v lie in tiles, and it reads plain ones";
    kernel_problem plain = attention_without_blocks(problem, types, in);
    types[0].format = types[1].format = problem->in[ATTENTION_Q]->format;
    const char *reason = attention_reject_halves(&plain, why);
    if (reason == NULL && k->format != DW_FORMAT_fp8_1x128) reason = attention_refuses_scores_of_codes(problem);
    if (reason != NULL || !dim_is_constant(k->dims[3], &width) || !dim_is_constant(v->dims[3], &value_width)) return reason;
    if (k->format == DW_FORMAT_fp8_1x128) {
        if (width % 16 == 0 && value_width % 16 == 0 && width <= DECODE_CODES && value_width <= DECODE_CODES) return NULL;
        text_printf(why, "heads are %lld and %lld wide; of fp8_1x128 it takes multiples of 16 up to %d", (long long)width, (long long)value_width, DECODE_CODES);
    } else {
        if (width == value_width && (width == DECODE_CODES / 2 || width == DECODE_CODES)) return NULL;
        text_printf(why, "heads are %lld and %lld wide; of %s it takes both %d or both %d", (long long)width, (long long)value_width, dw_format_name(k->format), DECODE_CODES / 2, DECODE_CODES);
    }
    return text_string(why);
}

const char *attention_decode_refuses(const kernel_problem *problem, text *why) {
    const char *reason = attention_refuses_uncached(problem);
    if (reason != NULL) return reason;
    return dw_format_is_block(problem->in[ATTENTION_K]->format) ? refuses_blocks(problem, why) : attention_reject_halves(problem, why);
}

/* ---- how long ---- */

/* Every tile reads its keys and values again, codes at a smaller part of the rate (measured on an H100 and an H200: bench/results/h200/attention.md). The start is that of a model's step on an H200 (bench/results/h200/models.md), and so is
 * what it takes longer where it writes its token, mostly where queries and keys are turned (attention.md). */
double attention_decode_seconds(const kernel_run *run) {
    static const double parts[] = {[DECODE_PLAIN] = 0.97, [DECODE_E4M3] = 0.9, [DECODE_MXFP8] = 0.8, [DECODE_NVFP4] = 0.48};
    const dw_tensor *k = run->call.in[ATTENTION_K], *v = run->call.in[ATTENTION_V];
    const int codes = codes_of(k->format);
    const double width = (double)(k->dims[3] + v->dims[3]), scales = 2 * DECODE_SCALE_ROW_BYTES(codes, (double)k->dims[3]);
    const double bytes = codes == DECODE_PLAIN ? width * 2 : codes == DECODE_NVFP4 ? width / 2 + scales : width + scales;
    const double writes_s = run->write == NULL ? 0 : op_operand(&run->write->call, UPDATE_COS) != NULL ? 1e-6 : 0.1e-6;
    return 7.8e-6 + writes_s + (double)decode_divide(&run->call, DECODE_ROWS).tiles * bytes * (double)attention_slots(&run->call) / (parts[codes] * chip_bytes_per_s(run->chip));
}

/* Keys of which a row or page must hold a multiple, so that its scales lie in pieces of 16 bytes. */
static int64_t keys_of_piece(const op_call *call) {
    const dw_tensor *k = call->in[ATTENTION_K];
    const int64_t bytes = DECODE_SCALE_ROW_BYTES(codes_of(k->format), k->dims[3]);
    return bytes >= 16 ? 1 : 16 / bytes;
}

/* Is it of one token, whose row and position are operands? */
static bool is_lone(const op_call *call) {
    return op_operand(call, ATTENTION_ROW) != NULL && op_operand(call, ATTENTION_POSITION) != NULL && call->in[ATTENTION_Q]->dims[0] == 1 && call->in[ATTENTION_Q]->dims[2] == 1;
}

/* Few tokens, which see nothing behind themselves, whose places are inputs of the run: what they see but the slots of these tokens was written by runs before this one. */
static bool is_early(const kernel_run *run) {
    const op_call *call = &run->call;
    const dw_tensor *row = op_operand(call, ATTENTION_ROW), *position = op_operand(call, ATTENTION_POSITION);
    const unsigned places = 1u << ATTENTION_ROW | 1u << ATTENTION_POSITION | (op_operand(call, ATTENTION_TABLE) != NULL ? 1u << ATTENTION_TABLE : 0);
    if (row == NULL || position == NULL || row->format != DW_FORMAT_i64 || position->format != DW_FORMAT_i64) return false;
    return call->in[ATTENTION_Q]->dims[0] == 1 && call->in[ATTENTION_Q]->dims[2] <= DECODE_EARLY && run->adds_tokens && (run->given_in & places) == places && op_attr_int(call->attrs, OP_ATTR_ahead) == 0;
}

/* Tiles of the heads of a query lie along y of the grid. */
enum { MOST_OF_HEADS = 65535 };
static int64_t of_heads(const op_call *call) { return call->in[ATTENTION_K]->dims[1] * decode_divide(call, DECODE_ROWS).parts; }

/* Of a token that it is to write: it is alone, its place is there before the run, and one tile has all heads that share its key. */
static const char *token_refusal(const kernel_run *run, text *why) {
    if (!is_lone(&run->call) || !is_early(run)) return "it writes a token alone, whose place, in i64, is an input of the run";
    if (op_operand(&run->write->call, UPDATE_QUERIES) == NULL && (run->call.in[ATTENTION_Q]->dims[3] % CUDA_VECTOR != 0 || !cuda_lies_at_16(run->call.in[ATTENTION_Q]->data))) return "queries do not lie in pieces of 16 bytes";
    const char *reason = cache_token_refusal(run->write, why);
    if (reason != NULL) return reason;
    return decode_divide(&run->call, DECODE_ROWS).parts > 1 || find_entry(run) == NULL ? "more heads share a key than it writes one for" : NULL;
}

const char *attention_decode_takes(const kernel_run *run, text *why) {
    const dw_tensor *k = run->call.in[ATTENTION_K];
    const int64_t keys = attention_slots(&run->call), page = k->dims[2];
    const char *reason = attention_lacks_maps(&run->call, why);
    if (reason != NULL) return reason;
    if (dw_format_is_block(k->format) && page % keys_of_piece(&run->call) != 0)
        return kernel_because(why, "rows or pages hold %lld keys; their scales lie in pieces of 16 bytes where that is a multiple of %lld", (long long)page, (long long)keys_of_piece(&run->call));
    if (op_operand(&run->call, ATTENTION_TABLE) != NULL && page % DECODE_KEYS != 0) return kernel_because(why, "pages hold %lld keys; it reads %d at a time", (long long)page, DECODE_KEYS);
    if (of_heads(&run->call) > MOST_OF_HEADS) return kernel_because(why, "%lld tiles of heads are more than a grid has along an axis", (long long)of_heads(&run->call));
    if (keys <= INT32_MAX / 2 && decode_divide(&run->call, DECODE_ROWS).tiles <= INT32_MAX / DECODE_SPLITS) return run->write != NULL ? token_refusal(run, why) : NULL;
    return kernel_because(why, "%lld keys, or %lld tiles of queries, are more than it counts to", (long long)keys, (long long)decode_divide(&run->call, DECODE_ROWS).tiles);
}

/* So many queries of a row of the cache are not worth a tile where decoding is faster. */
int64_t attention_decode_rows(const kernel_run *run) {
    enum { FEW_QUERIES = 16 };
    const op_call *call = &run->call;
    const bool has_row = call->n_in > ATTENTION_ROW && call->in[ATTENTION_ROW] != NULL;
    return kernel_result_rows(call) / call->in[ATTENTION_Q]->dims[2] * FEW_QUERIES * (has_row ? attention_rows(call) : 1);
}

/* ---- the launch ---- */

/* The maps of codes in boxes of rows, and of their scales, some to a row. L2 is asked for 128 bytes, a row of the box of the widest heads: with 256 each row of it asks for a neighbour that comes by a request of its own. */
static void take_code_maps(kernel_launch *launch, const kernel_run *run, int index, int codes, const void *of_codes, const void *of_scales) {
    const dw_tensor *x = run->call.in[index];
    const uint64_t row = (uint64_t)x->dims[3] / (codes == DECODE_NVFP4 ? 2 : 1), slots = (uint64_t)x->dims[2], heads = (uint64_t)x->dims[1], rows = (uint64_t)x->dims[0];
    const uint64_t scales = (uint64_t)DECODE_SCALE_ROW_BYTES(codes, x->dims[3]);
    launch->maps[launch->map_count] = (kernel_map){
        .operand = (uint16_t)index, .type = KERNEL_MAP_BYTE, .rank = 4, .swizzle = codes == DECODE_NVFP4 ? KERNEL_SWIZZLE_64 : KERNEL_SWIZZLE_128, .promotion = KERNEL_PROMOTION_128,
        .dims = {row, slots, heads, rows}, .strides = {row, row * slots, row * slots * heads}, .box = {DECODE_ROW_BYTES(codes), DECODE_KEYS, 1, 1},
    };
    cuda_slot(launch, KERNEL_SLOT_MAP, launch->map_count++, of_codes, 0);
    launch->maps[launch->map_count] = (kernel_map){
        .operand = (uint16_t)index, .of_scales = true, .type = KERNEL_MAP_BYTE, .rank = 4, .swizzle = KERNEL_SWIZZLE_NONE, .promotion = KERNEL_PROMOTION_NONE,
        .dims = {slots * scales, heads, rows, 1}, .strides = {slots * scales, slots * heads * scales, slots * heads * rows * scales}, .box = {(uint32_t)(DECODE_KEYS * scales), 1, 1, 1},
    };
    cuda_slot(launch, KERNEL_SLOT_MAP, launch->map_count++, of_scales, 0);
}

/* Blocks that a multiprocessor of the chip holds: no more than its shared memory has room for, which is what one block may have, and the driver's part of it. Each block has such a part. */
static int held_of(const decode_entry *e, const chip_caps *chip) {
    enum { DRIVER_BYTES = 1024 };
    const int room = (int)((chip->shared_bytes + DRIVER_BYTES) / (shared_bytes(e) + DRIVER_BYTES));
    return room < e->blocks ? room : e->blocks;
}

/* Hundredths of the multiprocessors' places that clusters of so many blocks fill: an H200 has places for 132, 132, 120, 120 and 112 blocks in clusters of 1, 2,
 * 4, 8 and 16, one to a multiprocessor, and for 264, 264, 248, 240 and 224, two to each. Sizes that are no powers of two only where two find room. */
static int filled(int held, int splits) {
    if (splits > 8) return splits == DECODE_SPLITS ? 84 : 0;
    if ((splits & (splits - 1)) != 0 && held < 2) return 0;
    return splits > 2 ? 90 : 100;
}

/* The part of the memory's rate that so many blocks come to where a multiprocessor has places for two, in hundredths: one on each comes to more than two on some of them. Measured on an H200
 * (bench/results/h200/attention.md). */
static int64_t reached(int64_t blocks, int64_t units) {
    enum { MOST_OF_ONE_EACH = 94 };
    const int64_t of_one_each = 145 * blocks / units;
    if (blocks > units) return 60 + 41 * blocks / (2 * units);
    return of_one_each < MOST_OF_ONE_EACH ? of_one_each : MOST_OF_ONE_EACH;
}

/* Blocks that share a tile's keys, each with 64 keys at least: as many as find room at a time, a second round would cost as much as the first; of long rows as many as come to most of the memory's rate. Of a token
 * alone eight while these have few keys: nothing hides what a cluster of more takes to begin and to meet (bench/results/h200/attention.md). */
static int splits_of(const decode_entry *e, const chip_caps *chip, const op_call *call, int64_t tiles, int64_t keys) {
    enum { LONG_PART = 512, MOST_OF_TOKEN = 8 };
    const int rooms = is_lone(call) && keys <= MOST_OF_TOKEN * LONG_PART ? MOST_OF_TOKEN : DECODE_SPLITS, most = chip_cluster_blocks(chip) < rooms ? chip_cluster_blocks(chip) : rooms;
    const int held = held_of(e, chip);
    int splits = 1;
    for (int more = 2; more <= most && keys >= (int64_t)DECODE_WARPS * DECODE_KEYS * more; more++) {
        const bool is_long = e->codes == DECODE_PLAIN && held == 2 && keys >= (int64_t)LONG_PART * more;
        if (tiles * more > (int64_t)held * chip->units * filled(held, more) / 100) continue;
        if (!is_long || reached(tiles * more, chip->units) >= reached(tiles * splits, chip->units)) splits = more;
    }
    return splits;
}

/* Of an operand's address, once more. */
static void again(kernel_launch *launch, int index, const void *field) { cuda_slot(launch, KERNEL_SLOT_DATA, index, field, 0); }

static void take_row(kernel_launch *launch, int index, const kernel_norm *norm, int columns, const cache_part *part, attention_token_row *row) {
    *row = (attention_token_row){.from_head = part->from_head, .weight = part->norm.weight, .bias = part->norm.bias, .eps = part->norm.eps, .by_count = part->norm.by_count,
                                 .is_normed = part->norm.is_there, .centred = part->norm.centred, .turned = part->turned};
    again(launch, KERNEL_WRITE + index, &row->from);
    if (norm != NULL && norm->columns[0] != NULL) again(launch, KERNEL_WRITE + columns, &row->weight.data);
    if (norm != NULL && norm->columns[1] != NULL) again(launch, KERNEL_WRITE + columns + 1, &row->bias.data);
}

static dw_status take_token(kernel_launch *launch, const kernel_run *run, attention_token_arguments *all) {
    const kernel_run *write = run->write;
    attention_token_first *first = &all->first;
    const attention_arguments *p = &all->decode.call;
    const cache_arguments *a = &all->token;
    TRY(cache_take_token(launch, write, &all->token));
    *first = (attention_token_first){
        .table = p->table, .table_strides = {p->table_strides[0], p->table_strides[1]}, .keys = p->keys, .cache_rows = p->cache_rows, .window = p->window, .ahead = p->ahead, .page = p->page, .pages = p->pages,
        .causal = p->causal, .shared_heads = (int32_t)p->shared_heads, .splits = all->decode.splits, .turns_queries = op_operand(&write->call, UPDATE_QUERIES) != NULL, .width = (int32_t)p->width,
        .value_width = (int32_t)p->value_width, .scale = p->scale, .angle_width = (int32_t)a->width, .interleaved = a->interleaved, .has_sink = p->has_sink, .out = p->out, .cosine = a->cosine, .sine = a->sine,
        .value_head = a->parts[CACHE_TOKEN_VALUES].from_head, .out_head = p->out_strides[1], .out_col = p->out_strides[3],
    };
    again(launch, ATTENTION_ROW, &first->row);
    again(launch, ATTENTION_POSITION, &first->position);
    if (p->page != 0) again(launch, ATTENTION_TABLE, &first->table.data);
    for (int i = UPDATE_COS; i <= UPDATE_SIN; i++)
        if (op_operand(&write->call, i) != NULL) again(launch, KERNEL_WRITE + i, i == UPDATE_COS ? &first->cosine.data : &first->sine.data);
    take_row(launch, UPDATE_KEYS, write->heads[0], KERNEL_HEADS, &a->parts[CACHE_TOKEN_KEYS], &first->key);
    first->queries.from_head = p->q_strides[1];       /* of those that nothing turns */
    if (!first->turns_queries) again(launch, ATTENTION_Q, &first->queries.from);
    if (first->turns_queries) take_row(launch, UPDATE_QUERIES, write->heads[1], KERNEL_HEADS + 2, &a->parts[CACHE_TOKEN_QUERIES], &first->queries);
    again(launch, KERNEL_WRITE + UPDATE_VALUES, &first->value);
    again(launch, KERNEL_RESULT, &first->out.data);
    for (int i = 0; i < 2; i++) {
        const cache_part *part = &a->parts[i == 0 ? CACHE_TOKEN_KEYS : CACHE_TOKEN_VALUES];
        first->caches[i] = (attention_token_cache){.to_row = part->to_row, .to_head = part->to_head, .to_token = part->to_token};
        again(launch, KERNEL_WRITE + KERNEL_RESULT + i, &first->caches[i].to);
    }
    return DW_OK;
}

dw_status attention_decode_shape(const kernel_run *run, kernel_launcher *launcher) {
    attention_heads by_heads;
    run = attention_by_heads(run, &by_heads);
    const decode_entry *e = find_entry(run);
    const decode_division d = decode_divide(&run->call, DECODE_ROWS);
    kernel_launch launch;
    void *arguments = cuda_launch(&launch, "attention_decode", e->entry, e->writes ? sizeof(attention_token_arguments) : sizeof(attention_decode_arguments));
    attention_decode_arguments *g = e->writes ? &((attention_token_arguments *)arguments)->decode : arguments;
    TRY(attention_take(&launch, run, &g->call));
    g->splits = run->invariant ? 1 : splits_of(e, run->chip, &run->call, d.tiles, attention_slots(&run->call));
    g->parts = (int32_t)d.parts;
    g->bunches = (int32_t)d.bunches;
    g->queries = (int32_t)d.together;
    g->early = is_early(run);
    attention_take_blocks(&launch, run, &g->call, &g->blocks);
    if (e->codes) {
        take_code_maps(&launch, run, ATTENTION_K, e->codes, g->map_k, g->map_k_scales);
        take_code_maps(&launch, run, ATTENTION_V, e->codes, g->map_v, g->map_v_scales);
    } else {
        attention_take_map(&launch, run, ATTENTION_K, DECODE_KEYS, g->map_k);
        attention_take_map(&launch, run, ATTENTION_V, DECODE_KEYS, g->map_v);
    }
    if (e->writes) TRY(take_token(&launch, run, arguments));
    cuda_grid(&launch, g->splits * run->call.in[ATTENTION_Q]->dims[0] * d.bunches, of_heads(&run->call), 1);
    launch.block[0] = DECODE_WARPS * 32;
    launch.overlaps = true;
    if (g->splits > 1) launch.cluster[0] = (uint32_t)g->splits, launch.cluster[1] = launch.cluster[2] = 1;
    launch.shared_bytes = shared_bytes(e);
    return launcher->add(launcher, &launch);
}
