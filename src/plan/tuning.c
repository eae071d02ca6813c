/* Measured choices: the fastest kernel and variant for products and other cases of given sizes. Their text, and how a plan looks them up. Measures nothing. */
#include "plan/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- the text form ---- */

static dw_status parse_kernel(scanner *scan, plan_tuned *entry) {
    TRY(scan_name(scan, &entry->kernel));
    entry->variant = "";
    if (scan->kind == SCAN_NAME) TRY(scan_name(scan, &entry->variant));
    return scan_end_of_line(scan);
}

static dw_status parse_rows(scanner *scan, plan_tuned_line *product) {
    while (scan_is(scan, "rows")) {
        plan_tuned entry;
        const bool first = product->count == 0;
        TRY(scan_next(scan));
        TRY(scan_integer(scan, &entry.rows));
        if (entry.rows < 1 || (!first && entry.rows <= product->rows[product->count - 1].rows)) return scan_fail(scan, "numbers of rows ascend from 1, and this is %" PRId64, entry.rows);
        if (product->count == KERNEL_TUNED) return scan_fail(scan, "a product has at most %d numbers of rows", KERNEL_TUNED);
        TRY(parse_kernel(scan, &entry));
        product->rows[product->count++] = entry;
    }
    return product->count > 0 ? DW_OK : scan_fail(scan, "a product has lines of rows behind it");
}

static dw_status parse_line(scanner *scan, plan_tuning *tuning) {
    plan_tuned_line *line;
    const bool is_case = scan_is(scan, "case");
    TRY_NEW(line, scan->arena, 1);
    TRY(scan_expect(scan, is_case ? "case" : "product"));
    if (scan->kind == SCAN_STRING && map_find(&tuning->lines, scan->token) != NULL) return scan_fail(scan, "this %s is there twice", is_case ? "case" : "product");
    TRY(scan_string(scan, &line->line));
    TRY(scan_end_of_line(scan));
    if (!is_case) TRY(parse_rows(scan, line));
    if (is_case) TRY(scan_expect(scan, "kernel"));
    if (is_case) TRY(parse_kernel(scan, &line->rows[line->count++]));
    return map_set(&tuning->lines, line->line, line);
}

/* "end 12": how many lines are above it, so that a text that lost some differs from one that never had them. */
static dw_status parse_end(scanner *scan, const plan_tuning *tuning) {
    int64_t count;
    if (scan->kind == SCAN_END) return scan_fail(scan, "the text was cut short: expected its last line, 'end' and a count");
    TRY(scan_expect(scan, "end"));
    TRY(scan_integer(scan, &count));
    if (count != (int64_t)tuning->lines.count) return scan_fail(scan, "%" PRId64 " products and cases are announced, and %zu are here", count, tuning->lines.count);
    TRY(scan_end_of_line(scan));
    return scan->kind == SCAN_END ? DW_OK : scan_fail(scan, "there is more behind its end");
}

dw_status plan_tuning_parse(arena *arena, const char *source, const char *bytes, size_t length, plan_tuning *tuning) {
    scanner scan;
    *tuning = (plan_tuning){0};
    map_init(&tuning->lines, arena);
    TRY(scan_open(&scan, arena, source, bytes, length));
    if (length > 0 && bytes[length - 1] != '\n') return base_fail(arena->context, DW_SYNTAX, "%s: the text ends inside of a line: it was cut short", source);
    if (scan.kind == SCAN_NEWLINE) TRY(scan_end_of_line(&scan));
    TRY(scan_expect(&scan, "tuning"));
    TRY(scan_string(&scan, &tuning->chip));
    TRY(scan_string(&scan, &tuning->driver));
    TRY(scan_string(&scan, &tuning->kernels));
    TRY(scan_end_of_line(&scan));
    while (scan.kind != SCAN_END && !scan_is(&scan, "end")) TRY(parse_line(&scan, tuning));
    return parse_end(&scan, tuning);
}

dw_status plan_tuning_print(const plan_tuning *tuning, text *text) {
    const char *const words[] = {tuning->chip, tuning->driver, tuning->kernels};
    text_add(text, "tuning");
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        text_add(text, " ");
        text_json_string(text, words[i]);
    }
    text_add(text, "\n");
    for (size_t i = 0; i < tuning->lines.count; i++) {
        const plan_tuned_line *line = tuning->lines.entries[i].value;
        text_add(text, line->rows[0].rows == 0 ? "case " : "product ");
        text_json_string(text, line->line);
        text_add(text, "\n");
        for (int k = 0; k < line->count; k++) {
            const plan_tuned *entry = &line->rows[k];
            if (entry->rows == 0) text_add(text, "  kernel");
            else text_printf(text, "  rows %" PRId64, entry->rows);
            text_printf(text, " %s%s%s\n", entry->kernel, entry->variant[0] != '\0' ? " " : "", entry->variant);
        }
    }
    text_printf(text, "end %zu\n", tuning->lines.count);
    return text_status(text);
}

/* ---- the line of a step ---- */

static bool is_known(const op_type *type, int from) {
    int64_t size;
    for (int i = from; i < type->rank; i++)
        if (!dim_is_constant(type->dims[i], &size)) return false;
    return true;
}

/* All axes but the last are rows, which '*' stands for; a row alone is what it is. */
static bool print_operand(text *text, const op_type *type, bool rows) {
    int64_t size = 1;
    bool one = true;
    for (int i = 0; i + 1 < type->rank; i++) one = one && dim_is_constant(type->dims[i], &size) && size == 1;
    if (type->rank < 1 || !is_known(type, type->rank - 1)) return false;
    dim_is_constant(type->dims[type->rank - 1], &size);
    if (rows || !one) text_printf(text, " %s[*,%" PRId64 "]", dw_format_name(type->format), size);
    else text_printf(text, " %s[%" PRId64 "]", dw_format_name(type->format), size);
    return true;
}

static bool print_attr(text *text, const op_attr *attr) {
    switch (op_attr_kind_of(attr->id)) {
    case OP_KIND_INT: text_printf(text, " %s=%" PRId64, op_attr_name(attr->id), attr->integer); return true;
    case OP_KIND_BOOL: text_printf(text, " %s=%s", op_attr_name(attr->id), attr->integer ? "true" : "false"); return true;
    case OP_KIND_TEXT: text_printf(text, " %s=%s", op_attr_name(attr->id), attr->text); return true;
    case OP_KIND_FORMAT: text_printf(text, " %s=%s", op_attr_name(attr->id), dw_format_name(attr->format)); return true;
    case OP_KIND_REAL:
    case OP_KIND_DIM:
    case OP_KIND_INTS:
    case OP_KIND_DIMS: break;
    }
    return false;
}

static bool print_line(text *text, const plan_step *step) {
    const ir_node *node = step->node;
    int64_t n, k;
    if (node->op != OP_matmul || ir_in(node, 1)->type.rank != 2 || !is_known(&ir_in(node, 1)->type, 0)) return false;
    const op_type *b = &ir_in(node, 1)->type;
    text_add(text, op_get(node->op)->name);
    if (!print_operand(text, &ir_in(node, 0)->type, true)) return false;
    dim_is_constant(b->dims[0], &n);
    dim_is_constant(b->dims[1], &k);
    text_printf(text, " %s[%" PRId64 ",%" PRId64 "]", dw_format_name(b->format), n, k);
    for (int i = 2; i < node->n_in; i++)
        if (ir_in(node, i) == NULL || !print_operand(text, &ir_in(node, i)->type, false)) return false;
    for (int i = 0; i < node->attrs.count; i++)
        if (!print_attr(text, &node->attrs.items[i])) return false;
    return true;
}

dw_status plan_product_line(arena *arena, const plan *plan, const plan_step *step, const char **line) {
    text text;
    *line = NULL;
    text_init(&text, plan->context);
    const bool is_product = print_line(&text, step);
    dw_status status = text_status(&text);
    if (status == DW_OK && is_product) {
        *line = arena_text(arena, text_string(&text));
        if (*line == NULL) status = DW_NO_MEMORY;
    }
    text_free(&text);
    return status;
}

dw_status plan_case_line(arena *arena, const plan *plan, const plan_step *step, const char **line, const char **why) {
    const op_type *in[KERNEL_MAX_OPERANDS], *out[KERNEL_MAX_RESULTS];
    kernel_problem problem;
    text text;
    *line = NULL;
    text_init(&text, plan->context);
    plan_problem(plan, step, in, out, &problem);
    problem.context = plan->context;
    *why = kernel_case_print(&problem, &text);
    dw_status status = text_status(&text);
    if (status == DW_OK && *why == NULL) {
        *line = arena_text(arena, text_string(&text));
        if (*line == NULL) status = DW_NO_MEMORY;
    }
    text_free(&text);
    return status;
}

/* A step's rows of its result at the typical sizes. */
static int64_t typical_rows(const plan *plan, const plan_step *step) {
    const op_type *out = &step->node->out[0]->type;
    int64_t rows = 1, size;
    for (int i = 0; i + 1 < out->rank; i++)
        if (dim_eval(plan->context, out->dims[i], plan->typical, &size) == DW_OK && size > 0 && rows <= INT64_MAX / size) rows *= size;
    return rows;
}

/* ---- what a plan takes ---- */

static int find_variant(const kernel_way *way, const kernel_problem *problem, const char *name, size_t length) {
    const char *known;
    if (length == 0) return -1;
    for (int i = 0; (known = kernel_way_variant(way, problem, i)) != NULL; i++)
        if (strlen(known) == length && memcmp(known, name, length) == 0) return i;
    return -1;
}

/* Does the row run what all entries of the line name, or the one alone? */
static bool has_entries(const kernel_row *row, const plan_tuned_line *line) {
    for (int i = 0; i < line->count; i++)
        if (!kernel_is_named(row, line->rows[i].kernel)) return false;
    return true;
}

/* The row that has the kernel; of several one that has those of the whole line, so that each may run at its rows. */
static const kernel_row *find_row(const kernel_problem *problem, const char *name, const plan_tuned_line *line) {
    const kernel_row *found = NULL;
    for (int i = 0; i < kernel_count(); i++) {
        const kernel_row *row = kernel_at(i);
        if (row->op != problem->op->id || row->device != problem->chip->kind || !kernel_is_named(row, name)) continue;
        if (has_entries(row, line)) return row;
        if (found == NULL) found = row;
    }
    return found;
}

static dw_status find_line(const plan *plan, const plan_tuning *tuning, arena *scratch, const plan_step *step, const plan_tuned_line **found) {
    const char *line, *why;
    *found = NULL;
    if (step->at_load) return DW_OK;
    TRY(plan_product_line(scratch, plan, step, &line));
    if (line == NULL) TRY(plan_case_line(scratch, plan, step, &line, &why));
    if (line != NULL) *found = map_find(&tuning->lines, line);
    return DW_OK;
}

/* What was measured where all sizes are known may refuse a step that has others, too: why by estimate, then; NULL: it accepts. */
static dw_status explain_refusal(plan *plan, const kernel_row *row, const kernel_way *way, const kernel_problem *problem, const char **because) {
    kernel_problem asked = *problem;
    text why;
    *because = NULL;
    asked.context = plan->context;
    text_init(&why, plan->context);
    const char *reason = kernel_refusal(row, way, &asked, &why);
    dw_status status = text_status(&why);
    if (status == DW_OK && reason != NULL) {
        *because = arena_printf(&plan->arena, "by estimate, since %s, the fastest of those measured, refuses it: %s", way != NULL ? way->name : row->name, reason);
        if (*because == NULL) status = DW_NO_MEMORY;
    }
    text_free(&why);
    return status;
}

/* One entry for the row. A way of a case whose sizes may change is for no more rows than were measured. */
static dw_status take_entry(plan *plan, const kernel_row *row, const kernel_problem *problem, const plan_tuned_line *line, const plan_tuned *entry, kernel_tuned *tuned) {
    const kernel_way *way = kernel_find_way(row, entry->kernel);
    tuned->way = way;
    tuned->variant = way != NULL ? find_variant(way, problem, entry->variant, strlen(entry->variant)) : -1;
    if (way != NULL && entry->variant[0] != '\0' && tuned->variant < 0)
        return base_fail(plan->context, DW_NOT_FOUND, "tuning: kernel %s has no variant %s for \"%s\": tune again", way->name, entry->variant, line->line);
    return DW_OK;
}

/* Each way that was measured runs up to its rows, where the row that the plan takes has it; the others are by estimate. */
dw_status plan_take_tuned(plan *plan, const plan_tuning *tuning, arena *scratch, const kernel_problem *problem, plan_step *step, const char **kernel) {
    const plan_tuned_line *line;
    kernel_tuned *tuned;
    TRY(find_line(plan, tuning, scratch, step, &line));
    if (line == NULL) return DW_OK;
    const int64_t rows = typical_rows(plan, step);
    const plan_tuned *chosen = &line->rows[line->count - 1];
    for (int i = line->count; i-- > 0;)
        if (rows <= line->rows[i].rows) chosen = &line->rows[i];
    const kernel_row *row = find_row(problem, chosen->kernel, line);
    if (row == NULL)
        return base_fail(plan->context, DW_NOT_FOUND, "tuning: there is no kernel %s for %s in this build (\"%s\"): tune again", chosen->kernel, problem->op->name, line->line);
    TRY(explain_refusal(plan, row, kernel_find_way(row, chosen->kernel), problem, &step->because));
    if (step->because != NULL) return DW_OK;
    TRY_NEW(tuned, &plan->arena, line->count + 1);
    for (int i = 0; i < line->count; i++) {
        tuned[i].rows = line->rows[i].rows > 0 ? line->rows[i].rows : rows;
        TRY(take_entry(plan, row, problem, line, &line->rows[i], &tuned[i]));
    }
    const bool is_case = line->rows[0].rows == 0;
    tuned[line->count] = (kernel_tuned){INT64_MAX, NULL, -1};
    *kernel = row->name;
    step->because = "measured";
    step->tuned = row->way_count > 0 ? tuned : NULL;
    step->tuned_count = row->way_count > 0 ? line->count + is_case : 0;
    return DW_OK;
}

/* "way/variant", "way" or "", of so many characters. */
static bool read_entry(const kernel_row *row, const kernel_problem *problem, const char *words, size_t length, kernel_tuned *entry) {
    char name[96];
    const size_t stem = strcspn(words, "/,") < length ? strcspn(words, "/,") : length;
    entry->way = NULL;
    entry->variant = -1;
    if (length == 0) return true;
    if (stem >= sizeof name) return false;
    memcpy(name, words, stem);
    name[stem] = '\0';
    entry->way = kernel_find_way(row, name);
    if (entry->way == NULL || stem == length) return entry->way != NULL;
    entry->variant = find_variant(entry->way, problem, words + stem + 1, length - stem - 1);
    return entry->variant >= 0;
}

dw_status plan_read_tuned(plan *plan, const kernel_row *row, const kernel_problem *problem, const char *words, plan_step *step) {
    kernel_tuned *tuned;
    int count = 0;
    TRY_NEW(tuned, &plan->arena, KERNEL_TUNED);
    for (const char *at = words; *at != '\0';) {
        char *colon;
        const int64_t rows = strtoll(at, &colon, 10);
        const size_t length = *colon == ':' ? strcspn(colon + 1, ",") : 0;
        kernel_tuned entry = {.rows = rows};
        if (colon == at || *colon != ':' || rows < 1 || (count > 0 && rows <= tuned[count - 1].rows) || count == KERNEL_TUNED || !read_entry(row, problem, colon + 1, length, &entry))
            return base_fail(plan->context, DW_INVALID, "tuned \"%s\": %s takes up to %d entries rows:way or rows:way/variant in ascending order, of its own ways", words, row->name, KERNEL_TUNED);
        tuned[count++] = entry;
        at = colon + 1 + length;
        at += *at == ',';
    }
    step->tuned = count > 0 ? tuned : NULL;
    step->tuned_count = count;
    return DW_OK;
}
