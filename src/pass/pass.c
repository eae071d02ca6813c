/* The pipeline: passes by rows, stage after stage, each until nothing changes. Rewrites nothing itself. */
#include "pass/pass.h"

#include <string.h>

/* Of one stage. A round does all that it sees, so that graphs need a handful; one that opens up step by step, however long, is refused rather than followed,
 * since each round walks the whole graph. */
enum { MAX_ROUNDS = 64 };

enum {
    CLEAN = PASS_STAGE_CLEAN, STRUCTURE = PASS_STAGE_STRUCTURE, FUSE = PASS_STAGE_FUSE, INCREMENTAL = PASS_STAGE_INCREMENTAL,
    PRECISION = PASS_STAGE_PRECISION, SHARD = PASS_STAGE_SHARD, MERGE = PASS_STAGE_MERGE, CHAIN = PASS_STAGE_CHAIN
};

static const pass_row rows[] = {
#define PASS(name, stages, meaning) {#name, meaning, stages, pass_##name},
#include "pass/pass.def"
#undef PASS
};

const pass_row *pass_get(int index) { return index >= 0 && index < (int)COUNT_OF(rows) ? &rows[index] : NULL; }

const pass_row *pass_find(const char *name) {
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    }
    return NULL;
}

static dw_status show(const ir_graph *graph, const pass_row *row, const pass_options *options) {
    text text;
    text_init(&text, graph->context);
    dw_status status = ir_print(graph, &text);
    if (status == DW_OK) options->show(options->user, row->name, text_string(&text));
    text_free(&text);
    return status;
}

dw_status pass_run_one(ir_graph *graph, const pass_row *row, const pass_options *options, bool *changed) {
    *changed = false;
    TRY(base_poll(graph->context));
    ir_cursor_end(graph);
    dw_status status = row->run(graph, options, changed);
    ir_cursor_end(graph);
    graph->origin = (ir_origin){0};
    if (status == DW_OK && *changed) ir_renumber(graph);
    if (status == DW_OK && options->check) status = ir_check(graph);
    if (status != DW_OK) return status == DW_NO_MEMORY ? status : base_fail_at(graph->context, status, "pass %s", row->name);
    if (options->dump == NULL || options->show == NULL) return DW_OK;
    if (strcmp(options->dump, row->name) != 0 && strcmp(options->dump, "all") != 0) return DW_OK;
    return show(graph, row, options);
}

static dw_status run_stage(ir_graph *graph, unsigned stage, const pass_options *options) {
    const char *last = "";
    for (int round = 0; round < MAX_ROUNDS; round++) {
        bool any_changed = false;
        for (size_t i = 0; i < COUNT_OF(rows); i++) {
            bool changed;
            if ((rows[i].stages & stage) == 0) continue;
            TRY(pass_run_one(graph, &rows[i], options, &changed));
            any_changed = any_changed || changed;
            if (changed) last = rows[i].name;
        }
        if (!any_changed) return DW_OK;
    }
    return base_fail(graph->context, DW_LIMIT, "pass %s still finds something to change in graph '%s' after %d rounds; split the graph, or write it with fewer steps that wait for each other",
                     last, graph->name, MAX_ROUNDS);
}

dw_status pass_run(ir_graph *graph, unsigned stages, const pass_options *options) {
    if (options->dump != NULL && strcmp(options->dump, "all") != 0 && pass_find(options->dump) == NULL) {
        return base_fail(graph->context, DW_NOT_FOUND, "there is no pass '%s' to show the graph after", options->dump);
    }
    for (unsigned stage = 1; stage <= PASS_STAGE_CHAIN; stage *= 2) {
        if ((stages & stage) != 0) TRY(run_stage(graph, stage, options));
    }
    return DW_OK;
}
