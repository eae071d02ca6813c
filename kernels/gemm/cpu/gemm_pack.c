/* Weights into panels: sizes, the layout of each kind, and the exact scalar decoder for what the fast decoders do not cover.
 * Multiplies nothing. */
#include <string.h>

#include "kernels/gemm/cpu/gemm.h"

enum { HALF = 16 };   /* columns of one half of a panel: the 32-bit lanes of a 512-bit register */
enum { FLAG_BYTES = 64 };
enum { PACK_TOGETHER = 4 };   /* panels of elements that a task packs at most */

static int64_t round_up(int64_t value, int64_t unit) { return base_ceil_div(value, unit) * unit; }

static int code_bits(gemm_panel panel) { return panel == GEMM_PANEL_E4M3 || panel == GEMM_PANEL_E5M2 ? 8 : 4; }

/* Bytes of scales in front of a chunk of so many groups. */
static size_t chunk_scale_bytes(gemm_panel panel, int64_t groups) {
    size_t bytes = (size_t)groups * GEMM_COLS * (panel == GEMM_PANEL_E2M1_E4M3 ? 2 : 1);
    return base_align_up(bytes, 64);
}

size_t gemm_chunk_bytes(gemm_panel panel, int64_t k) {
    int64_t groups = round_up(k, GEMM_GROUP) / GEMM_GROUP;
    switch (panel) {
    case GEMM_PANEL_F32: return (size_t)k * GEMM_COLS * sizeof(float);
    case GEMM_PANEL_BF16: return (size_t)round_up(k, 2) * GEMM_COLS * sizeof(uint16_t);
    default: return chunk_scale_bytes(panel, groups) + (size_t)(groups * GEMM_GROUP * GEMM_COLS * code_bits(panel) / 8);
    }
}

size_t gemm_chunk_offset(const gemm_pack *pack, int64_t at) { return (size_t)(at / pack->depth) * gemm_chunk_bytes(pack->panel, pack->depth); }

static bool panel_of(dw_format format, gemm_compute compute, gemm_panel *panel) {
    switch (format) {
    case DW_FORMAT_f32: case DW_FORMAT_f16: *panel = GEMM_PANEL_F32; return compute == GEMM_F32;
    case DW_FORMAT_bf16: *panel = GEMM_PANEL_BF16; return true;
    case DW_FORMAT_mxfp8: case DW_FORMAT_mxfp6_e3m2: case DW_FORMAT_mxfp6_e2m3: *panel = GEMM_PANEL_E4M3; return true;
    case DW_FORMAT_fp8_1x128: case DW_FORMAT_fp8_128x128: case DW_FORMAT_fp8_row: case DW_FORMAT_fp8_tensor: *panel = GEMM_PANEL_E4M3; return true;
    case DW_FORMAT_mxfp8_e5m2: *panel = GEMM_PANEL_E5M2; return true;
    case DW_FORMAT_mxfp4: *panel = GEMM_PANEL_E2M1_E8M0; return true;
    case DW_FORMAT_nvfp4: case DW_FORMAT_nvfp4_row: *panel = GEMM_PANEL_E2M1_E4M3; return true;
    default: return false;
    }
}

static bool has_block_scales(dw_format format) { return format == DW_FORMAT_fp8_1x128 || format == DW_FORMAT_fp8_128x128; }

bool gemm_pack_init(gemm_pack *pack, dw_format format, gemm_compute compute, int64_t k, int64_t n, int64_t batches, unsigned flags) {
    bool halves = (flags & GEMM_HALVES) != 0;
    *pack = (gemm_pack){.format = format, .k = k, .n = n, .batches = batches, .transposed = (flags & GEMM_TRANSPOSED) != 0, .halves = halves};
    if (!panel_of(format, compute, &pack->panel)) return false;
    if (k < 0 || n < 0 || batches < 0 || k > INT64_MAX / 1024 || n > INT64_MAX / 1024) return false;
    pack->block_scales = has_block_scales(format);
    pack->panels = halves ? 2 * (round_up(n / 2, GEMM_COLS) / GEMM_COLS) : round_up(n, GEMM_COLS) / GEMM_COLS;
    pack->depth = pack->block_scales || (flags & GEMM_A_SCALES) ? GEMM_SCALE_DEPTH : GEMM_DEPTH;
    pack->chunks = round_up(k, pack->depth) / pack->depth;
    int64_t whole = k / pack->depth;
    size_t codes = (size_t)whole * gemm_chunk_bytes(pack->panel, pack->depth) + gemm_chunk_bytes(pack->panel, k - whole * pack->depth);
    pack->factor_offset = base_align_up(codes, 64);
    pack->scale_offset = pack->factor_offset + GEMM_COLS * sizeof(float);
    pack->flag_offset = pack->scale_offset + (pack->block_scales ? (size_t)pack->chunks * GEMM_COLS * sizeof(float) : 0);
    pack->panel_bytes = pack->flag_offset + (pack->panel == GEMM_PANEL_BF16 ? FLAG_BYTES : 0);
    return base_mul_size(pack->panel_bytes, (size_t)pack->panels, &pack->batch_bytes) &&
           base_mul_size(pack->batch_bytes, (size_t)batches, &pack->bytes) && base_add_size(pack->bytes, GEMM_HEADER_BYTES, &pack->bytes);
}

/* ---- packing ---- */

typedef struct pack_job {
    const gemm_pack *pack;
    const gemm_isa *isa;          /* NULL: any may multiply */
    const dw_tensor *weight;
    uint8_t *panels;
    uint8_t *special;             /* [batches * panels] of the current span */
    uint8_t rewrite[64];          /* FP6 codes as E4M3 */
    int64_t first;                /* of the current span */
    int64_t together;             /* panels of elements to a task */
} pack_job;

/* The columns of B that a panel holds: from one on, so many; the others are padding. */
static int64_t first_column(const gemm_pack *pack, int64_t panel) { return pack->halves ? panel / 2 * GEMM_COLS + panel % 2 * (pack->n / 2) : panel * GEMM_COLS; }

static int64_t column_count(const gemm_pack *pack, int64_t panel) {
    int64_t left = pack->halves ? pack->n / 2 - panel / 2 * GEMM_COLS : pack->n - panel * GEMM_COLS;
    return left < GEMM_COLS ? left : GEMM_COLS;
}

/* The column of B that column c of a panel holds; -1: padding. */
static int64_t source_column(const gemm_pack *pack, int64_t panel, int c) { return c < column_count(pack, panel) ? first_column(pack, panel) + c : -1; }

/* First element of a batch: leading axes by their strides. */
static int64_t batch_offset(const dw_tensor *weight, int64_t batch) {
    int64_t offset = 0;
    for (int axis = weight->rank - 3; axis >= 0; axis--) {
        offset += batch % weight->dims[axis] * weight->strides[axis];
        batch /= weight->dims[axis];
    }
    return offset;
}

static float load_f32(dw_format format, const void *data, int64_t index) {
    if (format == DW_FORMAT_f32) return ((const float *)data)[index];
    if (format == DW_FORMAT_f16) return num_f16_to_f32(((const uint16_t *)data)[index]);
    return num_bf16_to_f32(((const uint16_t *)data)[index]);
}

static uint32_t is_subnormal(uint16_t bf16) { return (bf16 & 0x7fff) - 1u < 0x7f; }

typedef struct moves {
    void (*turn)(const void *from, ptrdiff_t from_bytes, int64_t rows, int64_t cols, void *to, ptrdiff_t to_bytes);
    void (*pair)(const uint16_t *even, const uint16_t *odd, int64_t count, uint16_t *to);
} moves;

/* Elements k [0, depth) of columns [0, columns) of B, of which `at` is the first, into the part of a panel that begins with them. depth is even but at the end of k. */
typedef struct pack_part {
    const uint8_t *at;
    dw_format format;
    int64_t k_stride, n_stride, columns, depth;
    void *to;
} pack_part;

static void pack_f32(const moves *move, const pack_part *part) {
    float *to = part->to;
    if (part->columns < GEMM_COLS) memset(to, 0, (size_t)part->depth * GEMM_COLS * sizeof *to);
    if (part->format == DW_FORMAT_f32 && part->n_stride == 1) {
        const float *from = (const float *)(const void *)part->at;
        for (int64_t k = 0; k < part->depth; k++, from += part->k_stride, to += GEMM_COLS) {
            if (part->columns == GEMM_COLS) memcpy(to, from, GEMM_COLS * sizeof *to);   /* of a size that needs no call */
            else memcpy(to, from, (size_t)part->columns * sizeof *to);
        }
    } else if (part->format == DW_FORMAT_f32 && part->k_stride == 1) {
        move->turn(part->at, part->n_stride * (ptrdiff_t)sizeof *to, part->columns, part->depth, to, GEMM_COLS * sizeof *to);
    } else {
        for (int64_t k = 0; k < part->depth; k++, to += GEMM_COLS) {
            for (int64_t c = 0; c < part->columns; c++) to[c] = load_f32(part->format, part->at, c * part->n_stride + k * part->k_stride);
        }
    }
}

static void pack_pairs(const moves *move, const pack_part *part) {
    static const uint16_t zeros[GEMM_COLS];
    uint16_t *to = part->to;
    const uint16_t *from = (const uint16_t *)(const void *)part->at;
    const int64_t k_stride = part->k_stride, n_stride = part->n_stride, whole = part->depth / 2 * 2;
    if (part->columns < GEMM_COLS) memset(to, 0, (size_t)(part->depth + part->depth % 2) * GEMM_COLS * sizeof *to);
    if (k_stride == 1) {
        move->turn(from, n_stride * (ptrdiff_t)sizeof *from, part->columns, whole / 2, to, 2 * GEMM_COLS * sizeof *to);
    } else if (n_stride == 1) {
        for (int64_t k = 0; k < whole; k += 2) move->pair(from + k * k_stride, from + (k + 1) * k_stride, part->columns, to + k * GEMM_COLS);
    } else {
        for (int64_t k = 0; k < whole; k++) {
            for (int64_t c = 0; c < part->columns; c++) to[(k / 2 * GEMM_COLS + c) * 2 + k % 2] = from[k * k_stride + c * n_stride];
        }
    }
    if (whole == part->depth) return;
    uint16_t last[GEMM_COLS];
    for (int64_t c = 0; c < part->columns; c++) last[c] = from[whole * k_stride + c * n_stride];
    move->pair(last, zeros, part->columns, to + whole * GEMM_COLS);
}

/* Are there subnormal numbers, where that changes what multiplies? */
static bool holds_subnormal(const gemm_isa *isa, const uint16_t *x, int64_t count) {
    if (isa != NULL) return isa->exact_tile != NULL && isa->has_subnormal(x, count);
    uint32_t found = 0;
    for (int64_t i = 0; i < count; i++) found |= is_subnormal(x[i]);
    return found != 0;
}

/* Panels [first, end) of B's batch, k by k: what lies side by side is read side by side. */
static void pack_elements(const pack_job *job, int64_t batch, int64_t first, int64_t end, uint8_t *panels) {
    enum { DEPTH = 64 };          /* of k at a time */
    const gemm_pack *pack = job->pack;
    const dw_tensor *w = job->weight;
    const moves move = job->isa != NULL ? (moves){job->isa->turn, job->isa->pair} : (moves){gemm_turn, gemm_pair_rows};
    const size_t element = (size_t)dw_format_bits(w->format) / 8;
    const bool is_f32 = pack->panel == GEMM_PANEL_F32;
    const size_t k_bytes = GEMM_COLS * (is_f32 ? sizeof(float) : sizeof(uint16_t));
    pack_part part = {
        .format = w->format,
        .k_stride = w->strides[w->rank - (pack->transposed ? 1 : 2)],
        .n_stride = w->strides[w->rank - (pack->transposed ? 2 : 1)],
    };
    const int64_t base = batch_offset(w, batch);
    uint32_t subnormal[PACK_TOGETHER] = {0};
    for (int64_t k = 0; k < pack->k; k += DEPTH) {
        part.depth = pack->k - k < DEPTH ? pack->k - k : DEPTH;
        for (int64_t panel = first; panel < end; panel++) {
            part.columns = column_count(pack, panel);
            part.at = (const uint8_t *)w->data + (base + first_column(pack, panel) * part.n_stride + k * part.k_stride) * (int64_t)element;
            part.to = panels + (size_t)(panel - first) * pack->panel_bytes + (size_t)k * k_bytes;
            if (is_f32) pack_f32(&move, &part);
            else pack_pairs(&move, &part);
            if (!is_f32 && holds_subnormal(job->isa, part.to, (part.depth + 1) / 2 * 2 * GEMM_COLS)) subnormal[panel - first] = 1;
        }
    }
    for (int64_t panel = first; panel < end; panel++, panels += pack->panel_bytes) {
        for (int c = 0; c < GEMM_COLS; c++) ((float *)(panels + pack->factor_offset))[c] = 1.0f;
        if (is_f32) continue;
        memset(panels + pack->flag_offset, 0, FLAG_BYTES);
        memcpy(panels + pack->flag_offset, &subnormal[panel - first], sizeof subnormal[0]);
    }
}

/* The code of element k of a packed row. */
static unsigned read_code(int bits, const uint8_t *row, int64_t k) {
    if (bits == 8) return row[k];
    if (bits == 4) return row[k / 2] >> (k % 2 * 4) & 15;
    int64_t bit = k * 6;
    unsigned low = row[bit / 8], high = bit % 8 > 2 ? row[bit / 8 + 1] : 0;
    return (low | high << 8) >> (bit % 8) & 63;
}

static void write_code8(uint8_t *group, int k, int c, unsigned code) {
    static const uint8_t byte_of[4] = {0, 2, 1, 3};   /* so that even k are low halves of 32-bit lanes, and odd k high ones */
    group[(k / 4 * 2 + c / HALF) * 64 + c % HALF * 4 + byte_of[k % 4]] = (uint8_t)code;
}

static void write_code4(uint8_t *group, int k, int c, unsigned code) {
    uint8_t *lane = group + (k / 8 * 2 + c / HALF) * 64 + c % HALF * 4;
    int bit = k % 2 * 16 + k % 8 / 2 * 4;
    lane[bit / 8] |= (uint8_t)(code << (bit % 8));
}

static bool is_nan_or_infinity(gemm_panel panel, unsigned code) {
    if (panel == GEMM_PANEL_E4M3) return (code & 0x7f) == 0x7f;
    if (panel == GEMM_PANEL_E5M2) return (code & 0x7f) >= 0x7c;
    return false;
}

/* Is a block of these codes and this scale beyond the fast decoders? (They also need the scale's exponent to fit beside the element's shifted one.) */
static bool is_special_scale(gemm_panel panel, unsigned scale, bool any_nonzero) {
    if (panel == GEMM_PANEL_E2M1_E4M3) return scale >= 0x7f;
    if (scale == 0xff) return true;
    if (!any_nonzero) return false;
    unsigned most = panel == GEMM_PANEL_E4M3 ? 127 + 7 : panel == GEMM_PANEL_E5M2 ? 127 + 15 : 127 + 112;
    return scale < 127 - 110 || scale > most;
}

static void pack_factors(const pack_job *job, int64_t batch, int64_t panel, uint8_t *to, const num_parts *parts) {
    const gemm_pack *pack = job->pack;
    const dw_tensor *w = job->weight;
    float *factors = (float *)(to + pack->factor_offset), *scales = (float *)(to + pack->scale_offset);
    const float *given = w->scales;
    size_t first = (size_t)batch * (size_t)parts->scale_rows * (size_t)parts->scale_cols;
    for (int c = 0; c < GEMM_COLS; c++) {
        int64_t column = source_column(pack, panel, c);
        factors[c] = 1.0f;
        for (int64_t i = 0; pack->block_scales && i < pack->chunks; i++) {
            int64_t row = pack->format == DW_FORMAT_fp8_128x128 ? column / 128 : column;
            scales[i * GEMM_COLS + c] = column < 0 ? 1.0f : given[first + num_scale_index(w->scale_layout, row, i, parts->scale_cols)];
        }
        if (column < 0) continue;
        if (pack->format == DW_FORMAT_fp8_row) factors[c] = given[first + (size_t)column];
        if (pack->format == DW_FORMAT_fp8_tensor) factors[c] = given[0];
        if (pack->format == DW_FORMAT_nvfp4 && w->second != NULL) factors[c] = w->second[0];
        if (pack->format == DW_FORMAT_nvfp4_row && w->second != NULL) factors[c] = w->second[batch * pack->n + column];
    }
}

/* What codes that one scale is of have among them. */
typedef struct unit_facts { bool nonzero, special; } unit_facts;

static uint32_t word_at(const uint8_t *from) {
    uint32_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

/* Has a byte of the word a code that is NaN or infinite? */
static bool is_any_nan_or_infinity(gemm_panel panel, uint32_t word) {
    const uint32_t left = ~word & 0x7f7f7f7f;      /* of E4M3 a byte that is 0 */
    return panel == GEMM_PANEL_E4M3 ? ((left - 0x01010101) & ~left & 0x80808080) != 0 : (((word & 0x7f7f7f7f) + 0x04040404) & 0x80808080) != 0;
}

/* The low halves of the four bytes, side by side. */
static uint32_t low_halves(uint32_t word) {
    word &= 0x0f0f0f0f;
    word = (word | word >> 4) & 0x00ff00ff;
    return (word | word >> 8) & 0xffff;
}

/* Four codes of 8 bits, or eight of 4, as write_code8 and write_code4 place them one by one. */
static void pack_word(int bits, uint8_t *group, int k, int c, uint32_t word) {
    const uint32_t placed = bits == 8 ? (word & 0xff0000ff) | (word >> 8 & 0xff00) | (word << 8 & 0xff0000) : low_halves(word) | low_halves(word >> 4) << 16;
    memcpy(group + (k / (32 / bits) * 2 + c / HALF) * 64 + c % HALF * 4, &placed, sizeof placed);
}

/* count codes of a row from at on, as those from k on of column c. */
static unit_facts pack_unit(const pack_job *job, int bits, const uint8_t *row, int64_t at, int count, uint8_t *group, int k, int c) {
    const gemm_panel panel = job->pack->panel;
    const int panel_bits = code_bits(panel), step = 32 / bits;
    unit_facts facts = {0};
    int i = 0;
    for (; bits == panel_bits && i + step <= count; i += step) {
        const uint32_t word = word_at(row + (at + i) * bits / 8);
        pack_word(bits, group, k + i, c, word);
        facts.nonzero |= (word & (bits == 8 ? 0x7f7f7f7f : 0x77777777)) != 0;
        facts.special |= bits == 8 && is_any_nan_or_infinity(panel, word);
    }
    for (; i < count; i++) {
        unsigned code = read_code(bits, row, at + i);
        if (bits == 6) code = job->rewrite[code];
        if (panel_bits == 8) write_code8(group, k + i, c, code);
        else write_code4(group, k + i, c, code);
        facts.special |= is_nan_or_infinity(panel, code);
        facts.nonzero |= (code & (panel_bits == 8 ? 0x7f : 7)) != 0;
    }
    return facts;
}

/* Returns whether anything special was met. */
static bool pack_codes(const pack_job *job, int64_t batch, int64_t panel, uint8_t *to) {
    const gemm_pack *pack = job->pack;
    const dw_tensor *w = job->weight;
    num_parts parts;
    if (!num_layout(w->format, w->scale_layout, w->rank, w->dims, &parts)) return false;
    pack_factors(job, batch, panel, to, &parts);
    int bits = dw_format_bits(pack->format), panel_bits = code_bits(pack->panel);
    size_t row_bytes = num_row_bytes(pack->format, pack->k);
    int block = num_info(pack->format)->cols, per_group = pack->panel == GEMM_PANEL_E2M1_E4M3 ? 2 : 1;
    const int unit = GEMM_GROUP / per_group;
    bool byte_scales = dw_format_bits(num_info(pack->format)->scale) == 8;
    size_t scale_base = (size_t)batch * (size_t)parts.scale_rows * (size_t)parts.scale_cols;
    bool special = false;
    memset(to, 0, pack->factor_offset);
    for (int64_t at = 0; at < pack->k; at += pack->depth) {
        int64_t depth = pack->k - at < pack->depth ? pack->k - at : pack->depth;
        int64_t groups = round_up(depth, GEMM_GROUP) / GEMM_GROUP;
        uint8_t *scales = to + gemm_chunk_offset(pack, at), *codes = scales + chunk_scale_bytes(pack->panel, groups);
        memset(scales, pack->panel == GEMM_PANEL_E2M1_E4M3 ? 0 : 127, (size_t)groups * GEMM_COLS * (size_t)per_group);
        for (int c = 0; c < GEMM_COLS; c++) {
            int64_t column = source_column(pack, panel, c);
            if (column < 0) continue;
            const uint8_t *row = (const uint8_t *)w->data + ((size_t)(batch * pack->n + column)) * row_bytes;
            for (int64_t k = 0; k < depth; k += unit) {
                uint8_t *group = codes + (size_t)(k / GEMM_GROUP) * GEMM_GROUP * GEMM_COLS * (size_t)panel_bits / 8;
                const unit_facts facts = pack_unit(job, bits, row, at + k, (int)(depth - k < unit ? depth - k : unit), group, (int)(k % GEMM_GROUP), c);
                special |= facts.special;
                if (!byte_scales) continue;
                unsigned scale = ((const uint8_t *)w->scales)[scale_base + num_scale_index(w->scale_layout, column, (at + k) / block, parts.scale_cols)];
                scales[(k / unit) * GEMM_COLS + c] = (uint8_t)scale;
                special |= is_special_scale(pack->panel, scale, facts.nonzero);
            }
        }
    }
    return special;
}

static void pack_codes_task(void *argument, int64_t task, int worker) {
    (void)worker;
    pack_job *job = argument;
    int64_t index = job->first + task;
    job->special[task] = pack_codes(job, index / job->pack->panels, index % job->pack->panels, job->panels + (size_t)index * job->pack->panel_bytes);
}

static void pack_elements_task(void *argument, int64_t task, int worker) {
    (void)worker;
    const pack_job *job = argument;
    const gemm_pack *pack = job->pack;
    int64_t per_batch = base_ceil_div(pack->panels, job->together), batch = task / per_batch, first = task % per_batch * job->together;
    int64_t end = first + job->together < pack->panels ? first + job->together : pack->panels;
    pack_elements(job, batch, first, end, job->panels + (size_t)batch * pack->batch_bytes + (size_t)first * pack->panel_bytes);
}

void gemm_pack_run(const gemm_pack *pack, const gemm_isa *isa, const dw_tensor *weight, pool *pool, void *packed) {
    enum { SPAN = 4096 };
    uint8_t special[SPAN];
    gemm_header *header = packed;
    memset(packed, 0, GEMM_HEADER_BYTES);
    pack_job job = {.pack = pack, .isa = isa, .weight = weight, .panels = (uint8_t *)packed + GEMM_HEADER_BYTES, .special = special, .together = PACK_TOGETHER};
    if (!dw_format_is_block(pack->format)) {
        pool_run(pool, pack->batches * base_ceil_div(pack->panels, job.together), pack_elements_task, &job);
        return;
    }
    if (dw_format_bits(pack->format) == 6) {
        dw_format element = num_info(pack->format)->element;
        for (unsigned code = 0; code < 64; code++) job.rewrite[code] = num_f32_to_e4m3((float)num_decode(element, code));
    }
    int64_t total = pack->batches * pack->panels;
    for (job.first = 0; job.first < total; job.first += SPAN) {
        int64_t count = total - job.first < SPAN ? total - job.first : SPAN;
        pool_run(pool, count, pack_codes_task, &job);
        for (int64_t i = 0; i < count; i++) header->special |= special[i];
    }
}

/* ---- as a packing ---- */

enum { NUMBER_FORMAT, NUMBER_K, NUMBER_N, NUMBER_BATCHES, NUMBER_FLAGS };

static dw_status run_packing(const kernel_packing *packing, dw_context *context, pool *pool, const dw_tensor *weight, void *packed) {
    (void)context;
    gemm_pack pack;
    gemm_pack_of(packing, &pack);
    gemm_pack_run(&pack, NULL, weight, pool, packed);
    return DW_OK;
}

/* What is multiplied with the panels is no number of theirs: formats that both arithmetics read have one panel for them. */
void gemm_packing(const gemm_pack *pack, kernel_packing *packing) {
    int64_t flags = (pack->transposed ? GEMM_TRANSPOSED : 0) | (pack->halves ? GEMM_HALVES : 0) | (pack->depth == GEMM_SCALE_DEPTH ? GEMM_A_SCALES : 0);
    *packing = (kernel_packing){
        .name = "panels",
        .numbers = {[NUMBER_FORMAT] = pack->format, [NUMBER_K] = pack->k, [NUMBER_N] = pack->n, [NUMBER_BATCHES] = pack->batches, [NUMBER_FLAGS] = flags},
        .bytes = pack->bytes,
        .run = run_packing,
    };
}

void gemm_pack_of(const kernel_packing *packing, gemm_pack *pack) {
    const int64_t *numbers = packing->numbers;
    gemm_pack_init(pack, (dw_format)numbers[NUMBER_FORMAT], GEMM_F32, numbers[NUMBER_K], numbers[NUMBER_N], numbers[NUMBER_BATCHES], (unsigned)numbers[NUMBER_FLAGS]);
}

/* ---- the exact decoder ---- */

static float panel_value(gemm_panel panel, const uint8_t *scales, const uint8_t *codes, int64_t k, int c) {
    int64_t group = k / GEMM_GROUP;
    int in_group = (int)(k % GEMM_GROUP);
    if (code_bits(panel) == 8) {
        static const uint8_t byte_of[4] = {0, 2, 1, 3};
        unsigned code = codes[group * GEMM_GROUP * GEMM_COLS + (in_group / 4 * 2 + c / HALF) * 64 + c % HALF * 4 + byte_of[in_group % 4]];
        float element = (float)num_decode(panel == GEMM_PANEL_E4M3 ? DW_FORMAT_e4m3 : DW_FORMAT_e5m2, code);
        return element * num_e8m0_to_f32(scales[group * GEMM_COLS + c]);
    }
    int bit = in_group % 2 * 16 + in_group % 8 / 2 * 4;
    unsigned code = codes[group * GEMM_GROUP * GEMM_COLS / 2 + (in_group / 8 * 2 + c / HALF) * 64 + c % HALF * 4 + bit / 8] >> (bit % 8) & 15;
    float element = (float)num_decode(DW_FORMAT_e2m1, code);
    if (panel == GEMM_PANEL_E2M1_E8M0) return element * num_e8m0_to_f32(scales[group * GEMM_COLS + c]);
    return element * num_e4m3_to_f32(scales[(k / 16) * GEMM_COLS + c]);
}

void gemm_decode_special(gemm_panel panel, gemm_compute compute, const uint8_t *source, int64_t k, void *chunk) {
    int64_t padded = round_up(k, GEMM_GROUP);
    const uint8_t *codes = source + chunk_scale_bytes(panel, padded / GEMM_GROUP);
    for (int64_t at = 0; at < padded; at++) {
        for (int c = 0; c < GEMM_COLS; c++) {
            float value = panel_value(panel, source, codes, at, c);
            if (compute == GEMM_F32) ((float *)chunk)[at * GEMM_COLS + c] = value;
            else ((uint16_t *)chunk)[(at / 2 * GEMM_COLS + c) * 2 + at % 2] = num_f32_to_bf16(value);
        }
    }
}
