/* What lines of conformance are too small for: a convolution on a GPU whose patches come in pieces. */
#include "support/support.h"

#include <string.h>

#include "kernel/kernel.h"
#include "kernels/conv/conv_cuda.h"

enum { BATCHES = 5, CHANNELS = 128, SIZE = 64, OUTPUTS = 48, GROUPS = 2, ROWS = BATCHES * SIZE * SIZE, DEPTH = CHANNELS / GROUPS * 9, BYTES = 2 };

/* Launches of one run: each has to stay within the workspace, and patches and products have to take turns over all rows. */
typedef struct watcher {
    kernel_launcher launcher;
    int64_t workspace, rows, piece, products;   /* rows that patches were made of; the last piece's; products of it */
    int pieces;
} watcher;

static dw_status watch(kernel_launcher *launcher, const kernel_launch *launch) {
    watcher *w = (watcher *)launcher;
    for (int i = 0; i < launch->slot_count; i++)
        if (launch->slots[i].kind == KERNEL_SLOT_WORKSPACE) assert_in_range(launch->slots[i].offset, 0, w->workspace - 1);
    for (int i = 0; i < launch->map_count; i++) {
        const kernel_map *map = &launch->maps[i];
        if (map->operand == KERNEL_WORKSPACE) assert_true(map->offset >= 0 && map->offset + (int64_t)(map->dims[0] * map->dims[1]) * BYTES <= w->workspace);
    }
    if (launch->image != NULL && strcmp(launch->image, "conv_patches") == 0) {
        const patch_arguments *patches = (const patch_arguments *)(const void *)launch->arguments;
        assert_int_equal(patches->first, w->rows);
        assert_int_equal(patches->groups, GROUPS);
        assert_true(w->pieces == 0 || w->products == GROUPS);
        w->rows += patches->count;
        w->piece = patches->count;
        w->products = 0;
        w->pieces++;
    } else if (launch->map_count > 0) {
        bool reads = false;
        for (int i = 0; i < launch->map_count; i++)
            reads = reads || (launch->maps[i].operand == KERNEL_WORKSPACE && launch->maps[i].dims[0] == DEPTH && (int64_t)launch->maps[i].dims[1] == w->piece);
        assert_true(reads);
        w->products++;
    }
    return DW_OK;
}

static const kernel_row *row_of(const char *name) {
    for (int i = 0; i < kernel_count(); i++)
        if (strcmp(kernel_at(i)->name, name) == 0) return kernel_at(i);
    fail_msg("there is no row %s", name);
    return NULL;
}

static void pieces_cover_all_rows_within_the_workspace(void **state) {
    (void)state;
    dw_context *context;
    chip_caps chip;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    assert_int_equal(chip_find(context, "h200", 0, &chip), DW_OK);
    const int64_t x_dims[] = {BATCHES, CHANNELS, SIZE, SIZE}, w_dims[] = {OUTPUTS, CHANNELS / GROUPS, 3, 3}, out_dims[] = {BATCHES, OUTPUTS, SIZE, SIZE}, one[] = {1, 1};
    dw_tensor x, weight, out;
    assert_true(op_tensor_init(&x, DW_FORMAT_bf16, DW_SCALE_plain, 4, x_dims, NULL));
    assert_true(op_tensor_init(&weight, DW_FORMAT_bf16, DW_SCALE_plain, 4, w_dims, NULL));
    assert_true(op_tensor_init(&out, DW_FORMAT_bf16, DW_SCALE_plain, 4, out_dims, NULL));
    const dw_tensor *in[] = {&x, &weight}, *outs[] = {&out};
    const op_attr items[] = {op_set_ints(OP_ATTR_stride, 2, one), op_set_ints(OP_ATTR_padding, 2, one), op_set_ints(OP_ATTR_dilation, 2, one), op_set_int(OP_ATTR_groups, GROUPS)};
    const op_attrs attrs = {COUNT_OF(items), items};
    const kernel_run run = {.call = {.context = context, .op = op_get(OP_conv), .attrs = &attrs, .n_in = 2, .in = in, .n_out = 1, .out = outs}, .constant_in = 2, .chip = &chip};
    const kernel_row *row = row_of("cuda_conv_gemm");
    watcher w = {.launcher = {watch}, .workspace = (int64_t)row->workspace(&run)};
    assert_int_equal(row->shape(&run, &w.launcher), DW_OK);
    assert_int_equal(w.rows, ROWS);
    assert_int_equal(w.products, GROUPS);
    assert_true(w.pieces > 1);
    assert_true(w.workspace < (int64_t)ROWS * DEPTH * GROUPS * BYTES);
    dw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_cover_all_rows_within_the_workspace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
