/* Files: checkpoints, from which a run goes on bit for bit; parameters under the names of the export; and models of them. A checkpoint is safetensors: what the trainer keeps under its names, and numbers in
 * COUNTS and SCALE. The reader of safetensors checks its bytes, so here only names, shapes and numbers are. */
#include "capture/capture.h"
#include "train/train.h"

#include <string.h>

#define COUNTS "deepwell.trainer"            /* i64[COUNT_COUNT] */
#define SCALE "deepwell.trainer.loss_scale"  /* f64[] */
enum { COUNT_VERSION, COUNT_HASH, COUNT_STEP, COUNT_CALLS, COUNT_GOOD, COUNT_SEED, COUNT_PLACE, COUNT_COUNT };
enum { VERSION = 1 };

/* Host copies of what a trainer keeps. */
typedef struct copies {
    int count;
    const char **names;
    const dw_tensor **tensors;
    dw_tensor *shapes;
    void **memory;
    size_t *bytes;
} copies;

static dw_status make_copies(arena *arena, int count, copies *copies) {
    TRY_NEW(copies->names, arena, count);
    TRY_NEW(copies->tensors, arena, count);
    TRY_NEW(copies->shapes, arena, count);
    TRY_NEW(copies->memory, arena, count);
    TRY_NEW(copies->bytes, arena, count);
    return DW_OK;
}

static void free_copies(dw_context *context, copies *copies) {
    for (int i = 0; i < copies->count; i++) base_release(context, copies->memory[i], copies->bytes[i], ENGINE_ALIGN);
}

/* One more, with the kept numbers; its data in *shape. */
static dw_status copy(dw_trainer *trainer, const train_kept *kept, copies *copies) {
    uint64_t bytes;
    const int i = copies->count;
    copies->names[i] = kept->state.name;
    copies->shapes[i] = kept->state.tensor;
    copies->tensors[i] = &copies->shapes[i];
    TRY(dw_tensor_bytes(trainer->context, &kept->state.tensor, &bytes));
    copies->bytes[i] = (size_t)bytes + 1;
    TRY(base_alloc(trainer->context, copies->bytes[i], ENGINE_ALIGN, &copies->memory[i]));
    copies->count++;
    copies->shapes[i].data = copies->memory[i];
    return engine_state_read(kept->session, kept->index, copies->memory[i]);
}

/* Of sums nothing is left between steps. */
static bool is_kept_in_files(const train_kept *kept) { return strncmp(kept->state.name, TRAIN_GRADIENT, strlen(TRAIN_GRADIENT)) != 0; }

static dw_status copy_all(dw_trainer *trainer, copies *copies) {
    for (int i = 0; i < train_count(trainer); i++) {
        train_kept kept;
        TRY(train_at(trainer, i, &kept));
        if (is_kept_in_files(&kept)) TRY(copy(trainer, &kept, copies));
    }
    return DW_OK;
}

dw_status dw_trainer_save(dw_trainer *trainer, const char *file, int64_t place) {
    int64_t counts[COUNT_COUNT] = {[COUNT_VERSION] = VERSION, [COUNT_HASH] = (int64_t)trainer->hash, [COUNT_STEP] = trainer->step, [COUNT_CALLS] = trainer->calls, [COUNT_GOOD] = trainer->good,
                                   [COUNT_SEED] = (int64_t)trainer->options.seed, [COUNT_PLACE] = place};
    double scale = trainer->loss_scale;
    const dw_tensor numbers = {.format = DW_FORMAT_i64, .rank = 1, .dims = {COUNT_COUNT}, .strides = {1}, .data = counts}, factor = {.format = DW_FORMAT_f64, .data = &scale};
    copies copies = {0};
    arena arena;
    TRY(train_check_between(trainer, "is saved"));
    arena_init(&arena, trainer->context);
    dw_status status = make_copies(&arena, train_count(trainer) + 2, &copies);
    if (status == DW_OK) status = copy_all(trainer, &copies);
    if (status == DW_OK) {
        copies.names[copies.count] = COUNTS;
        copies.tensors[copies.count] = &numbers;
        copies.names[copies.count + 1] = SCALE;
        copies.tensors[copies.count + 1] = &factor;
        status = safetensors_write(trainer->context, file, copies.count + 2, copies.names, copies.tensors, NULL);
    }
    free_copies(trainer->context, &copies);
    arena_free(&arena);
    return status;
}

/* ---- resuming: all is checked before anything changes ---- */

static dw_status check_counts(const dw_trainer *trainer, const char *file, const ir_weights *weights, int64_t counts[COUNT_COUNT], double *scale) {
    const ir_weight *numbers = ir_weights_find(weights, COUNTS), *factor = ir_weights_find(weights, SCALE);
    if (numbers == NULL || factor == NULL || numbers->tensor.format != DW_FORMAT_i64 || numbers->tensor.rank != 1 || numbers->tensor.dims[0] != COUNT_COUNT || factor->tensor.format != DW_FORMAT_f64 ||
        factor->tensor.rank != 0)
        return base_fail(trainer->context, DW_MISMATCH, "%s: is no checkpoint of a trainer, which has tensors " COUNTS " and " SCALE, file);
    memcpy(counts, numbers->tensor.data, COUNT_COUNT * sizeof *counts);   /* which lie at any address of the file */
    *scale = op_tensor_load(&factor->tensor, NULL);
    if (counts[COUNT_VERSION] != VERSION)
        return base_fail(trainer->context, DW_MISMATCH, "%s: is a checkpoint of version %lld, this build reads %d", file, (long long)counts[COUNT_VERSION], VERSION);
    if ((uint64_t)counts[COUNT_HASH] != trainer->hash)
        return base_fail(trainer->context, DW_MISMATCH, "%s: is a checkpoint of another graph than %s (hash %016llx, here %016llx)", file, trainer->source->name, (unsigned long long)counts[COUNT_HASH],
                         (unsigned long long)trainer->hash);
    if (counts[COUNT_STEP] < 0 || counts[COUNT_CALLS] < 0 || counts[COUNT_GOOD] < 0 || !(*scale >= 0 && *scale < 1e38))
        return base_fail(trainer->context, DW_CORRUPT, "%s: its step, its micro-batches or its loss scale are no such numbers", file);
    if ((*scale > 0) != (trainer->loss_scale > 0))
        return base_fail(trainer->context, DW_MISMATCH, "%s: its loss is %s, and this trainer's is %s: give the loss_scale that it had", file, *scale > 0 ? "scaled" : "not scaled", trainer->loss_scale > 0 ? "scaled" : "not");
    return DW_OK;
}

/* "f32[5,3]" */
static void print_type(text *words, const dw_tensor *tensor) {
    text_printf(words, "%s[", dw_format_name(tensor->format));
    for (int i = 0; i < tensor->rank; i++) text_printf(words, "%s%lld", i > 0 ? "," : "", (long long)tensor->dims[i]);
    text_add(words, "]");
}

static dw_status fail_type(const dw_trainer *trainer, const char *file, const char *name, const dw_tensor *there, const dw_tensor *here) {
    text words;
    text_init(&words, trainer->context);
    print_type(&words, there);
    text_add(&words, ", the trainer's is ");
    print_type(&words, here);
    dw_status status = text_status(&words);
    if (status == DW_OK) status = base_fail(trainer->context, DW_MISMATCH, "%s: tensor %s is %s", file, name, text_string(&words));
    text_free(&words);
    return status;
}

static dw_status find_kept(const dw_trainer *trainer, const char *file, const ir_weights *weights, const train_kept *kept, const ir_weight **weight) {
    const dw_tensor *here = &kept->state.tensor;
    *weight = ir_weights_find(weights, kept->state.name);
    if (*weight == NULL) return base_fail(trainer->context, DW_MISMATCH, "%s: has no tensor %s, which this trainer keeps: it is of another optimiser or of other parameters", file, kept->state.name);
    const dw_tensor *there = &(*weight)->tensor;
    bool same = there->format == here->format && there->rank == here->rank;
    for (int i = 0; same && i < here->rank; i++) same = there->dims[i] == here->dims[i];
    if (same) return DW_OK;
    return fail_type(trainer, file, kept->state.name, there, here);
}

static dw_status take(dw_trainer *trainer, const char *file, const ir_weights *weights, int64_t *place) {
    int64_t counts[COUNT_COUNT];
    const ir_weight *weight;
    train_kept kept;
    double scale = 0;
    size_t expected = 2;
    TRY(check_counts(trainer, file, weights, counts, &scale));
    for (int i = 0; i < train_count(trainer); i++) {
        TRY(train_at(trainer, i, &kept));
        if (!is_kept_in_files(&kept)) continue;
        TRY(find_kept(trainer, file, weights, &kept, &weight));
        expected++;
    }
    if (weights->by_name.count != expected)
        return base_fail(trainer->context, DW_MISMATCH, "%s: has %zu tensors, this trainer keeps %zu: it is of another optimiser or of other parameters", file, weights->by_name.count, expected);
    trainer->torn = true;   /* until all is written */
    for (int i = 0; i < train_count(trainer); i++) {
        TRY(train_at(trainer, i, &kept));
        if (!is_kept_in_files(&kept)) continue;
        TRY(find_kept(trainer, file, weights, &kept, &weight));
        TRY(engine_state_write(kept.session, kept.index, weight->tensor.data));
    }
    trainer->torn = false;
    trainer->done = 0;
    trainer->step = counts[COUNT_STEP];
    trainer->calls = counts[COUNT_CALLS];
    trainer->good = counts[COUNT_GOOD];
    trainer->options.seed = (uint64_t)counts[COUNT_SEED];
    trainer->loss_scale = scale;
    if (place != NULL) *place = counts[COUNT_PLACE];
    return DW_OK;
}

dw_status dw_trainer_resume(dw_trainer *trainer, const char *file, int64_t *place) {
    ir_weights weights;
    ir_weights_init(&weights, trainer->context);
    dw_status status = safetensors_open(trainer->context, file, &weights);
    if (status == DW_OK) status = take(trainer, file, &weights, place);
    ir_weights_free(&weights);
    return status;
}

/* ---- parameters of the export ---- */

/* Is the state of that name a parameter of the graph that the trainer was made of? Its value there. */
static const ir_value *exported(const dw_trainer *trainer, const char *name) {
    const ir_value *value = map_find(&trainer->source->names, name);
    return value != NULL && (value->kind == IR_PARAM || value->kind == IR_STATE) ? value : NULL;
}

/* The kept numbers in another format: rounded, as masters are. */
static dw_status narrow(dw_context *context, copies *copies, int i, dw_format format) {
    dw_tensor *tensor = &copies->shapes[i], made = *tensor;
    int64_t index[DW_MAX_RANK] = {0};
    void *memory;
    uint64_t bytes;
    if (tensor->format == format) return DW_OK;
    made.format = format;
    TRY(dw_tensor_bytes(context, &made, &bytes));
    TRY(base_alloc(context, (size_t)bytes + 1, ENGINE_ALIGN, &memory));
    made.data = memory;
    for (int64_t left = op_tensor_count(tensor); left > 0; left--, op_tensor_next(tensor, index)) op_tensor_store(&made, index, op_tensor_load(tensor, index));
    base_release(context, copies->memory[i], copies->bytes[i], ENGINE_ALIGN);
    copies->memory[i] = memory;
    copies->bytes[i] = (size_t)bytes + 1;
    *tensor = made;
    return DW_OK;
}

static dw_status copy_exported(dw_trainer *trainer, copies *copies) {
    for (int i = 0; i < train_count(trainer); i++) {
        train_kept kept;
        TRY(train_at(trainer, i, &kept));
        const ir_value *value = exported(trainer, kept.state.name);
        if (value == NULL) continue;
        TRY(copy(trainer, &kept, copies));
        TRY(narrow(trainer->context, copies, copies->count - 1, value->type.format));
    }
    return DW_OK;
}

dw_status dw_trainer_export(dw_trainer *trainer, const char *file) {
    copies copies = {0};
    arena arena;
    TRY(train_check_between(trainer, "is exported"));
    arena_init(&arena, trainer->context);
    dw_status status = make_copies(&arena, train_count(trainer), &copies);
    if (status == DW_OK) status = copy_exported(trainer, &copies);
    if (status == DW_OK) status = safetensors_write(trainer->context, file, copies.count, copies.names, copies.tensors, NULL);
    free_copies(trainer->context, &copies);
    arena_free(&arena);
    return status;
}

/* ---- a model ---- */

/* A parameter gets the numbers of now. */
static dw_status own_value(dw_trainer *trainer, ir_weights *own, ir_value *value) {
    train_kept kept;
    copies copies = {0};
    ir_weight *weight;
    arena arena;
    if (engine_state_find(trainer->micro, value->name) < 0 && (trainer->update == NULL || engine_state_find(trainer->update, value->name) < 0)) return DW_OK;
    arena_init(&arena, trainer->context);
    dw_status status = train_find(trainer, value->name, &kept);
    if (status == DW_OK) status = make_copies(&arena, 1, &copies);
    if (status == DW_OK) status = copy(trainer, &kept, &copies);
    if (status == DW_OK) status = narrow(trainer->context, &copies, 0, value->type.format);
    if (status == DW_OK) status = ir_weights_new(own, value->name, value->type.format, copies.shapes[0].rank, copies.shapes[0].dims, &weight);
    if (status == DW_OK) {
        memcpy(weight->tensor.data, copies.memory[0], copies.bytes[0] - 1);
        weight->buffer = value->weight != NULL && value->weight->buffer;
        value->weight = weight;
    }
    free_copies(trainer->context, &copies);
    arena_free(&arena);
    return status;
}

static dw_status own_all(dw_trainer *trainer, ir_graph *graph) {
    TRY(ir_weights_create(trainer->context, &graph->own_weights));
    for (size_t i = 0; i < graph->param_count; i++) TRY(own_value(trainer, graph->own_weights, graph->params[i]));
    for (size_t i = 0; i < graph->state_count; i++) TRY(own_value(trainer, graph->own_weights, graph->states[i]));
    return DW_OK;
}

dw_status dw_trainer_model(dw_trainer *trainer, const dw_model_options *options, dw_model **model) {
    ir_graph *graph;
    *model = NULL;
    TRY(train_check_between(trainer, "gives a model"));
    TRY(ir_graph_clone(trainer->source, &graph));
    dw_status status = own_all(trainer, graph);
    if (status == DW_OK) return dw_model_create(trainer->context, graph, options, model);
    ir_graph_destroy(graph);
    return status;
}
