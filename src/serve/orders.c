/* Orders: a word of a few numbers to all ranks along the axis that the model is cut over, and behind it what a run is fed: new ids, where they stand, and rows of page tables that have changed. What follows from
 * these, as sizes and positions, each rank finds for itself, so that all run at the same ones.
 *
 * A run that fails on one rank fails on all, at the collective where they meet next (runner.c), and the leader orders what follows. If the leader fails where the others do not learn of it, it says so, and they forget how
 * they fared: it does again what matters. If another rank does, it comes to the next order with its error; then nobody knows what its caches hold, so that is the end for all of them. */
#include "serve/orders.h"

#include <inttypes.h>
#include <string.h>

typedef enum order { ORDER_RUN, ORDER_LOGITS, ORDER_INPUTS, ORDER_RESET, ORDER_BEAT, ORDER_CLOSE } order;

/* New ids of a text, which follow it. */
typedef struct new_ids { int64_t row, count, past, length; } new_ids;
/* A row of a page table, which follows it. */
typedef struct table_row { int64_t group, row; } table_row;
/* An input: its name and its elements follow it. */
typedef struct given { int64_t name_bytes, bytes, format, rank, dims[DW_MAX_RANK]; } given;

enum { GAP = 8, MISSPELLED = 4096 };   /* what lies one behind another begins at multiples of it; room for inputs that the model does not have, whose names an error tells */

struct orders {
    dw_session *session;
    dw_comm *comm;
    bool leads, is_open, is_lost;
    double said;                        /* when the last order was given */
    uint8_t *block;                     /* [room] of the order at work */
    size_t room, at;
    int32_t *tables[GENERATION_GROUPS]; /* of the leader: as the others have them */
    uint8_t *inputs;                    /* of the others: [inputs_room], which runs may read later */
    dw_named_tensor *given;             /* of the others: [given_most] */
    size_t inputs_room, given_most;
    void *workspace;
    arena arena;
};

/* ---- the block ---- */

static size_t padded(size_t bytes) { return base_align_up(bytes, GAP); }

static void put(orders *o, const void *from, size_t bytes) {
    if (bytes > 0) memcpy(o->block + o->at, from, bytes);
    o->at += padded(bytes);
}

static const void *get(orders *o, size_t bytes) {
    const void *place = o->block + o->at;
    o->at += padded(bytes);
    return place;
}

/* ---- life ---- */

static dw_status check_axes(const orders *o, const engine_program *program) {
    const plan *plan = program->plan;
    for (int i = 0; plan != NULL && i < plan->step_count; i++) {
        const ir_node *node = plan->steps[i].node;
        const char *over = op_has(node->op, OP_TRAIT_COLLECTIVE) ? op_attr_text(&node->attrs, OP_ATTR_over) : NULL;
        if (over != NULL && strcmp(over, ENGINE_CUT_AXIS) != 0)
            return base_fail(o->session->context, DW_UNSUPPORTED, "a service of a model with %s %%%d over '%s': one rank of each line along " ENGINE_CUT_AXIS " takes requests for it, and runs of other lines are others; generate by one call",
                             op_get(node->op)->name, node->out[0]->id, over);
    }
    return DW_OK;
}

/* Bytes of an input at the largest sizes. */
static dw_status add_input(const orders *o, const ir_value *input, const int64_t *sizes, size_t *bytes) {
    dw_tensor tensor;
    TRY(op_tensor_bind(o->session->context, &input->type, sizes, NULL, &tensor));
    *bytes += sizeof(given) + padded(strlen(input->name) + 1) + padded((size_t)op_tensor_bytes(&tensor));
    return DW_OK;
}

/* All that a text is given besides its prompt. */
static dw_status measure_inputs(orders *o) {
    const dw_session *session = o->session;
    const generation *g = session->generation;
    const engine_program *prelude = session->prelude.program;
    const ir_graph *graph = prelude != NULL ? prelude->plan->graph : session->step.program == NULL ? session->full.program->plan->graph : NULL;
    o->inputs_room = 0;
    for (size_t i = 0; graph != NULL && i < graph->input_count; i++)
        if (prelude != NULL || g->feeds[i] == FEED_CALLER) TRY(add_input(o, graph->inputs[i], prelude != NULL ? session->prelude_most : session->full.most, &o->inputs_room));
    o->inputs_room += MISSPELLED;
    return DW_OK;
}

static dw_status get_memory(orders *o, size_t bytes, void **memory) {
    max_align_t *units;
    TRY_NEW(units, &o->arena, bytes / sizeof *units + 1);
    *memory = units;
    return DW_OK;
}

static size_t measure_run(const generation *g) {
    const size_t ids = (size_t)g->run_most * sizeof(int64_t), rows = (size_t)g->texts * sizeof(new_ids);
    return ids + rows + (size_t)g->group_count * (size_t)g->texts * (sizeof(table_row) + padded((size_t)g->row_pages * sizeof(int32_t)));
}

static dw_status build(orders *o) {
    const dw_session *session = o->session;
    const generation *g = session->generation;
    TRY(check_axes(o, &session->model->full));
    TRY(check_axes(o, &session->model->step));
    TRY(check_axes(o, &session->model->prelude));
    TRY(measure_inputs(o));
    const size_t run = measure_run(g);
    o->room = run > o->inputs_room ? run : o->inputs_room;
    o->given_most = o->inputs_room / sizeof(given);
    TRY(get_memory(o, o->room, (void **)&o->block));
    TRY(get_memory(o, o->inputs_room, (void **)&o->inputs));
    TRY(get_memory(o, comm_word_room(o->comm, ENGINE_CUT_AXIS, o->room), &o->workspace));
    TRY_NEW(o->given, &o->arena, o->given_most);
    for (int i = 0; i < g->group_count; i++) TRY_NEW(o->tables[i], &o->arena, g->texts * g->row_pages);
    return DW_OK;
}

dw_status orders_create(dw_session *session, orders **made) {
    void *memory;
    *made = NULL;
    if (engine_cut_ranks(session->model) == 1) return DW_OK;
    TRY(base_alloc(session->context, sizeof(orders), _Alignof(orders), &memory));
    orders *o = memory;
    *o = (orders){.session = session, .comm = session->model->options.comm, .leads = engine_cut_place(session->model) == 0};
    arena_init(&o->arena, session->context);
    const dw_status status = build(o);
    if (status == DW_OK) *made = o;
    else orders_destroy(o);
    return status;
}

void orders_destroy(orders *o) {
    if (o == NULL) return;
    dw_context *context = o->session->context;
    arena_free(&o->arena);
    base_release(context, o, sizeof *o, _Alignof(orders));
}

bool orders_lead(const orders *o) { return o == NULL || o->leads; }
int orders_leader(const orders *o) {
    const int axis = op_mesh_find(comm_mesh(o->comm), ENGINE_CUT_AXIS), rank = dw_comm_rank(o->comm);
    return rank - op_mesh_place(comm_mesh(o->comm), rank, axis) * op_mesh_stride(comm_mesh(o->comm), axis);
}

uint64_t orders_room(const orders *o) { return o != NULL ? o->room : 0; }
bool orders_go_on(const orders *o) { return o == NULL || (!o->is_lost && comm_is_whole(o->comm)); }
double orders_beat_s(const orders *o) { return o != NULL ? comm_beat_s(o->comm) : 0; }

/* ---- what is ordered ---- */

/* With the block up to o->at. Whoever has failed since the order before says so now. */
static dw_status say(orders *o, dw_context *context, order order, const uint64_t *numbers, int count) {
    comm_word word = {.numbers = {order}, .memory = o->block, .bytes = o->at};
    if (o->is_lost) return base_fail(context, DW_LOST, "the ranks of this service have ended: make a new one, on all of them");
    for (int i = 0; i < count; i++) word.numbers[1 + i] = numbers[i];
    const dw_status status = comm_broadcast(o->comm, context, ENGINE_CUT_AXIS, DW_OK, o->room, &word, o->workspace);
    o->is_lost = status != DW_OK;
    o->is_open = true;
    o->at = 0;
    o->said = base_now();
    return status;
}

/* What came of an order on the leader. */
static dw_status settle(orders *o, dw_status status) {
    comm_word word = {.memory = o->block};
    if (status == DW_OK || !comm_is_whole(o->comm) || comm_is_told(o->comm, ENGINE_CUT_AXIS)) return status;
    comm_broadcast(o->comm, o->session->context, ENGINE_CUT_AXIS, status, o->room, &word, o->workspace);
    return status;
}

void orders_open(orders *o) {
    if (o != NULL) o->is_open = true;
}

static uint64_t put_new_ids(orders *o) {
    const generation *g = o->session->generation;
    uint64_t texts = 0;
    for (int64_t row = 0; row < g->texts; row++) {
        const generation_text *text = &g->text[row];
        if (text->count == 0) continue;
        put(o, &(new_ids){row, text->count, text->past, text->length}, sizeof(new_ids));
        put(o, text->sequence + text->past, (size_t)text->count * sizeof(int64_t));
        texts++;
    }
    return texts;
}

/* Rows of the texts of this run that the others have otherwise. */
static uint64_t put_tables(orders *o) {
    const generation *g = o->session->generation;
    const size_t bytes = (size_t)g->row_pages * sizeof(int32_t);
    uint64_t rows = 0;
    for (int group = 0; group < g->group_count; group++)
        for (int64_t row = 0; row < g->texts; row++) {
            const int32_t *now = g->groups[group].table + row * g->row_pages;
            int32_t *theirs = o->tables[group] + row * g->row_pages;
            if (g->text[row].count == 0 || memcmp(now, theirs, bytes) == 0) continue;
            put(o, &(table_row){group, row}, sizeof(table_row));
            put(o, now, bytes);
            memcpy(theirs, now, bytes);
            rows++;
        }
    return rows;
}

dw_status orders_run(orders *o, dw_session *session) {
    if (o == NULL) return generation_run(session);
    const generation *g = session->generation;
    const uint64_t texts = put_new_ids(o), rows = put_tables(o);
    TRY(say(o, session->context, ORDER_RUN, (uint64_t[]){texts, rows, g->reads_logits, session->model->updates}, 4));
    return settle(o, generation_run(session));
}

dw_status orders_logits(orders *o, dw_session *session, int64_t first, int64_t count, int64_t most, const void **rows) {
    const generation *g = session->generation;
    if (o == NULL || g->parts.ranks == 0) return generation_logits(session, first, count, most, rows);   /* the rank has them */
    TRY(say(o, session->context, ORDER_LOGITS, (uint64_t[]){(uint64_t)first, (uint64_t)count, (uint64_t)most}, 3));
    return settle(o, generation_logits(session, first, count, most, rows));
}

static given given_of(const dw_named_tensor *input) {
    given one = {.name_bytes = (int64_t)strlen(input->name) + 1, .bytes = (int64_t)op_tensor_bytes(&input->tensor), .format = input->tensor.format, .rank = input->tensor.rank};
    memcpy(one.dims, input->tensor.dims, sizeof one.dims);
    return one;
}

static dw_status put_inputs(orders *o, int count, const dw_named_tensor *inputs) {
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += sizeof(given) + padded(strlen(inputs[i].name) + 1) + padded((size_t)op_tensor_bytes(&inputs[i].tensor));
    if (bytes > o->inputs_room) return base_fail(o->session->context, DW_LIMIT, "the given inputs have %zu bytes, this session generates with at most %zu: create it with larger dims", bytes, o->inputs_room);
    for (int i = 0; i < count; i++) {
        const given one = given_of(&inputs[i]);
        put(o, &one, sizeof one);
        put(o, inputs[i].name, (size_t)one.name_bytes);
        put(o, inputs[i].tensor.data, (size_t)one.bytes);
    }
    return DW_OK;
}

dw_status orders_set_inputs(orders *o, dw_session *session, generation_text *text, int count, const dw_named_tensor *inputs) {
    const generation *g = session->generation;
    const bool reads = session->prelude.program != NULL || session->step.program == NULL;   /* else nothing is run, and what is given is refused */
    if (o == NULL || !reads) return generation_set_inputs(session, text, count, inputs);
    TRY(put_inputs(o, count, inputs));
    TRY(say(o, session->context, ORDER_INPUTS, (uint64_t[]){(uint64_t)(text - g->text), (uint64_t)count}, 2));
    comm_begin(o->comm);
    return settle(o, generation_set_inputs(session, text, count, inputs));
}

dw_status orders_reset(orders *o, dw_session *session) {
    if (o == NULL) return dw_session_reset(session);
    TRY(say(o, session->context, ORDER_RESET, NULL, 0));
    comm_begin(o->comm);
    return settle(o, dw_session_reset(session));
}

dw_status orders_beat(orders *o) {
    return o == NULL || base_now() - o->said < orders_beat_s(o) ? DW_OK : say(o, o->session->context, ORDER_BEAT, NULL, 0);
}

void orders_close(orders *o) {
    if (o != NULL && o->leads && o->is_open && orders_go_on(o)) say(o, NULL, ORDER_CLOSE, NULL, 0);
    if (o != NULL) o->is_open = false;
}

/* ---- what is done ---- */

static void get_new_ids(orders *o, uint64_t texts) {
    generation *g = o->session->generation;
    for (int64_t row = 0; row < g->texts; row++) g->text[row].count = 0;
    for (uint64_t i = 0; i < texts; i++) {
        const new_ids *new = get(o, sizeof *new);
        generation_text *text = &g->text[new->row];
        text->count = new->count;
        text->past = new->past;
        text->length = new->length;
        memcpy(text->sequence + new->past, get(o, (size_t)new->count * sizeof(int64_t)), (size_t)new->count * sizeof(int64_t));
    }
}

static void get_tables(orders *o, uint64_t rows) {
    const generation *g = o->session->generation;
    const size_t bytes = (size_t)g->row_pages * sizeof(int32_t);
    for (uint64_t i = 0; i < rows; i++) {
        const table_row *row = get(o, sizeof *row);
        memcpy(g->groups[row->group].table + row->row * g->row_pages, get(o, bytes), bytes);
    }
    if (rows > 0) generation_table_changed(o->session);
}

/* Weights are updated on all ranks, or on none. */
static dw_status run(orders *o, const uint64_t *numbers) {
    dw_session *session = o->session;
    generation *g = session->generation;
    get_new_ids(o, numbers[0]);
    get_tables(o, numbers[1]);
    g->reads_logits = numbers[2] != 0;
    if (session->model->updates == numbers[3]) return generation_run(session);
    return engine_cannot_run(session, generation_runner(session), base_fail(session->context, DW_MISMATCH, "the rank that leads has updated its weights %" PRIu64 " times, and this one %" PRIu64 " times: update them on all ranks, while the service is stopped",
                                                                            numbers[3], session->model->updates));
}

/* The memory stays, since runs of the whole graph read it where it is. */
static dw_status set_inputs(orders *o, const uint64_t *numbers, size_t bytes) {
    generation *g = o->session->generation;
    const int count = (int)numbers[1];
    orders there = {.block = memcpy(o->inputs, o->block, bytes)};
    for (int i = 0; i < count; i++) {
        const given *one = get(&there, sizeof *one);
        o->given[i].name = get(&there, (size_t)one->name_bytes);
        op_tensor_init(&o->given[i].tensor, (dw_format)one->format, DW_SCALE_plain, (int)one->rank, one->dims, (void *)(uintptr_t)get(&there, (size_t)one->bytes));
    }
    return generation_set_inputs(o->session, &g->text[numbers[0]], count, o->given);
}

static dw_status obey(orders *o, const comm_word *word) {
    const uint64_t *numbers = word->numbers + 1;
    const void *rows;
    o->at = 0;
    switch ((order)word->numbers[0]) {
    case ORDER_RUN:    return run(o, numbers);
    case ORDER_LOGITS: return generation_logits(o->session, (int64_t)numbers[0], (int64_t)numbers[1], (int64_t)numbers[2], &rows);
    case ORDER_INPUTS: return set_inputs(o, numbers, word->bytes);
    case ORDER_RESET:  return dw_session_reset(o->session);
    case ORDER_BEAT:
    case ORDER_CLOSE:  break;
    }
    return DW_OK;
}

dw_status orders_follow(orders *o) {
    dw_status status = DW_OK;   /* what nobody has been told of */
    for (;;) {
        comm_word word = {.memory = o->block};
        TRY(comm_broadcast(o->comm, o->session->context, ENGINE_CUT_AXIS, status, o->room, &word, o->workspace));
        status = DW_OK;
        if (word.is_failure) continue;
        if (word.numbers[0] == ORDER_CLOSE) return DW_OK;
        comm_begin(o->comm);
        status = obey(o, &word);
        if (status != DW_OK && !comm_is_whole(o->comm)) return status;
        if (status != DW_OK && comm_is_told(o->comm, ENGINE_CUT_AXIS)) status = DW_OK;
    }
}
