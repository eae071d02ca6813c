/* sample on the CPU: a token for each row of logits. Problem: rows of some 10^5 logits, of which a few decide. A row is a task.
 *
 *     one pass       the largest of each block of 64, and the sum of e^x, rescaled from stretch to stretch
 *     best           the blocks that hold the length best of the row, cut by a histogram
 *     bias, ..       where a row has them, into a row of its own
 *     top_k, top_p   candidates: what lies in blocks that reach the cut at all; the cut itself by histograms of the ordered bits, 11 at a time, of counts or of masses, which are
 *                    integers: any order of summing gives the same
 *     draw           blocks whose largest could win with the most noise; and within them ids whose noise could
 *
 * Everything that decides on an id is exact, so results do not depend on threads, instruction set or other rows. Speed: README.md. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"
#include "kernels/sample/loops.h"

enum { DIGIT_BITS = 11, BUCKETS = 1 << DIGIT_BITS, ORDER_BITS = 32 };   /* of histograms */
enum { TABLES = 4, MANY = 8192 };                                       /* of a histogram of so many */
enum { DENSE = 16 };                                                    /* where one of so many ids is a candidate, they are drawn among by blocks */

const char *sample_reject(const kernel_problem *problem, text *why) {
    (void)problem;
    (void)why;
    return NULL;
}

double sample_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.2, 0.3); }

/* ---- scratch ---- */

/* Of a thread. */
typedef struct sample_room {
    float *x;                         /* a row in fp32, up to whole blocks */
    float *maxima;                    /* of each block; and of what is cut */
    float *values;                    /* candidates, with ascending ids */
    int32_t *ids;
    uint32_t *orders, *weights;       /* of those that a cut is sought among */
} sample_room;

static size_t padded(int64_t count) { return base_align_up((size_t)count, SAMPLE_BLOCK); }

/* Carves the scratch up; its bytes. */
static size_t room_of(uint8_t *memory, int64_t count, sample_room *room) {
    const size_t row = padded(count) * sizeof(float), of_blocks = padded((int64_t)(padded(count) / SAMPLE_BLOCK)) * sizeof(float);
    float *const at = (float *)(void *)memory;
    if (memory != NULL) {
        *room = (sample_room){.x = at, .values = at + row / 4, .ids = (int32_t *)(void *)(memory + 2 * row), .orders = (uint32_t *)(void *)(memory + 3 * row),
                              .weights = (uint32_t *)(void *)(memory + 4 * row), .maxima = at + 5 * row / 4};
    }
    return 5 * row + of_blocks;
}

size_t sample_workspace(const kernel_run *run) {
    const int threads = run->pool != NULL ? pool_threads(run->pool) : run->chip->units;
    return (size_t)threads * room_of(NULL, run->call.in[SAMPLE_LOGITS]->dims[1], NULL);
}

/* ---- a row ---- */

typedef struct sample_job {
    const sample_loops *loops;
    const cpu_rows *rows;
    const op_call *call;
    int64_t count, blocks;
    int64_t picked_rows;              /* of counts, bias and mask */
    uint8_t *workspace;
} sample_job;

typedef struct sample_row {
    const sample_job *job;
    sample_room room;
    int64_t row, picked;
    sampling_settings settings;
    const float *x;                   /* logits: whole blocks, */
    float tail[SAMPLE_BLOCK];         /* and the last one, where it is not whole or they lie elsewhere: -inf behind the end */
    int64_t whole;
    float largest;
} sample_row;

static const float *block_of(const sample_row *r, int64_t block) { return block < r->whole ? r->x + block * SAMPLE_BLOCK : r->tail; }

/* The row in fp32, where it lies or in the room. */
static void load_row(sample_row *r) {
    const dw_tensor *logits = r->job->call->in[SAMPLE_LOGITS];
    const int64_t count = r->job->count;
    const void *from = cpu_at(logits, r->row * count);
    r->x = logits->format == DW_FORMAT_f32 ? from : r->room.x;
    if (logits->format == DW_FORMAT_bf16) r->job->rows->from_bf16(from, r->room.x, count);
    if (logits->format == DW_FORMAT_f16) r->job->rows->from_f16(from, r->room.x, count);
    r->whole = count / SAMPLE_BLOCK;
    for (int i = 0; i < SAMPLE_BLOCK; i++) r->tail[i] = r->whole * SAMPLE_BLOCK + i < count ? r->x[r->whole * SAMPLE_BLOCK + i] : -INFINITY;
}

static float largest_block(const sample_row *r) {
    float largest = -INFINITY;
    for (int64_t block = 0; block < r->job->blocks && !isnan(largest); block++)
        if (!(r->room.maxima[block] <= largest)) largest = r->room.maxima[block];
    return largest;
}

static void find_maxima(sample_row *r) {
    r->job->loops->maxima(r->x, r->whole, r->room.maxima);
    if (r->whole < r->job->blocks) r->job->loops->maxima(r->tail, 1, r->room.maxima + r->whole);
    r->largest = largest_block(r);
}

/* The largest of all blocks, and the sum of e^(x - largest): what came before shrinks where a stretch has a larger one. NaN ends it. */
static double find_maxima_and_sum(sample_row *r) {
    const sample_loops *loops = r->job->loops;
    double sum = 0;
    r->largest = -INFINITY;
    for (int64_t block = 0, count; block < r->job->blocks; block += count) {
        const float *x = block_of(r, block);
        float here = -INFINITY, *maxima = r->room.maxima + block;
        count = block >= r->whole ? 1 : r->whole - block < SAMPLE_STRETCH ? r->whole - block : SAMPLE_STRETCH;
        loops->maxima(x, count, maxima);
        for (int64_t i = 0; i < count && !isnan(here); i++)
            if (!(maxima[i] <= here)) here = maxima[i];
        if (isnan(here) || here == INFINITY) {
            r->largest = here;
            return 0;
        }
        if (here > r->largest) {
            sum *= exp((double)r->largest - (double)here);
            r->largest = here;
        }
        if (here > -INFINITY) sum += loops->exp_sum(x, count, r->largest);
    }
    return sum;
}

/* The first id of the largest logit. */
static int64_t first_largest(const sample_row *r) {
    int64_t block = 0, i = 0;
    while (r->room.maxima[block] != r->largest) block++;
    for (const float *x = block_of(r, block); x[i] != r->largest;) i++;
    return block * SAMPLE_BLOCK + i;
}

/* ---- cuts ---- */

/* The least order that is kept, and how many of those that have it: all of them, or the first ones. */
typedef struct sample_cut { uint32_t order; uint64_t ties; bool all; } sample_cut;

/* Sums by bucket, of a digit of count orders; weights NULL: 1 each. Many are summed in turns in several tables, as neighbours often meet in a bucket, and an addition waits for the last. */
static void fill_buckets(const uint32_t *orders, const uint32_t *weights, int64_t count, int shift, uint64_t buckets[TABLES][BUCKETS]) {
    const int tables = count < MANY ? 1 : TABLES;
    memset(buckets, 0, (size_t)tables * sizeof buckets[0]);
    for (int64_t i = 0; i < count; i++) buckets[i & (tables - 1)][orders[i] >> shift & (BUCKETS - 1)] += weights != NULL ? weights[i] : 1;
    for (int i = 0; i < BUCKETS && tables > 1; i++)
        for (int table = 1; table < tables; table++) buckets[0][i] += buckets[table][i];
}

/* Those whose digit is this one to the front. */
static int64_t keep_bucket(uint32_t *orders, uint32_t *weights, int64_t count, int shift, uint32_t bucket) {
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint32_t order = orders[i];
        orders[kept] = order;
        if (weights != NULL) weights[kept] = weights[i];
        kept += (order >> shift & (BUCKETS - 1)) == bucket;
    }
    return kept;
}

/* Where count orders, from the largest on, reach a sum of wanted, which they do; weights NULL: 1 each. Both arrays are overwritten. */
static sample_cut find_cut(uint32_t *orders, uint32_t *weights, int64_t count, uint64_t wanted) {
    uint64_t buckets[TABLES][BUCKETS], before = 0;
    sample_cut cut = {0, 0, false};
    for (int bits = ORDER_BITS; bits > 0;) {
        const int shift = bits > DIGIT_BITS ? bits - DIGIT_BITS : 0;
        uint32_t bucket = BUCKETS - 1;
        fill_buckets(orders, weights, count, shift, buckets);
        while (before + buckets[0][bucket] < wanted) before += buckets[0][bucket--];
        count = keep_bucket(orders, weights, count, shift, bucket);
        cut.order |= bucket << shift;
        bits = shift;
    }
    for (int64_t i = 0; before < wanted; i++) {
        before += weights != NULL ? weights[i] : 1;
        cut.ties++;
    }
    cut.all = cut.ties == (uint64_t)count;
    return cut;
}

static float logit_of_order(uint32_t order) { return small_float((int32_t)(order ^ (order >> 31 != 0 ? UINT32_C(0x80000000) : UINT32_MAX))); }

/* Candidates that the cut keeps, to the front; they have ascending ids. */
static int64_t apply_cut(sample_row *r, int64_t count, sample_cut cut) {
    float *values = r->room.values;
    int32_t *ids = r->room.ids;
    const float least = logit_of_order(cut.order);
    int64_t kept = 0;
    if (cut.all) return r->job->loops->keep(values, ids, 0, count, least, values, ids);
    for (int64_t i = 0; i < count; i++) {
        const float value = values[i];
        const bool is_tie = value == least && cut.ties > 0;
        values[kept] = value;
        ids[kept] = ids[i];
        kept += value > least || is_tie;
        cut.ties -= is_tie;
    }
    return kept;
}

/* The k best of count candidates. */
static int64_t cut_best(sample_row *r, int64_t count, int64_t k) {
    if (k >= count) return count;
    r->job->loops->orders(r->room.values, count, r->room.orders);
    return apply_cut(r, count, find_cut(r->room.orders, NULL, count, (uint64_t)k));
}

/* The fewest best of count candidates that have the share top_p of their mass. */
static int64_t cut_mass(sample_row *r, int64_t count) {
    uint64_t sum = 0;
    r->job->loops->orders(r->room.values, count, r->room.orders);
    r->job->loops->masses(r->room.values, count, r->largest, r->settings.temperature, r->room.weights);
    for (int64_t i = 0; i < count; i++) sum += r->room.weights[i];
    return apply_cut(r, count, find_cut(r->room.orders, r->room.weights, count, (uint64_t)ceil((double)r->settings.top_p * (double)sum)));
}

/* No one of the k best lies below: k blocks reach it. */
static float least_of_best(const sample_row *r, int64_t k) {
    const sample_loops *loops = r->job->loops;
    if (k > r->job->blocks) return -INFINITY;
    loops->orders(r->room.maxima, r->job->blocks, r->room.orders);
    return logit_of_order(find_cut(r->room.orders, NULL, r->job->blocks, (uint64_t)k).order);
}

/* Logits of at least so much, -inf apart, are candidates. */
static int64_t gather(sample_row *r, float least) {
    int64_t count = 0;
    if (least == -INFINITY) least = -3.4028234663852886e38f;
    for (int64_t block = 0; block < r->job->blocks; block++)
        if (r->room.maxima[block] >= least)
            count += r->job->loops->keep(block_of(r, block), NULL, block * SAMPLE_BLOCK, SAMPLE_BLOCK, least, r->room.values + count, r->room.ids + count);
    return count;
}

/* ---- draws ---- */

typedef struct sample_draw { uint64_t seed, number; float least_heat, score; int64_t id; } sample_draw;

static void take_best(sample_draw *draw, const float *scores, int64_t count, int64_t first, const int32_t *ids) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t id = ids != NULL ? ids[i] : first + i;
        if (scores[i] < draw->score || (scores[i] == draw->score && id >= draw->id)) continue;
        draw->score = scores[i];
        draw->id = id;
    }
}

/* The noise of larger words is too little for ids of this heat: u is at most -log(1 - u), which is e^-noise. */
static uint32_t most_word(const sample_draw *draw, float heat) {
    const float missing = draw->score - heat - 1e-3f;
    if (missing <= 0) return UINT32_MAX;
    return (uint32_t)(sampling_exp(-missing) * 4294967040.0f) + 1024;
}

/* A block of the row. */
static void draw_block(const sample_row *r, int64_t block, sample_draw *draw) {
    const sample_loops *loops = r->job->loops;
    const float heat = sampling_heat(r->room.maxima[block], r->largest, r->settings.temperature);
    uint32_t words[SAMPLE_BLOCK];
    float scores[SAMPLE_BLOCK];
    if (heat < draw->least_heat || heat + SAMPLING_MOST_NOISE < draw->score) return;
    if (loops->block_words(draw->seed, draw->number, block, words) > most_word(draw, heat)) return;
    loops->scores(block_of(r, block), words, SAMPLE_BLOCK, r->largest, r->settings.temperature, draw->least_heat, scores);
    take_best(draw, scores, SAMPLE_BLOCK, block * SAMPLE_BLOCK, NULL);
}

/* The block of the largest first, as it is likely to leave little for others. */
static void draw_among_all(const sample_row *r, sample_draw *draw) {
    const int64_t first = first_largest(r) / SAMPLE_BLOCK;
    draw_block(r, first, draw);
    for (int64_t block = 0; block < r->job->blocks; block++)
        if (block != first) draw_block(r, block, draw);
}

static void draw_among(const sample_row *r, int64_t count, sample_draw *draw) {
    const sample_loops *loops = r->job->loops;
    for (int64_t i = 0; i < count; i += SAMPLE_BLOCK) {
        const int64_t here = count - i < SAMPLE_BLOCK ? count - i : SAMPLE_BLOCK;
        uint32_t words[SAMPLE_BLOCK];
        float scores[SAMPLE_BLOCK];
        loops->words(draw->seed, draw->number, r->room.ids + i, here, words);
        loops->scores(r->room.values + i, words, here, r->largest, r->settings.temperature, draw->least_heat, scores);
        take_best(draw, scores, here, 0, r->room.ids + i);
    }
}

/* The row with nothing but the candidates. */
static void spread(sample_row *r, int64_t count) {
    const int64_t whole = r->job->blocks * SAMPLE_BLOCK;
    for (int64_t i = 0; i < whole; i++) r->room.x[i] = -INFINITY;
    for (int64_t i = 0; i < count; i++) r->room.x[r->room.ids[i]] = r->room.values[i];
    r->x = r->room.x;
    r->whole = r->job->blocks;
    find_maxima(r);
}

static int64_t draw_id(sample_row *r) {
    const int64_t *numbers = (const int64_t *)r->job->call->in[SAMPLE_DRAW]->data + 2 * r->row;
    const sampling_settings *s = &r->settings;
    sample_draw draw = {(uint64_t)numbers[0], (uint64_t)numbers[1], sampling_least_heat(s->min_p), -INFINITY, INT64_MAX};
    const bool by_rank = s->top_k >= 1 && s->top_k < (float)r->job->count, by_mass = s->top_p > 0 && s->top_p < 1;
    if (!by_rank && !by_mass) {
        draw_among_all(r, &draw);
        return draw.id;
    }
    const float has_mass = by_mass ? (float)((double)r->largest + (double)SAMPLING_LEAST_MASS * (double)s->temperature) : -INFINITY;
    const float reaches = by_rank ? least_of_best(r, (int64_t)s->top_k) : -INFINITY;
    int64_t count = gather(r, reaches > has_mass ? reaches : has_mass);
    if (by_rank) count = cut_best(r, count, (int64_t)s->top_k);
    if (by_mass) count = cut_mass(r, count);
    if (count > r->job->count / DENSE) {
        spread(r, count);
        draw_among_all(r, &draw);
    } else {
        draw_among(r, count, &draw);
    }
    return draw.id;
}

/* ---- bias, mask, penalties ---- */

static const void *picked_row(const sample_row *r, int operand) {
    const dw_tensor *t = r->picked < 0 ? NULL : op_operand(r->job->call, operand);
    return t != NULL ? cpu_at(t, r->picked * t->dims[1]) : NULL;
}

/* The row as its settings make it, in the room; false: it stays as it is. A NaN or +inf that a mask hides is in maxima already. */
static bool adjust(sample_row *r, bool *finite) {
    const int32_t *counts = sampling_has_penalties(&r->settings) ? picked_row(r, SAMPLE_COUNTS) : NULL, *mask = picked_row(r, SAMPLE_MASK);
    const float *bias = picked_row(r, SAMPLE_BIAS);
    const int64_t count = r->job->count;
    float *x = r->room.x;
    *finite = true;
    if (counts == NULL && mask == NULL && bias == NULL) return false;
    if (r->x != x) memcpy(x, r->x, (size_t)count * sizeof *x);
    if (bias != NULL) r->job->rows->add(x, bias, x, count);
    if (counts != NULL) r->job->loops->penalise(x, counts, count, &r->settings);
    if (mask != NULL) r->job->loops->mask(x, mask, count);
    for (int64_t i = count; i < r->job->blocks * SAMPLE_BLOCK; i++) x[i] = -INFINITY;
    r->x = x;
    r->whole = r->job->blocks;
    find_maxima(r);
    *finite = r->largest < INFINITY;
    return true;
}

/* ---- the row's results ---- */

static int64_t choose(sample_row *r) {
    bool finite;
    adjust(r, &finite);
    if (!finite) return SAMPLING_NOT_FINITE;
    if (r->largest == -INFINITY) return SAMPLING_NOTHING_LEFT;
    return r->settings.temperature == 0 ? first_largest(r) : draw_id(r);
}

/* Candidates in order, by Shell's sort: the least id first of equal ones. */
static void order_candidates(sample_row *r, int64_t count) {
    float *values = r->room.values;
    int32_t *ids = r->room.ids;
    for (int64_t gap = count; gap > 1;) {
        gap = gap < 5 ? 1 : (gap * 5 - 1) / 11;
        for (int64_t i = gap; i < count; i++) {
            const float value = values[i];
            const int32_t id = ids[i];
            int64_t to = i;
            for (; to >= gap && (values[to - gap] < value || (values[to - gap] == value && ids[to - gap] > id)); to -= gap) {
                values[to] = values[to - gap];
                ids[to] = ids[to - gap];
            }
            values[to] = value;
            ids[to] = id;
        }
    }
}

/* The length best of the logits as they come; those of -inf last. */
static void write_best(sample_row *r, double log_sum, int64_t *ids, float *logs, int64_t length) {
    int64_t count = cut_best(r, gather(r, least_of_best(r, length)), length);
    for (int64_t id = 0; count < length; id++) {
        if (block_of(r, id / SAMPLE_BLOCK)[id % SAMPLE_BLOCK] != -INFINITY) continue;
        r->room.values[count] = -INFINITY;
        r->room.ids[count++] = (int32_t)id;
    }
    order_candidates(r, length);
    for (int64_t i = 0; i < length; i++) {
        ids[i] = r->room.ids[i];
        logs[i] = (float)((double)r->room.values[i] - log_sum);
    }
}

static bool read_settings(sample_row *r) {
    const dw_tensor *row = op_operand(r->job->call, SAMPLE_ROW), *settings = r->job->call->in[SAMPLE_PARAMETERS];
    r->settings = sampling_settings_of((const float *)settings->data + r->row * SAMPLING_SETTINGS);
    r->picked = row == NULL ? r->row : (int64_t)num_load(row->format, row->data, r->row);
    return sampling_are_good(&r->settings) && r->picked >= -1 && r->picked < r->job->picked_rows;
}

static void sample_task(void *argument, int64_t row, int worker) {
    const sample_job *job = argument;
    const op_call *call = job->call;
    const dw_tensor *logits = call->in[SAMPLE_LOGITS];
    const int64_t length = call->n_out > 2 ? call->out[2]->dims[1] : 0;
    int64_t *best_ids = length > 0 ? (int64_t *)call->out[2]->data + row * length : NULL, id = SAMPLING_BAD_SETTINGS;
    float *best_logs = length > 0 ? (float *)call->out[3]->data + row * length : NULL;
    sample_row r = {.job = job, .row = row};
    double log_sum = 0;
    room_of(job->workspace + (size_t)worker * room_of(NULL, job->count, NULL), job->count, &r.room);
    if (read_settings(&r)) {
        load_row(&r);
        const double sum = find_maxima_and_sum(&r);
        log_sum = (double)r.largest + log(sum);
        id = r.largest == -INFINITY ? SAMPLING_NOTHING_LEFT : SAMPLING_NOT_FINITE;
        if (isfinite(r.largest)) {
            if (length > 0) write_best(&r, log_sum, best_ids, best_logs, length);
            id = choose(&r);
        }
    }
    ((int64_t *)call->out[0]->data)[row] = id;
    ((float *)call->out[1]->data)[row] = id < 0 ? NAN : (float)(num_load(logits->format, logits->data, row * job->count + id) - log_sum);
    for (int64_t i = 0; i < length && id < 0; i++) {
        best_ids[i] = -1;
        best_logs[i] = NAN;
    }
}

static const sample_loops *loops_of(const chip_caps *chip) {
#if defined(__x86_64__)
    if (chip_has(chip, CHIP_avx512)) return &sample_loops_avx512;
    if (chip_has(chip, CHIP_avx2)) return &sample_loops_avx2;
#else
    (void)chip;
#endif
    return &sample_loops_portable;
}

dw_status sample_run(const kernel_run *run) {
    const op_call *call = &run->call;
    const dw_tensor *logits = call->in[SAMPLE_LOGITS];
    const int64_t count = logits->dims[1];
    sample_job job = {.loops = loops_of(run->chip), .rows = cpu_rows_of(run->chip), .call = call, .count = count, .blocks = (int64_t)(padded(count) / SAMPLE_BLOCK), .picked_rows = logits->dims[0],
                      .workspace = run->workspace};
    if ((call->n_out > 2 && call->out[2]->dims[1] > count) || count > INT32_MAX) return call->op->reference(call);   /* says what is wrong, or is for any size */
    for (int i = SAMPLE_COUNTS; i < call->n_in; i++)
        if (call->in[i] != NULL) job.picked_rows = call->in[i]->dims[0];
    pool_run(run->pool, logits->dims[0], sample_task, &job);
    return DW_OK;
}
