/* The .dw package: plans in text form, and the constants that they read, as they lie in memory, in one file that is mapped.
 *
 *     magic "DEEPWELL" | u32 version | u32 zero | u64 bytes of the header | u64 xxh3 of the header | header | padding | data | padding | sums | u64 xxh3 of the sums
 *
 * All numbers little-endian. The header is text: lines "full N", "step N", "prelude N" (bytes of the plans that follow the lines), "reason ..", and one
 * line per constant: name, kind (plain or packed), whether all ranks have it or each one of its own, type, and where its bytes are. Data begins on a multiple of 64 bytes, as does each
 * constant: one directly after the other; those of ranks in their order. The sums, up to the end of the file, are a u64 for each of them in that order: the xxh3 of its bytes, to which it is held before
 * it is computed with; "sums N" says how many. "ranks N" comes first: for so many along the axis over which models are cut. Holds no fp32 weights unless a plan runs on them. */
#include "engine/engine.h"

#include <inttypes.h>
#include <string.h>

enum { PACKAGE_VERSION = 6, PACKAGE_HEAD = 32, SUM_BYTES = 8 };
static const char MAGIC[8] = {'D', 'E', 'E', 'P', 'W', 'E', 'L', 'L'};

bool engine_is_package(const uint8_t *bytes, size_t length) { return length >= sizeof MAGIC && memcmp(bytes, MAGIC, sizeof MAGIC) == 0; }

/* ---- writing ---- */

/* bytes NULL: the device has them. each: every rank has one of its own. */
typedef struct entry { const char *key; dw_tensor tensor; const void *bytes; size_t length; bool packed, each; } entry;
typedef struct listing {
    arena arena;
    map seen;
    entry *items;
    size_t count, capacity;
    uint8_t *sums;              /* of what is written so far, as the file has them; then room for their own */
    size_t sum_count;
} listing;

static dw_status list(listing *all, const entry *item)
{
    if (map_find(&all->seen, item->key) != NULL) return DW_OK;
    TRY(map_set(&all->seen, item->key, all));
    entry *grown = arena_grow(&all->arena, all->items, all->count, &all->capacity, sizeof *grown);
    if (grown == NULL) return DW_NO_MEMORY;
    all->items = grown;
    all->items[all->count++] = *item;
    return DW_OK;
}

/* What a state begins with is a constant under the state's name. */
static dw_status list_states(const ir_graph *graph, listing *all)
{
    for (size_t i = 0; i < graph->state_count; i++) {
        const ir_weight *initial = graph->states[i]->weight;
        num_parts parts;
        if (initial == NULL) continue;
        const dw_tensor *tensor = &initial->tensor;
        if (initial->place != NULL)
            return base_fail(graph->context, DW_UNSUPPORTED, "state %s lies in the memory of %s: give it in the host's memory to save the model", graph->states[i]->name, initial->place);
        if (!num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts))
            return base_fail(graph->context, DW_LIMIT, "the bytes of state %s overflow", graph->states[i]->name);
        TRY(list(all, &(entry){.key = graph->states[i]->name, .tensor = *tensor, .bytes = tensor->data, .length = parts.total_bytes}));
    }
    return DW_OK;
}

/* Has the node the place of a rank in its attributes, or is it made of what has? each by value index. */
static bool is_of_rank(const ir_node *node, const bool *each)
{
    for (int i = 0; i < node->n_in; i++)
        if (ir_in(node, i) != NULL && each[plan_value_of(ir_in(node, i))->index]) return true;
    for (int i = 0; i < node->attrs.count; i++) {
        const op_attr *attr = &node->attrs.items[i];
        const op_attr_kind kind = op_attr_kind_of(attr->id);
        const int count = kind == OP_KIND_DIM ? 1 : kind == OP_KIND_DIMS ? attr->count : 0;
        for (int k = 0; k < count; k++)
            if (!dim_is_constant(kind == OP_KIND_DIM ? attr->dim : attr->dims[k], NULL)) return true;
    }
    return false;
}

static dw_status find_of_ranks(const plan *plan, arena *arena, bool **each)
{
    TRY_NEW(*each, arena, plan->value_count);
    for (const ir_node *node = plan->graph->first; node != NULL; node = node->next)
        for (int i = 0; i < node->n_out; i++)
            if (plan_value_of(node->out[i])->key != NULL) (*each)[plan_value_of(node->out[i])->index] = is_of_rank(node, *each);
    return DW_OK;
}

static dw_status list_program(const dw_model *model, const engine_program *program, listing *all)
{
    const plan *plan = program->plan;
    bool *each;
    if (plan == NULL) return DW_OK;
    TRY(find_of_ranks(plan, &all->arena, &each));
    for (int i = 0; i < plan->value_count; i++) {
        const plan_value *v = &plan->values[i];
        num_parts parts;
        if (v->key == NULL || v->view || !v->read_plain) continue;
        const dw_tensor *tensor = &program->constants[i];
        if (!num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts))
            return base_fail(model->context, DW_LIMIT, "the bytes of constant %s overflow", v->key);
        TRY(list(all, &(entry){.key = v->key, .tensor = *tensor, .bytes = tensor->data, .length = parts.total_bytes, .each = each[i]}));
    }
    for (int i = plan->load_count; i < plan->step_count; i++) {
        const plan_step *step = &plan->steps[i];
        const engine_constant *packed = step->pack_key ? map_find(&model->constants.by_key, step->pack_key) : NULL;
        if (packed == NULL) continue;
        const bool of_rank = each[plan_value_of(ir_in(step->node, step->row->packs))->index];
        TRY(list(all, &(entry){.key = step->pack_key, .bytes = packed->tensor.data, .length = packed->bytes, .packed = true, .each = of_rank}));
    }
    return list_states(plan->graph, all);
}

static void print_entry(text *header, const entry *item, uint64_t offset)
{
    text_add(header, "constant ");
    text_json_string(header, item->key);
    text_printf(header, " %s %s %" PRIu64 " %zu", item->packed ? "packed" : "plain", item->each ? "each" : "all", offset, item->length);
    if (!item->packed) {
        text_printf(header, " %s %d %d", dw_format_name(item->tensor.format), (int)item->tensor.scale_layout, item->tensor.rank);
        for (int i = 0; i < item->tensor.rank; i++) text_printf(header, " %" PRId64, item->tensor.dims[i]);
    }
    text_add(header, "\n");
}

static void put_u32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> 8 * i);
}

static void put_u64(uint8_t *at, uint64_t value)
{
    put_u32(at, (uint32_t)value);
    put_u32(at + 4, (uint32_t)(value >> 32));
}

static uint32_t get_u32(const uint8_t *at) { return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24; }

static uint64_t get_u64(const uint8_t *at) { return get_u32(at) | (uint64_t)get_u32(at + 4) << 32; }

static uint64_t sum_of(const void *bytes, size_t length) { return base_hash(bytes, length, 0); }

static dw_status write_summed(listing *all, const void *bytes, size_t length, file_writer *writer)
{
    TRY(file_writer_pad(writer, ENGINE_ALIGN));
    put_u64(all->sums + SUM_BYTES * all->sum_count++, sum_of(bytes, length));
    return file_writer_add(writer, bytes, length);
}

static dw_status write_entry(const dw_model *model, listing *all, const entry *item, file_writer *writer)
{
    engine_constant fetched;
    if (item->bytes != NULL || item->length == 0) return write_summed(all, item->bytes, item->length, writer);
    TRY(engine_constants_fetch(&model->constants, item->key, &fetched));
    dw_status status = write_summed(all, fetched.owned, item->length, writer);
    base_release(model->context, fetched.owned, fetched.owned_bytes, ENGINE_ALIGN);
    return status;
}

/* Those of all ranks, one behind the other. */
static dw_status write_parts(const dw_model *model, listing *all, const entry *item, file_writer *writer)
{
    const int ranks = engine_cut_ranks(model);
    void *parts;
    size_t bytes;
    if (!base_mul_size(item->length, (size_t)ranks, &bytes)) return base_fail(model->context, DW_LIMIT, "the bytes of constant %s overflow", item->key);
    TRY(base_alloc(model->context, bytes + 1, ENGINE_ALIGN, &parts));
    dw_status status = engine_gather_bytes(model->context, model, item->bytes, item->length, parts);
    for (int i = 0; status == DW_OK && writer != NULL && i < ranks; i++)
        status = write_summed(all, (const uint8_t *)parts + (size_t)i * item->length, item->length, writer);
    base_release(model->context, parts, bytes + 1, ENGINE_ALIGN);
    return status;
}

/* Of a rank that does not write: what it has itself goes to the one that does. */
static dw_status send_all(const dw_model *model, listing *all)
{
    for (size_t i = 0; i < all->count; i++)
        if (all->items[i].each) TRY(write_parts(model, all, &all->items[i], NULL));
    return DW_OK;
}

static size_t count_sums(const dw_model *model, const listing *all)
{
    size_t count = 0;
    for (size_t i = 0; i < all->count; i++) count += all->items[i].each ? (size_t)engine_cut_ranks(model) : 1;
    return count;
}

static dw_status write_all(const dw_model *model, listing *all, const text *header, file_writer *writer)
{
    uint8_t head[PACKAGE_HEAD] = {0};
    memcpy(head, MAGIC, sizeof MAGIC);
    put_u32(head + 8, PACKAGE_VERSION);
    put_u64(head + 16, header->length);
    put_u64(head + 24, base_hash(text_string(header), header->length, 0));
    TRY(file_writer_add(writer, head, sizeof head));
    TRY(file_writer_add(writer, text_string(header), header->length));
    TRY_NEW(all->sums, &all->arena, SUM_BYTES * (count_sums(model, all) + 1));
    for (size_t i = 0; i < all->count; i++) {
        if (all->items[i].each) TRY(write_parts(model, all, &all->items[i], writer));
        else TRY(write_entry(model, all, &all->items[i], writer));
        TRY(base_poll(model->context));
    }
    const size_t bytes = SUM_BYTES * all->sum_count;
    put_u64(all->sums + bytes, sum_of(all->sums, bytes));
    TRY(file_writer_pad(writer, ENGINE_ALIGN));
    return file_writer_add(writer, all->sums, bytes + SUM_BYTES);
}

static dw_status print_header(const dw_model *model, const listing *all, text *header)
{
    text full, step, prelude;
    text_init(&full, model->context);
    text_init(&prelude, model->context);
    text_init(&step, model->context);
    dw_status status = model->full.plan ? plan_print(model->full.plan, &full) : DW_OK;
    if (status == DW_OK && model->step.plan != NULL) status = plan_print(model->step.plan, &step);
    if (status == DW_OK && model->prelude.plan != NULL) status = plan_print(model->prelude.plan, &prelude);
    if (status == DW_OK) {
        text_printf(header, "ranks %d\nfull %zu\nstep %zu\nprelude %zu\nreason ", engine_cut_ranks(model), full.length, step.length, prelude.length);
        text_json_string(header, model->step.plan ? "" : model->no_step);
        text_printf(header, "\nsums %zu\nconstants %zu\n", count_sums(model, all), all->count);
        uint64_t offset = 0;   /* from the first byte of data */
        for (size_t i = 0; i < all->count; i++) {
            print_entry(header, &all->items[i], offset);
            offset += base_align_up(all->items[i].length, ENGINE_ALIGN) * (all->items[i].each ? (uint64_t)engine_cut_ranks(model) : 1);
        }
        text_add_n(header, text_string(&full), full.length);
        text_add_n(header, text_string(&step), step.length);
        text_add_n(header, text_string(&prelude), prelude.length);
        status = text_status(header);
    }
    text_free(&full);
    text_free(&step);
    text_free(&prelude);
    return status;
}

/* Of several ranks the first writes. */
static dw_status save(const dw_model *model, const char *file, listing *all, const text *header)
{
    file_writer *writer = NULL;
    if (model->options.comm != NULL && dw_comm_rank(model->options.comm) > 0) return send_all(model, all);
    TRY(file_writer_create(model->context, file, &writer));
    const dw_status status = write_all(model, all, header, writer);
    if (status == DW_OK) return file_writer_commit(writer);
    file_writer_abandon(writer);
    return status;
}

static dw_status list_all(const dw_model *model, listing *all, text *header)
{
    TRY(list_program(model, &model->full, all));
    TRY(list_program(model, &model->step, all));
    TRY(list_program(model, &model->prelude, all));
    return print_header(model, all, header);
}

dw_status dw_model_save(const dw_model *model, const char *file)
{
    dw_comm *comm = model->options.comm;
    listing all = {0};
    text header;
    if (model->flags & DW_MODEL_PLAN_ONLY) return base_fail(model->context, DW_INVALID, "a model that was opened for planning only has no weights to save");
    arena_init(&all.arena, model->context);
    map_init(&all.seen, &all.arena);
    text_init(&header, model->context);
    dw_status status = list_all(model, &all, &header);
    if (comm != NULL) status = comm_agree(comm, model->context, "package", status, 0, NULL);
    if (comm != NULL) comm_begin(comm);
    if (status == DW_OK) status = save(model, file, &all, &header);
    if (comm != NULL) status = comm_agree(comm, model->context, "package", status, 0, NULL);
    text_free(&header);
    arena_free(&all.arena);
    return status;
}

/* ---- reading ---- */

typedef struct reading {
    dw_model *model;
    const char *file;
    const char *dims;          /* typical sizes that were asked for; NULL: those of the plan */
    scanner scan;
    const uint8_t *data;       /* where constants' offsets count from; up to the sums, with what pads in front of them */
    size_t data_bytes;
    const uint8_t *sums;
    size_t sum_count, sum_next;
    uint64_t end;              /* of the constants so far */
    int ranks;                 /* that it is for */
} reading;

static dw_status corrupt(const reading *read, const char *what)
{
    return base_fail(read->model->context, DW_CORRUPT, "%s: %s (line %d of its header): compile it again", read->file, what, read->scan.line);
}

static dw_status scan_count(reading *read, int64_t most, int64_t *number)
{
    TRY(scan_integer(&read->scan, number));
    return *number < 0 || *number > most ? corrupt(read, "a number is out of its range") : DW_OK;
}

static dw_status read_constant(reading *read)
{
    scanner *scan = &read->scan;
    const char *kind, *whose, *format;
    engine_constant constant = {0};
    int64_t offset, length, layout, rank, dims[DW_MAX_RANK] = {0};
    TRY(scan_expect(scan, "constant"));
    TRY(scan_string(scan, &constant.key));
    TRY(scan_name(scan, &kind));
    TRY(scan_name(scan, &whose));
    TRY(scan_count(read, INT64_MAX, &offset));
    TRY(scan_count(read, INT64_MAX, &length));
    if ((uint64_t)offset != base_align_up((size_t)read->end, ENGINE_ALIGN)) return corrupt(read, "a constant does not begin where the one before it ends");
    const bool each = strcmp(whose, "each") == 0;
    if (!each && strcmp(whose, "all") != 0) return corrupt(read, "a constant is neither all ranks' nor each one's");
    const uint64_t parts = each ? (uint64_t)read->ranks : 1, place = each ? (uint64_t)engine_cut_place(read->model) : 0;
    if ((uint64_t)offset > read->data_bytes || (uint64_t)length > (read->data_bytes - (uint64_t)offset) / parts)
        return corrupt(read, "a constant goes beyond the end of the file");
    const uint64_t step = base_align_up((size_t)length, ENGINE_ALIGN);
    read->end = (uint64_t)offset + (parts - 1) * step + (uint64_t)length;
    if (read->end > read->data_bytes) return corrupt(read, "a constant goes beyond the end of the file");
    offset += (int64_t)(place * step);
    if (parts > read->sum_count - read->sum_next) return corrupt(read, "constants have fewer sums than there are constants");
    const uint64_t sum = get_u64(read->sums + SUM_BYTES * (read->sum_next + place));
    read->sum_next += parts;
    constant.bytes = (size_t)length;
    constant.packed = strcmp(kind, "packed") == 0;
    constant.tensor.data = (void *)(uintptr_t)(read->data + offset);
    if (!constant.packed) {
        TRY(scan_name(scan, &format));
        TRY(scan_count(read, DW_SCALE_LAYOUT_COUNT - 1, &layout));
        TRY(scan_count(read, DW_MAX_RANK, &rank));
        for (int64_t i = 0; i < rank; i++) TRY(scan_count(read, INT64_MAX, &dims[i]));
        num_parts parts;
        dw_format found = dw_format_find(format);
        if (found == DW_FORMAT_COUNT || !num_layout(found, (dw_scale_layout)layout, (int)rank, dims, &parts) || parts.total_bytes != constant.bytes ||
            !op_tensor_init(&constant.tensor, found, (dw_scale_layout)layout, (int)rank, dims, constant.tensor.data))
            return corrupt(read, "a constant's bytes do not fit its type");
    }
    TRY(scan_end_of_line(scan));
    if (map_find(&read->model->constants.by_key, constant.key) != NULL) return corrupt(read, "a constant is there twice");
    TRY(ir_weights_seal(&read->model->weights, &(ir_seal){read->file, constant.key, constant.tensor.data, constant.bytes, sum, sum_of}));
    TRY(engine_constants_add(&read->model->constants, &constant));
    if (constant.packed || strchr(constant.key, ':') != NULL) return DW_OK;
    ir_weight *weight;   /* a weight under its own name: the plans' params find it */
    return ir_weights_add(&read->model->weights, constant.key, &constant.tensor, &weight);
}

static dw_status check_shape(reading *read, const plan *plan, const ir_value *value, const dw_tensor *found)
{
    dw_tensor expected;
    TRY(op_tensor_bind(read->model->context, &value->type, plan->typical, NULL, &expected));
    bool same = expected.format == found->format && expected.scale_layout == found->scale_layout && expected.rank == found->rank;
    for (int d = 0; same && d < expected.rank; d++) same = expected.dims[d] == found->dims[d];
    return same ? DW_OK : corrupt(read, "a constant has another shape than the plan says");
}

/* The packed weight has as many bytes as the kernel will read. */
static dw_status check_packed(reading *read, const plan_step *step)
{
    const engine_constant *packed = map_find(&read->model->constants.by_key, step->pack_key);
    if (packed == NULL || !packed->packed) return corrupt(read, "packed weights that the plan reads are missing");
    return packed->bytes == step->packing->bytes ? DW_OK : corrupt(read, "packed weights have another size than their kernel reads");
}

/* Every constant that the plan reads must be in the file with the shape that the plan gives it. */
static dw_status check_constants(reading *read, const plan *plan)
{
    for (int i = 0; i < plan->value_count; i++) {
        const plan_value *v = &plan->values[i];
        if (v->key == NULL || v->view || !v->read_plain) continue;
        const engine_constant *constant = map_find(&read->model->constants.by_key, v->key);
        if (constant == NULL || constant->packed) return corrupt(read, "a constant that the plan reads is missing");
        TRY(check_shape(read, plan, v->value, &constant->tensor));
    }
    for (size_t i = 0; i < plan->graph->state_count; i++) {
        ir_value *state = plan->graph->states[i];
        state->weight = ir_weights_find(&read->model->weights, state->name);
        if (state->weight != NULL) TRY(check_shape(read, plan, state, &state->weight->tensor));
    }
    for (int i = plan->load_count; i < plan->step_count; i++)
        if (plan->steps[i].pack_key != NULL) TRY(check_packed(read, &plan->steps[i]));
    return DW_OK;
}

static dw_status read_plan(reading *read, const char *bytes, size_t length, engine_program *program)
{
    dw_model *model = read->model;
    pool *pool;
    if (length == 0) return DW_OK;
    TRY(plan_parse(model->context, read->file, bytes, length, &model->weights, &model->chip, model->registry, &program->plan));
    TRY(plan_read_dims(program->plan->context, program->plan->graph, read->dims, program->plan->typical));
    TRY(engine_place(model, program->plan));
    TRY(check_constants(read, program->plan));
    if (model->flags & DW_MODEL_PLAN_ONLY) return DW_OK;
    TRY(base_pool(model->context, &pool));
    return engine_load(&model->constants, pool, program);
}

static dw_status read_generation(reading *read)
{
    dw_model *model = read->model;
    TRY(read_plan(read, model->step_text, model->step_length, &model->step));
    TRY(read_plan(read, model->prelude_text, model->prelude_length, &model->prelude));
    return model->step.plan == NULL && model->prelude.plan != NULL ? corrupt(read, "there is a prelude but no step") : DW_OK;
}

/* A file of one rank is each replica's; one that was cut is for as many ranks. */
static dw_status check_ranks(reading *read, int ranks)
{
    dw_model *model = read->model;
    const int there = engine_cut_ranks(model);
    if (ranks < 1) return corrupt(read, "it is for no rank");
    read->ranks = ranks;
    if (ranks == there || (model->flags & DW_MODEL_PLAN_ONLY && model->options.comm == NULL)) return DW_OK;
    return base_fail(model->context, DW_MISMATCH, "%s is compiled for %d rank%s (tp=%d), and there %s %d: run it on as many, or compile it for these", read->file, ranks, ranks > 1 ? "s" : "", ranks, there > 1 ? "are" : "is", there);
}

/* The sums end the file, and what lies in front of them is data. */
static dw_status find_sums(reading *read, uint64_t count)
{
    if (read->data_bytes < SUM_BYTES || count > (read->data_bytes - SUM_BYTES) / SUM_BYTES) return corrupt(read, "the sums of constants go beyond the end of the file");
    const size_t bytes = (size_t)count * SUM_BYTES;
    read->data_bytes -= bytes + SUM_BYTES;
    read->sums = read->data + read->data_bytes;
    read->sum_count = (size_t)count;
    return sum_of(read->sums, bytes) == get_u64(read->sums + bytes) ? DW_OK : corrupt(read, "the sums of constants, with which it ends, are not those that were written");
}

/* Before anything is computed of constants. */
static dw_status check_sums(dw_model *model)
{
    pool *pool;
    if (model->flags & DW_MODEL_PLAN_ONLY) return DW_OK;
    TRY(base_pool(model->context, &pool));
    return ir_weights_check(&model->weights, pool);
}

static dw_status read_header(reading *read, const char *header, size_t length)
{
    dw_model *model = read->model;
    scanner *scan = &read->scan;
    int64_t ranks, full, step, prelude, sums, count;
    TRY(scan_open(scan, &model->arena, read->file, header, length));
    TRY(scan_expect(scan, "ranks"));
    TRY(scan_count(read, OP_MESH_RANKS, &ranks));
    TRY(scan_end_of_line(scan));
    TRY(check_ranks(read, (int)ranks));
    TRY(scan_expect(scan, "full"));
    TRY(scan_count(read, (int64_t)length, &full));
    TRY(scan_end_of_line(scan));
    TRY(scan_expect(scan, "step"));
    TRY(scan_count(read, (int64_t)length, &step));
    TRY(scan_end_of_line(scan));
    TRY(scan_expect(scan, "prelude"));
    TRY(scan_count(read, (int64_t)length, &prelude));
    TRY(scan_end_of_line(scan));
    TRY(scan_expect(scan, "reason"));
    TRY(scan_string(scan, &model->no_step));
    TRY(scan_end_of_line(scan));
    TRY(scan_expect(scan, "sums"));
    TRY(scan_count(read, INT64_MAX, &sums));
    TRY(scan_end_of_line(scan));
    TRY(find_sums(read, (uint64_t)sums));
    TRY(scan_expect(scan, "constants"));
    TRY(scan_count(read, (int64_t)length, &count));
    TRY(scan_end_of_line(scan));
    if ((uint64_t)full + (uint64_t)step + (uint64_t)prelude > length) return corrupt(read, "the plans lie outside the header");
    for (int64_t i = 0; i < count; i++) TRY(read_constant(read));
    if (base_align_up((size_t)read->end, ENGINE_ALIGN) != read->data_bytes || read->sum_next != read->sum_count) return corrupt(read, "the file goes on behind its last constant");
    TRY(check_sums(model));
    const char *plans = header + length - full - step - prelude;
    if (!(model->flags & DW_MODEL_GENERATE_ONLY) || step == 0) TRY(read_plan(read, plans, (size_t)full, &model->full));
    model->step_text = plans + full;
    model->step_length = (size_t)step;
    model->prelude_text = plans + full + step;
    model->prelude_length = (size_t)prelude;
    if (model->flags & (DW_MODEL_GENERATE | DW_MODEL_GENERATE_ONLY)) TRY(read_generation(read));
    else if (step > 0) model->no_step = ENGINE_NOT_ASKED;
    if (model->full.plan == NULL && model->step.plan == NULL) return corrupt(read, "there is no plan in it");
    model->precision = (model->full.plan ? model->full.plan : model->step.plan)->precision;
    return DW_OK;
}

static dw_status refuse_options(const dw_model *model, const char *file, const dw_model_options *options)
{
    const char *asked = options->precision ? "precision" : options->policy ? "policy" : options->kernels ? "kernels" : options->tuning ? "tuning" : options->chip ? "chip" : options->weights ? "weights" : options->shard ? "split" : options->mesh ? "mesh" : NULL;
    if (asked == NULL) return DW_OK;
    return base_fail(model->context, DW_INVALID, "%s is compiled: its %s is settled and it holds no fp32 weights; give the .pt2 it was made from", file, asked);
}

static dw_status told_where(const reading *read, dw_status status)
{
    dw_context *context = read->model->context;
    if (status != DW_OK && strstr(dw_context_error(context), read->file) == NULL) base_fail_at(context, status, "in %s", read->file);
    return status;
}

dw_status engine_package_open(dw_model *model, const char *file, const dw_model_options *options)
{
    reading read = {.model = model, .file = file, .dims = options->dims};
    TRY(refuse_options(model, file, options));
    TRY(engine_find_chip(model, options));
    TRY(file_map_open(model->context, file, &model->package));
    const uint8_t *bytes = model->package.bytes;
    size_t length = model->package.length;
    if (length < PACKAGE_HEAD) return base_fail(model->context, DW_CORRUPT, "%s: the file ends within its first %d bytes", file, PACKAGE_HEAD);
    uint32_t version = get_u32(bytes + 8);
    uint64_t header = get_u64(bytes + 16);
    if (version != PACKAGE_VERSION)
        return base_fail(model->context, DW_MISMATCH, "%s has version %u of the package format, this build reads %d: compile it again", file, version, PACKAGE_VERSION);
    if (header > length - PACKAGE_HEAD)
        return base_fail(model->context, DW_CORRUPT, "%s: its header of %" PRIu64 " bytes goes beyond the file of %zu", file, header, length);
    if (base_hash(bytes + PACKAGE_HEAD, (size_t)header, 0) != get_u64(bytes + 24))
        return base_fail(model->context, DW_CORRUPT, "%s: its header has been changed since it was written: compile it again", file);
    size_t data = base_align_up(PACKAGE_HEAD + (size_t)header, ENGINE_ALIGN);
    read.data = bytes + (data < length ? data : length);
    read.data_bytes = data < length ? length - data : 0;
    return told_where(&read, read_header(&read, (const char *)bytes + PACKAGE_HEAD, (size_t)header));
}

dw_status engine_package_add_generation(dw_model *model)
{
    reading read = {.model = model, .file = model->file, .dims = model->options.dims};
    TRY(told_where(&read, read_generation(&read)));
    if (model->step.plan != NULL) model->no_step = "";
    return DW_OK;
}
