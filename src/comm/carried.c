/* Ranks whose bytes the caller's engine carries (dw_collectives): notes and operands are gathered, and what is computed of them is computed here, by each rank for itself. */
#include "comm/internal.h"

#include <string.h>

enum { ALIGN = 64 };

/* Behind it lie the notes of all ranks. */
typedef struct carrier { dw_collectives engine; comm_note notes[]; } carrier;

static int axis_of(int line) { return line == COMM_ALL ? -1 : line; }

/* What a function of the caller's returned. */
static dw_status status_of(const carrier *c, dw_context *context, const char *function, int returned) {
    if (returned == 0) return DW_OK;
    const bool known = returned > 0 && returned < DW_STATUS_COUNT;
    const char *words = c->engine.words != NULL ? c->engine.words(c->engine.user) : NULL;
    return base_fail(context, known ? (dw_status)returned : DW_LOST, "%s of the caller's engine failed (%d)%s%s", function, returned, words != NULL ? ": " : "", words != NULL ? words : "");
}

static dw_status check_bytes(dw_context *context, size_t bytes) {
    return bytes <= INT32_MAX ? DW_OK : base_fail(context, DW_LIMIT, "%zu bytes of a rank at once: engines carry below 2^31; run at smaller sizes", bytes);
}

static dw_status gather(dw_comm *comm, dw_context *context, int line, const void *part, void *parts, size_t bytes) {
    const carrier *c = comm->own;
    if (bytes == 0) return DW_OK;
    TRY(check_bytes(context, bytes));
    return status_of(c, context, "all_gather", c->engine.all_gather(c->engine.user, axis_of(line), part, parts, bytes));
}

static dw_status carried_meet(dw_comm *comm, dw_context *context, int line, const comm_note *note, const dw_tensor *mine, const comm_note **notes) {
    carrier *c = comm->own;
    (void)mine;
    if (context != NULL) TRY(base_poll(context));
    TRY(gather(comm, context, line, note, c->notes, sizeof *note));
    for (int i = 0; i < comm_count(comm, line); i++) {
        c->notes[i].words[COMM_WORDS - 1] = '\0';
        notes[i] = &c->notes[i];
    }
    return DW_OK;
}

/* The parts of all tensors lie one behind another: elements, scales, second-level scales. */
static dw_status carried_bring(dw_comm *comm, dw_context *context, int line, const dw_tensor *mine, void *memory, dw_tensor *theirs) {
    const int count = comm_count(comm, line);
    uint8_t *at = memory;
    num_parts parts;
    if (!num_layout(mine->format, mine->scale_layout, mine->rank, mine->dims, &parts)) return base_fail(context, DW_LIMIT, "the bytes of an operand overflow");
    const void *own[] = {mine->data, mine->scales, mine->second};
    const size_t bytes[] = {parts.data_bytes, parts.scale_bytes, parts.second_bytes};
    for (int i = 0; i < count; i++) theirs[i] = *mine;
    for (int p = 0; p < 3; p++) {
        TRY(gather(comm, context, line, own[p], at, bytes[p]));
        for (int i = 0; i < count && bytes[p] > 0; i++) {
            void *part = at + (size_t)i * bytes[p];
            if (p == 0) theirs[i].data = part;
            else if (p == 1) theirs[i].scales = part;
            else theirs[i].second = part;
        }
        at += base_align_up((size_t)count * bytes[p], ALIGN);
    }
    return DW_OK;
}

static dw_status carried_bring_parts(dw_comm *comm, dw_context *context, int line, const dw_tensor *mine, void *memory, dw_tensor *theirs) {
    const carrier *c = comm->own;
    const size_t bytes = (size_t)theirs[0].dims[0] * (size_t)dw_format_bits(mine->format) / 8;
    for (int i = 0; i < comm_count(comm, line); i++) theirs[i].data = (uint8_t *)memory + (size_t)i * bytes;
    if (bytes == 0) return DW_OK;
    TRY(check_bytes(context, bytes));
    return status_of(c, context, "all_to_all", c->engine.all_to_all(c->engine.user, axis_of(line), mine->data, memory, bytes));
}

/* They have copies. */
static dw_status carried_leave(dw_comm *comm, dw_context *context, int line) {
    (void)comm;
    (void)context;
    (void)line;
    return DW_OK;
}

static size_t carried_room(int count, const dw_tensor *mine) {
    num_parts parts;
    if (!num_layout(mine->format, mine->scale_layout, mine->rank, mine->dims, &parts)) return 0;
    return base_align_up((size_t)count * parts.data_bytes, ALIGN) + base_align_up((size_t)count * parts.scale_bytes, ALIGN) + base_align_up((size_t)count * parts.second_bytes, ALIGN);
}

static void carried_close(dw_comm *comm) { base_release(comm->context, comm->own, comm->own_bytes, _Alignof(max_align_t)); }

static const comm_engine carried = {.meet = carried_meet, .bring = carried_bring, .bring_parts = carried_bring_parts, .leave = carried_leave, .room = carried_room, .close = carried_close};

dw_status comm_open_carried(dw_comm *comm, const dw_collectives *engine) {
    if (engine->all_gather == NULL || engine->all_to_all == NULL)
        return base_fail(comm->context, DW_INVALID, "an engine has all_gather and all_to_all, and this one has %s", engine->all_gather == NULL ? "no all_gather" : "no all_to_all");
    comm->own_bytes = sizeof(carrier) + (size_t)comm->world * sizeof(comm_note);
    TRY(base_alloc(comm->context, comm->own_bytes, _Alignof(max_align_t), &comm->own));
    carrier *c = comm->own;
    c->engine = *engine;
    comm->engine = &carried;
    return DW_OK;
}
