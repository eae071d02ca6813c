/* Lines of collectives. */
#include "support/ranks.h"
#include "conform/conform.h"
#include "support/wire.h"

#include <stdlib.h>
#include <string.h>

/* A line of a collective: all ranks run the row at the same time, with operands of their own, and each has to have its reference's bits. */
typedef struct world {
    program *p;
    const kernel_case *c;
    const kernel_row *row;
    const chip_caps *level;
    const char *mesh;
    int count, ranks;             /* of all; of those that take part together */
    uint64_t seed;
    int threads;
    bool carried;                 /* by a caller's engine; else by memory */
    const dw_tensor *operands;    /* by rank */
    result *references, *results;
} world;

/* Ranks that take part together are so far apart. */
static int apart_of(const world *w) { return w->count / w->ranks; }

static void run_rank(int rank, dw_context *context, dw_comm *comm, void *user) {
    const world *w = user;
    const dw_tensor *in = &w->operands[rank], *out = &w->results[rank].tensor;
    pool *pool;
    rank_ok(context, pool_create(context, w->threads, &pool));
    kernel_run run = {.call = {.context = context, .op = w->c->op, .attrs = &w->c->attrs, .n_in = 1, .in = &in, .n_out = 1, .out = &out}, .pool = pool, .comm = comm_kernels(comm), .step = 1,
                      .chip = w->level};
    for (int turn = 0; turn < 2; turn++) {   /* again, over what the first run left */
        block workspace = block_create(kernel_workspace(w->row, &run), 0xff);
        run.workspace = workspace.bytes;
        rank_ok(context, kernel_execute(w->row, &run));
        rank_assert(context, block_is_whole(&workspace));
        free(workspace.bytes);
    }
    pool_destroy(pool);
}

static void check_rank(const world *w, int rank) {
    const result *got = &w->results[rank], *want = &w->references[rank];
    char text[256], what[300];
    if (!block_is_whole(&got->memory)) report(w->p, w->c, w->row, w->level->name, w->seed, w->threads, "wrote outside of its result");
    if (!differs(w->p, w->c, got, want, text, sizeof text) && (w->c->special != 0 || memcmp(got->memory.bytes, want->memory.bytes, want->memory.length) == 0)) return;
    snprintf(what, sizeof what, "rank %d of %d%s: %s", rank, w->count, w->carried ? ", by an engine" : "", differs(w->p, w->c, got, want, text, sizeof text) ? text : "other bits than the reference's");
    report(w->p, w->c, w->row, w->level->name, w->seed, w->threads, what);
}

static void reference_of_rank(const world *w, int rank) {
    const dw_tensor *in = &w->operands[rank], *out = &w->references[rank].tensor;
    dw_tensor theirs[RANKS_MOST];
    const op_group group = {rank / apart_of(w), w->ranks, theirs};
    for (int i = 0; i < w->ranks; i++) theirs[i] = w->operands[rank % apart_of(w) + i * apart_of(w)];
    const op_call call = {.context = w->p->context, .op = w->c->op, .attrs = &w->c->attrs, .n_in = 1, .in = &in, .n_out = 1, .out = &out, .group = &group};
    if (w->c->op->reference(&call) != DW_OK) fail_msg("%s:%d: the reference: %s", w->c->source, w->c->number, dw_context_error(w->p->context));
}

static void run_world(world *w) {
    operand operands[RANKS_MOST];
    dw_tensor dense[RANKS_MOST];
    result references[RANKS_MOST], results[RANKS_MOST];
    w->operands = dense;
    w->references = references;
    w->results = results;
    for (int i = 0; i < w->count; i++) {
        operand_create(w->c, 0, w->seed * RANKS_MOST + (uint64_t)i, &operands[i]);
        dense[i] = operands[i].dense;
        result_create(w->c, 0, 0, &references[i]);
        result_create(w->c, 0, 0, &results[i]);
    }
    for (int i = 0; i < w->count; i++) reference_of_rank(w, i);
    w->p->runs++;
    dw_collectives engines[RANKS_MOST];
    wire *wire = wire_create(w->mesh, 0, 0, DW_OK, engines);
    ranks_run(&(ranks){.world = w->count, .mesh = w->mesh, .engines = w->carried ? engines : NULL, .user = w}, run_rank);
    wire_destroy(wire);
    for (int i = 0; i < w->count; i++) {
        check_rank(w, i);
        operand_destroy(&operands[i]);
        free(references[i].memory.bytes);
        free(results[i].memory.bytes);
    }
}

static void run_worlds(world *w) {
    for (w->seed = options.first_seed; w->seed < options.first_seed + options.seeds; w->seed++)
        for (w->threads = 1; w->threads <= options.runs_each; w->threads++) {
            w->carried = (w->seed + (uint64_t)w->threads) % 2 != 0;
            run_world(w);
        }
}

void run_collective(program *p, const kernel_case *c) {
    char mesh[64];
    world w = {.p = p, .c = c, .mesh = mesh, .ranks = (int)op_attr_int(&c->attrs, OP_ATTR_ranks)};
    w.count = c->world > 0 ? c->world : w.ranks;
    if (p->device != NULL) return;   /* of no device yet: plans refuse it by name */
    if (w.count > RANKS_MOST || w.count % w.ranks != 0) fail_msg("%s:%d: a world of %d ranks, of which %d take part", c->source, c->number, w.count, w.ranks);
    snprintf(mesh, sizeof mesh, "%s=%d,others=%d", op_attr_text(&c->attrs, OP_ATTR_over), w.ranks, apart_of(&w));
    for (int l = 0; l < p->level_count; l++) {
        const kernel_problem problem = problem_of(p, c, l);
        w.level = &p->levels[l];
        for (int i = 0; i < kernel_count(); i++) {
            if (kernel_at(i)->op != c->op->id || kernel_at(i)->reference || kernel_at(i)->device != CHIP_CPU || !takes(p, i, NULL, &problem)) continue;
            p->reached[i] = true;
            if (p->only_looks) continue;
            w.row = kernel_at(i);
            run_worlds(&w);
        }
    }
}
