/* Communicators: made and destroyed, meetings of kernels, and what ranks tell each other. Who carries the bytes is an engine's: threads.c, carried.c. */
#include "comm/internal.h"

#include <math.h>
#include <string.h>

#define USUAL_TIMEOUT_S 60.0

/* ---- meetings ---- */

static dw_status check_whole(const dw_comm *comm, dw_context *context) {
    return comm->broken ? base_fail(context, DW_LOST, "the communicator broke before: %s; make a new one, on all ranks", comm->broken_words) : DW_OK;
}

/* context NULL: nobody takes the words. */
static dw_status breaks(dw_comm *comm, dw_context *context, dw_status status) {
    comm->broken = true;
    snprintf(comm->broken_words, sizeof comm->broken_words, "%s", context != NULL ? dw_context_error(context) : dw_status_meaning(status));
    return status;
}

/* The first failure that a note tells of, or OK. */
static dw_status find_failure(const dw_comm *comm, dw_context *context, int line, const char *what) {
    for (int i = 0; i < comm_count(comm, line); i++) {
        const comm_note *note = comm->notes[i];
        if (note->status == DW_OK) continue;
        const dw_status status = note->status < DW_STATUS_COUNT ? (dw_status)note->status : DW_INTERNAL;
        char at[32] = "";
        if (note->step > 0) snprintf(at, sizeof at, " at step %u", note->step);
        return base_fail(context, status, "%s: rank %d failed%s: %s", what, comm_member(comm, line, i), at, note->words);
    }
    return DW_OK;
}

/* All are at the same op of the same step, with as much. */
static dw_status find_difference(const dw_comm *comm, dw_context *context, int line, const char *what) {
    const comm_note *first = comm->notes[0];
    for (int i = 1; i < comm_count(comm, line); i++) {
        const comm_note *note = comm->notes[i];
        if (note->op != first->op || note->step != first->step)
            return base_fail(context, DW_MISMATCH, "%s: rank %d is at step %u and rank %d at step %u; ranks run the same sessions in the same order", what, comm_member(comm, line, 0), first->step,
                             comm_member(comm, line, i), note->step);
        if (note->bytes != first->bytes)
            return base_fail(context, DW_MISMATCH, "%s: rank %d came with %llu bytes and rank %d with %llu; ranks run at the same sizes", what, comm_member(comm, line, 0),
                             (unsigned long long)first->bytes, comm_member(comm, line, i), (unsigned long long)note->bytes);
    }
    return DW_OK;
}

static dw_status come_together(dw_comm *comm, dw_context *context, int line, const comm_note *note, const dw_tensor *mine, const char *what) {
    TRY(check_whole(comm, context));
    const dw_status status = comm->engine->meet(comm, context, line, note, mine, comm->notes);
    return status == DW_OK ? DW_OK : breaks(comm, context, base_fail_at(context, status, "%s over %s", what, comm_line_name(comm, line)));
}

static dw_status meet_line(dw_comm *comm, dw_context *context, int line, const comm_note *note, const dw_tensor *mine, const char *what) {
    TRY(come_together(comm, context, line, note, mine, what));
    return find_failure(comm, context, line, what);
}

static void say_failure(comm_note *note, dw_context *context, dw_status status) {
    const char *words = dw_context_error(context);
    note->status = (uint32_t)status;
    const size_t length = strlen(words);
    memcpy(note->words, words, length < COMM_WORDS ? length : COMM_WORDS - 1);
}

/* A note of failure to all on the line, whatever they say. The context's error stays as it is. */
static void tell_line(dw_comm *comm, dw_context *context, int line, const comm_note *note) {
    if (comm->broken || comm->engine->meet(comm, NULL, line, note, NULL, comm->notes) == DW_OK) return;
    comm->broken = true;
    snprintf(comm->broken_words, sizeof comm->broken_words, "%s", dw_context_error(context));
}

dw_status comm_agree(dw_comm *comm, dw_context *context, const char *what, dw_status status, int count, const comm_fact *facts) {
    comm_note note = {.op = OP_COUNT};
    if (comm->engine == NULL) return status;
    if (status != DW_OK) say_failure(&note, context, status);
    for (int i = 0; i < count; i++) note.facts[i] = facts[i].hash;
    if (status != DW_OK) {
        tell_line(comm, context, COMM_ALL, &note);
        return status;
    }
    TRY(meet_line(comm, context, COMM_ALL, &note, NULL, what));
    TRY(find_difference(comm, context, COMM_ALL, what));
    for (int i = 1; i < comm->world; i++)
        for (int f = 0; f < count; f++)
            if (comm->notes[i]->facts[f] != comm->notes[0]->facts[f])
                return base_fail(context, DW_MISMATCH, "%s: rank %d has another %s than rank 0", what, i, facts[f].name);
    return DW_OK;
}

/* Notes of words: no graph has such an op. */
enum { OP_OF_WORDS = OP_COUNT + 1 };

static dw_status check_words(const dw_comm *comm, dw_context *context, int line) {
    for (int i = 0; i < comm_count(comm, line); i++)
        if (comm->notes[i]->op != OP_OF_WORDS)
            return base_fail(context, DW_MISMATCH, "orders: rank %d runs step %u of a graph by itself, and the others wait for what comes next", comm_member(comm, line, i), comm->notes[i]->step);
    return DW_OK;
}

static dw_tensor bytes_at(void *memory, size_t bytes) {
    dw_tensor tensor;
    const int64_t count = (int64_t)bytes;
    op_tensor_init(&tensor, DW_FORMAT_u8, DW_SCALE_plain, 1, &count, memory);
    return tensor;
}

static size_t tensors_room(int count) { return base_align_up((size_t)count * sizeof(dw_tensor), 64); }

/* The bytes of the first, to all. The workspace begins with the tensors of all. */
static dw_status carry_word(dw_comm *comm, dw_context *context, int line, comm_word *word, void *workspace) {
    const dw_tensor mine = bytes_at(word->memory, word->bytes);
    dw_tensor *theirs = workspace;
    TRY(comm->engine->bring(comm, context, line, &mine, (uint8_t *)workspace + tensors_room(comm_count(comm, line)), theirs));
    if (comm_place(comm, line) > 0) memcpy(word->memory, theirs[0].data, word->bytes);
    return comm->engine->leave(comm, context, line);
}

dw_status comm_broadcast(dw_comm *comm, dw_context *context, const char *over, dw_status status, size_t room, comm_word *word, void *workspace) {
    const int line = op_mesh_find(&comm->mesh, over);
    const bool gives = comm_place(comm, line) == 0;
    const dw_tensor mine = bytes_at(word->memory, gives ? word->bytes : 0);
    comm_note note = {.op = OP_OF_WORDS, .bytes = gives ? word->bytes : 0};
    for (int i = 0; i < COMM_FACTS && gives; i++) note.facts[i] = word->numbers[i];
    if (status == DW_OK) TRY(come_together(comm, context, line, &note, &mine, "orders"));
    else say_failure(&note, context, status), tell_line(comm, context, line, &note);
    word->is_failure = !comm->broken && comm->notes[0]->status != DW_OK;
    if (word->is_failure) return DW_OK;
    TRY(status);
    TRY(find_failure(comm, context, line, "orders"));
    TRY(check_words(comm, context, line));
    memcpy(word->numbers, comm->notes[0]->facts, sizeof word->numbers);
    word->bytes = comm->notes[0]->bytes;
    if (word->bytes > room) status = base_fail(context, DW_INTERNAL, "%zu bytes come, and there is room for %zu", word->bytes, room);
    if (status == DW_OK && word->bytes > 0) status = carry_word(comm, context, line, word, workspace);
    return status == DW_OK ? DW_OK : breaks(comm, context, base_fail_at(context, status, "orders over %s", comm_line_name(comm, line)));
}

size_t comm_word_room(const dw_comm *comm, const char *over, size_t room) {
    const dw_tensor mine = bytes_at(NULL, room);
    const int count = comm_count(comm, op_mesh_find(&comm->mesh, over));
    return tensors_room(count) + comm->engine->room(count, &mine);
}

#define BEAT_S 1.0    /* engines have timeouts of their own, which are longer */

double comm_beat_s(const dw_comm *comm) { return comm->timeout_s / 4 < BEAT_S ? comm->timeout_s / 4 : BEAT_S; }

bool comm_is_whole(const dw_comm *comm) { return !comm->broken; }

void comm_begin(dw_comm *comm) { comm->told = 0; }

bool comm_is_told(const dw_comm *comm, const char *over) {
    const int line = op_mesh_find(&comm->mesh, over);
    return line >= 0 && (comm->told >> line & 1) != 0;
}

void comm_tell(dw_comm *comm, dw_context *context, const char *over, uint32_t step, dw_status status) {
    const int line = op_mesh_find(&comm->mesh, over);
    comm_note note = {.step = step};
    if (line < 0 || comm->engine == NULL || (comm->told >> line & 1) != 0) return;
    comm->told |= 1u << line;
    say_failure(&note, context, status);
    tell_line(comm, context, line, &note);
}

/* ---- for kernels ---- */

static dw_comm *comm_of(kernel_comm *kernels) { return (dw_comm *)(void *)kernels; }

static dw_status find_line(const dw_comm *comm, const kernel_run *run, int *line) {
    const char *over = op_attr_text(run->call.attrs, OP_ATTR_over);
    const long long ranks = (long long)op_attr_int(run->call.attrs, OP_ATTR_ranks);
    *line = op_mesh_find(&comm->mesh, over);
    if (*line < 0) return base_fail(run->call.context, DW_INVALID, "%s: it is over '%s', which is no axis of the mesh %s", run->call.op->name, over, comm->mesh_words);
    if (comm->mesh.axes[*line].size == ranks) return DW_OK;
    return base_fail(run->call.context, DW_MISMATCH, "%s: it is over %lld ranks of %s, and the mesh is %s", run->call.op->name, ranks, over, comm->mesh_words);
}

static dw_status kernel_place(kernel_comm *kernels, const kernel_run *run, int *rank, int *count) {
    const dw_comm *comm = comm_of(kernels);
    int line;
    TRY(find_line(comm, run, &line));
    *rank = comm_place(comm, line);
    *count = comm_count(comm, line);
    return DW_OK;
}

/* One of as many equal parts of a tensor as ranks meet, as one axis. */
static dw_tensor part_of(const dw_tensor *whole, int count) {
    dw_tensor part;
    const int64_t elements = op_tensor_count(whole) / count;
    op_tensor_init(&part, whole->format, DW_SCALE_plain, 1, &elements, NULL);
    return part;
}

static dw_status bring(dw_comm *comm, const kernel_run *run, int line, kernel_meeting how, const dw_tensor *mine, dw_tensor *theirs) {
    if (how == KERNEL_MEET_WHOLE) return comm->engine->bring(comm, run->call.context, line, mine, run->workspace, theirs);
    for (int i = 0; i < comm_count(comm, line); i++) theirs[i] = part_of(mine, comm_count(comm, line));
    return comm->engine->bring_parts(comm, run->call.context, line, mine, run->workspace, theirs);
}

static dw_status kernel_meet(kernel_comm *kernels, const kernel_run *run, kernel_meeting how, const dw_tensor *mine, dw_tensor *theirs) {
    dw_comm *comm = comm_of(kernels);
    dw_context *context = run->call.context;
    const char *name = run->call.op->name;
    num_parts parts;
    int line;
    TRY(find_line(comm, run, &line));
    if (!num_layout(mine->format, mine->scale_layout, mine->rank, mine->dims, &parts)) return base_fail(context, DW_LIMIT, "%s: the bytes of its operand overflow", name);
    const comm_note note = {.op = (uint32_t)run->call.op->id, .step = run->step, .bytes = parts.total_bytes};
    comm->told |= 1u << line;      /* whatever this meeting comes to, all on the line know */
    dw_status status = meet_line(comm, context, line, &note, mine, name);
    if (status == DW_OK) status = find_difference(comm, context, line, name);
    if (status != DW_OK) return status;
    comm->told &= ~(1u << line);
    status = bring(comm, run, line, how, mine, theirs);
    return status == DW_OK ? DW_OK : breaks(comm, context, base_fail_at(context, status, "%s over %s", name, comm_line_name(comm, line)));
}

static dw_status kernel_leave(kernel_comm *kernels, const kernel_run *run) {
    dw_comm *comm = comm_of(kernels);
    int line;
    TRY(find_line(comm, run, &line));
    const dw_status status = comm->engine->leave(comm, run->call.context, line);
    return status == DW_OK ? DW_OK : breaks(comm, run->call.context, base_fail_at(run->call.context, status, "%s over %s", run->call.op->name, comm_line_name(comm, line)));
}

static size_t kernel_room(const kernel_comm *kernels, int count, const dw_tensor *mine) {
    const dw_comm *comm = (const dw_comm *)(const void *)kernels;
    return comm->engine != NULL ? base_align_up(comm->engine->room(count, mine), 64) : 0;
}

static const kernel_comm_calls calls = {.place = kernel_place, .meet = kernel_meet, .leave = kernel_leave, .room = kernel_room};

const op_mesh *comm_mesh(const dw_comm *comm) { return &comm->mesh; }
kernel_comm *comm_kernels(dw_comm *comm) { return &comm->kernels; }

/* ---- made and destroyed ---- */

static dw_status read_mesh(dw_comm *comm, const char *mesh) {
    if (mesh != NULL) TRY(op_mesh_parse(comm->context, mesh, &comm->mesh));
    else comm->mesh = (op_mesh){1, {{"tp", comm->world}}};
    size_t length = 0;
    for (int i = 0; i < comm->mesh.count; i++)
        length += (size_t)snprintf(comm->mesh_words + length, sizeof comm->mesh_words - length, "%s%s=%d", i > 0 ? "," : "", comm->mesh.axes[i].name, comm->mesh.axes[i].size);
    if (op_mesh_world(&comm->mesh) == comm->world) return DW_OK;
    return base_fail(comm->context, DW_INVALID, "mesh %s has %d ranks, and the world has %d; sizes of axes multiply to the world", comm->mesh_words, op_mesh_world(&comm->mesh), comm->world);
}

static dw_status read_options(dw_comm *comm, const char *device, const dw_comm_options *options) {
    dw_context *context = comm->context;
    if (device != NULL && strcmp(device, "cpu") != 0 && strncmp(device, "cpu:", 4) != 0)
        return base_fail(context, DW_UNSUPPORTED, "device %s: collectives of GPUs call NCCL, which no row of this build does yet; ranks run on the cpu", device);
    if (comm->world < 1 || comm->world > OP_MESH_RANKS) return base_fail(context, DW_INVALID, "a world of %d ranks: it has 1 to %d", comm->world, OP_MESH_RANKS);
    if (comm->rank < 0 || comm->rank >= comm->world) return base_fail(context, DW_INVALID, "rank %d of %d: ranks are counted from 0", comm->rank, comm->world);
    if (isnan(options->timeout_s) || options->timeout_s < 0) return base_fail(context, DW_INVALID, "a timeout of %g s: give seconds, or 0 for %g", options->timeout_s, USUAL_TIMEOUT_S);
    if (options->timeout_s > 0) comm->timeout_s = options->timeout_s;
    return read_mesh(comm, options->mesh);
}

static dw_status open_engine(dw_comm *comm, const dw_comm_options *options) {
    if (options->engine != NULL) return comm_open_carried(comm, options->engine);
    if (comm->world == 1) return DW_OK;
    if (options->id != NULL) return comm_open_threads(comm, options->id, options->id_bytes);
    return base_fail(comm->context, DW_INVALID, "a world of %d ranks needs to meet: threads of one process by an id (dw_comm_id), others by an engine (dw_comm_options.engine)", comm->world);
}

static dw_status build(dw_comm *comm, const char *device, const dw_comm_options *options) {
    void *memory;
    TRY(read_options(comm, device, options));
    TRY(base_alloc(comm->context, (size_t)comm->world * sizeof *comm->notes, _Alignof(max_align_t), &memory));
    comm->notes = memory;
    TRY(open_engine(comm, options));
    const char *version = dw_version();
    const comm_fact facts[] = {{"world", (uint64_t)comm->world}, {"mesh", base_hash(comm->mesh_words, strlen(comm->mesh_words), 0)}, {"version of the library", base_hash(version, strlen(version), 0)}};
    return comm_agree(comm, comm->context, "communicator", DW_OK, COUNT_OF(facts), facts);
}

dw_status dw_comm_create(dw_context *context, const char *device, const dw_comm_options *options, dw_comm **result) {
    static const dw_comm_options none = {0};
    void *memory;
    *result = NULL;
    if (options == NULL) options = &none;
    TRY(base_alloc(context, sizeof(dw_comm), _Alignof(max_align_t), &memory));
    dw_comm *comm = memory;
    *comm = (dw_comm){.kernels = {.calls = &calls}, .context = context, .rank = options->rank, .world = options->world == 0 ? 1 : options->world, .timeout_s = USUAL_TIMEOUT_S};
    const dw_status status = build(comm, device, options);
    if (status == DW_OK) *result = comm;
    else dw_comm_destroy(comm);
    return status;
}

void dw_comm_destroy(dw_comm *comm) {
    if (comm == NULL) return;
    dw_context *context = comm->context;
    if (comm->engine != NULL) comm->engine->close(comm);
    base_release(context, comm->notes, (size_t)comm->world * sizeof *comm->notes, _Alignof(max_align_t));
    base_release(context, comm, sizeof *comm, _Alignof(max_align_t));
}

int dw_comm_rank(const dw_comm *comm) { return comm->rank; }
int dw_comm_world(const dw_comm *comm) { return comm->world; }
const char *dw_comm_mesh(const dw_comm *comm) { return comm->mesh_words; }
