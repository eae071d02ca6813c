/* The matrix product over threads: tasks of one panel (or a pair of halves) and up to GEMM_CHUNK_ROWS rows, each computing all of k into
 * a tile on its stack, then the post list and the result's format. Chooses the instruction set; does no arithmetic of its own on sums. */
#include <math.h>
#include <string.h>

#include "kernels/gemm/cpu/gemm.h"

const gemm_isa *gemm_isa_of(const chip_caps *chip) {
#if defined(__x86_64__)
    static const gemm_isa *const sets[] = {&gemm_isa_avx512bf16, &gemm_isa_avx512, &gemm_isa_avx2};
    for (size_t i = 0; i < COUNT_OF(sets); i++) {
        if ((sets[i]->needs & chip->features) == sets[i]->needs) return sets[i];
    }
#else
    (void)chip;
#endif
    return &gemm_isa_portable;
}

enum { FETCH_ROWS = 16 };        /* of panels that are read as they lie: with fewer the hardware sees the stream itself */

enum { MAX_PARTS = 1024 };       /* of the rows of all slices that are looked through for subnormal numbers apart */

typedef struct work {
    const gemm_job *job;
    int64_t parts;                /* 0: nothing is looked for */
    uint8_t *has_subnormal;       /* [parts] */
    int64_t units;                /* panels, or pairs of halves */
    int64_t units_per_task, tasks_per_rows, row_chunks, chunk_rows, tasks_per_slice;
    bool direct;
} work;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Does the panel hold numbers that only the exact tile takes as they are? */
static bool needs_exact(const gemm_job *job, const gemm_slice *slice, const uint8_t *panel) {
    uint32_t flag = 0;
    if (job->compute != GEMM_BF16 || job->isa->exact_tile == NULL) return false;
    if (job->pack.panel == GEMM_PANEL_BF16) memcpy(&flag, panel + job->pack.flag_offset, sizeof flag);
    return slice->special || flag != 0;
}

/* Rows from the first on, at most so many, of which all or none have subnormal numbers. */
static int alike(const uint8_t *subnormal, int rows) {
    int count = 1;
    while (count < rows && subnormal[count] == subnormal[0]) count++;
    return count;
}

/* c [rows][32] = a times a panel, chunk by chunk. While a chunk is worked on the next one is fetched, at the end that of next_panel (NULL: none).
 * subnormal: [rows], which have such numbers; NULL: none. */
static void multiply(const gemm_job *job, const gemm_slice *slice, const uint8_t *panel, const uint8_t *next_panel, int64_t row, int64_t rows,
                     const uint8_t *subnormal, float *c) {
    _Alignas(64) uint8_t decoded[GEMM_DEPTH * GEMM_COLS * sizeof(float)];
    const gemm_pack *pack = &job->pack;
    int rows_max = job->isa->rows_max[job->compute];
    size_t element = job->compute == GEMM_F32 ? sizeof(float) : sizeof(uint16_t);
    bool direct = pack->panel == (job->compute == GEMM_F32 ? GEMM_PANEL_F32 : GEMM_PANEL_BF16);
    const uint8_t *a = (const uint8_t *)slice->a + (size_t)(row * job->a_stride) * element;
    const float *col_scales = pack->block_scales ? (const float *)(panel + pack->scale_offset) : NULL;
    size_t chunk_bytes = gemm_chunk_bytes(pack->panel, pack->depth);
    bool scaled = col_scales != NULL || slice->row_scales != NULL;
    bool exact = needs_exact(job, slice, panel);
    static const float ones[GEMM_COLS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    for (int64_t chunk = 0; chunk < pack->chunks; chunk++) {
        int64_t at = chunk * pack->depth;
        int64_t depth = pack->k - at < pack->depth ? pack->k - at : pack->depth;
        const uint8_t *source = panel + gemm_chunk_offset(pack, at);
        if (!direct) {
            if (slice->special && pack->panel != GEMM_PANEL_BF16) gemm_decode_special(pack->panel, job->compute, source, depth, decoded);
            else job->isa->decode[pack->panel][job->compute](source, depth, decoded);
        }
        gemm_tile tile = {
            .steps = job->compute == GEMM_F32 ? depth : (depth + 1) / 2,
            .a_stride = job->a_stride,
            .b = direct ? source : decoded,
            .add = chunk > 0,
            .row_scale_stride = job->row_scale_stride,
            .col_scale = scaled ? (col_scales != NULL ? col_scales + chunk * GEMM_COLS : ones) : NULL,
        };
        int64_t tiles = base_ceil_div(rows, rows_max);
        const uint8_t *next = chunk + 1 < pack->chunks ? panel + gemm_chunk_offset(pack, at + pack->depth) : next_panel;
        size_t share = base_align_up((chunk_bytes + (size_t)tiles - 1) / (size_t)tiles, 64);
        for (int64_t r = 0, left = tiles; r < rows; r += tile.rows, left -= left > 1) {
            if ((rows > FETCH_ROWS || !direct) && job->isa->fetch != NULL && next != NULL) job->isa->fetch(next + (size_t)(tiles - left) * share, share);
            tile.rows = (int)least(base_ceil_div(rows - r, left), rows_max);   /* even: 16 rows are 8 and 8 rather than 12 and 4 */
            if (subnormal != NULL) tile.rows = alike(subnormal + r, tile.rows);
            tile.a = a + (size_t)(r * job->a_stride + at) * element;
            tile.c = c + r * GEMM_COLS;
            tile.row_scale = slice->row_scales != NULL ? slice->row_scales + (row + r) * job->row_scale_stride + chunk : NULL;
            if (exact || (subnormal != NULL && subnormal[r])) job->isa->exact_tile(&tile);
            else job->isa->tile[job->compute](&tile);
        }
    }
    if (pack->chunks == 0) memset(c, 0, (size_t)rows * GEMM_COLS * sizeof(float));
}

/* Sums times the factors of rows and columns: second levels, scales per row and per tensor. The less comes first: their product may be no number of fp32 where the result is one. */
static void apply_factors(const gemm_job *job, const gemm_slice *slice, const uint8_t *panel, int64_t row, int64_t rows, float *c) {
    dw_format format = job->pack.format;
    bool columns = format == DW_FORMAT_fp8_row || format == DW_FORMAT_fp8_tensor || format == DW_FORMAT_nvfp4 || format == DW_FORMAT_nvfp4_row;
    if (!columns && slice->row_factor == NULL && slice->factor == NULL) return;
    const float *factors = (const float *)(panel + job->pack.factor_offset);
    for (int64_t r = 0; r < rows; r++, c += GEMM_COLS) {
        float row_factor = slice->row_factor != NULL ? slice->row_factor[row + r] : slice->factor != NULL ? *slice->factor : 1.0f;
        for (int i = 0; i < GEMM_COLS; i++) {
            const bool is_less = fabsf(row_factor) < fabsf(factors[i]);
            c[i] = c[i] * (is_less ? row_factor : factors[i]) * (is_less ? factors[i] : row_factor);
        }
    }
}

/* count elements of an operand, col_stride apart, as floats; zeros behind them up to a panel's width. */
static void load_operand(const gemm_job *job, const gemm_operand *operand, int64_t offset, int64_t count, float x[GEMM_COLS]) {
    for (int64_t i = count; i < GEMM_COLS; i++) x[i] = 0;
    int64_t stride = operand->col_stride;
    if (operand->format == DW_FORMAT_f32) {
        const float *data = (const float *)operand->data + offset;
        if (stride == 1 && count == GEMM_COLS) {
            memcpy(x, data, GEMM_COLS * sizeof *x);
            return;
        }
        for (int64_t i = 0; i < count; i++) x[i] = data[i * stride];
        return;
    }
    const uint16_t *data = (const uint16_t *)operand->data + offset;
    if (operand->format == DW_FORMAT_bf16 && stride == 1) {
        job->isa->from_bf16(data, x, count);
        return;
    }
    for (int64_t i = 0; i < count; i++) x[i] = operand->format == DW_FORMAT_bf16 ? num_bf16_to_f32(data[i * stride]) : num_f16_to_f32(data[i * stride]);
}

/* Columns [column, column + count) of the value so far live in c [rows][32]. */
static void apply_operand(const gemm_job *job, op_post step, const gemm_operand *operand, int64_t row, int64_t rows, int64_t column, int64_t count, float *c) {
    enum { TOGETHER = 8 };        /* rows that one call works on */
    float x[TOGETHER][GEMM_COLS];
    for (int64_t first = 0; first < rows; first += TOGETHER) {
        int64_t here = least(rows - first, TOGETHER);
        for (int64_t r = 0; r < here && (first == 0 || operand->row_stride != 0); r++) {
            if (r > 0 && operand->row_stride == 0) memcpy(x[r], x[0], sizeof x[0]);
            else load_operand(job, operand, (row + first + r) * operand->row_stride + column * operand->col_stride, count, x[r]);
        }
        job->isa->post(step, c + first * GEMM_COLS, x[0], here * GEMM_COLS);
    }
}

static void finish(const gemm_job *job, const gemm_slice *slice, int64_t row, int64_t rows, int64_t unit, float *c, float *u) {
    int64_t column = unit * GEMM_COLS, width = job->pack.halves ? job->pack.n / 2 : job->pack.n;
    int64_t count = least(width - column, GEMM_COLS);
    bool halved = !job->pack.halves;
    for (int i = 0, operand = 0; i < job->post.count; i++) {
        op_post step = job->post.steps[i];
        if (op_post_halves(step)) {
            job->isa->post(step, c, u, rows * GEMM_COLS);
            halved = true;
        } else if (op_post_operand_of(step) != OP_POST_NONE) {
            apply_operand(job, step, &slice->operands[operand], row, rows, column, count, c);
            if (!halved) apply_operand(job, step, &slice->operands[operand], row, rows, width + column, count, u);
            operand++;
        } else {
            job->isa->post(step, c, NULL, rows * GEMM_COLS);
            if (!halved) job->isa->post(step, u, NULL, rows * GEMM_COLS);
        }
    }
    size_t size = job->out_format == DW_FORMAT_f32 ? 4 : 2;
    uint8_t *out = (uint8_t *)slice->out + ((size_t)(row * job->out_row_stride) + (size_t)column) * size;
    for (int64_t r = 0; r < rows; r++, c += GEMM_COLS, out += (size_t)job->out_row_stride * size) {
        if (job->out_format == DW_FORMAT_f32) {
            if (count == GEMM_COLS) memcpy(out, c, GEMM_COLS * sizeof(float));   /* of a size that needs no call */
            else memcpy(out, c, (size_t)count * sizeof(float));
        } else if (job->out_format == DW_FORMAT_bf16 && count == GEMM_COLS) {
            job->isa->to_bf16(c, (uint16_t *)(void *)out, GEMM_COLS);
        } else if (job->out_format == DW_FORMAT_bf16) {
            uint16_t narrow[GEMM_COLS];
            job->isa->to_bf16(c, narrow, GEMM_COLS);
            memcpy(out, narrow, (size_t)count * sizeof narrow[0]);
        } else {
            for (int64_t i = 0; i < count; i++) ((uint16_t *)out)[i] = num_f32_to_f16(c[i]);
        }
    }
}

/* Few rows: a quantised panel, or two side by side, is decoded in registers, for as many rows at a time as these hold sums of. */
static void multiply_direct(const gemm_job *job, const gemm_slice *slice, const uint8_t *panel, int panels, int64_t row, int64_t rows, float *c, ptrdiff_t c_stride) {
    const gemm_pack *pack = &job->pack;
    gemm_direct direct = {
        .panels = panels,
        .c_stride = c_stride,
        .k = pack->k,
        .depth = pack->depth,
        .a_stride = job->a_stride,
        .b = panel,
        .panel_bytes = pack->panel_bytes,
        .col_scales = pack->block_scales ? (const float *)(panel + pack->scale_offset) : NULL,
        .row_scale_stride = job->row_scale_stride,
    };
    for (int64_t r = 0, left = base_ceil_div(rows, GEMM_ROWS_MAX); r < rows; r += direct.rows, left--) {
        direct.rows = (int)base_ceil_div(rows - r, left);
        direct.a = (const uint16_t *)slice->a + (row + r) * job->a_stride;
        direct.c = c + r * GEMM_COLS;
        direct.row_scales = slice->row_scales != NULL ? slice->row_scales + (row + r) * job->row_scale_stride : NULL;
        job->isa->direct[pack->panel](&direct);
    }
}

/* ---- rows with subnormal numbers ---- */

static bool row_has_subnormal(const gemm_job *job, const gemm_slice *slice, int64_t row) {
    return job->isa->has_subnormal((const uint16_t *)slice->a + row * job->a_stride, job->pack.k);
}

/* Chunks of rows are counted through all slices. */
static bool chunk_has_subnormal(const work *w, int64_t chunk) {
    gemm_slice slice;
    memset(&slice, 0, sizeof slice);
    w->job->slice(w->job, chunk / w->row_chunks, &slice);
    int64_t row = chunk % w->row_chunks * w->chunk_rows, end = least(slice.rows, row + w->chunk_rows);
    while (row < end && !row_has_subnormal(w->job, &slice, row)) row++;
    return row < end;
}

static int64_t part_of(const work *w, int64_t chunk) { return chunk * w->parts / (w->job->slices * w->row_chunks); }

static void look_task(void *argument, int64_t task, int worker) {
    (void)worker;
    const work *w = argument;
    int64_t chunks = w->job->slices * w->row_chunks;
    bool found = false;
    for (int64_t chunk = base_ceil_div(task * chunks, w->parts); chunk < chunks && part_of(w, chunk) == task && !found; chunk++) found = chunk_has_subnormal(w, chunk);
    w->has_subnormal[task] = found;
}

static void look_for_subnormals(work *w, pool *pool) {
    enum { ALONE = 1 << 16 };     /* elements that take less time than waking a thread */
    const gemm_job *job = w->job;
    w->parts = least(job->slices * w->row_chunks, MAX_PARTS);
    if ((double)job->slices * (double)job->rows_max * (double)job->pack.k > ALONE) {
        pool_run(pool, w->parts, look_task, w);
        return;
    }
    for (int64_t part = 0; part < w->parts; part++) look_task(w, part, 0);
}

/* Which of the rows have; NULL: none. flags: room for them. */
static const uint8_t *subnormal_rows(const work *w, const gemm_slice *slice, int64_t chunk, int64_t row, int64_t rows, uint8_t *flags) {
    bool any = false;
    if (w->parts == 0 || !w->has_subnormal[part_of(w, chunk)]) return NULL;
    for (int64_t r = 0; r < rows; r++) {
        flags[r] = row_has_subnormal(w->job, slice, row + r);
        any |= flags[r] != 0;
    }
    return any ? flags : NULL;
}

/* ---- tasks ---- */

static void run_task(void *argument, int64_t task, int worker) {
    (void)worker;
    const work *w = argument;
    const gemm_job *job = w->job;
    _Alignas(64) float tiles[2][GEMM_CHUNK_ROWS * GEMM_COLS];
    float *const c[2] = {tiles[0], tiles[1]};
    gemm_slice slice;
    memset(&slice, 0, sizeof slice);
    job->slice(job, task / w->tasks_per_slice, &slice);
    int64_t in_slice = task % w->tasks_per_slice;
    int64_t row = in_slice / w->tasks_per_rows * w->chunk_rows;
    int64_t rows = least(slice.rows - row, w->chunk_rows);
    if (rows <= 0) return;
    int64_t first = in_slice % w->tasks_per_rows * w->units_per_task, end = least(first + w->units_per_task, w->units);
    int per_unit = job->pack.halves ? 2 : 1;
    uint8_t flags[GEMM_CHUNK_ROWS];
    const uint8_t *subnormal = subnormal_rows(w, &slice, task / w->tasks_per_slice * w->row_chunks + in_slice / w->tasks_per_rows, row, rows, flags);
    bool direct = w->direct && job->pack.chunks > 0 && !slice.special && subnormal == NULL && (slice.row_scales == NULL || job->pack.block_scales) && rows <= GEMM_DIRECT_ROWS;
    const int64_t last = end * per_unit, beside = direct && rows <= GEMM_BESIDE_ROWS ? 2 : 1;
    for (int64_t at = first * per_unit; at < last; at += beside) {
        const int panels = (int)least(beside, last - at), place = per_unit == 2 && beside == 1 ? (int)(at & 1) : 0;
        const uint8_t *panel = slice.panels + (size_t)at * job->pack.panel_bytes;
        if (direct) multiply_direct(job, &slice, panel, panels, row, rows, c[place], c[1] - c[0]);
        else multiply(job, &slice, panel, at + 1 == last ? NULL : panel + job->pack.panel_bytes, row, rows, subnormal, c[place]);
        for (int i = 0; i < panels; i++) apply_factors(job, &slice, panel + (size_t)i * job->pack.panel_bytes, row, rows, c[place + i]);
        if (per_unit == 1)
            for (int i = 0; i < panels; i++) finish(job, &slice, row, rows, at + i, c[i], NULL);
        else if (place + panels == 2) finish(job, &slice, row, rows, at / 2, c[0], c[1]);
    }
}

/* A microsecond or two of work, less than it takes to wake a thread. */
static bool is_tiny(const gemm_job *job) {
    enum { WEIGHTS = 1 << 15, PRODUCTS = 1 << 17 };
    const gemm_pack *pack = &job->pack;
    double weights = (double)pack->panels * GEMM_COLS * (double)pack->k * (double)job->slices;
    return weights <= WEIGHTS && weights * (double)job->rows_max <= PRODUCTS;
}

void gemm_run(const gemm_job *job, pool *pool) {
    enum { TASKS_PER_THREAD = 8 };
    if (job->slices == 0 || job->rows_max == 0 || job->pack.panels == 0) return;
    work w = {.job = job, .units = job->pack.halves ? job->pack.panels / 2 : job->pack.panels};
    int64_t row_unit = job->isa->rows_max[job->compute];
    w.row_chunks = base_ceil_div(job->rows_max, GEMM_CHUNK_ROWS);
    w.chunk_rows = w.row_chunks == 1 ? job->rows_max : base_ceil_div(base_ceil_div(job->rows_max, w.row_chunks), row_unit) * row_unit;
    if (w.chunk_rows > GEMM_CHUNK_ROWS) w.chunk_rows = GEMM_CHUNK_ROWS;
    w.row_chunks = base_ceil_div(job->rows_max, w.chunk_rows);
    w.direct = job->compute == GEMM_BF16 && job->rows_max <= GEMM_DIRECT_ROWS && job->isa->direct[job->pack.panel] != NULL;
    /* Tasks of several panels, so that each fetches what it reads next: which thread takes them changes no bit. */
    int64_t wanted = (int64_t)pool_threads(pool) * TASKS_PER_THREAD;
    w.units_per_task = w.units * job->slices * w.row_chunks / (job->rows_max > 16 ? 2 * wanted : wanted);
    if (w.units_per_task < 1) w.units_per_task = 1;
    const bool beside = w.direct && job->rows_max <= GEMM_BESIDE_ROWS && !job->pack.halves && w.units >= 4 * (int64_t)pool_threads(pool);
    if (beside && w.units_per_task % 2 == 1) w.units_per_task++;   /* panels go two by two */
    if (is_tiny(job)) w.units_per_task = w.units;
    w.tasks_per_rows = base_ceil_div(w.units, w.units_per_task);
    w.tasks_per_slice = w.tasks_per_rows * w.row_chunks;
    uint8_t has_subnormal[MAX_PARTS];
    w.has_subnormal = has_subnormal;
    if (job->compute == GEMM_BF16 && job->isa->has_subnormal != NULL) look_for_subnormals(&w, pool);
    pool_run(pool, w.tasks_per_slice * job->slices, run_task, &w);
}
