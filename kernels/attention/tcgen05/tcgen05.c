/* Attention by tcgen05: the host half of tcgen05.cu. Which calls it takes, which entry a call gets, and the launch. Pure: knows no driver. */
#include "kernels/attention/tcgen05/tcgen05.h"

#include "kernels/attention/host.h"
#include "kernels/attention/results.h"
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/quantize/quantised.h"

/* ---- entries ---- */

typedef struct tcgen05_entry {
    dw_format format;             /* of values */
    const char *image, *entry;
    attend_sizes sizes;
} tcgen05_entry;

static const tcgen05_entry entries[] = {
#define ATTENTION_TILE(name, ...) {DW_FORMAT_bf16, "attention_bf16_sm100", "attention_tcgen05_bf16_" #name, {__VA_ARGS__}},
#include "kernels/attention/tcgen05/tiles.def"
#undef ATTENTION_TILE
#define ATTENTION_TILE(name, ...) {DW_FORMAT_f16, "attention_f16_sm100", "attention_tcgen05_f16_" #name, {__VA_ARGS__}},
#include "kernels/attention/tcgen05/tiles.def"
#undef ATTENTION_TILE
#define ATTENTION_TILE(name, ...) {DW_FORMAT_bf16, "attention_codes_sm100", "attention_tcgen05_" #name, {__VA_ARGS__}},
#include "kernels/attention/tcgen05/codes.def"
#undef ATTENTION_TILE
};

enum { MOST_WIDTH = 256, MOST_VALUE_WIDTH = 256, MOST_MASKED_WIDTH = 128 };

/* What entries of a q in this format have. */
static int codes_of(dw_format q) { return q == DW_FORMAT_fp8_1x128 ? ATTEND_E4M3 : q == DW_FORMAT_mxfp8 ? ATTEND_MXFP8 : ATTEND_HALVES; }

/* ---- what is taken ---- */

const char *attention_tcgen05_refuses(const kernel_problem *problem, text *why) {
    const dw_format q = problem->in[ATTENTION_Q]->format;
    int64_t width, value_width;
    const char *reason = attention_refuses_cached(problem);
    if (reason == NULL && codes_of(q) != ATTEND_HALVES) return attention_refuses_codes(problem, q, q == DW_FORMAT_fp8_1x128 ? DW_FORMAT_fp8_128x128 : q, why);
    if (reason == NULL) reason = attention_reject_half_operands(problem, why);
    if (reason != NULL) return reason;
    if (!dim_is_constant(problem->in[ATTENTION_Q]->dims[3], &width) || !dim_is_constant(problem->in[ATTENTION_V]->dims[3], &value_width)) return "the heads' widths are not known at plan time";
    if (width <= MOST_WIDTH && value_width <= MOST_VALUE_WIDTH) return NULL;
    text_printf(why, "heads are %lld and %lld wide; it takes up to %d and %d", (long long)width, (long long)value_width, MOST_WIDTH, MOST_VALUE_WIDTH);
    return text_string(why);
}

/* Results that are written in blocks: those of a head in whole blocks. */
static bool is_written(dw_format out, dw_scale_layout layout, bool joined) {
    return joined && (out == DW_FORMAT_fp8_1x128 || out == DW_FORMAT_mxfp8) && layout == DW_SCALE_plain;
}

static bool is_written_here(const op_call *call) {
    const dw_tensor *out = call->out[0];
    return is_written(out->format, out->scale_layout, op_attr_bool(call->attrs, OP_ATTR_joined)) && call->in[ATTENTION_V]->dims[3] % num_info(out->format)->cols == 0 && cuda_lies_at_16(out->data);
}

const char *attention_tcgen05_blocks_refuses(const kernel_problem *problem, text *why) {
    const op_type *out = problem->out[0];
    op_type type;
    const op_type *result;
    if (!is_written(out->format, out->scale_layout, op_attr_bool(problem->attrs, OP_ATTR_joined))) return "it writes results of heads side by side in blocks of fp8_1x128 or mxfp8";
    const kernel_problem plain = quantised_plain(problem, &type, &result);
    return attention_tcgen05_refuses(&plain, why);
}

/* A box of TMA is a block of keys, or a page that is a part of one: rows that begin where the turns of a swizzle do, every 8. A block of keys in fp8_128x128 has one scale, so their pages are whole blocks. */
static const char *takes_pages(const op_call *call, text *why) {
    enum { SWIZZLED_ROWS = 8 };
    const int64_t page = call->in[ATTENTION_K]->dims[2];
    const bool has_parts = codes_of(call->in[ATTENTION_Q]->format) != ATTEND_E4M3;
    if (op_operand(call, ATTENTION_TABLE) == NULL || page % ATTEND_KEYS == 0 || (has_parts && ATTEND_KEYS % page == 0 && page % SWIZZLED_ROWS == 0)) return NULL;
    if (!has_parts) return kernel_because(why, "pages hold %lld keys; of keys in fp8_128x128 it takes multiples of %d", (long long)page, ATTEND_KEYS);
    return kernel_because(why, "pages hold %lld keys; it takes multiples of %d, and of %d those that divide it", (long long)page, ATTEND_KEYS, SWIZZLED_ROWS);
}

/* ---- which entry, how long ---- */

/* What becomes of products, and are queries of texts, or keys a ring or in pages? */
typedef struct tcgen05_kind { int scores; bool texts; } tcgen05_kind;

static tcgen05_kind kind_of(const op_call *call) {
    const dw_tensor *mask = op_operand(call, ATTENTION_MASK);
    tcgen05_kind kind = {ATTENTION_PLAIN, false};
    for (int i = ATTENTION_ROW; i < call->n_in; i++) kind.texts = kind.texts || call->in[i] != NULL;
    if (!attention_is_general(call)) return kind;
    const bool is_scaled = op_operand(call, ATTENTION_BIAS) != NULL || op_attr_real(call->attrs, OP_ATTR_softcap) > 0 || !(op_attr_real(call->attrs, OP_ATTR_scale) > 0);
    const bool is_shared = mask != NULL && (mask->rank < 2 || mask->dims[mask->rank - 2] == 1);   /* by all queries */
    kind.scores = !is_scaled && is_shared && !kind.texts && call->in[ATTENTION_Q]->dims[3] <= MOST_MASKED_WIDTH && call->in[ATTENTION_V]->dims[3] <= MOST_MASKED_WIDTH ? ATTENTION_MASKED : ATTENTION_GENERAL;
    return kind;
}

/* As counted in machine code (README.md), of a block: instructions of a softmax warp, and those that a pair of powers of 2 costs more by multiplying and adding; of a tile, of the warps that
 * correct and multiply, which share a scheduler with them. */
enum { SOFTEN_INSTRUCTIONS = 472, EMULATED_INSTRUCTIONS = 8, CORRECT_INSTRUCTIONS = 22, MULTIPLY_INSTRUCTIONS = 46, STEP_INSTRUCTIONS = 7 };
/* Of the warp that multiplies: of wide heads a piece of keys and one of values; of others in pieces what each costs more, behind the first of either. */
enum { WIDE_INSTRUCTIONS = 84, PIECE_INSTRUCTIONS = 17 };
/* What codes cost more: of e4m3 a softmax warp for scales of keys, and the warp that multiplies; with mxfp8 the latter, which waits and copies scales. */
enum { FACTOR_INSTRUCTIONS = 15, CODES_INSTRUCTIONS = 6, SCALES_INSTRUCTIONS = 30 };
/* The same of what is done besides, as it stands in the source and was not counted: bits of a mask; caps, biases and masks where products lie, which read 128 scores once more. */
enum { MASKED_INSTRUCTIONS = 40, GENERAL_INSTRUCTIONS = 1000 };

/* Keys that a query sees, on average. */
static double seen_of(const op_call *call) {
    const dw_tensor *q = call->in[ATTENTION_Q], *v = call->in[ATTENTION_V];
    const double each = 2.0 * (double)(q->dims[3] + v->dims[3]) * (double)(q->dims[0] * q->dims[1] * q->dims[2]);
    op_work work;
    call->op->work(call, &work);
    return each > 0 ? work.flops / each : 0;
}

/* Texts that a unit of so many queries goes through the keys of, on average. */
static double texts_of(const op_call *call, int unit_rows) {
    const dw_tensor *q = call->in[ATTENTION_Q];
    const double rows = (double)attention_rows(call), queries = (double)q->dims[2], units = (double)base_ceil_div(q->dims[2], unit_rows);
    const double texts = op_operand(call, ATTENTION_ROW) == NULL ? 1 : (rows < queries ? rows : queries) / (units > 0 ? units : 1);
    return texts > 1 ? texts : 1;
}

static void bound_of(const kernel_run *run, const tcgen05_entry *e, kernel_tiles_bound *bound) {
    const op_call *call = &run->call;
    const dw_tensor *q = call->in[ATTENTION_Q], *k = call->in[ATTENTION_K];
    const bool is_halves = e->sizes.codes == ATTEND_HALVES;
    const double pairs = ATTEND_KEYS / 16.0 * e->sizes.emulated, steps = e->sizes.width / (is_halves ? 16.0 : 32.0) + ATTEND_KEYS / 16.0;
    const double products = attend_is_wide(e->sizes) ? attend_key_pieces(e->sizes) * WIDE_INSTRUCTIONS : MULTIPLY_INSTRUCTIONS + STEP_INSTRUCTIONS * steps + PIECE_INSTRUCTIONS * (attend_key_pieces(e->sizes) + attend_value_pieces(e->sizes) - 2);
    const int besides = (e->sizes.scores == ATTENTION_MASKED ? MASKED_INSTRUCTIONS : e->sizes.scores == ATTENTION_GENERAL ? GENERAL_INSTRUCTIONS : 0) +
                        (e->sizes.codes == ATTEND_E4M3 ? FACTOR_INSTRUCTIONS + CODES_INSTRUCTIONS : e->sizes.codes == ATTEND_MXFP8 ? SCALES_INSTRUCTIONS : 0);
    const kernel_attend kernel = {.rows = ATTEND_ROWS, .keys = ATTEND_KEYS, .tiles = attend_tiles(e->sizes), .width = e->sizes.width, .value_width = e->sizes.value_width, .emulated = e->sizes.emulated / 8.0,
                                  .functions = op_attr_real(call->attrs, OP_ATTR_softcap) > 0 ? 2 : 0,
                                  .instructions = SOFTEN_INSTRUCTIONS + EMULATED_INSTRUCTIONS * pairs + CORRECT_INSTRUCTIONS + products + besides,
                                  .stages = attend_stages(e->sizes), .key_pieces = attend_key_pieces(e->sizes), .value_pieces = attend_value_pieces(e->sizes)};
    const kernel_attention size = {.heads = (double)(q->dims[0] * q->dims[1]), .shared = (double)q->dims[1] / (double)k->dims[1], .queries = (double)q->dims[2], .keys = (double)attention_slots(call),
                                   .seen = seen_of(call), .texts = texts_of(call, attend_unit_rows(e->sizes)), .score_bits = is_halves ? 16 : 8, .bits = 16, .result_bytes = 2};   /* of blocks, too: what is quantised decides which entry makes it, so that a result has the bits of a plain one that is quantised */
    kernel_attend_bound_of(&kernel, &size, run->chip, bound);
}

/* Of the entries of the kind with the least widths that suffice the one of least bound. */
static const tcgen05_entry *find_entry(const kernel_run *run, bool in_blocks) {
    const dw_tensor *q = run->call.in[ATTENTION_Q], *v = run->call.in[ATTENTION_V];
    const tcgen05_kind kind = kind_of(&run->call);
    const tcgen05_entry *best = NULL;
    kernel_tiles_bound least = {.seconds = 0}, bound;
    for (size_t i = 0; i < COUNT_OF(entries); i++) {
        const tcgen05_entry *e = &entries[i];
        if (e->format != v->format || (e->sizes.blocks != 0) != in_blocks || e->sizes.codes != codes_of(q->format) || q->dims[3] > e->sizes.width || v->dims[3] > e->sizes.value_width) continue;
        if (e->sizes.scores != kind.scores || (kind.texts && !e->sizes.texts) || (!kind.texts && e->sizes.texts && kind.scores != ATTENTION_GENERAL)) continue;
        if (best != NULL && (e->sizes.width != best->sizes.width || e->sizes.value_width != best->sizes.value_width)) break;
        bound_of(run, e, &bound);
        if (best != NULL && !(bound.seconds < least.seconds)) continue;
        best = e;
        least = bound;
    }
    return best;
}

/* The one that writes the result in blocks: the twin of that of the plain result, so that it has the bits of that quantised; NULL: it has none. */
static const tcgen05_entry *find_writer(const kernel_run *run) {
    const tcgen05_entry *plain = find_entry(run, false), *e = find_entry(run, true);
    return plain != NULL && e != NULL && e->sizes.width == plain->sizes.width && e->sizes.value_width == plain->sizes.value_width && e->sizes.emulated == plain->sizes.emulated ? e : NULL;
}

static const tcgen05_entry *entry_of(const kernel_run *run, bool in_blocks) { return in_blocks ? find_writer(run) : find_entry(run, false); }

static const char *takes(const kernel_run *run, bool in_blocks, text *why) {
    const dw_tensor *q = run->call.in[ATTENTION_Q];
    const int64_t heads = q->dims[0] * q->dims[1], keys = attention_slots(&run->call), units = base_ceil_div(q->dims[2], ATTEND_ROWS);
    const bool has_codes = codes_of(q->format) != ATTEND_HALVES;
    const char *reason = has_codes ? attention_lacks_code_maps(&run->call, why) : attention_lacks_maps(&run->call, why);
    if (reason == NULL) reason = takes_pages(&run->call, why);
    if (reason != NULL) return reason;
    if (in_blocks && find_writer(run) == NULL) return kernel_because(why, "no entry writes blocks of heads of this width, of codes, or of scores that more than position hides");
    if (entry_of(run, in_blocks) == NULL) return kernel_because(why, "no entry takes heads of this width");
    if (keys <= INT32_MAX / 2 && q->dims[2] <= INT32_MAX / 2 && heads <= INT32_MAX / (units > 0 ? units : 1)) return NULL;
    return kernel_because(why, "%lld keys, or %lld queries of %lld heads, are more than it counts to", (long long)keys, (long long)q->dims[2], (long long)heads);
}

const char *attention_tcgen05_takes(const kernel_run *run, text *why) { return takes(run, false, why); }

const char *attention_tcgen05_blocks_takes(const kernel_run *run, text *why) {
    const int64_t rows = kernel_result_rows(&run->call);
    if (!is_written_here(&run->call)) return kernel_because(why, "values are %lld wide, which are no whole blocks, or the result does not lie in pieces of 16 bytes", (long long)run->call.in[ATTENTION_V]->dims[3]);
    return rows > INT32_MAX / 2 ? kernel_because(why, "%lld queries are more than it counts to", (long long)rows) : takes(run, true, why);
}

/* None where it is written in blocks. */
int64_t attention_tcgen05_rows(const kernel_run *run) { return is_written_here(&run->call) && find_writer(run) != NULL ? 0 : INT64_MAX; }

static double seconds(const kernel_run *run, bool in_blocks) {
    kernel_tiles_bound bound;
    bound_of(run, entry_of(run, in_blocks), &bound);
    return bound.seconds;
}

double attention_tcgen05_seconds(const kernel_run *run) { return seconds(run, false); }
double attention_tcgen05_blocks_seconds(const kernel_run *run) { return seconds(run, true); }

static bool bound_known(const kernel_run *run, bool in_blocks, kernel_tiles_bound *bound) {
    const tcgen05_entry *e = entry_of(run, in_blocks);
    if (e == NULL || !kernel_tiles_known(run->chip)) return false;
    bound_of(run, e, bound);
    return true;
}

bool attention_tcgen05_bound(const kernel_run *run, kernel_tiles_bound *bound) { return bound_known(run, false, bound); }
bool attention_tcgen05_blocks_bound(const kernel_run *run, kernel_tiles_bound *bound) { return bound_known(run, true, bound); }

/* ---- the launch ---- */

/* Heads whose units fill half of the chip: the more of them read the same keys and values at a time, the less the L2 has to give. In bunches that are about alike. */
static int64_t heads_together(const kernel_run *run, int64_t heads, int64_t units) {
    const int64_t shared = run->call.in[ATTENTION_Q]->dims[1] / run->call.in[ATTENTION_K]->dims[1], few = (int64_t)run->chip->units / (2 * units);
    const int64_t together = base_ceil_div(few > 0 ? few : 1, shared) * shared;
    return base_ceil_div(heads, base_ceil_div(heads, together));
}

static void take_lse(kernel_launch *launch, const kernel_run *run, attention_tcgen05_arguments *g) {
    if (run->call.n_out < 2) return;
    cuda_take_array(launch, run, KERNEL_RESULT + 1, &g->lse);
    for (int axis = 0; axis < 3; axis++) g->lse_strides[axis] = run->call.out[1]->strides[axis];
    g->has_lse = true;
}

static void take_blocks(kernel_launch *launch, const kernel_run *run, attention_tcgen05_arguments *g) {
    const dw_tensor *out = run->call.out[0];
    const int64_t block = num_info(out->format)->cols, cols = out->dims[2];
    g->call.out.format = quantised_from(run->call.attrs, out->format);
    g->blocks = (attend_blocks){.out_row_bytes = cols, .scales_of_row = cols / block, .block = (int32_t)block};
    cuda_slot(launch, KERNEL_SLOT_SCALES, KERNEL_RESULT, &g->blocks.scales, 0);
}

/* given: the run as it is; in_blocks: its result is. */
static dw_status launch_entry(const kernel_run *given, bool in_blocks, kernel_launcher *launcher) {
    attention_heads by_heads;
    const kernel_run *run = attention_by_heads(given, &by_heads);
    const tcgen05_entry *e = entry_of(run, in_blocks);
    const dw_tensor *q = run->call.in[ATTENTION_Q];
    const int64_t heads = q->dims[0] * q->dims[1], units = base_ceil_div(q->dims[2], attend_unit_rows(e->sizes));
    kernel_launch launch;
    attention_tcgen05_arguments *g = cuda_launch(&launch, e->image, e->entry, sizeof *g);
    TRY(attention_take(&launch, run, &g->call));
    const int rows = g->call.page > 0 && g->call.page < ATTEND_KEYS ? g->call.page : ATTEND_KEYS, value_rows = rows > attend_value_keys(e->sizes) ? attend_value_keys(e->sizes) : rows;
    if (e->sizes.codes != ATTEND_HALVES) {
        attention_take_codes(&launch, run, ATTENTION_Q, ATTEND_ROWS, g->map_q, &g->q_scales);
        attention_take_codes(&launch, run, ATTENTION_K, rows, g->map_k, &g->k_scales);
    } else {
        attention_take_map(&launch, run, ATTENTION_Q, ATTEND_ROWS, g->map_q);
        attention_take_map(&launch, run, ATTENTION_K, rows, g->map_k);
    }
    attention_take_map(&launch, run, ATTENTION_V, value_rows, g->map_v);
    if (in_blocks) take_blocks(&launch, given, g);
    else attention_take_map(&launch, run, KERNEL_RESULT, ATTEND_ROWS, g->map_out);
    take_lse(&launch, run, g);
    attention_shifts(&g->call, &g->begin_shift, &g->end_shift);
    g->units = (int32_t)units;
    g->heads_together = (int32_t)heads_together(run, heads, units);
    g->formats = e->format == DW_FORMAT_bf16 ? 1u << 7 | 1u << 10 : 0;
    cuda_grid(&launch, heads * units < run->chip->units ? heads * units : run->chip->units, 1, 1);
    launch.block[0] = ATTEND_THREADS;
    launch.overlaps = true;
    launch.shared_bytes = (uint32_t)attend_shared_bytes(e->sizes);
    return launcher->add(launcher, &launch);
}

dw_status attention_tcgen05_shape(const kernel_run *run, kernel_launcher *launcher) { return launch_entry(run, false, launcher); }
dw_status attention_tcgen05_blocks_shape(const kernel_run *run, kernel_launcher *launcher) { return launch_entry(run, true, launcher); }
