/* Every op against the cases of tests/op/cases, one a line:
 *     add f32[2,3](1,2,3,4,5,6) f32[3](1,2,3) -> f32[2,3](2,4,6,5,7,9)
 *     softmax {axis=0} f32[2](0,0) -> f32[2](0.5,0.5) ~ 1e-6
 *     concat {axis=0} f32[s0,4] f32[s1,4] -> f32[s0+s1,4]                                only types: inference
 *     take {axis=0} f32[2](1,2) i64[1](5) -> INVALID "take: index 5 is outside axis 0, which has size 2"
 *     slice {axis=0,start=0,end=s0,step=1} f32[2](1,2) with s0=3 -> INVALID "slice: start or end lies outside the axis, which has size 2"
 *     all_gather {axis=0,over="tp",ranks=2} among f32[1](1) f32[1](2) at 1 -> f32[2](1,2)   the operands of all ranks, and which of them it is
 * '-' is an absent operand. Values are in row-major order; those of block formats are quantised by num, those of results are what is decoded.
 * "~ e": |result - expected| <= e * max(1, |expected|); without it they are equal. Each case with values runs twice: with contiguous tensors,
 * and with tensors whose axes lie in reverse order with gaps. */
#include "support/support.h"

#include "op/op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OPERANDS = 64, MAX_RESULTS = 48, MAX_SYMBOLS = 16, MAX_RANKS = 8 };

typedef struct number { int64_t integer; double real; } number;

typedef struct operand {
    bool present, has_values;
    op_type type;
    number *values;
    int64_t count;
} operand;

typedef struct test_case {
    const char *source;
    int line;
    const op_def *op;
    dim_table *dims;
    op_attr attrs[OP_ATTR_COUNT];
    op_attrs list;
    operand in[MAX_OPERANDS], out[MAX_RESULTS];
    int n_in, n_out;
    operand among[MAX_RANKS];     /* of a collective: by rank */
    int ranks;
    int64_t rank;
    int64_t symbols[MAX_SYMBOLS];
    dw_status status;
    const char *message;
    double tolerance;
} test_case;

typedef struct stored { dw_tensor tensor; uint8_t *memory; size_t bytes; } stored;

/* ---- reading a case ---- */

static dw_status read_number(scanner *scanner, number *number) {
    if (scanner->kind == SCAN_NAME && (scan_is(scanner, "true") || scan_is(scanner, "false"))) {
        number->integer = scan_is(scanner, "true");
        number->real = (double)number->integer;
        return scan_next(scanner);
    }
    number->integer = scanner->kind == SCAN_INTEGER ? scanner->integer : 0;
    return scan_real(scanner, &number->real);
}

static dw_status read_operand(scanner *scanner, dim_table *dims, operand *operand) {
    bool accepted;
    TRY(scan_accept(scanner, "-", &accepted));
    if (accepted) return DW_OK;
    operand->present = true;
    TRY(op_type_parse(scanner, dims, &operand->type));
    TRY(scan_accept(scanner, "(", &operand->has_values));
    if (!operand->has_values) return DW_OK;
    size_t capacity = 0;
    TRY(scan_accept(scanner, ")", &accepted));
    while (!accepted) {
        operand->values = arena_grow(scanner->arena, operand->values, (size_t)operand->count, &capacity, sizeof *operand->values);
        assert_non_null(operand->values);
        TRY(read_number(scanner, &operand->values[operand->count++]));
        TRY(scan_accept(scanner, ")", &accepted));
        if (!accepted) TRY(scan_expect(scanner, ","));
    }
    return DW_OK;
}

static dw_status read_list(scanner *scanner, dim_table *dims, op_attr *attr) {
    int64_t *integers;
    dim *list;
    bool closed, is_dims = op_attr_kind_of(attr->id) == OP_KIND_DIMS;
    TRY_NEW(integers, scanner->arena, 16);
    TRY_NEW(list, scanner->arena, 16);
    TRY(scan_expect(scanner, "["));
    TRY(scan_accept(scanner, "]", &closed));
    while (!closed) {
        assert_true(attr->count < 16);
        if (is_dims) TRY(dim_parse(scanner, dims, &list[attr->count]));
        else TRY(scan_integer(scanner, &integers[attr->count]));
        attr->count++;
        TRY(scan_accept(scanner, "]", &closed));
        if (!closed) TRY(scan_expect(scanner, ","));
    }
    if (is_dims) attr->dims = list;
    else attr->integers = integers;
    return DW_OK;
}

static dw_status read_attr(scanner *scanner, dim_table *dims, op_attr *attr) {
    const char *name;
    *attr = (op_attr){0};
    TRY(scan_name(scanner, &name));
    attr->id = op_attr_find(name);
    if (attr->id == OP_ATTR_COUNT) return scan_fail(scanner, "there is no attribute %s", name);
    TRY(scan_expect(scanner, "="));
    switch (op_attr_kind_of(attr->id)) {
    case OP_KIND_INT: return scan_integer(scanner, &attr->integer);
    case OP_KIND_REAL: return scan_real(scanner, &attr->real);
    case OP_KIND_TEXT: return scan_string(scanner, &attr->text);
    case OP_KIND_DIM: return dim_parse(scanner, dims, &attr->dim);
    case OP_KIND_BOOL: attr->integer = scan_is(scanner, "true"); return scan_next(scanner);
    case OP_KIND_FORMAT:
        attr->format = dw_format_find(scanner->token);
        if (attr->format == DW_FORMAT_COUNT) return scan_fail(scanner, "there is no such format");
        return scan_next(scanner);
    default: return read_list(scanner, dims, attr);
    }
}

static int by_id(const void *a, const void *b) { return (int)((const op_attr *)a)->id - (int)((const op_attr *)b)->id; }

static dw_status read_attrs(scanner *scanner, test_case *t) {
    bool more;
    int count = 0;
    TRY(scan_accept(scanner, "{", &more));
    while (more) {
        TRY(read_attr(scanner, t->dims, &t->attrs[count++]));
        TRY(scan_accept(scanner, ",", &more));
        if (!more) TRY(scan_expect(scanner, "}"));
    }
    qsort(t->attrs, (size_t)count, sizeof *t->attrs, by_id);
    t->list = (op_attrs){count, t->attrs};
    return DW_OK;
}

static dw_status read_symbols(scanner *scanner, test_case *t) {
    bool more;
    TRY(scan_accept(scanner, "with", &more));
    while (more) {
        const char *name;
        TRY(scan_name(scanner, &name));
        TRY(scan_expect(scanner, "="));
        int symbol = dim_symbol_find(t->dims, name);
        if (symbol < 0 || symbol >= MAX_SYMBOLS) return scan_fail(scanner, "no symbol %s before", name);
        TRY(scan_integer(scanner, &t->symbols[symbol]));
        TRY(scan_accept(scanner, ",", &more));
    }
    return DW_OK;
}

static dw_status read_expected(scanner *scanner, test_case *t) {
    bool accepted;
    for (int i = 1; i < DW_STATUS_COUNT; i++) {
        if (scanner->kind != SCAN_NAME || !scan_is(scanner, dw_status_name((dw_status)i))) continue;
        t->status = (dw_status)i;
        TRY(scan_next(scanner));
        return scan_string(scanner, &t->message);
    }
    while (scanner->kind == SCAN_NAME && t->n_out < MAX_RESULTS) TRY(read_operand(scanner, t->dims, &t->out[t->n_out++]));
    TRY(scan_accept(scanner, "~", &accepted));
    return accepted ? scan_real(scanner, &t->tolerance) : DW_OK;
}

/* The operands of all ranks; the case is of one of them. */
static dw_status read_ranks(scanner *scanner, test_case *t) {
    bool accepted;
    TRY(scan_accept(scanner, "among", &accepted));
    if (!accepted) return DW_OK;
    TRY(scan_accept(scanner, "at", &accepted));
    while (!accepted) {
        assert_true(t->ranks < MAX_RANKS);
        TRY(read_operand(scanner, t->dims, &t->among[t->ranks++]));
        TRY(scan_accept(scanner, "at", &accepted));
    }
    TRY(scan_integer(scanner, &t->rank));
    assert_true(t->rank >= 0 && t->rank < t->ranks);
    t->in[t->n_in++] = t->among[t->rank];
    return DW_OK;
}

static dw_status read_case(scanner *scanner, test_case *t) {
    const char *name;
    t->source = scanner->source;
    t->line = scanner->line;
    TRY(scan_name(scanner, &name));
    if (op_find(name) == OP_COUNT) return scan_fail(scanner, "there is no op %s", name);
    t->op = op_get(op_find(name));
    TRY(read_attrs(scanner, t));
    TRY(read_ranks(scanner, t));
    for (bool arrow = false; !arrow;) {
        if (scan_is(scanner, "with")) TRY(read_symbols(scanner, t));
        /* "->" is a minus that is followed by '>' */
        bool is_minus = scanner->kind == SCAN_PUNCTUATION && scanner->token[0] == '-' && scanner->at < scanner->end && *scanner->at == '>';
        if (is_minus) {
            TRY(scan_next(scanner));
            TRY(scan_expect(scanner, ">"));
            arrow = true;
        } else {
            assert_true(t->n_in < MAX_OPERANDS);
            TRY(read_operand(scanner, t->dims, &t->in[t->n_in++]));
        }
    }
    TRY(read_expected(scanner, t));
    return scan_end_of_line(scanner);
}

/* ---- tensors ---- */

static void fill_block(dw_tensor *tensor, const operand *operand) {
    int64_t rows = tensor->rank > 1 ? tensor->dims[tensor->rank - 2] : 1, cols = tensor->dims[tensor->rank - 1], batches = 1;
    for (int i = 0; i < tensor->rank - 2; i++) batches *= tensor->dims[i];
    float *values = malloc((size_t)operand->count * sizeof *values + 1);
    assert_non_null(values);
    for (int64_t i = 0; i < operand->count; i++) values[i] = (float)operand->values[i].real;
    num_matrix matrix = {tensor->format, tensor->scale_layout, rows, cols, tensor->data, tensor->scales, tensor->second, batches};
    num_quantize(values, cols, NUM_ROUND_UP, false, &matrix);
    free(values);
}

/* A tensor of the type, strided or not, with the operand's values when it has any. */
static stored make_tensor(dw_context *context, const test_case *t, const operand *operand, const op_type *type, bool strided) {
    stored s = {0};
    if (op_tensor_bind(context, type, t->symbols, NULL, &s.tensor) != DW_OK) fail_msg("%s:%d: %s", t->source, t->line, dw_context_error(context));
    bool is_packed = dw_format_is_block(type->format) || dw_format_bits(type->format) < 8;
    num_parts parts;
    assert_true(num_layout(type->format, type->scale_layout, s.tensor.rank, s.tensor.dims, &parts));
    int64_t stride = 2;
    for (int i = 0; strided && !is_packed && i < s.tensor.rank; i++) {
        s.tensor.strides[i] = stride;
        stride *= s.tensor.dims[i] > 0 ? s.tensor.dims[i] : 1;
    }
    s.bytes = strided && !is_packed ? (size_t)stride * (size_t)dw_format_bits(type->format) / 8 : parts.total_bytes;
    s.memory = malloc(s.bytes + 1);   /* no room beyond the elements, so that the address sanitizer sees every step outside */
    assert_non_null(s.memory);
    memset(s.memory, 0x5a, s.bytes);
    s.tensor.data = s.memory;
    if (parts.scale_bytes > 0) s.tensor.scales = s.memory + parts.scale_offset;
    if (parts.second_bytes > 0) s.tensor.second = (float *)(void *)(s.memory + parts.second_offset);
    if (operand == NULL || !operand->has_values) return s;
    if (operand->count != op_tensor_count(&s.tensor)) fail_msg("%s:%d: %lld values for an operand of %lld", t->source, t->line, (long long)operand->count, (long long)op_tensor_count(&s.tensor));
    int64_t index[DW_MAX_RANK] = {0};
    if (dw_format_is_block(type->format)) fill_block(&s.tensor, operand);
    else for (int64_t i = 0; i < operand->count; i++, op_tensor_next(&s.tensor, index)) {
        number value = operand->values[i];
        if (value.real == (double)value.integer && num_info(type->format)->class <= NUM_SIGNED) op_tensor_store_int(&s.tensor, index, value.integer);
        else op_tensor_store(&s.tensor, index, value.real);
    }
    return s;
}

static void check_values(const test_case *t, const char *how, int result, const operand *expected, const dw_tensor *tensor) {
    int64_t index[DW_MAX_RANK] = {0};
    if (expected->count != op_tensor_count(tensor))
        fail_msg("%s:%d: %lld values expected of a result of %lld", t->source, t->line, (long long)expected->count, (long long)op_tensor_count(tensor));
    bool is_integer = num_info(tensor->format)->class <= NUM_SIGNED;
    for (int64_t i = 0; i < expected->count; i++, op_tensor_next(tensor, index)) {
        double want = expected->values[i].real, got = op_tensor_load(tensor, index);
        if (is_integer) {
            int64_t got_int = op_tensor_load_int(tensor, index);
            if (got_int != expected->values[i].integer)
                fail_msg("%s:%d: %s, %s, result %d: element %lld is %lld, expected %lld", t->source, t->line, t->op->name, how, result, (long long)i,
                         (long long)got_int, (long long)expected->values[i].integer);
            continue;
        }
        if (tensor->format != DW_FORMAT_f64) want = (double)(float)want;   /* as written, with the digits that tell floats apart */
        bool equal = want == got || (isnan(want) && isnan(got)) || fabs(want - got) <= t->tolerance * fmax(1, fabs(want));
        if (!equal) fail_msg("%s:%d: %s, %s, result %d: element %lld is %.9g, expected %.9g", t->source, t->line, t->op->name, how, result, (long long)i, got, want);
    }
}

/* ---- running a case ---- */

static void check_failure(dw_context *context, const test_case *t, dw_status status) {
    const char *message = dw_context_error(context), *text = strchr(message, ' ');
    if (status != t->status || text == NULL || strcmp(text + 1, t->message) != 0)
        fail_msg("%s:%d: %s: expected %s \"%s\", got %s \"%s\"", t->source, t->line, t->op->name, dw_status_name(t->status), t->message, dw_status_name(status),
                 status == DW_OK ? "" : message);
}

static void check_work(const test_case *t, const op_call *call) {
    op_work work;
    t->op->work(call, &work);
    bool sane = work.flops >= 0 && work.bytes_read >= 0 && work.bytes_written >= 0 && isfinite(work.flops + work.bytes_read + work.bytes_written);
    if (!sane) fail_msg("%s:%d: work is %g FLOPs, %g bytes read, %g written", t->source, t->line, work.flops, work.bytes_read, work.bytes_written);
}

/* Runs the reference; true when it succeeded and its results are as expected. */
static bool run_values(dw_context *context, const test_case *t, const op_type *out_types, bool strided) {
    const char *how = strided ? "strided" : "contiguous";
    stored in[MAX_OPERANDS] = {{{0}, NULL, 0}}, out[MAX_RESULTS] = {{{0}, NULL, 0}};
    const dw_tensor *in_tensors[MAX_OPERANDS] = {NULL}, *out_tensors[MAX_RESULTS];
    for (int i = 0; i < t->n_in; i++) {
        if (!t->in[i].present) continue;
        in[i] = make_tensor(context, t, &t->in[i], &t->in[i].type, strided);
        in_tensors[i] = &in[i].tensor;
    }
    stored among[MAX_RANKS];
    dw_tensor theirs[MAX_RANKS];
    const op_group group = {(int)t->rank, t->ranks, theirs};
    for (int i = 0; i < t->ranks; i++) {
        among[i] = make_tensor(context, t, &t->among[i], &t->among[i].type, strided);
        theirs[i] = among[i].tensor;
    }
    int n_out = t->status == DW_OK ? t->n_out : t->op->max_out;
    for (int i = 0; i < n_out; i++) {
        out[i] = make_tensor(context, t, NULL, &out_types[i], strided);
        out_tensors[i] = &out[i].tensor;
    }
    op_call call = {.context = context, .op = t->op, .attrs = &t->list, .symbols = t->symbols, .n_in = t->n_in, .in = in_tensors, .n_out = n_out, .out = out_tensors, .group = t->ranks > 0 ? &group : NULL};
    check_work(t, &call);
    dw_status status = t->op->reference(&call);
    if (t->status != DW_OK) check_failure(context, t, status);
    else if (status != DW_OK) fail_msg("%s:%d: %s, %s: %s", t->source, t->line, t->op->name, how, dw_context_error(context));
    dw_tensor view;
    for (int i = 0; i < n_out && t->status == DW_OK; i++) check_values(t, how, i, &t->out[i], &out[i].tensor);
    if ((t->op->traits & OP_TRAIT_VIEW) && t->status == DW_OK && op_tensor_view(&call, &view)) check_values(t, "as a view", 0, &t->out[0], &view);
    else if ((t->op->traits & OP_TRAIT_VIEW) && t->status == DW_OK && !strided) fail_msg("%s:%d: no view of a contiguous tensor", t->source, t->line);
    for (int i = 0; i < t->n_in; i++) free(in[i].memory);
    for (int i = 0; i < t->ranks; i++) free(among[i].memory);
    for (int i = 0; i < n_out; i++) free(out[i].memory);
    return t->status == DW_OK;
}

static void check_type(dw_context *context, const test_case *t, int result, const op_type *got) {
    text want_text, got_text;
    text_init(&want_text, context);
    text_init(&got_text, context);
    op_type_print(&want_text, t->dims, &t->out[result].type);
    op_type_print(&got_text, t->dims, got);
    if (!op_type_equal(&t->out[result].type, got))
        fail_msg("%s:%d: %s: result %d is %s, expected %s", t->source, t->line, t->op->name, result, text_string(&got_text), text_string(&want_text));
    text_free(&want_text);
    text_free(&got_text);
}

/* true when the case compared values. */
static bool run_case(dw_context *context, const test_case *t) {
    const op_type *in[MAX_OPERANDS];
    op_type out[MAX_RESULTS];
    bool present[MAX_OPERANDS], has_values = t->n_in > 0 ? t->in[0].has_values : t->n_out > 0 && t->out[0].has_values;
    for (int i = 0; i < t->n_in; i++) {
        present[i] = t->in[i].present;
        in[i] = present[i] ? &t->in[i].type : NULL;
    }
    int n_out = t->n_in <= t->op->max_in ? op_result_count(t->op->id, &t->list, t->n_in, present) : t->op->min_out;
    op_infer infer = {context, t->dims, t->op, &t->list, t->n_in, in, n_out, out};
    dw_status status = op_infer_types(&infer);
    if (status != DW_OK && t->status == DW_OK) fail_msg("%s:%d: %s", t->source, t->line, dw_context_error(context));
    if (status != DW_OK || (t->status != DW_OK && !has_values)) {
        check_failure(context, t, status);
        return false;
    }
    if (t->status == DW_OK && n_out != t->n_out) fail_msg("%s:%d: %s gives %d results, %d are expected", t->source, t->line, t->op->name, n_out, t->n_out);
    for (int i = 0; t->status == DW_OK && i < n_out; i++)
        if (dim_symbol_count(t->dims) == 0 || !has_values) check_type(context, t, i, &out[i]);
    if (!has_values) return false;
    bool done = run_values(context, t, out, false);
    return run_values(context, t, out, true) && done;
}

static void run_file(const char *name, int *counts) {
    test_memory memory = {0};
    dw_context *context = test_context_create(&memory, 1);
    char path[512];
    snprintf(path, sizeof path, "%s/tests/op/cases/%s", TEST_SOURCE_DIR, name);
    file_map file;
    if (file_map_open(context, path, &file) != DW_OK) fail_msg("%s", dw_context_error(context));
    arena arena;
    arena_init(&arena, context);
    scanner scanner;
    dw_status status = scan_open(&scanner, &arena, name, (const char *)file.bytes, file.length);
    while (status == DW_OK && scanner.kind == SCAN_NEWLINE) status = scan_next(&scanner);
    while (status == DW_OK && scanner.kind != SCAN_END) {
        test_case t = {0};
        if (dim_table_create(context, &t.dims) != DW_OK) fail_msg("%s", dw_context_error(context));
        status = read_case(&scanner, &t);
        if (status == DW_OK) counts[t.op->id] += run_case(context, &t);
        dim_table_destroy(t.dims);
    }
    if (status != DW_OK) fail_msg("%s", dw_context_error(context));
    arena_free(&arena);
    file_map_close(&file);
    dw_context_destroy(context);
    assert_int_equal(memory.live_count, 0);
}

/* ---- tests ---- */

static const char *const files[] = {
    "pointwise.txt", "chain.txt", "create.txt", "view.txt", "move.txt", "index.txt", "reduce.txt", "scan.txt", "norm.txt", "matmul.txt", "grouped.txt", "route.txt",
    "attention.txt", "attention_backward.txt", "mqa_logits.txt", "norm_backward.txt", "cross_entropy.txt", "dropout.txt", "cache.txt", "rotary.txt", "conv.txt", "quantize.txt", "sample.txt", "optimizer.txt", "collective.txt", "types.txt", "errors.txt",
};

static void ops_compute_what_the_cases_say(void **state) {
    (void)state;
    int counts[OP_COUNT] = {0};
    for (size_t i = 0; i < COUNT_OF(files); i++) run_file(files[i], counts);
    for (int i = 0; i < OP_COUNT; i++)
        if (counts[i] == 0) fail_msg("no case with values for op %s; add one to tests/op/cases", op_get((op_id)i)->name);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ops_compute_what_the_cases_say)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
