/* Products of rows, shared by matmul and grouped_matmul. Knows nothing of batches and groups.
 *
 * What a product of block formats means: element times block scale is the operand (a BF16 number for MX and NVFP4), products of operands are
 * exact, their sum is accumulated, and NVFP4's second-level factors of both rows multiply the sum at the end. Kernels accumulate in fp32 in an
 * order of their own; here everything is in double, ascending k, where the products are exact and the sum nearly so. */
#include "op/family.h"

enum { CHUNK = 128 };   /* of k: decoded once for all rows of a tile */

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

static void load_chunk(const op_rows *rows, int64_t first, int count, int64_t begin, int64_t length, double values[OP_TILE][CHUNK]) {
    for (int i = 0; i < count; i++)
        op_load_row(&rows->tensor, rows->offset + (first + i) * rows->row_stride + begin * rows->k_stride, rows->k_stride, length, values[i]);
}

void op_rows_dot(const op_rows *a, int64_t first_a, int count_a, const op_rows *b, int64_t first_b, int count_b, int64_t k,
                 double sums[OP_TILE][OP_TILE]) {
    double values_a[OP_TILE][CHUNK], values_b[OP_TILE][CHUNK];
    for (int i = 0; i < count_a; i++)
        for (int j = 0; j < count_b; j++) sums[i][j] = 0;
    for (int64_t begin = 0; begin < k; begin += CHUNK) {
        int64_t length = k - begin < CHUNK ? k - begin : CHUNK;
        load_chunk(a, first_a, count_a, begin, length, values_a);
        load_chunk(b, first_b, count_b, begin, length, values_b);
        for (int i = 0; i < count_a; i++)
            for (int j = 0; j < count_b; j++)
                for (int64_t l = 0; l < length; l++) sums[i][j] += values_a[i][l] * values_b[j][l];
    }
    for (int i = 0; i < count_a; i++)
        for (int j = 0; j < count_b; j++) sums[i][j] *= second_of(a, first_a + i) * second_of(b, first_b + j);
}

static int tile_count(int64_t from, int64_t end) { return end - from < OP_TILE ? (int)(end - from) : OP_TILE; }

void op_product_rows(const op_product *product, int64_t first_row, int64_t end_row, int64_t cols) {
    double y[OP_TILE][OP_TILE], u[OP_TILE][OP_TILE] = {{0}};
    int64_t half = product->post->half;
    for (int64_t row = first_row; row < end_row; row += OP_TILE) {
        for (int64_t col = 0; col < cols; col += OP_TILE) {
            int m = tile_count(row, end_row), n = tile_count(col, cols);
            op_rows_dot(&product->a, row, m, &product->b, col, n, product->k, y);
            if (half > 0) op_rows_dot(&product->a, row, m, &product->b, col + half, n, product->k, u);
            for (int i = 0; i < m; i++) {
                for (int j = 0; j < n; j++) {
                    double value = op_post_run_at(product->post, row + i, product->group, col + j, y[i][j], u[i][j]);
                    op_store_at(product->out, product->out_offset + (row + i) * product->out_row_stride + (col + j) * product->out_col_stride, value);
                }
            }
        }
    }
}
