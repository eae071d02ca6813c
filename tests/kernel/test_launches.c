/* Every row for GPUs, and every way of rows that have ways, asked for the launches of every line of tests/conform on every chip of the table, without any device: each launch has room on
 * its chip, whose code the library has; and what was asked for by name launches kernels of its own, which no other row or way of the op launches, or refuses. A row with ways launches
 * those of one of them. The shared memory that ways.def says of a way is the least that any of its own launches asks for, and a chip that has less refuses it by that. */
#include "support/lines.h"
#include "support/support.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"
#include "kernels/gemm/wgmma/wgmma.h"
#include "kernels/pointwise/functions.h"

enum { LINE_BYTES = 1024, MOST_OWNERS = 2048, MOST_WAYS = 64 };

/* Sizes that the lines of conformance are too small for: long rows of weights, wide heads, long texts; and those whose launches ask for the least shared memory. */
static const char *const large[] = {
    "matmul bf16[1,16384] bf16[4096,16384] bt=true",
    "matmul bf16[64,16384] bf16[4096,16384] bt=true",
    "matmul f32[21,4096] bf16[4096,4096] bt=true",
    "matmul f16[32,8192] mxfp4[4096,8192] bt=true",
    "matmul nvfp4[64,8192] nvfp4[14336,8192] bt=true",
    "matmul f32[16,8192] nvfp4[14336,8192] bt=true",
    "matmul mxfp8[64,8192] mxfp8[4096,8192] bt=true",
    "matmul mxfp8[65,8192] mxfp8[4096,8192] bt=true",
    "matmul fp8_1x128[8,8192] fp8_128x128[4096,8192] bt=true",
    "matmul f32[512,4096] f32[4096,4096] bt=true",
    "matmul fp8_row[1,4096] fp8_row[14336,4096] bt=true",
    "grouped_matmul fp8_row[1,256] fp8_row[8,256,256] i32[8] bt=true range=2:0:1 ascending=2",
    "grouped_matmul mxfp4[16,2048] mxfp4[32,1536,2048] i32[32] bt=true range=2:0:16 ascending=2",
    "grouped_matmul bf16[512,2048] bf16[8,1536,2048] i32[8] bt=true range=2:0:512 ascending=2",
    "attention f32[1,32,512,64] f32[1,8,512,64] f32[1,8,512,64] causal=true scale=0.125",
    "attention f32[1,32,512,128] f32[1,8,512,128] f32[1,8,512,128] causal=true scale=0.0884",
    "attention f32[1,8,512,256] f32[1,8,512,256] f32[1,8,512,256] causal=true scale=0.0625",
    "attention f32[1,8,512,126] f32[1,8,512,126] f32[1,8,512,126] causal=true scale=0.0625",
    "attention bf16[1,32,512,128] bf16[1,8,512,128] bf16[1,8,512,128] causal=true scale=0.0884",
    "attention bf16[1,32,1,128] bf16[1,8,8192,128] bf16[1,8,8192,128] scale=0.0884",
    "attention f32[1,32,1,128] f32[1,8,8192,128] f32[1,8,8192,128] scale=0.0884",
    "attention bf16[1,8,1,256] bf16[1,8,8192,256] bf16[1,8,8192,256] scale=0.0625",
    "softmax bf16[8,200000] axis=1",
    "rms_norm bf16[8,65536] bf16[65536] eps=1e-6",
    "rms_norm bf16[4096,8192] bf16[8192] eps=1e-6",
    "layer_norm bf16[4096,8192] bf16[8192] bf16[8192] eps=1e-6",
    "quantize bf16[8,65536] to=fp8_row",
};

/* Who launches which kernel when asked for by name. */
typedef struct owner { op_id op; const char *entry, *name; } owner;

/* What a way's own launches came to: the least shared memory, and on which chips of the table there were some. */
typedef struct own { const kernel_way *way; size_t least_bytes; uint64_t chips; } own;

typedef struct fixture {
    dw_context *context;
    own ways[MOST_WAYS];
    int way_count, chip;
    owner owners[MOST_OWNERS];
    int owner_count;
    int64_t launches, refusals, failures;
} fixture;

typedef struct recorder {
    kernel_launcher launcher;
    fixture *f;
    const kernel_case *c;
    const kernel_row *row;
    const kernel_way *way;        /* that was asked for; NULL: the row */
    const chip_caps *chip;
    int count;
} recorder;

static const char *name_of(const recorder *r) { return r->way != NULL ? r->way->name : r->row->name; }

static void report(recorder *r, const char *entry, const char *what) {
    r->f->failures++;
    print_error("%s:%d: %s\n    %s on %s, %s: %s\n", r->c->source, r->c->number, r->c->line, name_of(r), r->chip->name, entry, what);
}

/* Which architectures an image has code for: image.def. */
static bool is_loadable(const char *image, int arch) {
    static const struct { const char *stem, *architectures; } images[] = {
#define CUDA_IMAGE(stem, source, architectures, kind, constants) {#stem, architectures},
#include "kernels/image.def"
#undef CUDA_IMAGE
    };
    for (size_t i = 0; i < COUNT_OF(images); i++) {
        if (strcmp(images[i].stem, image) != 0) continue;
        for (const char *at = images[i].architectures; *at != '\0'; at += *at == ' ') {
            char *end;
            const int code = (int)strtol(at, &end, 10);
            if (*end == 'a' ? arch == code : *end == 'f' || *end == 'p' ? arch / 10 == code / 10 && arch >= code : arch >= code) return true;
            at = end + strcspn(end, " ");
        }
    }
    return false;
}

/* Launches in front of a kernel and behind it that many rows share: decoding of operands, quantising and clearing of results, copies of scales, sums of
 * parts of k, the gradient of a bias. */
static bool is_helper(op_id op, const kernel_launch *launch) {
    static const char *const images[] = {"matmul_decode", "quantize", "quantize_rows", "quantize_long"};
    if (strcmp(launch->entry, "quantize_clear") == 0) return true;
    if (strcmp(launch->entry, "attention_backward_rows") == 0 || strcmp(launch->entry, "attention_backward_bias") == 0) return true;
    if (op == OP_matmul && (strcmp(launch->image, "move") == 0 || strcmp(launch->image, "matmul_few_around") == 0)) return true;
    for (size_t i = 0; i < COUNT_OF(images); i++)
        if (op != OP_quantize && op != OP_dequantize && strcmp(launch->image, images[i]) == 0) return true;
    return false;
}

static void check_owner(recorder *r, const kernel_launch *launch) {
    fixture *f = r->f;
    if (launch->image != NULL && is_helper(r->c->op->id, launch)) return;
    for (int i = 0; i < f->owner_count; i++) {
        if (f->owners[i].op != r->c->op->id || strcmp(f->owners[i].entry, launch->entry) != 0) continue;
        if (strcmp(f->owners[i].name, name_of(r)) != 0) report(r, launch->entry, f->owners[i].name);
        return;
    }
    assert_true(f->owner_count < MOST_OWNERS);
    f->owners[f->owner_count++] = (owner){r->c->op->id, launch->entry, name_of(r)};
}

/* Rows share a table of ways. */
static own *own_of(fixture *f, const kernel_way *way) {
    for (int i = 0; i < f->way_count; i++)
        if (f->ways[i].way == way) return &f->ways[i];
    assert_true(f->way_count < MOST_WAYS);
    f->ways[f->way_count] = (own){way, SIZE_MAX, 0};
    return &f->ways[f->way_count++];
}

static void note_own(recorder *r, const kernel_launch *launch) {
    if (r->way == NULL || (launch->image != NULL && is_helper(r->c->op->id, launch))) return;
    own *o = own_of(r->f, r->way);
    o->chips |= UINT64_C(1) << r->f->chip;
    if (launch->shared_bytes < o->least_bytes) o->least_bytes = launch->shared_bytes;
}

static dw_status record(kernel_launcher *launcher, const kernel_launch *launch) {
    recorder *r = (recorder *)launcher;
    text why;
    text_init(&why, r->f->context);
    const char *reason = kernel_launch_refusal(launch, r->chip, &why);
    if (reason != NULL) report(r, launch->entry, reason);
    text_free(&why);
    if (launch->library == NULL && !is_loadable(launch->image, r->chip->arch)) report(r, launch->entry, "its image has no code for the chip");
    if (r->way != NULL || r->row->way_count == 0) check_owner(r, launch);
    note_own(r, launch);
    r->f->launches++;
    r->count++;
    return DW_OK;
}

/* By a way, or, without one, by whichever of its ways the row picks. */
static void shape_row(fixture *f, const kernel_case *c, const kernel_row *row, const kernel_way *way, const chip_caps *chip) {
    static const int64_t no_symbols[1] = {0};
    dw_tensor in[KERNEL_CASE_OPERANDS], out[KERNEL_CASE_RESULTS];
    const dw_tensor *ins[KERNEL_CASE_OPERANDS] = {0}, *outs[KERNEL_CASE_RESULTS];
    const kernel_problem problem = {.context = f->context, .op = c->op, .attrs = &c->attrs, .post = c->post, .n_in = c->n_in, .n_out = c->n_out, .in = c->in, .out = c->out,
                                    .constant_in = c->constant, .dims = c->dims, .symbols = no_symbols, .chip = chip};
    recorder recorder = {{record}, f, c, row, way, chip, 0};
    const uint32_t ways = way != NULL ? UINT32_C(1) << (way - row->ways) : kernel_accepted_ways(row, &problem);
    text why;
    text_init(&why, f->context);
    const char *reason = kernel_refusal(row, way, &problem, &why);
    const bool refused = reason != NULL;
    if (refused && reason[0] == '\0') report(&recorder, "refusal", "it has no reason");
    text_free(&why);
    if (refused) return;
    for (int i = 0; i < c->n_in; i++) {
        if (c->in[i] == NULL) continue;
        assert_int_equal(op_tensor_bind(f->context, c->in[i], NULL, NULL, &in[i]), DW_OK);
        if (row->strided_in >> i & 1) kernel_case_set_apart(c, i, &in[i]);
        ins[i] = &in[i];
    }
    for (int i = 0; i < c->n_out; i++) {
        assert_int_equal(op_tensor_bind(f->context, c->out[i], NULL, NULL, &out[i]), DW_OK);
        outs[i] = &out[i];
    }
    kernel_run run = {.call = {f->context, c->op, &c->attrs, NULL, c->n_in, ins, c->n_out, outs, 0, NULL}, .post = c->post, .chip = chip, .ways = ways};
    dw_status status = kernel_shape(row, &run, &recorder.launcher);
    if (status == DW_UNSUPPORTED && way != NULL && recorder.count == 0) f->refusals++;
    else if (status != DW_OK) report(&recorder, "shape", dw_context_error(f->context));
}

static void run_line(fixture *f, const char *source, int number, const char *line) {
    arena arena;
    dim_table *dims;
    kernel_case c;
    arena_init(&arena, f->context);
    assert_int_equal(dim_table_create(f->context, &dims), DW_OK);
    if (kernel_case_parse(&arena, dims, source, number, line, &c) != DW_OK) fail_msg("%s", dw_context_error(f->context));
    for (int i = 0; i < chip_count(); i++) {
        chip_caps chip;
        chip_row_caps(i, 0, &chip);
        chip.features |= CHIP_LIBRARIES;
        f->chip = i;
        for (int k = 0; chip.kind == CHIP_GPU && k < kernel_count(); k++) {
            const kernel_row *row = kernel_at(k);
            if (row->op != c.op->id || row->device != CHIP_GPU) continue;
            shape_row(f, &c, row, NULL, &chip);
            for (int w = 0; w < row->way_count; w++)
                if (kernel_find_way(row, row->ways[w].name) != NULL) shape_row(f, &c, row, &row->ways[w], &chip);
        }
    }
    dim_table_destroy(dims);
    arena_free(&arena);
}

typedef struct file_run { fixture *f; const char *source; } file_run;

static dw_status run_one(void *argument, int number, const char *line) {
    file_run *run = argument;
    run_line(run->f, run->source, number, line);
    return DW_OK;
}

static void run_file(fixture *f, const char *path) {
    file_run run = {f, strrchr(path, '/') + 1};
    if (lines_read_file(path, run_one, &run) != DW_OK) fail_msg("%s cannot be read", path);
}

/* A way runs on every chip that has what its row in ways.def asks for, and on no other. */
static void check_own(fixture *f, const own *o) {
    if (o->least_bytes != o->way->shared_bytes) {
        f->failures++;
        print_error("%s: ways.def says %zu bytes of shared memory, and the least of its launches is %zu\n", o->way->name, o->way->shared_bytes, o->least_bytes);
    }
    for (int i = 0; i < chip_count(); i++) {
        chip_caps chip;
        chip_row_caps(i, 0, &chip);
        const bool able = chip.kind == CHIP_GPU && (o->way->needs & ~(chip.features | CHIP_LIBRARIES)) == 0 && o->way->shared_bytes <= chip.shared_bytes;
        if (able == ((o->chips >> i & 1) != 0)) continue;
        f->failures++;
        print_error("%s: %s has %s of what it needs, and %s line of conformance runs it there\n", o->way->name, chip.name, able ? "all" : "not all", able ? "no" : "a");
    }
}

static void every_launch_has_room_and_is_of_what_was_named(void **state) {
    static fixture f;
    (void)state;
    f = (fixture){0};
    assert_int_equal(dw_context_create(NULL, &f.context), DW_OK);
    DIR *folder = opendir(TEST_SOURCE_DIR "/tests/conform");
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char path[LINE_BYTES];
        const size_t length = strlen(entry->d_name);
        if (length < 4 || strcmp(entry->d_name + length - 4, ".txt") != 0) continue;
        snprintf(path, sizeof path, "%s/tests/conform/%s", TEST_SOURCE_DIR, entry->d_name);
        run_file(&f, path);
    }
    closedir(folder);
    for (size_t i = 0; i < COUNT_OF(large); i++) run_line(&f, "large", (int)i + 1, large[i]);
    for (int k = 0; k < kernel_count(); k++)
        for (int w = 0; w < kernel_at(k)->way_count; w++) own_of(&f, &kernel_at(k)->ways[w]);
    for (int i = 0; i < f.way_count; i++) check_own(&f, &f.ways[i]);
    print_message("%lld launches, %lld runs refused by name\n", (long long)f.launches, (long long)f.refusals);
    dw_context_destroy(f.context);
    assert_true(f.launches > 10000 && f.refusals > 0);
    assert_int_equal(f.failures, 0);
}

static void a_chip_with_less_shared_memory_refuses_a_way(void **state) {
    static const char *const lines[] = {
        "matmul mxfp8[16,128] mxfp8[64,128] bt=true",
        "grouped_matmul mxfp8[16,128] mxfp8[2,64,128] i32[2] bt=true range=2:0:16 ascending=2",
        "attention bf16[1,8,4,64] bf16[1,8,96,64] bf16[1,8,96,64] scale=0.125",
    };
    static const int64_t no_symbols[1] = {0};
    dw_context *context;
    int refused = 0;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        arena arena;
        dim_table *dims;
        kernel_case c;
        arena_init(&arena, context);
        assert_int_equal(dim_table_create(context, &dims), DW_OK);
        assert_int_equal(kernel_case_parse(&arena, dims, "lines", (int)i + 1, lines[i], &c), DW_OK);
        for (int k = 0; k < kernel_count(); k++) {
            const kernel_row *row = kernel_at(k);
            for (int w = 0; row->op == c.op->id && w < row->way_count; w++) {
                const kernel_way *way = kernel_find_way(row, row->ways[w].name);
                chip_caps chip;
                chip_row_caps(0, 0, &chip);
                if (way == NULL || way->shared_bytes == 0) continue;
                chip.features = UINT64_MAX;
                chip.shared_bytes = way->shared_bytes - 1;
                const kernel_problem problem = {.context = context, .op = c.op, .attrs = &c.attrs, .post = c.post, .n_in = c.n_in, .n_out = c.n_out, .in = c.in, .out = c.out,
                                                .dims = c.dims, .symbols = no_symbols, .chip = &chip};
                char expected[200];
                snprintf(expected, sizeof expected, "it needs %zu bytes of shared memory or more, and %s has %zu for a block", way->shared_bytes, chip.name, chip.shared_bytes);
                text why;
                text_init(&why, context);
                const char *reason = kernel_refusal(row, way, &problem, &why);
                assert_non_null(reason);
                assert_string_equal(reason, expected);
                text_free(&why);
                refused++;
            }
        }
        dim_table_destroy(dims);
        arena_free(&arena);
    }
    dw_context_destroy(context);
    assert_true(refused >= 8);
}

/* The products of a composed run: the matrices of b that each is of, and where it reads them. */
typedef struct parts { kernel_launcher launcher; int dequantisers, products; int32_t first[16], end[16], clears[16]; uint16_t operand[16]; int64_t offset[16]; } parts;

static dw_status note_part(kernel_launcher *launcher, const kernel_launch *launch) {
    parts *p = (parts *)launcher;
    if (strcmp(launch->image, "matmul_decode") == 0) {
        p->dequantisers++;
        return DW_OK;
    }
    const matmul_wgmma_arguments *g = (const matmul_wgmma_arguments *)launch->arguments;
    assert_in_range(p->products, 0, 15);
    p->first[p->products] = g->groups.first;
    p->end[p->products] = g->groups.end;
    p->clears[p->products] = g->groups.clears;
    p->operand[p->products] = launch->maps[1].operand;
    p->offset[p->products++] = launch->maps[1].offset;
    return DW_OK;
}

/* 20 matrices of 32 MiB in bf16: 8 at a time, behind a's rows in the workspace. */
static void matrices_of_groups_are_dequantised_in_parts(void **state) {
    enum { ROWS = 512, GROUPS = 20, SIZE = 4096 };
    dw_context *context;
    dw_tensor in[3], out;
    const dw_tensor *ins[] = {&in[0], &in[1], &in[2]}, *outs[] = {&out};
    const op_attr bt = op_set_bool(OP_ATTR_bt, true);
    const op_attrs attrs = {1, &bt};
    chip_caps chip;
    int found = 0;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    for (int i = 0; i < chip_count(); i++) {
        chip_row_caps(i, 0, &chip);
        if (strcmp(chip.name, "h200") == 0) break;
    }
    op_tensor_init(&in[0], DW_FORMAT_mxfp8, DW_SCALE_plain, 2, (int64_t[]){ROWS, SIZE}, NULL);
    op_tensor_init(&in[1], DW_FORMAT_mxfp4, DW_SCALE_plain, 3, (int64_t[]){GROUPS, SIZE, SIZE}, NULL);
    op_tensor_init(&in[2], DW_FORMAT_i32, DW_SCALE_plain, 1, (int64_t[]){GROUPS}, NULL);
    op_tensor_init(&out, DW_FORMAT_f32, DW_SCALE_plain, 2, (int64_t[]){ROWS, SIZE}, NULL);
    for (int i = 0; i < kernel_count(); i++) {
        const kernel_row *row = kernel_at(i);
        const char *const names[] = {"cuda_grouped_wgmma"};
        const uint32_t ways = kernel_ways_of(row, names, 1);
        if (ways == 0) continue;
        found++;
        parts p = {.launcher = {note_part}};
        const kernel_run run = {.call = {context, op_get(OP_grouped_matmul), &attrs, NULL, 3, ins, 1, outs, 0, NULL}, .chip = &chip, .ways = ways};
        const size_t a_bytes = (size_t)ROWS * SIZE * 2, b_bytes = (size_t)SIZE * SIZE * 2;
        assert_int_equal(kernel_workspace(row, &run), a_bytes + 8 * b_bytes);
        assert_int_equal(kernel_shape(row, &run, &p.launcher), DW_OK);
        assert_int_equal(p.dequantisers, 3);
        assert_int_equal(p.products, 3);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(p.first[k], 8 * k);
            assert_int_equal(p.end[k], k < 2 ? 8 * (k + 1) : GROUPS);
            assert_int_equal(p.clears[k], k == 2);
            assert_int_equal(p.operand[k], KERNEL_WORKSPACE);
            assert_int_equal(p.offset[k], a_bytes);
        }
    }
    assert_int_equal(found, 1);
    dw_context_destroy(context);
}

/* A session reserves room at its largest sizes: fewer columns, at which more thread blocks are resident and each has sums, never take more. */
static void sums_of_gradients_of_norms_have_room_at_fewer_columns_too(void **state) {
    enum { ROWS = 100000, MOST_COLS = 8192 };
    dw_context *context;
    const op_attr eps = op_set_real(OP_ATTR_eps, 1e-5);
    const op_attrs attrs = {1, &eps};
    int found = 0;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    for (int i = 0; i < chip_count() * kernel_count(); i++) {
        const kernel_row *row = kernel_at(i % kernel_count());
        chip_caps chip;
        size_t most = 0;
        chip_row_caps(i / kernel_count(), 0, &chip);
        if (strstr(row->name, "norm_backward_rows") == NULL || row->device != CHIP_GPU || (row->needs & ~chip.features) != 0) continue;
        found++;
        for (int64_t cols = 1; cols <= MOST_COLS; cols++) {
            dw_tensor x;
            const dw_tensor *ins[] = {&x, &x, NULL, &x}, *outs[] = {&x, NULL, NULL};
            op_tensor_init(&x, DW_FORMAT_bf16, DW_SCALE_plain, 2, (int64_t[]){ROWS, cols}, NULL);
            const kernel_run run = {.call = {context, op_get(row->op), &attrs, NULL, 4, ins, 3, outs, 0, NULL}, .chip = &chip};
            const size_t bytes = kernel_workspace(row, &run);
            assert_true(bytes >= most && bytes > 0);
            most = bytes;
        }
    }
    assert_true(found > 0);
    dw_context_destroy(context);
}

/* The last launch of a run. */
typedef struct noted { kernel_launcher launcher; const char *entry; uint32_t grid, shared_bytes; } noted;

static dw_status note_launch(kernel_launcher *launcher, const kernel_launch *launch) {
    noted *n = (noted *)launcher;
    n->entry = launch->entry;
    n->grid = launch->grid[0] * launch->grid[1] * launch->grid[2];
    n->shared_bytes = launch->shared_bytes;
    return DW_OK;
}

/* Clusters that wait for each other's keys would take a second round. 1024: of each block, for the driver; of all blocks of a multiprocessor the chip has as much more than one may have. */
static void blocks_that_share_keys_find_room_at_once(void **state) {
    enum { HEADS = 32, KEYS = 8192, DRIVER_BYTES = 1024 };
    static const char *const names[] = {"cuda_attention_decode"};
    static const int64_t widths[] = {64, 128, 256};
    dw_context *context;
    const op_attr scale = op_set_real(OP_ATTR_scale, 0.125);
    const op_attrs attrs = {1, &scale};
    int shared = 0;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    for (int i = 0; i < kernel_count() * chip_count(); i++) {
        const kernel_row *row = kernel_at(i / chip_count());
        const uint32_t ways = kernel_ways_of(row, names, 1);
        chip_caps chip;
        chip_row_caps(i % chip_count(), 0, &chip);
        if (ways == 0 || !chip_has(&chip, CHIP_tma)) continue;
        for (size_t w = 0; w < COUNT_OF(widths); w++) {
            dw_tensor q, k, out;
            const dw_tensor *ins[] = {&q, &k, &k}, *outs[] = {&out};
            noted n = {.launcher = {note_launch}};
            op_tensor_init(&q, DW_FORMAT_bf16, DW_SCALE_plain, 4, (int64_t[]){1, HEADS, 1, widths[w]}, NULL);
            op_tensor_init(&k, DW_FORMAT_bf16, DW_SCALE_plain, 4, (int64_t[]){1, HEADS, KEYS, widths[w]}, NULL);
            out = q;
            const kernel_run run = {.call = {context, op_get(OP_attention), &attrs, NULL, 3, ins, 1, outs, 0, NULL}, .chip = &chip, .ways = ways};
            assert_int_equal(kernel_shape(row, &run, &n.launcher), DW_OK);
            const size_t held = (chip.shared_bytes + DRIVER_BYTES) / (n.shared_bytes + DRIVER_BYTES);
            if (n.grid > HEADS && n.grid > (size_t)chip.units * held) fail_msg("%s, heads of %d: %u blocks, and %zu find room on each of %d multiprocessors", chip.name, (int)widths[w], n.grid, held, chip.units);
            shared += n.grid > HEADS;
        }
    }
    assert_true(shared > 6);
    dw_context_destroy(context);
}

/* Of texts that decode past long rows, 32 heads of 128 on 8 of keys, the blocks of a cluster that took an H200 the least of those that were tried (bench/results/h200/attention.md). */
static void blocks_that_share_keys_are_the_fastest_of_those_measured(void **state) {
    static const struct { int64_t texts, keys; uint32_t blocks; } shapes[] = {{3, 8192, 5}, {4, 16384, 7}, {6, 4096, 2}, {8, 2048, 2}, {8, 8192, 2}, {12, 4096, 1}, {16, 4096, 2}, {32, 4160, 1}, {64, 2048, 1}};
    static const char *const names[] = {"cuda_attention_decode"};
    dw_context *context;
    const op_attr scale = op_set_real(OP_ATTR_scale, 0.0884);
    const op_attrs attrs = {1, &scale};
    int found = 0;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    for (int i = 0; i < kernel_count() * (int)COUNT_OF(shapes); i++) {
        const kernel_row *row = kernel_at(i / (int)COUNT_OF(shapes));
        const uint32_t ways = kernel_ways_of(row, names, 1);
        const int64_t texts = shapes[i % (int)COUNT_OF(shapes)].texts;
        if (ways == 0) continue;
        chip_caps chip;
        dw_tensor q, k, out;
        const dw_tensor *ins[] = {&q, &k, &k}, *outs[] = {&out};
        noted n = {.launcher = {note_launch}};
        assert_int_equal(chip_find(context, "h200", 0, &chip), DW_OK);
        op_tensor_init(&q, DW_FORMAT_bf16, DW_SCALE_plain, 4, (int64_t[]){texts, 32, 1, 128}, NULL);
        op_tensor_init(&k, DW_FORMAT_bf16, DW_SCALE_plain, 4, (int64_t[]){texts, 8, shapes[i % (int)COUNT_OF(shapes)].keys, 128}, NULL);
        out = q;
        const kernel_run run = {.call = {context, op_get(OP_attention), &attrs, NULL, 3, ins, 1, outs, 0, NULL}, .chip = &chip, .ways = ways};
        assert_int_equal(kernel_shape(row, &run, &n.launcher), DW_OK);
        assert_int_equal(n.grid, (uint32_t)texts * 8 * shapes[i % (int)COUNT_OF(shapes)].blocks);
        found++;
    }
    assert_true(found > 0);
    dw_context_destroy(context);
}

/* Of each shape the number of blocks that took an H200 the least of those that were tried (bench/results/h200/sample.md); of 16 rows and of one row, which were tried with 6 and 8 blocks and with 8, what the estimate
 * says. And such as the simulator's conformance has, of a chip with 16 multiprocessors: clusters that have no power of two of blocks, and blocks that do not keep all their ids. */
static void blocks_that_share_a_row_of_logits_are_the_fastest_of_those_measured(void **state) {
    static const struct { dw_format format; int64_t rows, words; int units; uint32_t blocks; } shapes[] = {
        {DW_FORMAT_f32, 64, 151936, 132, 2}, {DW_FORMAT_bf16, 64, 151936, 132, 2}, {DW_FORMAT_f32, 48, 128256, 132, 2}, {DW_FORMAT_f32, 32, 151936, 132, 3}, {DW_FORMAT_f32, 16, 128256, 132, 7},
        {DW_FORMAT_f32, 64, 32000, 132, 2},  {DW_FORMAT_f32, 1, 151936, 132, 8},    {DW_FORMAT_f32, 4, 12000, 16, 3},    {DW_FORMAT_bf16, 2, 12000, 16, 7},
        {DW_FORMAT_f32, 16, 60000, 16, 1},   {DW_FORMAT_f32, 8, 112000, 16, 2},
    };
    dw_context *context;
    const op_attrs none = {0};
    int found = 0;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    for (int i = 0; i < kernel_count() * (int)COUNT_OF(shapes); i++) {
        const kernel_row *row = kernel_at(i / (int)COUNT_OF(shapes));
        const int64_t rows = shapes[i % (int)COUNT_OF(shapes)].rows;
        if (row->op != OP_sample || row->device != CHIP_GPU || row->reference) continue;
        chip_caps chip;
        dw_tensor in[3], out[2];
        const dw_tensor *ins[] = {&in[0], &in[1], &in[2]}, *outs[] = {&out[0], &out[1]};
        noted n = {.launcher = {note_launch}};
        assert_int_equal(chip_find(context, "h200", 0, &chip), DW_OK);
        chip.units = shapes[i % (int)COUNT_OF(shapes)].units;
        op_tensor_init(&in[0], shapes[i % (int)COUNT_OF(shapes)].format, DW_SCALE_plain, 2, (int64_t[]){rows, shapes[i % (int)COUNT_OF(shapes)].words}, NULL);
        op_tensor_init(&in[1], DW_FORMAT_f32, DW_SCALE_plain, 2, (int64_t[]){rows, SAMPLING_SETTINGS}, NULL);
        op_tensor_init(&in[2], DW_FORMAT_i64, DW_SCALE_plain, 2, (int64_t[]){rows, 2}, NULL);
        op_tensor_init(&out[0], DW_FORMAT_i64, DW_SCALE_plain, 1, &rows, NULL);
        op_tensor_init(&out[1], DW_FORMAT_f32, DW_SCALE_plain, 1, &rows, NULL);
        const kernel_run run = {.call = {context, op_get(OP_sample), &none, NULL, 3, ins, 2, outs, 0, NULL}, .chip = &chip};
        assert_int_equal(kernel_shape(row, &run, &n.launcher), DW_OK);
        assert_int_equal(n.grid, (uint32_t)rows * shapes[i % (int)COUNT_OF(shapes)].blocks);
        found++;
    }
    assert_int_equal(found, COUNT_OF(shapes));
    dw_context_destroy(context);
}

/* The line's launches by the row of its op on an H200 of so many multiprocessors; how many elements its result has. */
static noted launches_of(dw_context *context, const char *source, int number, const char *line, int units, int64_t *elements) {
    arena arena;
    dim_table *dims;
    kernel_case c;
    chip_caps chip;
    dw_tensor in[KERNEL_CASE_OPERANDS], out;
    const dw_tensor *ins[KERNEL_CASE_OPERANDS] = {0}, *outs[] = {&out};
    noted n = {.launcher = {note_launch}};
    arena_init(&arena, context);
    assert_int_equal(dim_table_create(context, &dims), DW_OK);
    assert_int_equal(kernel_case_parse(&arena, dims, source, number, line, &c), DW_OK);
    assert_int_equal(chip_find(context, "h200", 0, &chip), DW_OK);
    chip.units = units;
    for (int k = 0; k < c.n_in; k++) {
        assert_int_equal(op_tensor_bind(context, c.in[k], NULL, NULL, &in[k]), DW_OK);
        kernel_case_set_apart(&c, k, &in[k]);
        ins[k] = &in[k];
    }
    assert_int_equal(op_tensor_bind(context, c.out[0], NULL, NULL, &out), DW_OK);
    *elements = op_tensor_count(&out);
    const kernel_run run = {.call = {context, c.op, &c.attrs, NULL, c.n_in, ins, 1, outs, 0, NULL}, .chip = &chip};
    for (int i = 0; i < kernel_count(); i++)
        if (kernel_at(i)->op == c.op->id && kernel_at(i)->device == CHIP_GPU) assert_int_equal(kernel_shape(kernel_at(i), &run, &n.launcher), DW_OK);
    assert_non_null(n.entry);
    dim_table_destroy(dims);
    arena_free(&arena);
    return n;
}

typedef struct tiled { dw_context *context; int few, tiles; } tiled;

static dw_status check_tiles(void *argument, int number, const char *line) {
    static const int units[] = {1, 132, 148};
    tiled *t = argument;
    for (size_t i = 0; i < COUNT_OF(units); i++) {
        int64_t elements;
        const chip_caps chip = {.units = units[i]};
        const char *entry = launches_of(t->context, "transposed.txt", number, line, units[i], &elements).entry;
        const bool is_few = elements <= chain_few_most(&chip);
        if ((strncmp(entry, "chain_tiles", strlen("chain_tiles")) == 0) == is_few) fail_msg("%s on %d multiprocessors: %s", line, units[i], entry);
        if (is_few) t->few++;
        else t->tiles++;
    }
    return DW_OK;
}

/* What goes through fp32 from one rounding to the next is packed; what stays there, or begins with a number that the format has not, is not. */
static void steps_through_fp32_are_packed(void **state) {
    static const struct { const char *line, *entry; } cases[] = {
        {"chain bf16[530,520] steps=cast(x0,f32);mul(t0,f32:1.702);cast(t1,bf16);sigmoid(t2);mul(x0,t3)", "chain_packed_bf16"},
        {"chain f16[271,1001] steps=cast(x0,f32);add(f32:0.1,t0);cast(t1,f16);tanh(t2);mul(x0,t3)", "chain_packed_f16"},
        {"chain bf16[530,520] steps=cast(x0,f32);sub(f32:0.1,t0);cast(t1,bf16);tanh(t2);mul(x0,t3)", "chain_vectors"},
        {"chain bf16[530,520] steps=cast(x0,f32);mul(t0,f32:1.1);sub(t1,t0);cast(t2,bf16);mul(x0,t3)", "chain_vectors"},
    };
    dw_context *context;
    (void)state;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int64_t elements;
        const char *entry = launches_of(context, "line", 1, cases[i].line, 132, &elements).entry;
        if (strcmp(entry, cases[i].entry) != 0) fail_msg("%s: %s", cases[i].line, entry);
    }
    dw_context_destroy(context);
}

static void transposed_operands_come_in_tiles_where_elements_are_not_few(void **state) {
    tiled t = {0};
    (void)state;
    assert_int_equal(dw_context_create(NULL, &t.context), DW_OK);
    assert_int_equal(lines_read_file(TEST_SOURCE_DIR "/tests/conform/transposed.txt", check_tiles, &t), DW_OK);
    assert_true(t.few > 0 && t.tiles > 0);
    dw_context_destroy(t.context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transposed_operands_come_in_tiles_where_elements_are_not_few),
        cmocka_unit_test(steps_through_fp32_are_packed),
        cmocka_unit_test(blocks_that_share_a_row_of_logits_are_the_fastest_of_those_measured),
        cmocka_unit_test(blocks_that_share_keys_find_room_at_once),
        cmocka_unit_test(blocks_that_share_keys_are_the_fastest_of_those_measured),
        cmocka_unit_test(matrices_of_groups_are_dequantised_in_parts),
        cmocka_unit_test(sums_of_gradients_of_norms_have_room_at_fewer_columns_too),
        cmocka_unit_test(every_launch_has_room_and_is_of_what_was_named),
        cmocka_unit_test(a_chip_with_less_shared_memory_refuses_a_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
