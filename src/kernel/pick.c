/* Picks one of a row's ways for the real sizes of a run, and runs rows. No other file chooses among kernels once sizes are known. Pure: no device, no measurement. */
#include "kernel/compose.h"

#include <limits.h>
#include <string.h>

int64_t kernel_any_rows(const kernel_run *run) {
    (void)run;
    return INT64_MAX;
}

size_t kernel_no_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

const char *kernel_no_variants(const kernel_problem *problem, int index) {
    (void)problem, (void)index;
    return NULL;
}

/* Of the rows without ways those of ops that say what is rounded to before. */
bool kernel_is_quantised(const kernel_row *row, const op_def *op) { return !row->reference && !row->registered && strstr(op->attributes, "via?") != NULL; }

static bool is_quantised(const kernel_row *row, const kernel_run *run) {
    return run->call.n_out > 0 && dw_format_is_block(run->call.out[0]->format) && kernel_is_quantised(row, run->call.op);
}

/* A run that is to be picked for. */
typedef struct asked {
    const kernel_row *row;
    const kernel_run *run;
    int64_t rows;
    bool alone;                   /* one way is all that there may be */
} asked;

static asked ask(const kernel_row *row, const kernel_run *run) { return (asked){row, run, kernel_result_rows(&run->call), (run->ways & (run->ways - 1)) == 0}; }

/* Nothing is to be written. */
static bool is_empty(const kernel_run *run) {
    for (int i = 0; i < run->call.n_out; i++)
        if (op_tensor_count(run->call.out[i]) > 0) return false;
    return true;
}

/* By estimate a way is picked for so many rows at most. */
static int64_t most_rows(const asked *a, const kernel_way *way) { return a->alone ? INT64_MAX : way->most_rows(a->run); }

/* Is the way among those of the run, and does it quantise what it is to quantise, and leave plain what it is not? */
static bool is_asked(const asked *a, int i) {
    const kernel_way *way = &a->row->ways[i];
    return (a->run->ways >> i & 1) != 0 && (!a->run->quantises || kernel_way_is(way, KERNEL_WAY_QUANTISES)) && (a->run->norm == NULL || kernel_way_is(way, KERNEL_WAY_NORMALISES)) &&
           (!a->run->leaves_plain || kernel_way_is(way, KERNEL_WAY_QUANTISED)) && (a->run->write == NULL || kernel_way_is(way, KERNEL_WAY_WRITES));
}

static bool may_pick(const asked *a, int i) {
    const kernel_way *way = &a->row->ways[i];
    return is_asked(a, i) && (a->alone || !kernel_way_is(way, KERNEL_WAY_NAMED)) && !(a->run->invariant && kernel_way_is(way, KERNEL_WAY_VARIES));
}

/* ---- does the chip have room? ---- */

typedef struct room { kernel_launcher launcher; const chip_caps *chip; text *why; const char *refusal; } room;

static dw_status look_at(kernel_launcher *launcher, const kernel_launch *launch) {
    room *r = (room *)launcher;
    if (r->refusal == NULL) r->refusal = kernel_launch_refusal(launch, r->chip, r->why);
    return DW_OK;
}

/* Also when no run is launched: a run that fails otherwise fails again when it is. */
const char *kernel_launches_refusal(const kernel_row *row, const kernel_way *way, const kernel_run *run, text *why) {
    room room = {{look_at}, run->chip, why, NULL};
    composed c;
    if (way == NULL && row->shape == NULL) return NULL;
    if (way == NULL) {
        row->shape(run, &room.launcher);
        return room.refusal;
    }
    compose(way, run, &c);
    composed_shape(&c, &room.launcher);
    return room.refusal;
}

/* ---- picking ---- */

/* Why the way does not run the call. */
static const char *size_refusal(const composed *c, text *why) {
    const char *reason = c->way->takes(c->kernel, why);
    if (reason != NULL) return reason;
    room room = {{look_at}, c->kernel->chip, why, NULL};
    composed_shape(c, &room.launcher);
    return room.refusal;
}

const char *kernel_size_refusal(const kernel_way *way, const kernel_run *run, text *why) {
    composed c;
    if (is_empty(run)) return NULL;
    compose(way, run, &c);
    return size_refusal(&c, why);
}

/* What was measured follows from the number of rows, too. */
static const kernel_tuned *tuned_of(const asked *a) {
    if (a->run->invariant) return NULL;
    for (int i = 0; i < a->run->tuned_count; i++)
        if (a->rows <= a->run->tuned[i].rows || i + 1 == a->run->tuned_count) return &a->run->tuned[i];
    return NULL;
}

static const kernel_way *find_tuned(const asked *a) {
    const kernel_tuned *tuned = tuned_of(a);
    for (int i = 0; tuned != NULL && tuned->way != NULL && i < a->row->way_count; i++)
        if (&a->row->ways[i] == tuned->way && is_asked(a, i) && kernel_size_refusal(tuned->way, a->run, NULL) == NULL) return tuned->way;
    return NULL;
}

/* Of the ways of least rank that take the call the one of least seconds; where it is to be invariant the first of them, whatever its estimate. limited: within the rows that estimates may pick them for. */
static const kernel_way *find_best(const asked *a, bool limited, double *seconds) {
    const kernel_way *best = NULL;
    for (int i = 0; i < a->row->way_count; i++) {
        const kernel_way *way = &a->row->ways[i];
        composed c;
        if (!may_pick(a, i) || (limited && a->rows > most_rows(a, way))) continue;
        if (best != NULL && way->rank > best->rank) break;
        compose(way, a->run, &c);
        if (way->takes(c.kernel, NULL) != NULL) continue;
        const double s = composed_seconds(&c);
        if ((best != NULL && s >= *seconds) || size_refusal(&c, NULL) != NULL) continue;
        best = way;
        *seconds = s;
        if (a->run->invariant) break;
    }
    return best;
}

static const kernel_way *find_way(const asked *a, double *seconds) {
    const kernel_way *way = find_tuned(a);
    if (way != NULL) {
        composed c;
        compose(way, a->run, &c);
        *seconds = composed_seconds(&c);
        return way;
    }
    way = a->run->invariant ? NULL : find_best(a, true, seconds);
    return way != NULL ? way : find_best(a, false, seconds);
}

static dw_status fail_refused(const asked *a) {
    dw_context *context = a->run->call.context;
    text list;
    text_init(&list, context);
    for (int i = 0, count = 0; i < a->row->way_count; i++) {
        text why;
        if (!may_pick(a, i)) continue;
        text_init(&why, context);
        const char *reason = kernel_size_refusal(&a->row->ways[i], a->run, &why);
        text_printf(&list, "%s %s: %s", count++ > 0 ? ";" : "", a->row->ways[i].name, reason != NULL ? reason : "it takes this");
        text_free(&why);
    }
    dw_status status = text_status(&list);
    if (status == DW_OK) status = base_fail(context, DW_UNSUPPORTED, "%s: no kernel of %s runs this at these sizes:%s", a->run->call.op->name, a->row->name, text_string(&list));
    text_free(&list);
    return status;
}

static dw_status pick(const asked *a, const kernel_way **way) {
    double seconds;
    *way = find_way(a, &seconds);
    return *way != NULL ? DW_OK : fail_refused(a);
}

dw_status kernel_pick(const kernel_row *row, const kernel_run *run, const kernel_way **way) {
    *way = NULL;
    if (row->way_count == 0 || is_empty(run)) return DW_OK;
    const asked a = ask(row, run);
    return pick(&a, way);
}

const char *kernel_runs_as(const kernel_row *row, const kernel_run *run) {
    double seconds;
    if (row->way_count == 0 || is_empty(run)) return row->name;
    const asked a = ask(row, run);
    const kernel_way *way = find_way(&a, &seconds);
    return way != NULL ? way->name : row->name;
}

void kernel_describe_parts(const kernel_row *row, const kernel_run *run, text *words) {
    double seconds;
    composed c;
    if (is_empty(run)) return;
    if (run->passes) text_add(words, run->call.op->id == OP_take ? "all there is: nothing is taken" : run->quantises_beside ? "made by the norm in front" : "left to what reads it");
    else if (run->quantises_beside) text_add(words, "result quantised, too");
    if (run->leaves_plain) text_add(words, "result quantised by the product that reads it");
    if (run->passes) return;
    if (run->quantises || run->norm != NULL)
        text_printf(words, "%s%s operand 0", run->leaves_plain ? ", " : "", run->norm == NULL ? "quantises" : run->quantises ? "normalises and quantises" : "normalises");
    if (run->heads[0] != NULL || run->heads[1] != NULL)
        text_printf(words, "normalises %s%s%s", run->heads[0] != NULL ? "keys" : "", run->heads[0] != NULL && run->heads[1] != NULL ? " and " : "", run->heads[1] != NULL ? "queries" : "");
    if (row->way_count == 0) {
        if (is_quantised(row, run)) text_add(words, "result quantised behind");
        return;
    }
    const asked a = ask(row, run);
    const kernel_way *way = find_way(&a, &seconds);
    if (way == NULL) return;
    compose(way, run, &c);
    composed_describe(&c, words);
}

/* ---- who quantises ---- */

bool kernel_may_quantise_behind(const kernel_row *row, uint32_t ways, const op_def *op) {
    if (row->way_count == 0) return kernel_is_quantised(row, op);
    for (int i = 0; i < row->way_count; i++)
        if ((ways >> i & 1) != 0 && kernel_way_is(&row->ways[i], KERNEL_WAY_QUANTISED)) return true;
    return false;
}

bool kernel_may_take_plain(const kernel_row *row, uint32_t ways, kernel_way_flag flag) {
    for (int i = 0; i < row->way_count; i++)
        if ((ways >> i & 1) != 0 && kernel_way_is(&row->ways[i], flag)) return true;
    return false;
}

bool kernel_does_write(const kernel_row *row, const kernel_run *run, const kernel_run *write, double saved) {
    kernel_run own = *run;
    double alone_s, both_s;
    if (row->way_count == 0 || is_empty(run)) return false;
    own.write = write;
    const asked alone = ask(row, run), both = ask(row, &own);
    return find_way(&both, &both_s) != NULL && (find_way(&alone, &alone_s) == NULL || both_s < alone_s + saved);
}

bool kernel_quantises_behind(const kernel_row *row, const kernel_run *run) {
    double seconds;
    composed c;
    if (is_empty(run)) return false;
    if (row->way_count == 0) return is_quantised(row, run);
    const asked a = ask(row, run);
    const kernel_way *way = find_way(&a, &seconds);
    if (way == NULL) return false;
    compose(way, run, &c);
    return c.quantises;
}

/* Is the way that is picked for the call one that does it? A norm may make another one the best. */
bool kernel_takes_plain(const kernel_row *row, const kernel_run *run, const kernel_plain *plain) {
    double seconds, own_seconds;
    if (row->way_count == 0 || is_empty(run) || run->call.n_in > KERNEL_MAX_OPERANDS || kernel_result_rows(&run->call) > KERNEL_QUANTISES_ROWS) return false;
    const asked a = ask(row, run);
    const kernel_way *way = find_way(&a, &seconds);
    const dw_tensor *in[KERNEL_MAX_OPERANDS];
    kernel_run own = *run;
    if (way == NULL || (plain->norm == NULL && !kernel_way_is(way, KERNEL_WAY_QUANTISES))) return false;
    memcpy(in, run->call.in, (size_t)run->call.n_in * sizeof *in);
    in[0] = plain->operand;
    own.call.in = in;
    own.quantises = plain->quantises;
    own.quantised = run->call.in[0]->format;
    own.searches = plain->searches;
    own.norm = plain->norm;
    if (plain->norm == NULL) return kernel_size_refusal(way, &own, NULL) == NULL;
    const asked b = ask(row, &own);
    return find_way(&b, &own_seconds) != NULL && own_seconds < seconds + plain->saved;
}

/* ---- estimates ---- */

static double row_seconds(const kernel_row *row, const kernel_problem *problem) {
    if (row->cost == NULL) return kernel_roofline(problem, DW_FORMAT_f32, 0.5, 0.5);
    kernel_typical typical;
    const bool is_known = kernel_at_typical(problem, 0, &typical);
    if (problem->n_out == 0 || !dw_format_is_block(problem->out[0]->format) || !is_known || !is_quantised(row, &typical.run)) return row->cost(problem);
    op_type type;
    const op_type *out;
    const kernel_problem plain = quantised_plain(problem, &type, &out);
    quantised_runs runs;
    quantised_split(&typical.run, &runs);
    return row->cost(&plain) + quantised_seconds(problem->chip, quantised_plain_bytes(&runs));
}

double kernel_seconds(const kernel_row *row, uint32_t ways, const kernel_problem *problem) {
    kernel_typical typical;
    double seconds = problem->chip->launch_s;
    if (row->way_count == 0) return row_seconds(row, problem);
    if (!kernel_at_typical(problem, ways, &typical) || is_empty(&typical.run)) return seconds;
    const asked a = ask(row, &typical.run);
    return find_way(&a, &seconds) != NULL ? seconds : problem->chip->launch_s;
}

double kernel_run_seconds(const kernel_row *row, const kernel_problem *problem, const kernel_run *run) {
    double seconds = problem->chip->launch_s;
    if (run->passes) return 0;
    if (row->way_count == 0) return row_seconds(row, problem);
    if (is_empty(run)) return seconds;
    const asked a = ask(row, run);
    return find_way(&a, &seconds) != NULL ? seconds : problem->chip->launch_s;
}

/* ---- workspace ---- */

/* Of the ways that do what the run asks for, which others have no say in. Ways of a rank are reached where no way of a lower one takes the call, so the first rank that has one for these rows ends the list.
 * *found: there is one. */
static size_t ways_workspace(const asked *a, bool limited, bool *found) {
    size_t most = 0;
    int ends = INT_MAX;
    for (int i = 0; i < a->row->way_count && a->row->ways[i].rank <= ends; i++) {
        if (!is_asked(a, i)) continue;
        const kernel_way *way = &a->row->ways[i];
        const int64_t rows = limited ? most_rows(a, way) : INT64_MAX;
        composed c;
        compose(way, a->run, &c);
        const size_t bytes = composed_workspace(&c, rows);
        if (bytes > most) most = bytes;
        if (may_pick(a, i) && a->rows <= rows && size_refusal(&c, NULL) == NULL) ends = way->rank;
    }
    *found = ends != INT_MAX;
    return most;
}

size_t kernel_workspace(const kernel_row *row, const kernel_run *run) {
    if (row->way_count == 0) {
        if (row->workspace == NULL) return 0;
        if (!is_quantised(row, run)) return row->workspace(run);
        quantised_runs runs;
        quantised_split(run, &runs);
        return quantised_workspace(&runs, row->workspace(&runs.first), INT64_MAX);
    }
    if (is_empty(run)) return 0;
    bool found;
    const asked a = ask(row, run);
    const size_t limited = ways_workspace(&a, !run->invariant, &found);
    return found ? limited : ways_workspace(&a, false, &found);
}

/* ---- running ---- */

/* 1 + the variant of the way that was measured. 0: none was, or these sizes are beyond it, as more rows are than a tile's columns: the way chooses by itself. */
static int variant_of(const asked *a, const kernel_way *way) {
    const kernel_tuned *tuned = tuned_of(a);
    kernel_run own = *a->run;
    if (tuned == NULL || tuned->way != way || tuned->variant < 0) return 0;
    own.variant = tuned->variant + 1;
    return kernel_size_refusal(way, &own, NULL) == NULL ? own.variant : 0;
}

dw_status kernel_execute(const kernel_row *row, const kernel_run *run) {
    if (!is_quantised(row, run)) return row->run(run);
    quantised_runs runs;
    quantised_split(run, &runs);
    return quantised_run(&runs, row->workspace != NULL ? row->workspace(&runs.first) : 0, row->run);
}

dw_status kernel_shape(const kernel_row *row, const kernel_run *run, kernel_launcher *launcher) {
    const kernel_way *way;
    kernel_run own = *run;
    composed c;
    if (run->passes) return DW_OK;
    if (row->way_count == 0) return row->shape(run, launcher);
    if (is_empty(run)) return DW_OK;
    if (run->ways == 0) return base_fail(run->call.context, DW_INTERNAL, "%s is run without any of its ways", row->name);
    const asked a = ask(row, run);
    TRY(pick(&a, &way));
    own.variant = variant_of(&a, way);
    compose(way, &own, &c);
    return composed_shape(&c, launcher);
}
