/* take, gather, scatter, index and index_put on a GPU: the host half of index.cu and index_vectors.cu. Which axes are items and which are places is decided here. */
#include "kernels/index/index_cuda.h"

#include "kernels/gpu/host/host.h"
#include "kernels/move/parts.h"
#include "kernels/kernels.h"
#include "kernels/quantize/quantize_host.h"

const char *index_cuda_reject(const kernel_problem *problem, text *why) { return cuda_reject_packed(problem, why); }

/* Can the result be in vectors of elements that are looked up (looks_up below)? gather, which reads sectors for elements, is estimated as before. */
static bool may_look_up(const kernel_problem *problem) {
    kernel_typical typical;
    const bool reads = problem->op->id == OP_take || problem->op->id == OP_index;
    if (!reads || problem->n_in - 1 > LOOK_UP_INDICES || !kernel_at_typical(problem, 0, &typical)) return false;
    const dw_tensor *out = typical.run.call.out[0];
    return out->rank > 0 && out->dims[out->rank - 1] % CUDA_VECTOR == 0;
}

/* Rows that one index each names are moved at most of the bandwidth; else elements or words look for their places first. In a model's step on an H200 (bench/results/h200/models.md); the share of the bandwidth of
 * elements that are looked up by themselves (bench/results/h200/index.md). */
double index_cuda_cost(const kernel_problem *problem) {
    const bool rows = problem->op->id == OP_take && problem->in[0]->rank == 2 && problem->in[1]->rank == 1 && op_attr_int(problem->attrs, OP_ATTR_axis) == 0;
    if (!chip_has(problem->chip, CHIP_tma)) return 6e-6 + cuda_cost(problem);
    return rows ? kernel_roofline(problem, DW_FORMAT_f32, 0.1, 0.8) : 6e-6 + (may_look_up(problem) ? kernel_roofline(problem, DW_FORMAT_f32, 0.1, 0.5) : cuda_cost(problem));
}

typedef int64_t axes[CUDA_OPERANDS][CUDA_RANK];

/* ---- reading ---- */

/* Rows in words of so many bytes: the nest and the strides that indices are multiplied by become those of words. */
static bool reads_words(const kernel_run *run, read_arguments *a, int64_t word) {
    int64_t bytes = dw_format_bits(run->call.out[0]->format) / 8;
    if (!chip_has(run->chip, CHIP_tma) || (uintptr_t)run->call.in[0]->data % (uintptr_t)word != 0 || (uintptr_t)run->call.out[0]->data % (uintptr_t)word != 0) return false;
    for (int k = 0; k < a->indices; k++)
        if (a->strides[k] * bytes % word != 0) return false;
    if (!cuda_nest_words_of(&a->nest, 2, 2 + a->indices, bytes, word)) return false;
    for (int k = 0; k < a->indices; k++) a->strides[k] = a->strides[k] * bytes / word;
    return true;
}

/* Rows in a line, of which one index names each? Counted in 32 bits. */
static bool reads_rows(const read_arguments *a) {
    enum { MOST = INT32_MAX / 2 };
    return a->indices == 1 && a->nest.rank >= 1 && a->nest.rank <= 2 && a->nest.count <= MOST && a->nest.strides[2][a->nest.rank - 1] == 0;
}

/* The kernel of rows in words, of 16 bytes or as many as narrow ones are made of; NULL: they are none. */
static const char *read_words(const kernel_run *run, read_arguments *a) {
    static const char *const narrow[] = {[8] = "index_read_rows_8", [4] = "index_read_rows_4", [2] = "index_read_rows_2", [1] = "index_read_rows_1"};
    if (reads_words(run, a, 16)) return reads_rows(a) ? "index_read_rows" : "index_read_words";
    for (int64_t word = 8; word >= dw_format_bits(run->call.out[0]->format) / 8 && reads_rows(a); word /= 2)
        if (reads_words(run, a, word)) return narrow[word];
    return NULL;
}

/* ---- elements that are named one by one ---- */

/* An axis along which those indices repeat that differ from element to element of the last one; -1: there is none. */
static int repeated_axis(const read_arguments *a) {
    const int last = a->nest.rank - 1;
    for (int axis = 0; axis < last; axis++) {
        bool repeats = a->nest.dims[axis] <= (int64_t)UINT16_MAX * LOOK_UP_REPEATS;     /* groups of them are counted by the grid's y */
        for (int k = 0; k < a->indices; k++) repeats &= a->nest.strides[2 + k][last] == 0 || a->nest.strides[2 + k][axis] == 0;
        if (repeats) return axis;
    }
    return -1;
}

/* The result in vectors of eight elements, and indices that differ along them. */
static bool looks_up(const kernel_run *run, const read_arguments *a) {
    const int last = a->nest.rank - 1;
    bool differs = false;
    if (!chip_has(run->chip, CHIP_tma) || a->indices > LOOK_UP_INDICES || last < 0 || a->nest.dims[last] % CUDA_VECTOR != 0 || a->nest.strides[0][last] != 1) return false;
    for (int axis = 0; axis < last; axis++)
        if (a->nest.strides[0][axis] % CUDA_VECTOR != 0) return false;
    for (int k = 0; k < a->indices; k++) differs |= a->nest.strides[2 + k][last] != 0;
    return differs && cuda_lies_at_16(run->call.out[0]->data);
}

static bool lies_in_pairs(const kernel_run *run, const read_arguments *a, int k) {
    const int64_t *strides = a->nest.strides[2 + k];
    if (run->call.in[1 + k]->format != DW_FORMAT_i64 || strides[a->nest.rank - 1] != 1 || !cuda_lies_at_16(run->call.in[1 + k]->data)) return false;
    for (int axis = 0; axis < a->nest.rank - 1; axis++)
        if (strides[axis] % 2 != 0) return false;
    return true;
}

/* The space without the repeated axis, in vectors. */
static void take_vectors(const read_arguments *a, int repeated, look_up_arguments *to) {
    const int last = a->nest.rank - 1;
    to->nest = (cuda_nest){.narrow = a->nest.narrow, .count = 1};
    to->repeats = repeated < 0 ? 1 : a->nest.dims[repeated];
    for (int axis = 0; axis <= last; axis++) {
        if (axis == repeated) continue;
        const int64_t width = axis == last ? CUDA_VECTOR : 1;
        to->nest.dims[to->nest.rank] = a->nest.dims[axis] / width;
        to->nest.count *= a->nest.dims[axis] / width;
        for (int k = 0; k < 2 + a->indices; k++) to->nest.strides[k][to->nest.rank] = a->nest.strides[k][axis] * width;
        to->nest.rank++;
    }
    for (int k = 0; repeated >= 0 && k < 2 + a->indices; k++) to->repeat_steps[k] = a->nest.strides[k][repeated];
}

static dw_status add_look_up(const kernel_run *run, kernel_launcher *launcher, const read_arguments *a) {
    static const char *const entries[] = {[1] = "index_look_up_1", [2] = "index_look_up_2", [4] = "index_look_up_4", [8] = "index_look_up_8"};
    const int last = a->nest.rank - 1;
    kernel_launch launch;
    look_up_arguments *to = cuda_launch(&launch, "index_vectors", entries[dw_format_bits(run->call.out[0]->format) / 8], sizeof *to);
    take_vectors(a, repeated_axis(a), to);
    to->indices = a->indices;
    to->x_step = a->nest.strides[1][last];
    cuda_take_array(&launch, run, KERNEL_RESULT, &to->out);
    cuda_take_array(&launch, run, 0, &to->x);
    for (int k = 0; k < a->indices; k++) {
        to->sizes[k] = a->sizes[k];
        to->strides[k] = a->strides[k];
        to->steps[k] = a->nest.strides[2 + k][last];
        to->in_pairs[k] = lies_in_pairs(run, a, k);
        cuda_take_array(&launch, run, 1 + k, &to->index[k]);
    }
    cuda_take_fault(&launch, &to->fault);
    launch.overlaps = true;
    cuda_grid_items(&launch, to->nest.count);
    launch.grid[1] = (uint32_t)base_ceil_div(to->repeats, LOOK_UP_REPEATS);
    return launcher->add(launcher, &launch);
}

static dw_status add_read(const kernel_run *run, kernel_launcher *launcher, kernel_launch *launch, read_arguments *arguments, int rank, const int64_t *dims, axes strides) {
    enum { WORDS_OF_THREAD = 4 };
    cuda_nest_build(&arguments->nest, rank, dims, 2 + arguments->indices, (const int64_t(*)[CUDA_RANK])strides);
    if (arguments->nest.count == 0) return DW_OK;
    const char *words = read_words(run, arguments);
    if (words == NULL && looks_up(run, arguments)) return add_look_up(run, launcher, arguments);
    if (words != NULL) {
        launch->image = "index_vectors";
        launch->overlaps = true;
        launch->entry = words;
    }
    cuda_take_array(launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_array(launch, run, 0, &arguments->x);
    for (int k = 0; k < arguments->indices; k++) cuda_take_array(launch, run, 1 + k, &arguments->index[k]);
    cuda_take_fault(launch, &arguments->fault);
    cuda_grid_items(launch, words != NULL ? base_ceil_div(arguments->nest.count, WORDS_OF_THREAD) : arguments->nest.count);
    return launcher->add(launcher, launch);
}

static dw_status shape_take(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    read_arguments *arguments = cuda_launch(&launch, "index", "index_read", sizeof *arguments);
    const dw_tensor *x = run->call.in[0], *i = run->call.in[1], *out = run->call.out[0];
    int axis = (int)op_attr_int(run->call.attrs, OP_ATTR_axis);
    axes strides = {{0}};
    for (int a = 0; a < out->rank; a++) strides[0][a] = out->strides[a];
    for (int a = 0; a < axis; a++) strides[1][a] = x->strides[a];
    for (int a = 0; a < i->rank; a++) strides[2][axis + a] = i->strides[a];
    for (int a = axis + 1; a < x->rank; a++) strides[1][a + i->rank - 1] = x->strides[a];
    arguments->indices = 1;
    arguments->sizes[0] = x->dims[axis];
    arguments->strides[0] = x->strides[axis];
    return add_read(run, launcher, &launch, arguments, out->rank, out->dims, strides);
}

/* i reaches no further than other on any axis but skipped, which inference could not prove for symbols. */
static dw_status check_covers(const kernel_run *run, const char *name, const dw_tensor *other, int skipped) {
    const dw_tensor *i = run->call.in[1];
    for (int a = 0; a < i->rank; a++)
        if (a != skipped && i->dims[a] > other->dims[a])
            return base_fail(run->call.context, DW_MISMATCH, "%s: axis %d of i has size %lld, that of %s %lld", run->call.op->name, a, (long long)i->dims[a], name,
                             (long long)other->dims[a]);
    return DW_OK;
}

static dw_status shape_gather(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    read_arguments *arguments = cuda_launch(&launch, "index", "index_read", sizeof *arguments);
    const dw_tensor *x = run->call.in[0], *i = run->call.in[1], *out = run->call.out[0];
    int axis = (int)op_attr_int(run->call.attrs, OP_ATTR_axis);
    axes strides = {{0}};
    TRY(check_covers(run, "x", x, axis));
    for (int a = 0; a < i->rank; a++) {
        strides[0][a] = out->strides[a];
        strides[1][a] = a == axis ? 0 : x->strides[a];
        strides[2][a] = i->strides[a];
    }
    arguments->indices = 1;
    arguments->sizes[0] = x->dims[axis];
    arguments->strides[0] = x->strides[axis];
    return add_read(run, launcher, &launch, arguments, i->rank, i->dims, strides);
}

/* The shape that index tensors broadcast to; returns its rank. */
static int places_of(const kernel_run *run, int first, int64_t *dims) {
    int rank = 0;
    for (int k = first; k < run->call.n_in; k++)
        if (run->call.in[k]->rank > rank) rank = run->call.in[k]->rank;
    for (int a = 0; a < rank; a++) dims[a] = 1;
    for (int k = first; k < run->call.n_in; k++) {
        const dw_tensor *index = run->call.in[k];
        for (int a = 0; a < index->rank; a++)
            if (index->dims[a] != 1) dims[rank - index->rank + a] = index->dims[a];
    }
    return rank;
}

static dw_status shape_index(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    read_arguments *arguments = cuda_launch(&launch, "index", "index_read", sizeof *arguments);
    const dw_tensor *x = run->call.in[0], *out = run->call.out[0];
    int axis = (int)op_attr_int(run->call.attrs, OP_ATTR_axis), indices = run->call.n_in - 1;
    int64_t places[CUDA_RANK];
    int rank = places_of(run, 1, places);
    axes strides = {{0}};
    for (int a = 0; a < out->rank; a++) strides[0][a] = out->strides[a];
    for (int a = 0; a < axis; a++) strides[1][a] = x->strides[a];
    for (int a = axis + indices; a < x->rank; a++) strides[1][a - indices + rank] = x->strides[a];
    arguments->indices = indices;
    for (int k = 0; k < indices; k++) {
        cuda_broadcast(run->call.in[1 + k], rank, places, strides[2 + k] + axis);
        arguments->sizes[k] = x->dims[axis + k];
        arguments->strides[k] = x->strides[axis + k];
    }
    return add_read(run, launcher, &launch, arguments, out->rank, out->dims, strides);
}

/* ---- writing ---- */

/* Items and places with strides by operand, axis by axis. */
typedef struct write_space {
    int items, places;
    int64_t item_dims[CUDA_RANK], place_dims[CUDA_RANK];
    axes item_strides, place_strides;
} write_space;

enum { MOST_COMBINATIONS = 1 << 24 };

static int64_t place_count(const kernel_run *run) {
    int64_t dims[CUDA_RANK], places = 1;
    const int rank = places_of(run, 2, dims);
    for (int a = 0; a < rank; a++) places *= dims[a];
    return places;
}

/* Combinations of indices of an index_put whose places are written all together; 0: of one that is written in order, as its places are few. of_more: where there are more than
 * MOST_COMBINATIONS, which is also written in order. */
static int64_t combinations(const kernel_run *run, int64_t of_more) {
    enum { FEW_PLACES = 8 };
    const int axis = (int)op_attr_int(run->call.attrs, OP_ATTR_axis), indices = run->call.n_in - 2;
    const int64_t places = place_count(run);
    int64_t all = 1;
    if (!chip_has(run->chip, CHIP_tma)) return 0;
    for (int k = 0; k < indices && all <= MOST_COMBINATIONS; k++) all *= run->call.in[0]->dims[axis + k];
    if (places < FEW_PLACES || places >= UINT32_MAX) return 0;
    return all <= MOST_COMBINATIONS ? all : of_more;
}

/* Enough for smaller sizes too, of which there may be as many as are written all together. */
size_t index_cuda_workspace(const kernel_run *run) {
    const int64_t all = run->call.op->id == OP_index_put ? combinations(run, MOST_COMBINATIONS) : 0;
    if (all == 0 || !op_attr_bool(run->call.attrs, OP_ATTR_accumulate)) return (size_t)all * sizeof(uint32_t);
    return (size_t)(all * (int64_t)(2 * sizeof(uint32_t)) + place_count(run) * (int64_t)sizeof(index_place));
}

/* Items of out and values in words of 16 bytes; false, and nothing changed: they do not lie so. */
static bool writes_words(const kernel_run *run, write_arguments *a) {
    const int64_t bytes = dw_format_bits(run->call.out[0]->format) / 8;
    if (!cuda_lies_at_16(run->call.out[0]->data) || !cuda_lies_at_16(run->call.in[1]->data)) return false;
    for (int k = 0; k < a->indices; k++)
        if (a->strides[k] * bytes % 16 != 0) return false;
    for (int array = 0; array < 2; array++)
        for (int axis = 0; axis < a->places.rank; axis++)
            if (a->places.strides[array][axis] * bytes % 16 != 0) return false;
    if (!cuda_nest_words(&a->items, 2, 2 + a->indices, bytes)) return false;
    for (int k = 0; k < a->indices; k++) a->strides[k] = a->strides[k] * bytes / 16;
    for (int array = 0; array < 2; array++)
        for (int axis = 0; axis < a->places.rank; axis++) a->places.strides[array][axis] = a->places.strides[array][axis] * bytes / 16;
    return true;
}

/* What adds rows of words of a format; NULL: they are added element by element. */
static const char *rows_entry(dw_format format) { return format == DW_FORMAT_f32 ? "index_add_rows_f32" : format == DW_FORMAT_bf16 ? "index_add_rows_bf16" : format == DW_FORMAT_f16 ? "index_add_rows_f16" : NULL; }

/* All places together: the last one of each combination of indices is found, then each place writes that is one. Of sums the first ones, each of which adds all that have its combination. */
static dw_status add_places(const kernel_run *run, kernel_launcher *launcher, const write_arguments *write, int64_t all) {
    const int64_t bytes = all * (int64_t)sizeof(uint32_t);
    const bool sums = write->accumulate != 0;
    kernel_launch launch;
    clear_arguments *cleared = cuda_launch(&launch, "quantize", "quantize_clear", sizeof *cleared);
    cleared->count = sums ? 2 * bytes : bytes;
    cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &cleared->bytes, 0);
    cuda_grid_items(&launch, cleared->count);
    TRY(launcher->add(launcher, &launch));
    place_arguments *arguments = cuda_launch(&launch, "index_vectors", sums ? "index_count_places" : "index_last_places", sizeof *arguments);
    arguments->write = *write;
    const char *const add_rows = rows_entry(run->call.out[0]->format);
    arguments->in_words = (!sums || (add_rows != NULL && arguments->write.items.rank <= 1)) && writes_words(run, &arguments->write);
    cuda_take_array(&launch, run, KERNEL_RESULT, &arguments->write.out);
    cuda_take_array(&launch, run, 1, &arguments->write.values);
    for (int k = 0; k < write->indices; k++) cuda_take_array(&launch, run, 2 + k, &arguments->write.index[k]);
    cuda_take_fault(&launch, &arguments->write.fault);
    cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &arguments->last, 0);
    cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &arguments->counts, sums ? bytes : 0);
    cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &arguments->places, sums ? 2 * bytes : 0);
    cuda_grid_items(&launch, write->places.count);
    TRY(launcher->add(launcher, &launch));
    const bool rows = sums && arguments->in_words;
    launch.entry = rows ? add_rows : sums ? "index_add_places" : "index_write_places";
    cuda_grid_items(&launch, arguments->write.places.count * (rows ? CUDA_THREADS : arguments->write.items.count));
    return launcher->add(launcher, &launch);
}

static dw_status add_write(const kernel_run *run, kernel_launcher *launcher, kernel_launch *launch, write_arguments *arguments, const write_space *space, int values, int first_index) {
    int operands = 2 + arguments->indices;
    cuda_nest_build(&arguments->items, space->items, space->item_dims, operands, space->item_strides);
    cuda_nest_build(&arguments->places, space->places, space->place_dims, operands, space->place_strides);
    arguments->accumulate = op_attr_bool(run->call.attrs, OP_ATTR_accumulate);
    if (!cuda_is_in_place(run, 0)) {
        cuda_part to = cuda_whole(run, KERNEL_RESULT), from = cuda_whole(run, 0);
        TRY(cuda_copy_part(run, launcher, &to, &from));
    }
    if (arguments->items.count == 0 || arguments->places.count == 0) return DW_OK;
    const int64_t all = run->call.op->id == OP_index_put ? combinations(run, 0) : 0;
    if (all > 0) return add_places(run, launcher, arguments, all);
    cuda_take_array(launch, run, KERNEL_RESULT, &arguments->out);
    cuda_take_array(launch, run, values, &arguments->values);
    for (int k = 0; k < arguments->indices; k++) cuda_take_array(launch, run, first_index + k, &arguments->index[k]);
    cuda_take_fault(launch, &arguments->fault);
    cuda_grid_items(launch, arguments->items.count);
    return launcher->add(launcher, launch);
}

static dw_status shape_scatter(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    write_arguments *arguments = cuda_launch(&launch, "index", "index_write", sizeof *arguments);
    const dw_tensor *i = run->call.in[1], *y = run->call.in[2], *out = run->call.out[0];
    int axis = (int)op_attr_int(run->call.attrs, OP_ATTR_axis);
    write_space space = {.places = 1, .place_dims = {i->dims[axis]}, .place_strides = {{0}, {y->strides[axis]}, {i->strides[axis]}}};
    TRY(check_covers(run, "x", run->call.in[0], axis));
    TRY(check_covers(run, "y", y, -1));
    for (int a = 0; a < i->rank; a++) {
        if (a == axis) continue;
        space.item_dims[space.items] = i->dims[a];
        space.item_strides[0][space.items] = out->strides[a];
        space.item_strides[1][space.items] = y->strides[a];
        space.item_strides[2][space.items++] = i->strides[a];
    }
    arguments->indices = 1;
    arguments->sizes[0] = out->dims[axis];
    arguments->strides[0] = out->strides[axis];
    return add_write(run, launcher, &launch, arguments, &space, 2, 1);
}

static dw_status shape_index_put(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    write_arguments *arguments = cuda_launch(&launch, "index", "index_write", sizeof *arguments);
    const dw_tensor *values = run->call.in[1], *out = run->call.out[0];
    int axis = (int)op_attr_int(run->call.attrs, OP_ATTR_axis), indices = run->call.n_in - 2;
    write_space space = {0};
    space.places = places_of(run, 2, space.place_dims);
    int64_t region[CUDA_RANK], of_values[CUDA_RANK];
    int rank = 0;
    for (int a = 0; a < axis; a++) region[rank++] = out->dims[a];
    for (int a = 0; a < space.places; a++) region[rank++] = space.place_dims[a];
    for (int a = axis + indices; a < out->rank; a++) region[rank++] = out->dims[a];
    cuda_broadcast(values, rank, region, of_values);
    for (int a = 0; a < out->rank; a++) {
        if (a >= axis && a < axis + indices) continue;
        space.item_dims[space.items] = out->dims[a];
        space.item_strides[0][space.items] = out->strides[a];
        space.item_strides[1][space.items++] = of_values[a < axis ? a : a - indices + space.places];
    }
    for (int a = 0; a < space.places; a++) space.place_strides[1][a] = of_values[axis + a];
    arguments->indices = indices;
    for (int k = 0; k < indices; k++) {
        cuda_broadcast(run->call.in[2 + k], space.places, space.place_dims, space.place_strides[2 + k]);
        arguments->sizes[k] = out->dims[axis + k];
        arguments->strides[k] = out->strides[axis + k];
    }
    return add_write(run, launcher, &launch, arguments, &space, 1, 2);
}

dw_status index_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    switch (run->call.op->id) {
    case OP_take: return shape_take(run, launcher);
    case OP_gather: return shape_gather(run, launcher);
    case OP_index: return shape_index(run, launcher);
    case OP_scatter: return shape_scatter(run, launcher);
    default: return shape_index_put(run, launcher);
    }
}
