/* What the lines of Blackwell's products cover (tests/conform/tcgen05*.txt, which sim_conform runs whole for each commit): every entry of tiles.def beside every step of a post list, format of
 * the result, format of the operands, and edge of rows, columns and k, and each two of those beside each other, wherever a tile takes both. What is wanted is not listed here: the entries,
 * by the ways, are asked for the launches of each call that steps, formats and edges make. Executes nothing. */
#include "support/lines.h"
#include "support/support.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"

enum { LINE_BYTES = 1024, MOST_ENTRIES = 256, MOST_VALUES = 16, NO_STEP = OP_POST_COUNT };

/* Rows: those of a tile are 128, and of swapped operands sixteens are multiplied. Columns: rows of results that are no whole 16 bytes are stored by threads. */
typedef enum factor { STEP, RESULT, OPERANDS, ROWS, COLUMNS, DEPTH, FACTOR_COUNT } factor;
static const char *const factor_names[] = {"step", "result", "operands", "rows", "columns", "k"};

static const dw_format results[] = {DW_FORMAT_f32, DW_FORMAT_bf16, DW_FORMAT_f16, DW_FORMAT_mxfp8, DW_FORMAT_mxfp4, DW_FORMAT_nvfp4, DW_FORMAT_fp8_1x128};
static const char *const result_texts[] = {"f32", "bf16", "f16", "mxfp8 tiled=true", "mxfp4 tiled=true", "nvfp4 level=0.1 tiled=true", "fp8_1x128"};

/* k: whole blocks of 128 bytes, and one that ends inside of a block; 0: TMA takes none. */
typedef struct operands { const char *a, *b; int whole, tail; } operands;
static const operands kinds[] = {
    {"bf16", "bf16", 128, 200},
    {"f16", "f16", 128, 200},
    {"fp8_row", "fp8_row", 256, 144},
    {"fp8_1x128", "fp8_128x128", 256, 144},
    {"mxfp8@tile128x4", "mxfp8@tile128x4", 256, 160},
    {"mxfp8@tile128x4", "mxfp4@tile128x4", 256, 0},
    {"mxfp4@tile128x4", "mxfp4@tile128x4", 256, 320},
    {"nvfp4@tile128x4", "nvfp4@tile128x4", 256, 320},
};

static const char *const row_names[] = {"no sixteens", "sixteens", "whole tiles"}, *const column_names[] = {"no 16 bytes", "16 bytes", "whole tiles"},
                  *const depth_names[] = {"ends in a block", "whole blocks"};

/* Bits of values, of what a tile takes and of what a line runs. */
typedef struct seen { uint32_t wanted, covered; } seen;
typedef struct entry { const char *name; seen of[FACTOR_COUNT]; } entry;

typedef struct fixture {
    dw_context *context;
    chip_caps chip;
    entry entries[MOST_ENTRIES];
    int count;
    seen pairs[FACTOR_COUNT][FACTOR_COUNT][MOST_VALUES];
    int64_t lines, runs, others;  /* others: runs of a variant that launch another one's entry */
} fixture;

static const char *value_name(factor f, int value) {
    static char text[64];
    if (f == STEP) return value == NO_STEP ? "none" : op_post_name((op_post)value);
    if (f == RESULT) return dw_format_name(results[value]);
    if (f != OPERANDS) return (f == ROWS ? row_names : f == COLUMNS ? column_names : depth_names)[value];
    snprintf(text, sizeof text, "%s x %s", kinds[value].a, kinds[value].b);
    return text;
}

/* ---- what a call has of each factor ---- */

static int result_of(dw_format format) {
    for (int i = 0; i < (int)COUNT_OF(results); i++)
        if (results[i] == format) return i;
    return -1;
}

/* Of formats that multiply alike, as mxfp8 and mxfp8_e5m2, the first row. */
static int kind_of(dw_format a, dw_format b) {
    static const struct { dw_format format, as; } alike[] = {{DW_FORMAT_mxfp8_e5m2, DW_FORMAT_mxfp8}, {DW_FORMAT_nvfp4_row, DW_FORMAT_nvfp4}, {DW_FORMAT_fp8_tensor, DW_FORMAT_fp8_row}};
    for (size_t i = 0; i < COUNT_OF(alike); i++) {
        if (a == alike[i].format) a = alike[i].as;
        if (b == alike[i].format) b = alike[i].as;
    }
    for (int i = 0; i < (int)COUNT_OF(kinds); i++) {
        const char *names[] = {kinds[i].a, kinds[i].b};
        const dw_format formats[] = {a, b};
        bool same = true;
        for (int k = 0; k < 2; k++) same &= strncmp(names[k], dw_format_name(formats[k]), strcspn(names[k], "@")) == 0 && strlen(dw_format_name(formats[k])) == strcspn(names[k], "@");
        if (same) return i;
    }
    return -1;
}

/* Values as bits; none: the factor is not the call's. Rows of groups are as their ranges have them. */
static void values_of(const kernel_case *c, const dw_tensor *const *in, const dw_tensor *out, uint32_t values[FACTOR_COUNT]) {
    const bool turned = op_attr_bool(&c->attrs, OP_ATTR_at);
    const int64_t n = out->dims[out->rank - 1], k = in[0]->dims[in[0]->rank - (turned ? 2 : 1)];
    const int result = result_of(c->out[0]->format), kind = kind_of(in[0]->format, in[1]->format);
    int64_t m = 1;
    memset(values, 0, FACTOR_COUNT * sizeof *values);
    for (int i = 0; i < out->rank - 1; i++) m *= out->dims[i];
    for (int i = 0; i < c->post.count; i++) values[STEP] |= UINT32_C(1) << c->post.steps[i];
    if (c->post.count == 0) values[STEP] = UINT32_C(1) << NO_STEP;
    if (result >= 0) values[RESULT] = UINT32_C(1) << result;
    if (kind >= 0) values[OPERANDS] = UINT32_C(1) << kind;
    if (c->op->id == OP_matmul) values[ROWS] = UINT32_C(1) << (m % 16 != 0 ? 0 : m % 128 != 0 ? 1 : 2);
    values[COLUMNS] = UINT32_C(1) << (n * dw_format_bits(out->format) % 128 != 0 ? 0 : n % 128 != 0 ? 1 : 2);
    values[DEPTH] = UINT32_C(1) << (k * dw_format_bits(in[0]->format) % 1024 == 0);
}

/* ---- lines ---- */

typedef struct recorder { kernel_launcher launcher; const char *entry; } recorder;

static dw_status record(kernel_launcher *launcher, const kernel_launch *launch) {
    recorder *r = (recorder *)launcher;
    if (strstr(launch->entry, "_tcgen05_") != NULL) r->entry = launch->entry;
    return DW_OK;
}

static entry *entry_of(fixture *f, const char *name) {
    for (int i = 0; i < f->count; i++)
        if (strcmp(f->entries[i].name, name) == 0) return &f->entries[i];
    assert_true(f->count < MOST_ENTRIES);
    f->entries[f->count] = (entry){.name = name};
    return &f->entries[f->count++];
}

static void note(fixture *f, const char *name, const uint32_t values[FACTOR_COUNT], bool is_line) {
    entry *e = entry_of(f, name);
    for (int i = 0; i < FACTOR_COUNT; i++) {
        *(is_line ? &e->of[i].covered : &e->of[i].wanted) |= values[i];
        for (int j = i + 1; j < FACTOR_COUNT; j++)
            for (int v = 0; v < MOST_VALUES; v++)
                if (values[i] >> v & 1) *(is_line ? &f->pairs[i][j][v].covered : &f->pairs[i][j][v].wanted) |= values[j];
    }
    f->runs += is_line;
}

/* The ways by tiles. One that writes results in blocks runs those, and the other ones what it writes itself. */
static bool is_asked(const kernel_way *way, dw_format result) {
    if (strcmp(way->name, "cuda_matmul_tcgen05_tiles_blocks") == 0) return dw_format_is_block(result);
    return (strcmp(way->name, "cuda_matmul_tcgen05_tiles") == 0 || strcmp(way->name, "cuda_grouped_tcgen05") == 0) && !dw_format_is_block(result);
}

/* Notes what the variants launch that run the call: those that it names, of a line, or all. */
static void run_case(fixture *f, const kernel_case *c, const kernel_row *row, const kernel_way *way, bool is_line) {
    static const int64_t no_symbols[1] = {0};
    dw_tensor in[KERNEL_CASE_OPERANDS], out[KERNEL_CASE_RESULTS];
    const dw_tensor *ins[KERNEL_CASE_OPERANDS] = {0}, *outs[KERNEL_CASE_RESULTS];
    const kernel_problem problem = {.context = f->context, .op = c->op, .attrs = &c->attrs, .post = c->post, .n_in = c->n_in, .n_out = c->n_out, .in = c->in, .out = c->out,
                                    .constant_in = c->constant, .dims = c->dims, .symbols = no_symbols, .chip = &f->chip};
    uint32_t values[FACTOR_COUNT];
    const char *name;
    text why;
    text_init(&why, f->context);
    const bool refused = kernel_refusal(row, way, &problem, &why) != NULL;
    text_free(&why);
    if (refused) return;
    for (int i = 0; i < c->n_in; i++) {
        assert_int_equal(op_tensor_bind(f->context, c->in[i], NULL, NULL, &in[i]), DW_OK);
        ins[i] = &in[i];
    }
    assert_int_equal(op_tensor_bind(f->context, c->out[0], NULL, NULL, &out[0]), DW_OK);
    outs[0] = &out[0];
    values_of(c, ins, outs[0], values);
    for (int k = 0; (name = kernel_way_variant(way, &problem, k)) != NULL; k++) {
        const kernel_tuned tuned = {INT64_MAX, way, k};
        recorder r = {{record}, NULL};
        if (name[0] == '\0' || (is_line && !kernel_case_has_variant(c, name))) continue;
        const kernel_run run = {.call = {f->context, c->op, &c->attrs, NULL, c->n_in, ins, c->n_out, outs, 0, NULL}, .post = c->post, .chip = &f->chip, .ways = UINT32_C(1) << (way - row->ways),
                                .tuned = &tuned, .tuned_count = 1};
        if (kernel_shape(row, &run, &r.launcher) != DW_OK || r.entry == NULL) continue;
        if (is_line && strncmp(r.entry, name, strlen(r.entry)) != 0) f->others++;
        note(f, r.entry, values, is_line);
    }
}

static void run_text(fixture *f, const char *source, int number, const char *line, bool is_line) {
    arena arena;
    dim_table *dims;
    kernel_case c;
    arena_init(&arena, f->context);
    assert_int_equal(dim_table_create(f->context, &dims), DW_OK);
    const bool parsed = kernel_case_parse(&arena, dims, source, number, line, &c) == DW_OK;
    if (is_line && !parsed) fail_msg("%s", dw_context_error(f->context));
    for (int i = 0; parsed && i < kernel_count(); i++) {
        const kernel_row *row = kernel_at(i);
        for (int w = 0; row->op == c.op->id && w < row->way_count; w++)
            if (is_asked(&row->ways[w], c.out[0]->format) && kernel_find_way(row, row->ways[w].name) == &row->ways[w]) run_case(f, &c, row, &row->ways[w], is_line);
    }
    f->lines += is_line;
    dim_table_destroy(dims);
    arena_free(&arena);
}

static dw_status run_line(void *argument, int number, const char *line) {
    run_text(argument, "a line", number, line, true);
    return DW_OK;
}

/* ---- every call ---- */

typedef struct size { int m, n, k; } size;

/* How a and b lie: as [m,k] and [n,k], or turned. */
typedef struct layout { bool at, bn; } layout;

static void ask_matmul(fixture *f, const operands *o, layout lies, int step, const char *result, size s) {
    char line[LINE_BYTES], extra[64] = "", post[32] = "";
    const int n = step != NO_STEP && op_post_halves((op_post)step) ? 2 * s.n : s.n;
    if (step == OP_POST_bias) snprintf(extra, sizeof extra, "f32[%d]", n);
    else if (step == OP_POST_add || step == OP_POST_mul) snprintf(extra, sizeof extra, "bf16[%d,%d]", s.m, s.n);
    if (step != NO_STEP) snprintf(post, sizeof post, "post=%s", op_post_name((op_post)step));
    snprintf(line, sizeof line, "matmul %s[%d,%d] %s[%d,%d] %s %s %s %s to=%s", o->a, lies.at ? s.k : s.m, lies.at ? s.m : s.k, o->b, lies.bn ? s.k : n, lies.bn ? n : s.k, extra,
             lies.at ? "at=true" : "", lies.bn ? "" : "bt=true", post, result);
    run_text(f, "asked", 1, line, false);
}

static void ask_grouped(fixture *f, const operands *o, int step, const char *result, size s) {
    char line[LINE_BYTES], extra[64] = "", post[32] = "";
    const int n = step != NO_STEP && op_post_halves((op_post)step) ? 2 * s.n : s.n;
    if (step == OP_POST_bias) snprintf(extra, sizeof extra, "f32[2,%d]", n);
    else if (step == OP_POST_add || step == OP_POST_mul) snprintf(extra, sizeof extra, "bf16[%d,%d]", s.m, s.n);
    if (step != NO_STEP) snprintf(post, sizeof post, "post=%s", op_post_name((op_post)step));
    snprintf(line, sizeof line, "grouped_matmul %s[%d,%d] %s[2,%d,%d] i32[2] %s bt=true %s to=%s range=2:0:%d ascending=2", o->a, s.m, s.k, o->b, n, s.k, extra, post, result, s.m);
    run_text(f, "asked", 1, line, false);
}

static void ask_sizes(fixture *f, const operands *o, int step, int result) {
    static const int m[] = {24, 48, 128}, n[] = {131, 136, 256};
    static const layout layouts[] = {{false, false}, {true, false}, {false, true}, {true, true}};
    const int k[] = {o->whole, o->tail};
    for (size_t i = 0; i < COUNT_OF(m) * COUNT_OF(n) * COUNT_OF(k); i++) {
        const size s = {m[i % 3], n[i / 3 % 3], k[i / 9]};
        if (s.k == 0) continue;
        for (size_t l = 0; l < (dw_format_is_block(results[result]) ? 1 : COUNT_OF(layouts)); l++) ask_matmul(f, o, layouts[l], step, result_texts[result], s);
        if (s.m == 48 && !dw_format_is_block(results[result])) ask_grouped(f, o, step, result_texts[result], s);
    }
}

/* ---- what is missing ---- */

static int report(const char *what, factor f, seen s) {
    int missing = 0;
    for (int v = 0; v < MOST_VALUES; v++) {
        if ((s.wanted >> v & 1) == 0 || (s.covered >> v & 1) != 0) continue;
        print_error("no line has %s beside %s %s\n", what, factor_names[f], value_name(f, v));
        missing++;
    }
    return missing;
}

static int wanted_values(seen s) {
    int count = 0;
    for (int v = 0; v < MOST_VALUES; v++) count += (int)(s.wanted >> v & 1);
    return count;
}

static void each_pair_is_some_line(void **state) {
    static fixture f;
    int wanted = 0, missing = 0;
    (void)state;
    f = (fixture){0};
    assert_int_equal(dw_context_create(NULL, &f.context), DW_OK);
    assert_int_equal(chip_find(f.context, "b200", 0, &f.chip), DW_OK);
    for (size_t o = 0; o < COUNT_OF(kinds); o++)
        for (int step = 0; step <= NO_STEP; step++)
            for (int r = 0; r < (int)COUNT_OF(results); r++) ask_sizes(&f, &kinds[o], step, r);
    DIR *folder = opendir(TEST_SOURCE_DIR "/tests/conform");
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char path[LINE_BYTES];
        if (strncmp(entry->d_name, "tcgen05", 7) != 0) continue;
        snprintf(path, sizeof path, "%s/tests/conform/%s", TEST_SOURCE_DIR, entry->d_name);
        assert_int_equal(lines_read_file(path, run_line, &f), DW_OK);
    }
    closedir(folder);
    for (int i = 0; i < f.count; i++)
        for (int k = 0; k < FACTOR_COUNT; k++) {
            wanted += wanted_values(f.entries[i].of[k]);
            missing += report(f.entries[i].name, (factor)k, f.entries[i].of[k]);
        }
    for (int i = 0; i < FACTOR_COUNT; i++)
        for (int j = i + 1; j < FACTOR_COUNT; j++)
            for (int v = 0; v < MOST_VALUES; v++) {
                char what[128];
                snprintf(what, sizeof what, "%s %s", factor_names[i], f.pairs[i][j][v].wanted != 0 ? value_name((factor)i, v) : "");
                wanted += wanted_values(f.pairs[i][j][v]);
                missing += report(what, (factor)j, f.pairs[i][j][v]);
            }
    print_message("%d entries, %d pairs, %d of them in no line; %lld lines, %lld runs\n", f.count, wanted, missing, (long long)f.lines, (long long)f.runs);
    dw_context_destroy(f.context);
    assert_true(f.count > 100 && wanted > 2000);
    assert_int_equal(f.others, 0);
    assert_int_equal(missing, 0);
}

/* What was measured for few rows serves more than that, too, if it can: swapped tiles have a column for each row. */
static void a_measured_tile_with_too_few_columns_is_not_launched(void **state) {
    static const struct { const char *line; bool launched; } cases[] = {
        {"matmul bf16[64,128] bf16[264,128] bt=true to=f32 variant=m128n64_swapped", true},
        {"matmul bf16[65,128] bf16[264,128] bt=true to=f32 variant=m128n64_swapped", false},
        {"matmul bf16[300,128] bf16[264,128] bt=true to=f32 variant=m128n64_swapped_parts", false},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        static fixture f;
        f = (fixture){0};
        assert_int_equal(dw_context_create(NULL, &f.context), DW_OK);
        assert_int_equal(chip_find(f.context, "b200", 0, &f.chip), DW_OK);
        run_text(&f, "cases", (int)i + 1, cases[i].line, true);
        assert_int_equal(f.count, 1);
        assert_int_equal(strstr(f.entries[0].name, "m128n64_swapped") != NULL, cases[i].launched);
        dw_context_destroy(f.context);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_pair_is_some_line), cmocka_unit_test(a_measured_tile_with_too_few_columns_is_not_launched)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
