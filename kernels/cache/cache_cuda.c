/* cache_write and cache_update on a GPU: the host half of cache_vectors.cu, of cache.cu for the parts whose rows do not lie so, and of cache_blocks.cu for other caches in blocks. */
#include "kernels/cache/host.h"

#include "kernels/gpu/host/host.h"
#include "kernels/move/parts.h"

/* Caches may be in blocks; tokens, angles and queries lie plain. */
const char *cache_cuda_reject(const kernel_problem *problem, text *why) {
    const int caches = problem->op->id == OP_cache_update ? 2 : 1;
    const op_type *in[UPDATE_OPERANDS], *out[CACHE_PARTS];
    kernel_problem plain = *problem;
    if (!dw_format_is_block(problem->out[0]->format)) return cuda_reject_packed(problem, why);
    for (int i = 0; i < problem->n_in; i++) in[i] = i < caches ? NULL : problem->in[i];
    for (int i = 0; i < problem->n_out; i++) out[i] = i < caches ? NULL : problem->out[i];
    plain.in = in;
    plain.out = out;
    return cuda_reject_packed(&plain, why);
}

/* Of cache_vectors.cu: what a thread has on the way, and the most that a block keeps of angles; tokens that have a block each. */
enum { WARP = 32, AHEAD_BYTES = 8 * 16, ANGLES_BYTES = 16 << 10, FEW_TOKENS = 64 };

/* Caches, tokens and queries lie in vectors by their formats, or tokens go into blocks by lanes. */
static bool may_lie_in_vectors(const kernel_problem *problem, int caches, bool in_blocks) {
    for (int i = caches; i < problem->n_in + problem->n_out; i++) {
        const op_type *type = i < problem->n_in ? problem->in[i] : problem->out[i - problem->n_in];
        if (type == NULL || dw_format_is_block(type->format) || type->format == DW_FORMAT_i32 || type->format == DW_FORMAT_i64) continue;
        if (type->format != DW_FORMAT_bf16 && type->format != DW_FORMAT_f16 && (type->format != DW_FORMAT_f32 || (in_blocks && i < 2 * caches))) return false;
    }
    return chip_has(problem->chip, CHIP_tma);
}

/* In vectors a start and the bytes, as an H200 took them in place in a graph of such calls (bench/results/h200/move.md, 2026-11-29): of many tokens, and of few, which hide what they wait for. */
double cache_cuda_cost(const kernel_problem *problem) {
    const bool both = problem->op->id == OP_cache_update;
    const int caches = both ? 2 : 1, cosines = both && problem->n_in > UPDATE_COS && problem->in[UPDATE_COS] != NULL;
    const bool in_blocks = dw_format_is_block(problem->out[0]->format);
    const double plain_start_s = 1.5e-6, many_s = 4.5e-6, few_s = 1.25e-6, turned_s = 0.45e-6, blocks_s = 0.7e-6;
    kernel_typical typical;
    if (!may_lie_in_vectors(problem, caches, in_blocks) || !kernel_at_typical(problem, 0, &typical)) return plain_start_s + cuda_cost(problem);
    const int64_t tokens = typical.run.call.in[caches]->dims[2];
    const bool is_few = tokens <= FEW_TOKENS && tokens <= problem->chip->units;
    const double moves_s = kernel_run_roofline(&typical.run, DW_FORMAT_f32, 0.1, in_blocks ? 0.32 : 0.6) - problem->chip->launch_s;
    return moves_s + (is_few ? few_s + (cosines ? turned_s : 0) : many_s) + (in_blocks ? blocks_s : 0);
}

size_t cache_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* The launch that a part belongs to (kernels/cache/README.md). */
typedef enum cache_launch { IN_VECTORS, IN_ELEMENTS, IN_BLOCKS } cache_launch;

/* Operand from into result to; columns: where those of its norm are found (kernel_norm_column). */
typedef struct cache_way { int from, to; bool cached, turned; const kernel_norm *norm; int columns; cache_launch launch; } cache_way;

/* The parts of a call, their launches apart; their number. */
static int parts_of(const kernel_run *run, cache_way ways[CACHE_PARTS]) {
    const op_call *call = &run->call;
    int count = 0;
    if (call->op->id == OP_cache_write) {
        ways[count++] = (cache_way){CACHE_Y, 0, true, false, NULL, 0, IN_ELEMENTS};
        return count;
    }
    const bool turned = op_operand(call, UPDATE_COS) != NULL;
    ways[count++] = (cache_way){UPDATE_KEYS, 0, true, turned, run->heads[0], KERNEL_HEADS, IN_ELEMENTS};
    ways[count++] = (cache_way){UPDATE_VALUES, 1, true, false, NULL, 0, IN_ELEMENTS};
    if (op_operand(call, UPDATE_QUERIES) != NULL) ways[count++] = (cache_way){UPDATE_QUERIES, 2, false, true, run->heads[1], KERNEL_HEADS + 2, IN_ELEMENTS};
    return count;
}

/* Does the tensor lie in steps of so many elements along all axes but the last, from a multiple of 16 bytes on? Of an invariant run tokens have to, be there one or many. */
static bool lies_in_steps(const kernel_run *run, const dw_tensor *tensor, int64_t elements) {
    const int last = tensor->rank - 1;
    if (!cuda_lies_at_16(tensor->data) || (tensor->dims[last] > 1 && tensor->strides[last] != 1)) return false;
    for (int i = 0; i < last; i++)
        if ((tensor->dims[i] > 1 || (run->invariant && i == last - 1)) && tensor->strides[i] % elements != 0) return false;
    return true;
}

static bool is_wide(dw_format format) { return format == DW_FORMAT_f32 || format == DW_FORMAT_bf16 || format == DW_FORMAT_f16; }

/* Do the angles lie in vectors, and is the width a whole number of them? */
static bool turns_in_vectors(const kernel_run *run) {
    const op_call *call = &run->call;
    const int64_t width = op_attr_int(call->attrs, OP_ATTR_width);
    for (int i = UPDATE_COS; i <= UPDATE_SIN; i++) {
        const dw_tensor *angle = call->in[i];
        if (!is_wide(angle->format) || op_tensor_step(angle, 0) != 1 || !lies_in_steps(run, angle, CUDA_VECTOR)) return false;
    }
    return (op_attr_bool(call->attrs, OP_ATTR_interleaved) ? width : width / 2) % CUDA_VECTOR == 0;
}

static bool is_in_blocks(const kernel_run *run, const cache_way *way) { return dw_format_is_block(run->call.out[way->to]->format); }

static bool lies_in_vectors(const kernel_run *run, const cache_way *way) {
    const dw_tensor *from = run->call.in[way->from], *to = run->call.out[way->to];
    if (is_in_blocks(run, way)) return false;
    const int64_t bytes = dw_format_bits(to->format) / 8, elements = way->turned ? CUDA_VECTOR : 16 / bytes;
    if (!chip_has(run->chip, CHIP_tma) || from->dims[3] % elements != 0) return false;
    if (way->turned && (!is_wide(from->format) || !turns_in_vectors(run))) return false;
    return lies_in_steps(run, from, elements) && lies_in_steps(run, to, elements);
}

static bool is_power_of_2(int64_t x) { return x > 0 && (x & (x - 1)) == 0; }

/* Rows of 16-bit elements in pieces of eight, which a power of two of a warp's lanes share. */
static bool is_shared_by_lanes(const kernel_run *run, const dw_tensor *from) {
    const int64_t lanes = from->dims[3] / CUDA_VECTOR;
    return (from->format == DW_FORMAT_bf16 || from->format == DW_FORMAT_f16) && from->dims[3] % CUDA_VECTOR == 0 && lanes <= 32 && is_power_of_2(lanes) && lies_in_steps(run, from, CUDA_VECTOR);
}

/* Rows that go into blocks in the launch of what lies in vectors. */
static bool goes_in_lanes(const kernel_run *run, const cache_way *way) {
    if (!is_in_blocks(run, way) || !chip_has(run->chip, CHIP_tma) || !cuda_lies_at_16(run->call.out[way->to]->data)) return false;
    return is_shared_by_lanes(run, run->call.in[way->from]) && (!way->turned || turns_in_vectors(run));
}

/* Of a part of the launch of what lies in vectors: so many lanes share a row; 0: none do. */
static int64_t lanes_of(const kernel_run *run, const cache_way *way) { return way->norm != NULL || is_in_blocks(run, way) ? run->call.in[way->from]->dims[3] / CUDA_VECTOR : 0; }

/* Elements that are moved at a time where nothing is looked at. */
static int64_t words_of(const kernel_run *run, const cache_way *way, bool in_vectors) {
    return in_vectors && !way->turned && lanes_of(run, way) == 0 ? 16 / (dw_format_bits(run->call.out[way->to]->format) / 8) : 1;
}

/* Units of a head. */
static int64_t units_of(const kernel_run *run, const cache_way *way, bool in_vectors) {
    const int64_t cols = run->call.in[way->from]->dims[3], width = op_attr_int(run->call.attrs, OP_ATTR_width);
    if (in_vectors && lanes_of(run, way) > 0) return lanes_of(run, way);
    if (!way->turned) return cols / words_of(run, way, in_vectors);
    return in_vectors ? (op_attr_bool(run->call.attrs, OP_ATTR_interleaved) ? cols : cols - width / 2) / CUDA_VECTOR : cols - width / 2;
}

/* A row's lanes lie side by side in a warp: whatever is in front of them, and a token's units in all, are multiples of them. */
static bool lanes_lie_together(const kernel_run *run, int count, const cache_way *ways) {
    for (int i = 0; i < count; i++) {
        if (ways[i].launch != IN_VECTORS || lanes_of(run, &ways[i]) == 0) continue;
        for (int k = 0; k < count; k++)
            if (ways[k].launch == IN_VECTORS && run->call.in[ways[k].from]->dims[1] * units_of(run, &ways[k], true) % lanes_of(run, &ways[i]) != 0) return false;
    }
    return true;
}

/* The parts of a call; their number. */
static int ways_of(const kernel_run *run, cache_way ways[CACHE_PARTS]) {
    const int count = parts_of(run, ways);
    for (int i = 0; i < count; i++) {
        const bool in_blocks = is_in_blocks(run, &ways[i]), in_vectors = in_blocks ? goes_in_lanes(run, &ways[i]) : lies_in_vectors(run, &ways[i]);
        ways[i].launch = in_vectors ? IN_VECTORS : in_blocks ? IN_BLOCKS : IN_ELEMENTS;
    }
    if (lanes_lie_together(run, count, ways)) return count;
    for (int i = 0; i < count; i++)
        if (is_in_blocks(run, &ways[i])) ways[i].launch = IN_BLOCKS;
    return count;
}

/* ---- norms of heads ---- */

static bool is_column_in_vectors(const dw_tensor *column, int64_t cols) {
    return column == NULL || (is_wide(column->format) && column->rank == 1 && column->dims[0] == cols && column->strides[0] == 1 && cuda_lies_at_16(column->data));
}

static bool normalises_part(const kernel_run *run, const cache_way *way) {
    const int64_t cols = run->call.in[way->from]->dims[3];
    if (!is_shared_by_lanes(run, run->call.in[way->from]) || way->launch != IN_VECTORS) return false;
    return is_column_in_vectors(way->norm->columns[0], cols) && is_column_in_vectors(way->norm->columns[1], cols);
}

bool cache_cuda_normalises(const kernel_run *run) {
    cache_way ways[CACHE_PARTS];
    const int count = ways_of(run, ways);
    bool any = false;
    for (int i = 0; i < count; i++) {
        if (ways[i].norm != NULL && !normalises_part(run, &ways[i])) return false;
        any = any || ways[i].norm != NULL;
    }
    return !any || lanes_lie_together(run, count, ways);
}

static void take_column(kernel_launch *launch, const kernel_run *run, int index, cuda_array *column) {
    if (kernel_operand(run, index) != NULL) cuda_take_array(launch, run, index, column);
}

static void take_norm(kernel_launch *launch, const kernel_run *run, const cache_way *way, cache_norm *norm) {
    const int64_t cols = run->call.in[way->from]->dims[3];
    take_column(launch, run, way->columns, &norm->weight);
    take_column(launch, run, way->columns + 1, &norm->bias);
    norm->eps = (float)way->norm->eps;
    norm->by_count = (float)(1.0 / (double)cols);
    norm->is_there = true;
    norm->centred = way->norm->centred;
}

/* ---- parts ---- */

/* Strides and units of a part. */
static void take_part(kernel_launch *launch, const kernel_run *run, const cache_way *way, bool in_vectors, cache_part *part) {
    const dw_tensor *from = run->call.in[way->from], *to = run->call.out[way->to];
    const int64_t words = words_of(run, way, in_vectors);
    cuda_take_array(launch, run, KERNEL_RESULT + way->to, &part->to);
    cuda_take_array(launch, run, way->from, &part->from);
    part->cached = way->cached;
    part->turned = way->turned;
    part->heads = from->dims[1];
    part->cols = from->dims[3] / words;
    part->units = units_of(run, way, in_vectors);
    part->lanes = in_vectors ? (int32_t)lanes_of(run, way) : 0;
    if (way->norm != NULL) take_norm(launch, run, way, &part->norm);
    part->to_row = to->strides[0] / words;
    part->to_head = to->strides[1] / words;
    part->to_token = to->strides[2] / words;
    part->to_step = to->strides[3];
    part->from_head = from->strides[1] / words;
    part->from_token = from->strides[2] / words;
    part->from_step = from->strides[3];
}

static void take_places(kernel_launch *launch, const kernel_run *run, cache_arguments *a) {
    const op_call *call = &run->call;
    const bool both = call->op->id == OP_cache_update;
    const int row = both ? (int)UPDATE_ROW : (int)CACHE_ROW, position = both ? (int)UPDATE_POSITION : (int)CACHE_POSITION;
    cuda_take_array(launch, run, row, &a->row);
    cuda_take_array(launch, run, position, &a->position);
    a->row_step = call->in[row]->strides[0];
    a->position_step = call->in[position]->strides[0];
    a->rows = call->out[0]->dims[0];
    a->slots = call->out[0]->dims[2];
    a->tokens = call->in[row]->dims[0];
    const int pages = both ? (int)UPDATE_TABLE : (int)CACHE_TABLE;
    const dw_tensor *table = op_operand(call, pages);
    if (table != NULL) {
        cuda_take_array(launch, run, pages, &a->table);
        a->has_table = true;
        a->table_rows = table->dims[0];
        a->table_pages = table->dims[1];
        for (int axis = 0; axis < 2; axis++) a->table_strides[axis] = table->strides[axis];
    }
    a->slot_shift = -1;
    for (int shift = 0; shift < 63; shift++)
        if (a->slots == INT64_C(1) << shift) a->slot_shift = shift;
    const unsigned places = 1u << row | 1u << position | (table != NULL ? 1u << pages : 0);
    a->places_given = (run->given_in & places) == places;
    cuda_take_fault(launch, &a->fault);
    if (!both || op_operand(call, UPDATE_COS) == NULL) return;
    cuda_take_array(launch, run, UPDATE_COS, &a->cosine);
    cuda_take_array(launch, run, UPDATE_SIN, &a->sine);
    a->cosine_token = op_tensor_step(call->in[UPDATE_COS], 1);
    a->cosine_step = op_tensor_step(call->in[UPDATE_COS], 0);
    a->sine_token = op_tensor_step(call->in[UPDATE_SIN], 1);
    a->sine_step = op_tensor_step(call->in[UPDATE_SIN], 0);
    a->width = op_attr_int(call->attrs, OP_ATTR_width);
    a->interleaved = op_attr_bool(call->attrs, OP_ATTR_interleaved);
}

static int64_t tokens_of(const op_call *call) { return call->in[call->op->id == OP_cache_update ? (int)UPDATE_ROW : (int)CACHE_ROW]->dims[0]; }

/* Of a part that goes into blocks by lanes: places count rows of a cache that lies as a whole. */
static void take_rows_in_blocks(kernel_launch *launch, const kernel_run *run, const cache_way *way, cache_part *part, cuda_rows *to) {
    const dw_tensor *cache = run->call.out[way->to];
    cuda_take_rows(launch, run, KERNEL_RESULT + way->to, true, to);
    part->to_token = 1;
    part->to_head = cache->dims[2];
    part->to_row = part->to_head * cache->dims[1];
}

/* Of a token's angles where a part of the launch is turned, which lie in vectors then. */
static int64_t angle_bytes(const cache_arguments *a) {
    for (int i = 0; i < a->count; i++)
        if (a->parts[i].turned) return a->width * (a->cosine.element_bytes + a->sine.element_bytes);
    return 0;
}

/* Of many tokens a block takes so many that the chip holds all blocks at once: more blocks look at all tokens behind their own more often. In vectors a thread
 * has one unit, and threads of a token with few of them lie beside those of others. */
static void divide(const kernel_run *run, cache_arguments *a, bool in_vectors, int64_t held, kernel_launch *launch) {
    const int64_t shares = in_vectors ? base_ceil_div(a->units, CUDA_THREADS) : 1, side = in_vectors && a->units < CUDA_THREADS ? CUDA_THREADS / a->units : 1;
    const int64_t alone = in_vectors ? base_ceil_div(base_ceil_div(a->units, shares) * (side < a->tokens ? side : a->tokens), WARP) * WARP : CUDA_THREADS;
    const int64_t full = held * CUDA_THREADS / alone * run->chip->units, together = base_ceil_div(a->tokens * shares, full);
    a->together = (int32_t)(together < CACHE_TOKENS ? together : CACHE_TOKENS);
    if (a->together < side) a->together = (int32_t)(side < CACHE_TOKENS ? side : CACHE_TOKENS);
    const int64_t angles = in_vectors ? angle_bytes(a) : 0;
    a->angles_kept = angles > 0 && angles <= ANGLES_BYTES;
    if (a->angles_kept && a->together * angles > ANGLES_BYTES) a->together = (int32_t)(ANGLES_BYTES / angles);
    if (in_vectors) launch->shared_bytes = (uint32_t)(AHEAD_BYTES * alone + (a->angles_kept ? a->together * angles : 0));
    launch->block[0] = (uint32_t)alone;
    cuda_grid(launch, base_ceil_div(a->tokens, a->together), shares, 1);
}

/* Few tokens, each a block's or several blocks': as many as the chip has multiprocessors for; threads take a unit after the other where a token has more. */
static void divide_few(const kernel_run *run, cache_arguments *a, kernel_launch *launch) {
    const int64_t shares = base_ceil_div(a->units, CUDA_THREADS), room = run->chip->units / a->tokens;
    a->together = 1;
    cuda_grid(launch, a->tokens, shares < room ? shares : room, 1);
}

/* One launch for the parts that lie in vectors, or for the others. */
static dw_status launch_parts(const kernel_run *run, kernel_launcher *launcher, int count, const cache_way *ways, bool in_vectors) {
    kernel_launch launch;
    static const char *const entries[3][3] = {{"cache_vectors", "cache_vectors_heads", "cache_vectors_blocks"},
                                              {"cache_vectors_few", "cache_vectors_few_heads", "cache_vectors_few_blocks"},
                                              {"cache_vectors_one", "cache_vectors_one_heads", "cache_vectors_one_blocks"}};
    const int64_t tokens = tokens_of(&run->call);
    const int few = tokens == 1 ? 2 : tokens <= FEW_TOKENS && tokens <= run->chip->units ? 1 : 0;
    bool normed = false, in_blocks = false;
    for (int i = 0; in_vectors && i < count; i++) {
        normed = normed || ways[i].norm != NULL;
        in_blocks = in_blocks || (ways[i].launch == IN_VECTORS && is_in_blocks(run, &ways[i]));
    }
    cache_arguments *a = cuda_launch(&launch, in_vectors ? "cache_vectors" : "cache", in_vectors ? entries[few][in_blocks ? 2 : normed ? 1 : 0] : "cache_elements",
                                     in_blocks ? sizeof(cache_blocks_arguments) : sizeof *a);
    for (int i = 0; i < 2 * count; i++) {         /* those of lanes first, which lie together */
        const cache_way *way = &ways[i % count];
        if ((lanes_of(run, way) > 0) != (i < count) || way->launch != (in_vectors ? IN_VECTORS : IN_ELEMENTS)) continue;
        cache_part *part = &a->parts[a->count];
        take_part(&launch, run, way, in_vectors, part);
        if (is_in_blocks(run, way)) take_rows_in_blocks(&launch, run, way, part, &((cache_blocks_arguments *)(void *)a)->to[a->count]);
        part->span = base_ceil_div(part->heads * part->units, part->lanes > 0 ? WARP : 1) * (part->lanes > 0 ? WARP : 1);
        a->units += part->span;
        a->count++;
    }
    if (normed || in_blocks) a->units = base_ceil_div(a->units, WARP) * WARP;     /* a warp has one token */
    if (a->units == 0) return DW_OK;
    take_places(&launch, run, a);
    if (in_vectors && a->units > INT32_MAX / CACHE_TOKENS) return base_fail(run->call.context, DW_UNSUPPORTED, "%s: a token has more elements than it counts to", run->call.op->name);
    if (in_vectors && few > 0) divide_few(run, a, &launch);
    else divide(run, a, in_vectors, in_vectors ? 3 : 8, &launch);
    launch.overlaps = in_vectors;
    return launcher->add(launcher, &launch);
}

/* ---- a token that attention writes ---- */

static const char token_reason[] = "the token's keys, values and queries do not lie in vectors that the lanes of a warp share";

const char *cache_token_refusal(const kernel_run *run, text *why) {
    cache_way ways[CACHE_PARTS];
    const int count = parts_of(run, ways);
    if (tokens_of(&run->call) != 1 || run->call.out[0]->dims[2] == 0) return kernel_because(why, "there are %lld tokens, and it writes one", (long long)tokens_of(&run->call));
    for (int i = 0; i < count; i++) {
        const cache_way *way = &ways[i];
        const dw_tensor *from = run->call.in[way->from];
        const bool in_lanes = way->from != UPDATE_VALUES;
        if (is_in_blocks(run, way)) return "caches are in blocks";
        if (in_lanes ? !is_shared_by_lanes(run, from) : (from->format != DW_FORMAT_bf16 && from->format != DW_FORMAT_f16) || from->dims[3] % CUDA_VECTOR != 0 || from->dims[3] > WARP * CUDA_VECTOR) return token_reason;
        if (!lies_in_steps(run, from, CUDA_VECTOR) || !lies_in_steps(run, run->call.out[way->to], CUDA_VECTOR) || (way->turned && !turns_in_vectors(run))) return token_reason;
        for (int k = 0; way->norm != NULL && k < 2; k++)
            if (!is_column_in_vectors(way->norm->columns[k], from->dims[3])) return token_reason;
    }
    return NULL;
}

dw_status cache_take_token(kernel_launch *launch, const kernel_run *run, cache_arguments *a) {
    static const int places[] = {[UPDATE_KEYS] = CACHE_TOKEN_KEYS, [UPDATE_VALUES] = CACHE_TOKEN_VALUES, [UPDATE_QUERIES] = CACHE_TOKEN_QUERIES};
    cache_way ways[CACHE_PARTS];
    const int first = launch->slot_count;
    for (int i = 0; i < 2; i++)
        if (!cuda_is_in_place(run, i)) return base_fail(run->call.context, DW_UNSUPPORTED, "attention: it writes a token into caches alone that it reads, in place");
    a->count = parts_of(run, ways);
    for (int i = 0; i < a->count; i++) {
        cache_part *part = &a->parts[places[ways[i].from]];
        take_part(launch, run, &ways[i], false, part);
        part->lanes = (int32_t)(part->cols / CUDA_VECTOR);
    }
    take_places(launch, run, a);
    a->together = 1;
    for (int i = first; i < launch->slot_count; i++) launch->slots[i].index = (uint16_t)(launch->slots[i].index + KERNEL_WRITE);
    return DW_OK;
}

/* ---- caches in blocks ---- */

static void take_block_part(kernel_launch *launch, const kernel_run *run, const cache_way *way, cache_part *part, cuda_rows *to) {
    const dw_tensor *cache = run->call.out[way->to];
    take_part(launch, run, way, false, part);
    cuda_take_rows(launch, run, KERNEL_RESULT + way->to, true, to);
    part->units = 32 * base_ceil_div(part->cols, CACHE_CHUNK);
    part->to_step = 1;
    part->to_token = cache->dims[3];
    part->to_head = part->to_token * cache->dims[2];
    part->to_row = part->to_head * cache->dims[1];
}

static dw_status launch_blocks(const kernel_run *run, kernel_launcher *launcher, int count, const cache_way *ways) {
    kernel_launch launch;
    cache_blocks_arguments *arguments = cuda_launch(&launch, "cache_blocks", "cache_blocks", sizeof *arguments);
    cache_arguments *a = &arguments->call;
    for (int i = 0; i < count; i++) {
        if (ways[i].launch != IN_BLOCKS) continue;
        take_block_part(&launch, run, &ways[i], &a->parts[a->count], &arguments->to[a->count]);
        a->units += a->parts[a->count].span = a->parts[a->count].heads * a->parts[a->count].units;
        a->count++;
    }
    if (a->units == 0) return DW_OK;
    take_places(&launch, run, a);
    const int64_t together = base_ceil_div(a->tokens, 2 * (int64_t)run->chip->units);
    a->together = (int32_t)(together < CACHE_TOKENS ? together : CACHE_TOKENS);
    cuda_grid(&launch, base_ceil_div(a->tokens, a->together), 1, 1);
    return launcher->add(launcher, &launch);
}

/* Elements, scales and second level, where the result is not the cache. */
static dw_status copy_blocks(const kernel_run *run, kernel_launcher *launcher, int index) {
    static const kernel_slot_kind kinds[CACHE_COPIES] = {KERNEL_SLOT_DATA, KERNEL_SLOT_SCALES, KERNEL_SLOT_SECOND};
    const dw_tensor *to = run->call.out[index];
    num_parts parts;
    kernel_launch launch;
    if (!num_layout(to->format, to->scale_layout, to->rank, to->dims, &parts)) return base_fail(run->call.context, DW_LIMIT, "%s: a cache is too large to address", run->call.op->name);
    cache_copy_arguments *a = cuda_launch(&launch, "cache_blocks", "cache_copy_blocks", sizeof *a);
    const size_t bytes[CACHE_COPIES] = {parts.data_bytes, parts.scale_bytes, parts.second_bytes};
    for (int i = 0; i < CACHE_COPIES; i++) {
        a->bytes[i] = (int64_t)bytes[i];
        if (bytes[i] == 0) continue;
        cuda_slot(&launch, kinds[i], KERNEL_RESULT + index, &a->to[i], 0);
        cuda_slot(&launch, kinds[i], index, &a->from[i], 0);
    }
    if (bytes[0] == 0) return DW_OK;
    cuda_grid_items(&launch, (int64_t)bytes[0]);
    return launcher->add(launcher, &launch);
}

dw_status cache_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    const op_call *call = &run->call;
    cache_way ways[CACHE_PARTS];
    const int count = ways_of(run, ways);
    if (!cache_cuda_normalises(run)) return base_fail(call->context, DW_UNSUPPORTED, "%s: it does not do these norms of keys or queries, whose rows do not lie in vectors", call->op->name);
    if (op_attr_int(call->attrs, OP_ATTR_width) > call->in[ways[0].from]->dims[3])
        return base_fail(call->context, DW_MISMATCH, "cache_update: width is %lld, the last axis of keys is %lld", (long long)op_attr_int(call->attrs, OP_ATTR_width),
                         (long long)call->in[ways[0].from]->dims[3]);
    for (int i = 0; i < count; i++) {
        if (!ways[i].cached || cuda_is_in_place(run, i)) continue;
        if (is_in_blocks(run, &ways[i])) {
            TRY(copy_blocks(run, launcher, i));
            continue;
        }
        const cuda_part to = cuda_whole(run, KERNEL_RESULT + i), from = cuda_whole(run, i);
        TRY(cuda_copy_part(run, launcher, &to, &from));
    }
    if (call->in[ways[0].from]->dims[2] == 0) return DW_OK;
    if (call->out[0]->dims[2] == 0) return base_fail(call->context, DW_INVALID, "%s: the cache has no place for a token", call->op->name);
    TRY(launch_blocks(run, launcher, count, ways));
    TRY(launch_parts(run, launcher, count, ways, true));
    return launch_parts(run, launcher, count, ways, false);
}
