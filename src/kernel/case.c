/* Calls written as one line, parsed and printed; see kernel.h. */
#include "kernel/kernel.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    arena *arena;
    kernel_case *c;
} reader;

static dw_status fail(const reader *r, const char *what, const char *word) {
    return base_fail(r->arena->context, DW_SYNTAX, "%s:%d: %s: '%s'", r->c->source, r->c->number, what, word);
}

static dw_status read_type(reader *r, const char *word) {
    kernel_case *c = r->c;
    if (c->n_in == KERNEL_CASE_OPERANDS) return fail(r, "too many operands", word);
    int index = c->n_in++;
    if (strcmp(word, "-") == 0) return DW_OK;
    scanner scanner;
    TRY(scan_open(&scanner, r->arena, c->source, word, strlen(word)));
    TRY(op_type_parse(&scanner, c->dims, &c->types[index]));
    c->in[index] = &c->types[index];
    return DW_OK;
}

/* "1,2,3" into numbers; "" is none. */
static dw_status read_list(reader *r, const char *text, int *count, int64_t **values) {
    TRY_NEW(*values, r->arena, strlen(text) / 2 + 1);
    *count = 0;
    while (*text != '\0') {
        char *end;
        (*values)[(*count)++] = strtoll(text, &end, 10);
        if (end == text || (*end != ',' && *end != '\0')) return fail(r, "a list of integers is expected", text);
        text = *end == ',' ? end + 1 : end;
    }
    return DW_OK;
}

static dw_status read_attr(reader *r, op_attr_id id, const char *value) {
    kernel_case *c = r->c;
    if (c->n_attrs == KERNEL_CASE_ATTRS) return fail(r, "too many attributes", value);
    op_attr *attr = &c->items[c->n_attrs++];
    int count;
    int64_t *list;
    switch (op_attr_kind_of(id)) {
    case OP_KIND_INT: *attr = op_set_int(id, strtoll(value, NULL, 10)); return DW_OK;
    case OP_KIND_BOOL: *attr = op_set_bool(id, strcmp(value, "true") == 0); return DW_OK;
    case OP_KIND_REAL: *attr = op_set_real(id, strtod(value, NULL)); return DW_OK;
    case OP_KIND_TEXT: *attr = op_set_text(id, value); return DW_OK;
    case OP_KIND_FORMAT: *attr = op_set_format(id, dw_format_find(value)); return DW_OK;
    case OP_KIND_INTS:
        TRY(read_list(r, value, &count, &list));
        *attr = op_set_ints(id, count, list);
        return DW_OK;
    case OP_KIND_DIM: *attr = op_set_dim(id, dim_constant(c->dims, strtoll(value, NULL, 10))); return DW_OK;
    case OP_KIND_DIMS: {
        TRY(read_list(r, value, &count, &list));
        dim *dims;
        TRY_NEW(dims, r->arena, count + 1);
        for (int i = 0; i < count; i++) dims[i] = dim_constant(c->dims, list[i]);
        *attr = op_set_dims(id, count, dims);
        return DW_OK;
    }
    }
    return fail(r, "an attribute of a kind that is not read here", value);
}

/* "I:" of what is said of operand I; what follows it begins at *rest. */
static bool read_operand(const char *value, long *index, char **rest) {
    *index = strtol(value, rest, 10);
    if (*index < 0 || *index >= KERNEL_CASE_OPERANDS || **rest != ':') return false;
    ++*rest;
    return true;
}

static dw_status read_range(reader *r, const char *value) {
    char *end;
    long index;
    if (!read_operand(value, &index, &end)) return fail(r, "range=I:LO:HI is expected", value);
    kernel_range *range = &r->c->ranges[index];
    range->given = true;
    range->low = strtod(end, &end);
    if (*end != ':') return fail(r, "range=I:LO:HI is expected", value);
    range->high = strtod(end + 1, NULL);
    return DW_OK;
}

/* "X,.." to the end of value. */
static bool read_choices(const char *at, kernel_choices *choices) {
    char *end;
    do {
        if (choices->count == KERNEL_CASE_CHOICES) return false;
        choices->values[choices->count++] = strtod(at, &end);
        if (end == at || (*end != ',' && *end != '\0')) return false;
        at = end + 1;
    } while (*end == ',');
    return true;
}

static dw_status read_choice(reader *r, const char *value) {
    char *at;
    long index;
    const bool good = read_operand(value, &index, &at) && read_choices(at, &r->c->choices[index]);
    return good ? DW_OK : fail(r, "choice=I:X,.. is expected, of a few numbers", value);
}

static dw_status read_column(reader *r, const char *value) {
    kernel_case *c = r->c;
    if (c->column_count == KERNEL_CASE_COLUMNS) return fail(r, "too many columns", value);
    kernel_column *column = &c->columns[c->column_count++];
    char *at;
    bool good = read_operand(value, &column->operand, &at);
    if (good) column->column = strtol(at, &at, 10);
    good = good && *at == ':' && read_choices(at + 1, &column->choices);
    return good ? DW_OK : fail(r, "column=I:C:X,.. is expected, of a few numbers", value);
}

static dw_status read_tail(reader *r, const char *value) {
    char *at, *end;
    long index;
    if (!read_operand(value, &index, &at)) return fail(r, "tail=I:X is expected", value);
    r->c->tails[index] = (kernel_tail){true, strtod(at, &end)};
    return end != at && *end == '\0' ? DW_OK : fail(r, "tail=I:X is expected", value);
}

static dw_status read_plain(reader *r, const char *value) {
    char name[32] = "";
    const size_t length = strcspn(value, ",");
    if (length < sizeof name) memcpy(name, value, length);
    r->c->plain = dw_format_find(name);
    r->c->plain_searches = strcmp(value + length, ",search") == 0;
    if (value[length] != '\0' && !r->c->plain_searches) return fail(r, "plain=F or plain=F,search is expected", value);
    return r->c->plain != DW_FORMAT_COUNT && !dw_format_is_block(r->c->plain) ? DW_OK : fail(r, "plain=F is expected, F an element format", value);
}

static dw_status read_mask(reader *r, const char *value, unsigned *mask) {
    int count;
    int64_t *list;
    TRY(read_list(r, value, &count, &list));
    for (int i = 0; i < count; i++) {
        if (list[i] < 0 || list[i] >= KERNEL_CASE_OPERANDS) return fail(r, "a list of operands by their numbers is expected", value);
        *mask |= 1u << list[i];
    }
    return DW_OK;
}

static dw_status read_word(reader *r, char *word) {
    char *equals = strchr(word, '=');
    if (equals == NULL) return read_type(r, word);
    *equals = '\0';
    const char *value = equals + 1;
    if (strcmp(word, "pack") == 0) return read_mask(r, value, &r->c->constant);
    if (strcmp(word, "strided") == 0) return read_mask(r, value, &r->c->strided);
    if (strcmp(word, "pitched") == 0) return read_mask(r, value, &r->c->pitched);
    if (strcmp(word, "turned") == 0) return read_mask(r, value, &r->c->turned);
    if (strcmp(word, "reversed") == 0) return read_mask(r, value, &r->c->reversed);
    if (strcmp(word, "ascending") == 0) return read_mask(r, value, &r->c->ascending);
    if (strcmp(word, "special") == 0) return read_mask(r, value, &r->c->special);
    if (strcmp(word, "range") == 0) return read_range(r, value);
    if (strcmp(word, "choice") == 0) return read_choice(r, value);
    if (strcmp(word, "column") == 0) return read_column(r, value);
    if (strcmp(word, "tail") == 0) return read_tail(r, value);
    if (strcmp(word, "plain") == 0) return read_plain(r, value);
    if (strcmp(word, "norm") == 0) {
        r->c->norm = op_find(value);
        return r->c->norm == OP_rms_norm || r->c->norm == OP_layer_norm ? DW_OK : fail(r, "norm=rms_norm or norm=layer_norm is expected", value);
    }
    if (strcmp(word, "variant") == 0) {
        r->c->variants = value;
        return DW_OK;
    }
    if (strcmp(word, "world") == 0) {
        r->c->world = (int)strtol(value, NULL, 10);
        return r->c->world > 0 && op_has(r->c->op->id, OP_TRAIT_COLLECTIVE) ? DW_OK : fail(r, "world=N is expected, of a collective", value);
    }
    if (strcmp(word, "bound") == 0) {
        r->c->bound = strtod(value, NULL);
        return DW_OK;
    }
    op_attr_id id = op_attr_find(word);
    if (id == OP_ATTR_COUNT) return fail(r, "there is no attribute of this name", word);
    return read_attr(r, id, value);
}

bool kernel_case_has_variant(const kernel_case *c, const char *name) {
    const size_t length = strlen(name);
    for (const char *at = c->variants; at != NULL && *at != '\0'; at += *at == ',') {
        const size_t own = strcspn(at, ",");
        if (own > 0 && own < length && name[length - own - 1] == '_' && strncmp(name + length - own, at, own) == 0) return true;
        at += own;
    }
    return false;
}

/* Which axis of rank runs at place of the memory, 0 the fastest. */
static int axis_at(int place, int rank, bool is_turned, bool is_reversed) {
    if (is_reversed) return place;
    if (is_turned && place < 2 && rank > 1) return rank - 2 + place;
    return rank - 1 - place;
}

int64_t kernel_case_set_apart(const kernel_case *c, int operand, dw_tensor *tensor) {
    const bool is_strided = c->strided >> operand & 1, is_pitched = c->pitched >> operand & 1, is_turned = c->turned >> operand & 1, is_reversed = c->reversed >> operand & 1;
    if ((!is_strided && !is_pitched && !is_turned && !is_reversed) || dw_format_is_block(tensor->format) || dw_format_bits(tensor->format) < 8) return 0;
    int64_t stride = is_strided ? 2 : 1;
    for (int place = 0; place < tensor->rank; place++) {
        const int axis = axis_at(place, tensor->rank, is_turned, is_reversed);
        tensor->strides[axis] = stride;
        stride *= tensor->dims[axis] + (is_strided || is_pitched);
        if (is_pitched && !is_strided && place == 0) stride = base_ceil_div(stride, 16) * 16;   /* words of any format */
    }
    return stride;
}

static int by_id(const void *a, const void *b) { return (int)((const op_attr *)a)->id - (int)((const op_attr *)b)->id; }

dw_status kernel_case_parse(arena *arena, dim_table *dims, const char *source, int number, const char *line, kernel_case *c) {
    *c = (kernel_case){.source = source, .number = number, .line = line, .dims = dims, .bound = 1e-5, .plain = DW_FORMAT_COUNT, .norm = OP_COUNT};
    reader r = {arena, c};
    char *copy = arena_text(arena, line), *rest = NULL;
    if (copy == NULL) return DW_NO_MEMORY;
    char *word = strtok_r(copy, " ", &rest);
    op_id id = op_find(word);
    if (id == OP_COUNT) return fail(&r, "there is no op of this name", word);
    c->op = op_get(id);
    while ((word = strtok_r(NULL, " ", &rest)) != NULL) TRY(read_word(&r, word));
    qsort(c->items, (size_t)c->n_attrs, sizeof c->items[0], by_id);
    c->attrs = (op_attrs){c->n_attrs, c->items};
    TRY(op_post_parse(arena->context, op_attr_text(&c->attrs, OP_ATTR_post), &c->post));
    bool present[KERNEL_CASE_OPERANDS];
    for (int i = 0; i < c->n_in; i++) present[i] = c->in[i] != NULL;
    c->n_out = op_result_count(id, &c->attrs, c->n_in, present);
    for (int i = 0; i < c->n_out; i++) c->out[i] = &c->results[i];
    op_infer infer = {arena->context, dims, c->op, &c->attrs, c->n_in, c->in, c->n_out, c->results};
    dw_status status = op_infer_types(&infer);
    return status == DW_OK ? DW_OK : base_fail_at(arena->context, status, "%s:%d", source, number);
}

/* ---- elements ---- */

/* Where the tail of a row begins. */
static int64_t tail_of(uint64_t stream, int64_t row, int64_t cols) {
    const uint64_t random = num_random(stream, (uint64_t)row);
    if (random % 4 < 2) return random % 4 == 0 ? 0 : cols;
    return (int64_t)(random / 4 % (uint64_t)(cols + 1));
}

static double chosen(const kernel_choices *choices, uint64_t stream, int64_t i) { return choices->values[num_random(stream, (uint64_t)i) % (uint64_t)choices->count]; }

void kernel_case_element(const kernel_case *c, int operand, uint64_t seed, int64_t i, int64_t cols, double *value) {
    const uint64_t stream = (seed * 64 + (uint64_t)operand) * 2;
    if (c->choices[operand].count > 0) *value = chosen(&c->choices[operand], stream, i);
    for (int k = 0; k < c->column_count; k++)
        if (c->columns[k].operand == operand && i % cols == c->columns[k].column) *value = chosen(&c->columns[k].choices, stream, i);
    if (c->tails[operand].given && i % cols >= tail_of(stream + 1, i / cols, cols)) *value = c->tails[operand].value;
}

/* ---- printing ---- */

static bool print_type(const kernel_problem *problem, const op_type *type, text *line) {
    op_type fixed = *type;
    for (int i = 0; i < type->rank; i++) {
        int64_t size;
        if (dim_eval(problem->context, type->dims[i], problem->symbols, &size) != DW_OK) return false;
        fixed.dims[i] = dim_constant(problem->dims, size);
    }
    text_add(line, " ");
    op_type_print(line, problem->dims, &fixed);
    return true;
}

static bool print_dims(const kernel_problem *problem, int count, const dim *dims, text *line) {
    for (int i = 0; i < count; i++) {
        int64_t size;
        if (dim_eval(problem->context, dims[i], problem->symbols, &size) != DW_OK) return false;
        text_printf(line, "%s%" PRId64, i > 0 ? "," : "", size);
    }
    return true;
}

static bool print_attr(const kernel_problem *problem, const op_attr *attr, text *line) {
    text_printf(line, " %s=", op_attr_name(attr->id));
    switch (op_attr_kind_of(attr->id)) {
    case OP_KIND_INT: text_printf(line, "%" PRId64, attr->integer); return true;
    case OP_KIND_BOOL: text_add(line, attr->integer ? "true" : "false"); return true;
    case OP_KIND_REAL: text_real(line, attr->real); return true;
    case OP_KIND_FORMAT: text_add(line, dw_format_name(attr->format)); return true;
    case OP_KIND_DIM: return print_dims(problem, 1, &attr->dim, line);
    case OP_KIND_DIMS: return print_dims(problem, attr->count, attr->dims, line);
    case OP_KIND_TEXT: text_add(line, attr->text); return attr->text[0] != '\0' && strchr(attr->text, ' ') == NULL;
    case OP_KIND_INTS:
        for (int i = 0; i < attr->count; i++) text_printf(line, "%s%" PRId64, i > 0 ? "," : "", attr->integers[i]);
        return true;
    }
    return false;
}

/* "range=OPERAND:0:LAST", of as many places as an axis of operand `of` has (or as that axis and one of another have together); offsets end behind the last. */
typedef struct places { int of, axis, other, other_axis; bool to_end; } places;

/* What the integers of an operand may be: ends of groups of rows of a, or which text a query is of, where it stands and which pages it reads. */
static bool find_places(const kernel_problem *problem, int operand, places *found) {
    const bool paged = problem->op->id == OP_attention && problem->n_in > ATTENTION_TABLE && problem->in[ATTENTION_TABLE] != NULL;
    enum { OFFSETS = 2 };
    *found = (places){.other = -1};
    if (problem->op->id == OP_grouped_matmul && operand == OFFSETS) return found->to_end = true;
    if (problem->op->id != OP_attention) return false;
    if (operand == ATTENTION_ROW) *found = (places){paged ? (int)ATTENTION_TABLE : (int)ATTENTION_K, 0, -1, 0, false};
    else if (operand == ATTENTION_POSITION) *found = (places){ATTENTION_K, 2, paged ? (int)ATTENTION_TABLE : -1, 1, false};
    else if (operand == ATTENTION_TABLE) *found = (places){ATTENTION_K, 0, -1, 0, false};
    else return false;
    return true;
}

/* Of padded groups: as many rows in each as are expected. */
static bool print_counts(const kernel_problem *problem, text *line) {
    int64_t rows, groups, count = op_attr_int(problem->attrs, OP_ATTR_padded);
    if (dim_eval(problem->context, problem->in[0]->dims[0], problem->symbols, &rows) != DW_OK || dim_eval(problem->context, problem->in[2]->dims[0], problem->symbols, &groups) != DW_OK) return false;
    if (groups == 0 || count > rows / groups) count = groups == 0 ? 0 : rows / groups;
    text_printf(line, " range=2:%" PRId64 ":%" PRId64, count, count);
    return true;
}

static bool print_range(const kernel_problem *problem, int operand, text *line) {
    places within;
    int64_t size, more = 1;
    if (problem->op->id == OP_grouped_matmul && op_attr_int(problem->attrs, OP_ATTR_padded) > 0) return print_counts(problem, line);
    if (!find_places(problem, operand, &within)) return false;
    if (dim_eval(problem->context, problem->in[within.of]->dims[within.axis], problem->symbols, &size) != DW_OK) return false;
    if (within.other >= 0 && dim_eval(problem->context, problem->in[within.other]->dims[within.other_axis], problem->symbols, &more) != DW_OK) return false;
    if (!base_mul_i64(size, more, &size)) return false;
    text_printf(line, " range=%d:0:%" PRId64, operand, within.to_end || size == 0 ? size : size - 1);
    if (within.to_end) text_printf(line, " ascending=%d", operand);
    return true;
}

static void print_constants(const kernel_problem *problem, text *line) {
    const char *before = " pack=";
    for (int i = 0; i < problem->n_in; i++) {
        if (problem->in[i] == NULL || (problem->constant_in >> i & 1) == 0) continue;
        text_printf(line, "%s%d", before, i);
        before = ",";
    }
}

const char *kernel_case_print(const kernel_problem *problem, text *line) {
    if (problem->n_in > KERNEL_CASE_OPERANDS || problem->attrs->count > KERNEL_CASE_ATTRS) return "it has more operands or attributes than a line of a case";
    text_add(line, problem->op->name);
    for (int i = 0; i < problem->n_in; i++) {
        if (problem->in[i] == NULL) text_add(line, " -");
        else if (!print_type(problem, problem->in[i], line)) return "a size of it cannot be told";
    }
    for (int i = 0; i < problem->attrs->count; i++)
        if (!print_attr(problem, &problem->attrs->items[i], line)) return "an attribute of it has no form on a line";
    print_constants(problem, line);
    for (int i = 0; i < problem->n_in; i++) {
        const num_class class = problem->in[i] != NULL ? num_info(problem->in[i]->format)->class : NUM_BOOL;
        if (class != NUM_SIGNED && class != NUM_UNSIGNED) continue;
        if (!print_range(problem, i, line)) return "what its time depends on lies in integers, whose values are not known";
    }
    return NULL;
}
