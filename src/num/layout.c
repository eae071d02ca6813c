/* How much memory the parts of a tensor take, and where a block's scale lies in them. */
#include "num/num.h"

#include <assert.h>
#include <string.h>

#include "num/view.h"

enum { PART_ALIGN = 64, TILE_ROWS = 128, TILE_COLS = 4 };

/* Blocks that cover extent elements; size 0: one block over all. No overflow: extent is not negative. */
static int64_t blocks_over(int64_t extent, int size) {
    if (size == 0) return 1;
    return extent / size + (extent % size != 0);
}

static bool pad_to(int64_t *value, int64_t multiple) {
    int64_t rest = *value % multiple;
    return rest == 0 || base_add_i64(*value, multiple - rest, value);
}

static size_t bytes_of(dw_format format) { return (size_t)num_info(format)->bits / 8; }

bool num_has_layout(dw_format format, dw_scale_layout layout) {
    const num_format *f = num_info(format);
    return layout == DW_SCALE_plain || f->class != NUM_BLOCK || (bytes_of(f->scale) == 1 && f->rows == 1);
}

size_t num_row_bytes(dw_format format, int64_t cols) {
    size_t bits = (size_t)num_info(format)->bits, count = (size_t)cols;
    return count / 8 * bits + (count % 8 * bits + 7) / 8;   /* in this order nothing overflows that the result does not */
}

size_t num_scale_index(dw_scale_layout layout, int64_t row_block, int64_t col_block, int64_t scale_cols) {
    size_t r = (size_t)row_block, c = (size_t)col_block, cols = (size_t)scale_cols;
    if (layout == DW_SCALE_plain) return r * cols + c;
    /* cuBLAS documentation, "Block Scaling Factors Layout": tiles of 128 x 4 bytes, 32 lines of 4 row groups of 4 bytes. */
    size_t tile = r / TILE_ROWS * ((cols + TILE_COLS - 1) / TILE_COLS) + c / TILE_COLS;
    return tile * (TILE_ROWS * TILE_COLS) + r % 32 * 16 + r % TILE_ROWS / 32 * 4 + c % TILE_COLS;
}

static bool multiply(int64_t count, size_t size, size_t *bytes) {
    return (uint64_t)count <= SIZE_MAX && base_mul_size((size_t)count, size, bytes);
}

/* Places a part of bytes bytes after what is there. */
static bool place(num_parts *parts, size_t bytes, size_t *offset) {
    size_t padded;
    if (!base_add_size(parts->total_bytes, PART_ALIGN - 1, &padded)) return false;
    *offset = bytes == 0 ? parts->total_bytes : padded / PART_ALIGN * PART_ALIGN;
    return base_add_size(*offset, bytes, &parts->total_bytes);
}

static bool measure_scales(const num_format *f, dw_scale_layout layout, int64_t matrices, int64_t rows, int64_t cols, num_parts *parts) {
    parts->scale_rows = blocks_over(rows, f->rows);
    parts->scale_cols = blocks_over(cols, f->cols);
    if (layout == DW_SCALE_tile128x4 && !(pad_to(&parts->scale_rows, TILE_ROWS) && pad_to(&parts->scale_cols, TILE_COLS))) return false;
    int64_t count;
    if (f->rows == 0) matrices = 1;
    if (!base_mul_i64(parts->scale_rows, parts->scale_cols, &count) || !base_mul_i64(count, matrices, &count)) return false;
    if (!multiply(count, bytes_of(f->scale), &parts->scale_bytes)) return false;
    if (f->second == 1) parts->second_bytes = sizeof(float);
    if (f->second == 2 && !(base_mul_i64(rows, matrices, &count) && multiply(count, sizeof(float), &parts->second_bytes))) return false;
    return place(parts, parts->scale_bytes, &parts->scale_offset) && place(parts, parts->second_bytes, &parts->second_offset);
}

bool num_layout(dw_format format, dw_scale_layout layout, int rank, const int64_t *dims, num_parts *parts) {
    const num_format *f = num_info(format);
    *parts = (num_parts){0};
    if (!num_has_layout(format, layout)) return false;
    for (int i = 0; i < rank; i++)
        if (dims[i] < 0) return false;
    int64_t matrices = 1;
    for (int i = 0; i < rank - 2; i++)
        if (!base_mul_i64(matrices, dims[i], &matrices)) return false;
    int64_t rows = rank >= 2 ? dims[rank - 2] : 1, cols = rank >= 1 ? dims[rank - 1] : 1, all_rows;
    if (!base_mul_i64(matrices, rows, &all_rows)) return false;
    /* cols * bits / 8 fits once cols / 8 * bits does. */
    size_t row_bytes;
    if (!multiply(cols / 8 + 1, (size_t)f->bits, &row_bytes)) return false;
    row_bytes = num_row_bytes(format, cols);
    if (!multiply(all_rows, row_bytes, &parts->data_bytes)) return false;
    parts->total_bytes = parts->data_bytes;
    if (f->class == NUM_BLOCK) return measure_scales(f, layout, matrices, rows, cols, parts);
    parts->scale_offset = parts->second_offset = parts->total_bytes;
    return true;
}

num_view num_view_of(const num_matrix *m) {
    const num_format *f = num_info(m->format);
    assert(f->class == NUM_BLOCK && m->rows >= 0 && m->cols >= 0 && m->batches >= 0);
    num_view v = {.f = f, .m = m, .matrices = m->batches > 0 ? m->batches : 1, .rows = m->rows, .cols = m->cols};
    if (f->rows == 0) {
        v.rows *= v.matrices;
        v.matrices = 1;
    }
    v.row_bytes = num_row_bytes(m->format, v.cols);
    v.block_rows = f->rows > 0 ? f->rows : v.rows;
    v.block_cols = f->cols > 0 ? f->cols : v.cols;
    v.row_blocks = blocks_over(v.rows, f->rows);
    v.col_blocks = blocks_over(v.cols, f->cols);
    num_parts parts;
    bool fits = num_layout(m->format, m->layout, 2, (int64_t[]){v.rows, v.cols}, &parts);
    assert(fits);   /* who made the buffers measured them */
    (void)fits;
    v.scale_rows = parts.scale_rows;
    v.scale_cols = parts.scale_cols;
    return v;
}

void num_view_clear(const num_view *v) {
    size_t scales = (size_t)v->matrices * (size_t)v->scale_rows * (size_t)v->scale_cols * bytes_of(v->f->scale);
    size_t data = (size_t)v->matrices * (size_t)v->rows * v->row_bytes;
    if (scales > 0) memset(v->m->scales, 0, scales);
    if (data > 0) memset(v->m->data, 0, data);
}

static bool is_within(size_t at, size_t offset, size_t bytes) { return at >= offset && at - offset < bytes; }

bool num_is_part(const num_parts *parts, size_t at) {
    return at < parts->data_bytes || is_within(at, parts->scale_offset, parts->scale_bytes) || is_within(at, parts->second_offset, parts->second_bytes);
}
