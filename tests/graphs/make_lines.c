/* Nodes from what the tests have already: calls from the lines of conformance, with their numbers changed now and then, and whole graphs from the cases of passes. Reads
 * the graphs of found, too. */
#include "tests/graphs/graphs.h"

#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"
#include "support/lines.h"
#include "support/support.h"

/* ---- lines of conformance ---- */

static const double MOST_FLOPS = 6e4, MOST_ELEMENTS = 4e3;

/* All numbers that are equal to one drawn number become another one; NULL: no room. */
static const char *with_other_size(maker *m, const char *line) {
    static const int64_t others[] = {1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 31, 32, 33, 40, 48, 64, 65, 96, 128, 130};
    int64_t numbers[32], chosen, other = DRAW_OF(m, others);
    int count = 0;
    for (const char *at = line; *at != '\0'; at++)
        if ((at[0] == '[' || at[0] == ',') && isdigit((unsigned char)at[1]) && count < 32) numbers[count++] = strtoll(at + 1, NULL, 10);
    if (count == 0) return line;
    chosen = numbers[draw(m, count)];
    text changed;
    text_init(&changed, m->context);
    for (const char *at = line; *at != '\0';) {
        text_add_n(&changed, at, 1);
        const bool opens = *at == '[' || *at == ',';
        at++;
        if (!opens || !isdigit((unsigned char)*at)) continue;
        char *end;
        const int64_t number = strtoll(at, &end, 10);
        text_printf(&changed, "%lld", (long long)(number == chosen ? other : number));
        at = end;
    }
    const char *kept = arena_text(&m->arena, text_string(&changed));
    text_free(&changed);
    return kept;
}

/* Graphs run here as one rank. */
static void leave_alone(kernel_case *c) {
    for (int i = 0; i < c->n_attrs; i++)
        if (c->items[i].id == OP_ATTR_ranks) c->items[i].integer = 1;
}

static bool is_small(maker *m, const kernel_case *c) {
    dw_tensor in[KERNEL_CASE_OPERANDS], out[KERNEL_CASE_RESULTS];
    const dw_tensor *ins[KERNEL_CASE_OPERANDS] = {0}, *outs[KERNEL_CASE_RESULTS];
    double elements = 0;
    for (int i = 0; i < c->n_in; i++) {
        if (c->in[i] == NULL) continue;
        if (op_tensor_bind(m->context, c->in[i], NULL, NULL, &in[i]) != DW_OK) return false;
        ins[i] = &in[i];
        elements += (double)op_tensor_count(&in[i]);
    }
    for (int i = 0; i < c->n_out; i++) {
        if (op_tensor_bind(m->context, c->out[i], NULL, NULL, &out[i]) != DW_OK) return false;
        outs[i] = &out[i];
        elements += (double)op_tensor_count(&out[i]);
    }
    op_work work = {0};
    op_call call = {.context = m->context, .op = c->op, .attrs = &c->attrs, .n_in = c->n_in, .in = ins, .n_out = c->n_out, .out = outs};
    c->op->work(&call, &work);
    const double more = chance(m, 4) ? 30 : 1;
    return work.flops <= more * MOST_FLOPS && elements <= more * MOST_ELEMENTS;
}

/* A bound of a range as a whole number for a name. */
static long long whole(double x) { return (long long)fmax(-1e15, fmin(1e15, x)); }

static const char *role_of(maker *m, const kernel_case *c, int i) {
    const kernel_range *range = &c->ranges[i];
    const num_class class = num_info(c->types[i].format)->class;
    if (c->ascending >> i & 1) return arena_printf(&m->arena, "ends%lld", range->given ? whole(range->high) : 3LL);
    if (range->given) return arena_printf(&m->arena, "from%s%lldto%s%lld", range->low < 0 ? "m" : "", llabs(whole(range->low)), range->high < 0 ? "m" : "", llabs(whole(range->high)));
    if (c->special >> i & 1) return "special";
    return class == NUM_SIGNED || class == NUM_UNSIGNED ? "small" : "";
}

static dw_status emit_case(maker *m, const kernel_case *c) {
    ir_value *in[KERNEL_CASE_OPERANDS] = {0}, *result;
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i] != NULL) TRY(source(m, role_of(m, c, i), c->in[i], (c->constant >> i & 1) != 0 || chance(m, 15), &in[i]));
    return emit(m, c->op->id, c->n_in, in, c->n_attrs, c->items, &result);
}

dw_status make_line(maker *m) {
    if (m->corpus->line_count == 0) return DW_INVALID;
    const char *line = m->corpus->lines[draw(m, m->corpus->line_count)];
    kernel_case c;
    if (chance(m, 50)) line = with_other_size(m, line);
    if (line == NULL) return DW_NO_MEMORY;
    TRY(kernel_case_parse(&m->arena, m->graph->dims, "line", 1, line, &c));
    leave_alone(&c);
    return is_small(m, &c) ? emit_case(m, &c) : DW_LIMIT;
}

/* ---- cases of passes ---- */

typedef struct splice {
    maker *m;
    const ir_graph *from;
    ir_value **there;             /* by id of from's results, */
    map named;                    /* and by name */
} splice;

static dw_status moved_type(splice *s, const op_type *type, op_type *moved) {
    *moved = *type;
    for (int i = 0; i < type->rank; i++) TRY_DIM(s->m->context, moved->dims[i], dim_rewrite(s->m->graph->dims, s->from->dims, type->dims[i], NULL));
    return DW_OK;
}

static dw_status add_const(splice *s, const ir_value *param, ir_value **value) {
    const dw_tensor *from = &param->weight->tensor;
    dw_tensor to;
    TRY(ir_add_constant(s->m->graph, NULL, from->format, from->rank, from->dims, value, &to));
    num_parts parts;
    if (num_layout(to.format, to.scale_layout, to.rank, to.dims, &parts)) memcpy(to.data, from->data, parts.data_bytes);
    return DW_OK;
}

static dw_status add_named(splice *s, const ir_value *value, bool is_weight) {
    op_type type;
    ir_value *made;
    TRY(moved_type(s, &value->type, &type));
    const num_class class = num_info(type.format)->class;
    if (is_weight && value->weight != NULL) TRY(add_const(s, value, &made));
    else TRY(source(s->m, class == NUM_SIGNED || class == NUM_UNSIGNED || class == NUM_BOOL ? "open" : "", &type, is_weight, &made));
    return map_set(&s->named, value->name, made);
}

static dw_status add_node(splice *s, const ir_node *node) {
    ir_value *in[KERNEL_MAX_OPERANDS] = {0}, *result;
    op_attr *attrs;
    TRY_NEW(attrs, &s->m->arena, node->attrs.count + 1);
    for (int i = 0; i < node->attrs.count; i++) {
        attrs[i] = node->attrs.items[i];
        const op_attr_kind kind = op_attr_kind_of(attrs[i].id);
        if (kind == OP_KIND_DIM) TRY_DIM(s->m->context, attrs[i].dim, dim_rewrite(s->m->graph->dims, s->from->dims, attrs[i].dim, NULL));
        if (kind != OP_KIND_DIMS) continue;
        dim *dims;
        TRY_NEW(dims, &s->m->arena, attrs[i].count + 1);
        for (int k = 0; k < attrs[i].count; k++) TRY_DIM(s->m->context, dims[k], dim_rewrite(s->m->graph->dims, s->from->dims, attrs[i].dims[k], NULL));
        attrs[i].dims = dims;
    }
    for (int i = 0; i < node->n_in; i++) {
        const ir_value *value = ir_in(node, i);
        if (value != NULL) in[i] = value->kind == IR_RESULT ? s->there[value->id] : map_find(&s->named, value->name);
    }
    TRY(emit(s->m, node->op, node->n_in, in, node->attrs.count, attrs, &result));
    for (int i = 0; i < node->n_out; i++) s->there[node->out[i]->id] = result->node->out[i];
    if (node->origin.module != NULL) TRY(ir_intern(s->m->graph, node->origin.module, &result->node->origin.module));
    if (node->origin.role != NULL) TRY(ir_intern(s->m->graph, node->origin.role, &result->node->origin.role));
    return DW_OK;
}

static dw_status splice_all(splice *s) {
    TRY_NEW(s->there, &s->m->arena, s->from->next_id + 1);
    map_init(&s->named, &s->m->arena);
    if (s->from->state_count > 0) return DW_UNSUPPORTED;
    for (size_t i = 0; i < s->from->input_count; i++) TRY(add_named(s, s->from->inputs[i], false));
    for (size_t i = 0; i < s->from->param_count; i++) TRY(add_named(s, s->from->params[i], true));
    for (const ir_node *node = s->from->first; node != NULL; node = node->next) TRY(add_node(s, node));
    return DW_OK;
}

dw_status make_case(maker *m) {
    if (m->corpus->case_count == 0) return DW_INVALID;
    const char *words = m->corpus->cases[draw(m, m->corpus->case_count)];
    ir_graph *from;
    if (chance(m, 40)) words = with_other_size(m, words);
    if (words == NULL) return DW_NO_MEMORY;
    TRY(ir_parse(m->context, "case", words, strlen(words), NULL, &from));
    splice s = {.m = m, .from = from};
    const dw_status status = splice_all(&s);
    ir_graph_destroy(from);
    return status;
}

/* ---- reading them ---- */

typedef struct reading {
    arena *arena;
    const char **words;
    size_t count, capacity;
} reading;

static dw_status add_words(reading *r, const char *words, size_t length) {
    void *grown = arena_grow(r->arena, r->words, r->count, &r->capacity, sizeof *r->words);
    if (grown == NULL) return DW_NO_MEMORY;
    r->words = grown;
    r->words[r->count] = arena_text_n(r->arena, words, length);
    return r->words[r->count++] != NULL ? DW_OK : DW_NO_MEMORY;
}

static dw_status add_line(void *r, int number, const char *line) {
    (void)number;
    return add_words(r, line, strlen(line));
}

static dw_status read_lines(reading *r, const char *bytes, size_t length) { return lines_read(bytes, length, add_line, r); }

/* From the line "graph .." to "----"; "error:" behind that means that there is no graph. */
static dw_status read_case(reading *r, const char *bytes, size_t length) {
    char *copy = arena_text_n(r->arena, bytes, length);
    if (copy == NULL) return DW_NO_MEMORY;
    const char *begin = strncmp(copy, "graph ", 6) == 0 ? copy : strstr(copy, "\ngraph ");
    const char *end = begin != NULL ? strstr(begin, "\n----") : NULL;
    return end != NULL ? add_words(r, *begin == '\n' ? begin + 1 : begin, (size_t)(end - begin)) : DW_OK;
}

static dw_status read_whole(reading *r, const char *bytes, size_t length) { return add_words(r, bytes, length); }

typedef dw_status (*read_function)(reading *r, const char *bytes, size_t length);

static int by_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* Files in the order of their names, so that a seed means the same on every machine. */
static dw_status read_folder(reading *r, const char *folder, read_function read) {
    reading names = {.arena = r->arena};
    DIR *open = opendir(folder);
    if (open == NULL) return base_fail(r->arena->context, DW_NOT_FOUND, "%s cannot be read", folder);
    dw_status status = DW_OK;
    for (struct dirent *entry; status == DW_OK && (entry = readdir(open)) != NULL;)
        if (entry->d_name[0] != '.') status = add_words(&names, entry->d_name, strlen(entry->d_name));
    closedir(open);
    if (names.count > 0) qsort(names.words, names.count, sizeof *names.words, by_name);
    for (size_t i = 0; status == DW_OK && i < names.count; i++) {
        const char *dot = strrchr(names.words[i], '.');
        char path[1024];
        file_map file;
        snprintf(path, sizeof path, "%s/%s", folder, names.words[i]);
        if (dot == NULL) status = read_folder(r, path, read);
        if (dot == NULL || strcmp(dot, ".txt") != 0) continue;
        status = file_map_open(r->arena->context, path, &file);
        if (status != DW_OK) break;
        status = read(r, (const char *)file.bytes, file.length);
        file_map_close(&file);
    }
    return status;
}

dw_status graphs_corpus_read(arena *arena, graphs_corpus *corpus) {
    reading lines = {.arena = arena}, cases = {.arena = arena}, found = {.arena = arena};
    TRY(read_folder(&lines, TEST_SOURCE_DIR "/tests/conform", read_lines));
    TRY(read_folder(&cases, TEST_SOURCE_DIR "/tests/pass/cases", read_case));
    TRY(read_folder(&found, TEST_SOURCE_DIR "/tests/graphs/found", read_whole));
    *corpus = (graphs_corpus){(int)lines.count, (int)cases.count, (int)found.count, lines.words, cases.words, found.words};
    return DW_OK;
}
