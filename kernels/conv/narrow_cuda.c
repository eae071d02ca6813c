/* conv on a GPU in groups of few channels: the host half of conv_narrow.cu, which tile a block makes. */
#include "kernels/conv/conv_cuda.h"

#include "kernels/gpu/host/host.h"
#include "kernels/conv/conv.h"
#include "kernels/kernels.h"

/* Of a block: shared memory, so that several share a multiprocessor, and results, so that what it does besides them does not count. */
enum { NARROW_BYTES = 44 << 10, TILE_RESULTS = 2048, TILE_COLS = 128, LINE_COLS = 512, CHANNEL_COLS = 64, CHANNELS_AT_ONCE = 32, MOST_PLACE = 1 << 22 };

typedef struct narrow_window { const char *entry; int64_t taps[2], stride; int rows; } narrow_window;

static const narrow_window windows[] = {
#define NARROW_WINDOW(name, taps_y, taps_x, stride, rows) {"conv_narrow_" #name, {taps_y, taps_x}, stride, rows},
#include "kernels/conv/narrow.def"
#undef NARROW_WINDOW
};

/* One axis has stride and dilation 1 above it. */
static const narrow_window *window_of(const conv_shape *s) {
    for (size_t i = 0; i < COUNT_OF(windows); i++) {
        const narrow_window *w = &windows[i];
        if (w->taps[0] != s->taps[0] || w->taps[1] != s->taps[1] || s->dilation[0] != 1 || s->dilation[1] != 1) continue;
        if (w->stride == s->stride[1] && (w->stride == s->stride[0] || s->places[0] == 1)) return w;
    }
    return NULL;
}

/* ---- the tile ---- */

typedef struct narrow_tiling {
    const narrow_window *window;  /* NULL: any */
    int64_t groups, rows, cols, in_rows, in_cols, bytes;
} narrow_tiling;

static int64_t round_up(int64_t x, int64_t step) { return base_ceil_div(x, step) * step; }

/* Does what a tile spans of x and of the result fit 32 bits? */
static bool spans_few(const conv_shape *s, const narrow_tiling *t) {
    const double of_x = (double)(t->groups * s->channels) * (double)s->x_strides[1] + (double)t->in_rows * (double)s->x_strides[2] + (double)t->in_cols * (double)s->x_strides[3];
    const double of_out = (double)(t->groups * s->outputs) * (double)s->out_strides[1] + (double)t->rows * (double)s->out_strides[2] + (double)t->cols;
    return of_x < INT32_MAX && of_out < INT32_MAX && (double)s->x_strides[2] < INT32_MAX && (double)s->x_strides[3] < INT32_MAX;
}

/* What a tile of t->rows x t->cols reads; false: more than there is room for. */
static bool measure(const conv_shape *s, narrow_tiling *t) {
    const int64_t spans[] = {(s->taps[0] - 1) * s->dilation[0] + 1, (s->taps[1] - 1) * s->dilation[1] + 1};
    const int64_t last_run = (NARROW_RUN - 1) * s->stride[1] + spans[1];
    t->in_rows = (t->rows - 1) * s->stride[0] + spans[0];
    t->in_cols = round_up((t->cols - NARROW_RUN) * s->stride[1] + round_up(last_run, 4), 4);
    if (t->in_rows > MOST_PLACE || t->in_cols > MOST_PLACE) return false;
    if (!spans_few(s, t)) return false;
    t->bytes = 4 * t->groups * (s->channels * t->in_rows * t->in_cols + s->outputs * conv_depth(s));
    return t->bytes <= NARROW_BYTES;
}

static bool by_channel(const conv_shape *s) { return s->x_strides[1] == 1 && s->x_strides[3] != 1; }

/* Even parts of an axis of at most so many places, in whole steps. */
static int64_t even_part(int64_t places, int64_t most, int64_t step) {
    const int64_t parts = base_ceil_div(places, most);
    return round_up(base_ceil_div(places > 0 ? places : 1, parts > 0 ? parts : 1), step);
}

/* Halves the lines, then the columns, until the tile fits. */
static bool shrink(const conv_shape *s, narrow_tiling *t, int64_t step) {
    while (!measure(s, t)) {
        if (t->rows > step) t->rows = round_up(t->rows / 2, step);
        else if (t->cols > NARROW_RUN) t->cols = round_up(t->cols / 2, NARROW_RUN);
        else return false;
        if (t->rows == step && t->cols == NARROW_RUN) return measure(s, t);
    }
    return true;
}

/* A tile of some groups, false: not even one of a group fits. */
static bool tile_of(const conv_shape *s, narrow_tiling *t) {
    const int64_t all = s->groups, least = by_channel(s) ? base_ceil_div(CHANNELS_AT_ONCE, s->channels) : 1;
    t->window = window_of(s);
    const int64_t step = t->window != NULL ? t->window->rows : 1, most_cols = by_channel(s) ? CHANNEL_COLS : s->places[0] == 1 ? LINE_COLS : TILE_COLS;
    t->groups = least < all ? least : all;
    t->cols = even_part(s->places[1], most_cols, NARROW_RUN);
    t->rows = even_part(s->places[0], 2 * TILE_RESULTS / t->cols > step ? 2 * TILE_RESULTS / t->cols : step, step);
    if (!shrink(s, t, step)) {
        t->groups = 1;
        if (!shrink(s, t, step)) return false;
    }
    while (t->groups < all && t->groups * s->outputs * t->rows * t->cols < TILE_RESULTS) {
        narrow_tiling more = *t;
        more.groups = 2 * t->groups < all ? 2 * t->groups : all;
        if (!measure(s, &more)) break;
        *t = more;
    }
    return true;
}

/* ---- choosing ---- */

/* The least tile has to fit, whatever the sizes of x. */
static const char *window_refusal(const conv_shape *s, text *why) {
    narrow_tiling least = {.groups = 1, .rows = 4, .cols = NARROW_RUN};
    if (measure(s, &least)) return NULL;
    return kernel_because(why, "windows of a group of %lld channels and %lld outputs are more than a block keeps", (long long)s->channels, (long long)s->outputs);
}

const char *conv_narrow_cuda_reject(const kernel_problem *problem, text *why) {
    const dw_format format = problem->in[0]->format;
    const op_type *weight = problem->in[1];
    const int axes = weight->rank - 2;
    const int64_t *strides, *dilations;
    conv_shape s = {.groups = op_attr_int(problem->attrs, OP_ATTR_groups), .taps = {1, 1}, .stride = {1, 1}, .dilation = {1, 1}};
    if (format != DW_FORMAT_f32 && format != DW_FORMAT_bf16 && format != DW_FORMAT_f16) return kernel_because(why, "x is %s, not f32, bf16 or f16", dw_format_name(format));
    op_attr_ints(problem->attrs, OP_ATTR_stride, &strides);
    op_attr_ints(problem->attrs, OP_ATTR_dilation, &dilations);
    for (int i = 0; i < axes; i++) {
        if (!dim_is_constant(weight->dims[2 + i], &s.taps[2 - axes + i])) return "the size of w is not known at plan time";
        s.stride[2 - axes + i] = strides[i];
        s.dilation[2 - axes + i] = dilations[i];
    }
    if (!dim_is_constant(weight->dims[0], &s.outputs) || !dim_is_constant(weight->dims[1], &s.channels)) return "the size of w is not known at plan time";
    if (s.outputs == 0 || s.channels == 0 || s.taps[0] == 0 || s.taps[1] == 0) return "w has no elements";
    if (s.outputs > MOST_PLACE || s.channels > MOST_PLACE || s.taps[0] > MOST_PLACE || s.taps[1] > MOST_PLACE) return "w is larger than a tile counts to";
    s.outputs = s.outputs / s.groups > 0 ? s.outputs / s.groups : 1;
    return window_refusal(&s, why);
}

/* Turns of a thread, fitted to an H200's times of ten lines (bench/results/h200/conv.md) before addresses were carried from element to element: for each element that is brought, for each result, and for each
 * tap of a result. */
double conv_narrow_cuda_cost(const kernel_problem *problem) {
    enum { TURNS_BROUGHT = 108, TURNS_RESULT = 17 };
    kernel_typical typical;
    conv_shape s;
    narrow_tiling t;
    const chip_caps *chip = problem->chip;
    if (!kernel_at_typical(problem, 0, &typical) || op_tensor_count(typical.run.call.out[0]) == 0) return chip->launch_s;
    conv_shape_of(&typical.run.call, &s);
    if (!tile_of(&s, &t)) return kernel_roofline(problem, DW_FORMAT_f32, 0.009, 0.267);
    const double tiles = (double)s.batches * (double)base_ceil_div(s.groups, t.groups) * (double)base_ceil_div(s.places[0], t.rows) * (double)base_ceil_div(s.places[1], t.cols);
    const double brought = tiles * (double)(t.groups * s.channels * t.in_rows * t.in_cols), results = (double)op_tensor_count(typical.run.call.out[0]);
    const double turns = brought * TURNS_BROUGHT + results * (TURNS_RESULT + (t.window != NULL ? 1.4 : 5) * (double)conv_depth(&s));
    const double compute = turns / (0.375 * chip_flops(chip, DW_FORMAT_f32)) + chip->launch_s, memory = kernel_roofline(problem, DW_FORMAT_f32, 1e3, 0.7);
    return compute > memory ? compute : memory;
}

size_t conv_narrow_cuda_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* ---- the launch ---- */

/* Places of the axes that 256 threads are counted along. */
static void take_steps(narrow_arguments *a, bool channels_fastest, int64_t planes) {
    const int64_t fasts = channels_fastest ? planes : a->in_cols, middles = channels_fastest ? a->in_cols : a->in_rows;
    a->steps[2] = (int32_t)(CUDA_THREADS % fasts);
    a->steps[1] = (int32_t)(CUDA_THREADS / fasts % middles);
    a->steps[0] = (int32_t)(CUDA_THREADS / fasts / middles);
}

static void take_tiling(const conv_shape *s, const narrow_tiling *t, narrow_arguments *a) {
    const bool lies_in_runs = s->out_strides[0] % NARROW_RUN == 0 && s->out_strides[1] % NARROW_RUN == 0 && s->out_strides[2] % NARROW_RUN == 0 && s->out_strides[3] == 1;
    a->tiles_x = (int32_t)base_ceil_div(s->places[1], t->cols);
    a->tiles_y = (int32_t)base_ceil_div(s->places[0], t->rows);
    a->group_blocks = (int32_t)base_ceil_div(s->groups, t->groups);
    a->groups = (int32_t)t->groups;
    a->outputs_per_group = (int32_t)s->outputs;
    a->channels = (int32_t)s->channels;
    a->tile_rows = (int32_t)t->rows;
    a->tile_cols = (int32_t)t->cols;
    a->in_rows = (int32_t)t->in_rows;
    a->in_cols = (int32_t)t->in_cols;
    a->plane = a->in_rows * a->in_cols;
    for (int i = 0; i < 3; i++) a->x_steps[i] = (int32_t)s->x_strides[1 + i];
    for (int i = 0; i < 2; i++) a->out_steps[i] = (int32_t)s->out_strides[1 + i];
    a->in_runs = lies_in_runs && cuda_lies_at_16(s->out->data);
    const int64_t runs = t->cols / NARROW_RUN;
    a->by_runs = 1.0f / (float)runs;
    a->by_items = 1.0f / (float)(runs * (t->rows / (t->window != NULL ? t->window->rows : 1)));
}

dw_status conv_narrow_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    kernel_launch launch;
    conv_shape s;
    narrow_tiling t;
    TRY(conv_check_groups(run));
    conv_shape_of(&run->call, &s);
    if (op_tensor_count(run->call.out[0]) == 0) return DW_OK;
    if (!tile_of(&s, &t)) return base_fail(run->call.context, DW_UNSUPPORTED, "conv: no tile of such windows fits a block; ask for another kernel");
    narrow_arguments *a = cuda_launch(&launch, "conv_narrow", t.window != NULL ? t.window->entry : "conv_narrow_any", sizeof *a);
    conv_take_windows(&s, &a->conv);
    conv_take_bias(&launch, run, &a->conv);
    take_tiling(&s, &t, a);
    a->by_channel = by_channel(&s);
    take_steps(a, a->by_channel, t.groups * s.channels);
    cuda_take_array(&launch, run, KERNEL_RESULT, &a->conv.out);
    cuda_take_array(&launch, run, 0, &a->conv.x);
    cuda_take_array(&launch, run, 1, &a->conv.weight);
    launch.overlaps = true;
    launch.shared_bytes = (uint32_t)t.bytes;
    const int64_t tiles = s.batches * a->group_blocks * a->tiles_y * a->tiles_x;
    if (tiles > INT32_MAX) return base_fail(run->call.context, DW_LIMIT, "conv: the result has %lld tiles, more than a grid; ask for cuda_conv", (long long)tiles);
    cuda_grid(&launch, tiles, 1, 1);
    return launcher->add(launcher, &launch);
}
