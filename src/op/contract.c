/* Products of rows, shared by matmul and grouped_matmul. Knows nothing of batches and groups.
 *
 * What a product of block formats means: element times block scale is the operand (a BF16 number for MX and NVFP4), products of operands are
 * exact, their sum is accumulated, and NVFP4's second-level factors of both rows multiply the sum at the end. Kernels accumulate in fp32 in an
 * order of their own; here everything is in double, ascending k, where the products are exact and the sum nearly so. */
#include "op/family.h"

enum { TILE = 32, CHUNK = 128 };   /* rows of a and of b, and numbers of k, that are decoded together */

op_rows op_rows_of(const dw_tensor *tensor, int64_t offset, bool k_is_last) {
    int64_t strides[DW_MAX_RANK] = {0};
    op_strides(tensor, strides);
    int last = tensor->rank - 1;
    op_rows rows = {
        .tensor = *tensor,
        .offset = offset,
        .row_stride = strides[k_is_last ? last - 1 : last],
        .k_stride = strides[k_is_last ? last : last - 1],
    };
    rows.tensor.second = NULL;
    int second = num_info(tensor->format)->second;
    if (second == 0 || tensor->second == NULL) return rows;
    rows.second_per_row = second == 2;
    rows.second = rows.second_per_row && tensor->dims[last] > 0 ? tensor->second + offset / tensor->dims[last] : tensor->second;
    return rows;
}

static double second_of(const op_rows *rows, int64_t row) {
    return rows->second == NULL ? 1.0 : (double)rows->second[rows->second_per_row ? row : 0];
}

static void load_chunk(const op_rows *rows, int64_t first, int count, int64_t begin, int64_t length, double values[TILE][CHUNK]) {
    for (int i = 0; i < count; i++)
        op_load_row(&rows->tensor, rows->offset + (first + i) * rows->row_stride + begin * rows->k_stride, rows->k_stride, length, values[i]);
}

/* sums[i][j] = row (row + i) of a times row (col + j) of b, in double, in ascending k, second-level factors last. */
static void dot_tile(const op_product *product, int64_t row, int m, int64_t col, int n, double sums[TILE][TILE]) {
    const op_rows *a = &product->a, *b = &product->b;
    double values_a[TILE][CHUNK], values_b[TILE][CHUNK];
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) sums[i][j] = 0;
    for (int64_t begin = 0; begin < product->k; begin += CHUNK) {
        int64_t length = product->k - begin < CHUNK ? product->k - begin : CHUNK;
        load_chunk(a, row, m, begin, length, values_a);
        load_chunk(b, col, n, begin, length, values_b);
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++)
                for (int64_t l = 0; l < length; l++) sums[i][j] += values_a[i][l] * values_b[j][l];
    }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) sums[i][j] *= second_of(a, row + i) * second_of(b, col + j);
}

static int tile_count(int64_t from, int64_t end) { return end - from < TILE ? (int)(end - from) : TILE; }

void op_product_rows(const op_product *product, int64_t first_row, int64_t end_row, int64_t first_col, int64_t end_col) {
    double y[TILE][TILE], u[TILE][TILE] = {{0}};
    int64_t half = product->post->half;
    for (int64_t row = first_row; row < end_row; row += TILE) {
        for (int64_t col = first_col; col < end_col; col += TILE) {
            int m = tile_count(row, end_row), n = tile_count(col, end_col);
            dot_tile(product, row, m, col, n, y);
            if (half > 0) dot_tile(product, row, m, col + half, n, u);
            for (int i = 0; i < m; i++) {
                for (int j = 0; j < n; j++) {
                    double value = op_post_run_at(product->post, row + i, product->group, col + j, y[i][j], u[i][j]);
                    op_store_at(product->out, product->out_offset + (row + i) * product->out_row_stride + (col + j) * product->out_col_stride, value);
                }
            }
        }
    }
}
