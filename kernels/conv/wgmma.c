/* conv on a GPU by wgmma: the host half of conv_layout.cu and conv_wgmma.cu. What it reads lies in the workspace: x, then w. */
#include "kernels/conv/wgmma.h"

#include "kernels/gpu/host/host.h"
#include "kernels/conv/conv.h"
#include "kernels/kernels.h"

enum { ALIGN = 256, ELEMENT = 2, WORD = 8 };

typedef struct conv_tile { const char *entries[2]; int64_t m, n, stages; double us_block, us_tile; } conv_tile;   /* entries: bf16, f16 */

static const conv_tile tiles[] = {
#define CONV_TILE(name, m, n, stages, us_block, us_tile) {{"conv_bf16_" #name, "conv_f16_" #name}, m, n, stages, us_block, us_tile},
#include "kernels/conv/wgmma.def"
#undef CONV_TILE
};

static int64_t round_up(int64_t x, int64_t step) { return base_ceil_div(x, step) * step; }
static int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }

/* ---- what lies in the workspace ---- */

typedef struct conv_layout {
    int64_t depth, lines, cols, segments, length, line_segments;
    size_t x_bytes, w_bytes;
} conv_layout;

/* Places that windows reach along an axis, from the first one's on. */
static int64_t reached(const conv_shape *s, int axis) { return (s->places[axis] - 1) * s->stride[axis] + (s->taps[axis] - 1) * s->dilation[axis] + 1; }

static conv_layout layout_of(const conv_shape *s) {
    conv_layout l = {.depth = round_up(s->channels, WORD), .lines = reached(s, 0), .cols = reached(s, 1)};
    l.line_segments = s->dilation[1] > 1 ? s->taps[1] : 1;
    l.segments = s->taps[0] * l.line_segments;
    l.length = s->taps[1] / l.line_segments * l.depth;
    l.x_bytes = base_align_up((size_t)(s->groups * s->batches * l.lines * l.cols * l.depth * ELEMENT), ALIGN);
    l.w_bytes = base_align_up((size_t)(s->groups * s->outputs * l.segments * l.length * ELEMENT), ALIGN);
    return l;
}

/* ---- which tile ---- */

typedef struct conv_boxes { int64_t cols, lines, images, tiles_m, tiles_x, tiles_y, tiles_b, units; } conv_boxes;

/* Boxes of at most tile->n places that lie side by side: some images, or some lines of one, or a part of a line. */
static conv_boxes boxes_of(const conv_shape *s, const conv_tile *tile) {
    const int64_t width = s->places[1], height = s->places[0], plane = width * height;
    conv_boxes b = {.cols = width, .lines = 1, .images = 1};
    if (width > tile->n) b.cols = least(tile->n, round_up(base_ceil_div(width, base_ceil_div(width, tile->n)), WORD));
    else if (plane > tile->n) b.lines = base_ceil_div(height, base_ceil_div(height, tile->n / width));
    else b.lines = height, b.images = least(tile->n / plane, s->batches);
    b.tiles_m = base_ceil_div(s->outputs, tile->m);
    b.tiles_x = base_ceil_div(width, b.cols);
    b.tiles_y = base_ceil_div(height, b.lines);
    b.tiles_b = base_ceil_div(s->batches, b.images);
    b.units = b.tiles_m * b.tiles_x * b.tiles_y * b.tiles_b * s->groups;
    return b;
}

static double microseconds(const conv_shape *s, const conv_layout *l, const conv_tile *tile, int multiprocessors) {
    const conv_boxes b = boxes_of(s, tile);
    return (double)base_ceil_div(b.units, multiprocessors) * ((double)(l->segments * base_ceil_div(l->length, CONV_K)) * tile->us_block + tile->us_tile);
}

static const conv_tile *tile_of(const conv_shape *s, const conv_layout *l, int multiprocessors, double *us) {
    const conv_tile *best = NULL;
    for (size_t i = 0; i < COUNT_OF(tiles); i++) {
        const double of_tile = microseconds(s, l, &tiles[i], multiprocessors);
        if (best == NULL || of_tile < *us) best = &tiles[i], *us = of_tile;
    }
    return best;
}

/* ---- choosing ---- */

const char *conv_wgmma_cuda_reject(const kernel_problem *problem, text *why) {
    const dw_format format = problem->in[0]->format;
    const op_type *weight = problem->in[1];
    const int64_t *strides, *dilations;
    const int last = op_attr_ints(problem->attrs, OP_ATTR_stride, &strides) - 1;
    const int64_t groups = op_attr_int(problem->attrs, OP_ATTR_groups);
    int64_t outputs;
    double elements = 1;
    op_attr_ints(problem->attrs, OP_ATTR_dilation, &dilations);
    if (format != DW_FORMAT_bf16 && format != DW_FORMAT_f16) return kernel_because(why, "x is %s, not bf16 or f16", dw_format_name(format));
    for (int i = 0; i < weight->rank; i++) {
        int64_t size;
        if (!dim_is_constant(weight->dims[i], &size)) return "the size of w is not known at plan time";
        elements *= (double)size;
    }
    dim_is_constant(weight->dims[0], &outputs);
    if (outputs / groups < CONV_LEAST_OUTPUTS) return kernel_because(why, "groups of %lld outputs do not pay; %d do", (long long)(outputs / groups), CONV_LEAST_OUTPUTS);
    if (elements == 0 || elements > INT32_MAX / 16) return "w has no elements, or more than are counted";
    if (strides[last] > 1 && dilations[last] > 1) return "windows have steps along a line, and so have their taps";
    return NULL;
}

/* Laying out reads x as it lies and writes it in words. The share of the bandwidth is that of transposes. */
double conv_wgmma_cuda_cost(const kernel_problem *problem) {
    kernel_typical typical;
    conv_shape s;
    double us = 0;
    const chip_caps *chip = problem->chip;
    if (!kernel_at_typical(problem, 0, &typical)) return chip->launch_s;
    if (op_tensor_count(typical.run.call.out[0]) == 0) return chip->launch_s;
    conv_shape_of(&typical.run.call, &s);
    const conv_layout l = layout_of(&s);
    tile_of(&s, &l, chip->units, &us);
    const double laid_out = op_tensor_bytes(s.x) + op_tensor_bytes(s.weight) + (double)l.x_bytes + (double)l.w_bytes;
    const double product = 1e-6 * us * 132 / chip->units, stored = op_tensor_bytes(s.out) / (0.7 * chip_bytes_per_s(chip));
    return 2 * chip->launch_s + laid_out / (0.6 * chip_bytes_per_s(chip)) + (product > stored ? product : stored);
}

size_t conv_wgmma_cuda_workspace(const kernel_run *run) {
    conv_shape s;
    if (op_tensor_count(run->call.out[0]) == 0) return 0;
    conv_shape_of(&run->call, &s);
    const conv_layout l = layout_of(&s);
    return l.x_bytes + l.w_bytes;
}

/* ---- the launches ---- */

/* Eight channels of x side by side, at 16 bytes. */
static bool lies_in_words(const conv_shape *s) {
    return s->x_strides[1] == 1 && s->channels % WORD == 0 && s->x_strides[0] % WORD == 0 && s->x_strides[2] % WORD == 0 && s->x_strides[3] % WORD == 0 && cuda_lies_at_16(s->x->data);
}

static dw_status add_layout(const kernel_run *run, kernel_launcher *launcher, const conv_shape *s, const conv_layout *l) {
    kernel_launch launch;
    conv_layout_arguments *a = cuda_launch(&launch, "conv_layout", "conv_layout", sizeof *a);
    conv_take_windows(s, &a->conv);
    a->groups = (int32_t)s->groups;
    a->channels = (int32_t)s->channels;
    a->depth = (int32_t)l->depth;
    a->lines = (int32_t)l->lines;
    a->cols = (int32_t)l->cols;
    a->segments = (int32_t)l->segments;
    a->length = (int32_t)l->length;
    a->taps_of_segment = (int32_t)(s->taps[1] / l->line_segments);
    a->in_words = lies_in_words(s);
    a->place_tiles = (int32_t)base_ceil_div(l->lines * l->cols, LAYOUT_PLACES);
    a->channel_tiles = (int32_t)base_ceil_div(l->depth, LAYOUT_CHANNELS);
    const int64_t x_blocks = (int64_t)a->place_tiles * a->channel_tiles * s->groups * s->batches;
    const int64_t w_blocks = base_ceil_div(s->groups * s->outputs * l->segments * (l->length / WORD), CUDA_THREADS);
    if (l->lines * l->cols > INT32_MAX / 2 || x_blocks + w_blocks > INT32_MAX) return base_fail(run->call.context, DW_LIMIT, "conv: x has more places than are counted; ask for cuda_conv_gemm");
    a->x_blocks = (int32_t)x_blocks;
    cuda_take_array(&launch, run, 0, &a->conv.x);
    cuda_take_array(&launch, run, 1, &a->conv.weight);
    cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &a->lines_at, 0);
    cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &a->weights_at, (int64_t)l->x_bytes);
    launch.overlaps = true;
    cuda_grid(&launch, x_blocks + w_blocks, 1, 1);
    return launcher->add(launcher, &launch);
}

static void take_map(kernel_launch *launch, const kernel_map *map, dw_format format, const void *field) {
    kernel_map *to = &launch->maps[launch->map_count];
    *to = *map;
    to->operand = KERNEL_WORKSPACE;
    to->type = format == DW_FORMAT_bf16 ? KERNEL_MAP_BF16 : KERNEL_MAP_F16;
    to->swizzle = KERNEL_SWIZZLE_128;
    to->promotion = KERNEL_PROMOTION_256;
    cuda_slot(launch, KERNEL_SLOT_MAP, launch->map_count++, field, 0);
}

static void take_maps(kernel_launch *launch, const conv_shape *s, const conv_layout *l, const conv_tile *tile, const conv_boxes *b, conv_wgmma_arguments *g) {
    const int64_t place = l->depth * ELEMENT, line = l->cols * place, step = l->line_segments > 1 ? 1 : s->stride[1];
    const kernel_map w = {
        .offset = (int64_t)l->x_bytes,
        .rank = 3,
        .dims = {(uint64_t)l->length, (uint64_t)l->segments, (uint64_t)(s->groups * s->outputs)},
        .strides = {(uint64_t)(l->length * ELEMENT), (uint64_t)(l->segments * l->length * ELEMENT)},
        .box = {CONV_K, 1, (uint32_t)tile->m},
    };
    const kernel_map x = {
        .rank = 5,
        .dims = {(uint64_t)l->length, (uint64_t)(l->line_segments > 1 ? l->cols : s->places[1]), (uint64_t)s->places[0], (uint64_t)s->taps[0], (uint64_t)(s->groups * s->batches)},
        .strides = {(uint64_t)(step * place), (uint64_t)(s->stride[0] * line), (uint64_t)(s->dilation[0] * line), (uint64_t)(l->lines * line)},
        .box = {CONV_K, (uint32_t)b->cols, (uint32_t)b->lines, 1, (uint32_t)b->images},
    };
    take_map(launch, &w, s->x->format, g->map_w);
    take_map(launch, &x, s->x->format, g->map_x);
}

/* Results of a row that are stored as one. */
static int run_of(const conv_shape *s, const conv_boxes *b) {
    const int64_t plane = s->places[0] * s->places[1], lines = b->lines * s->places[1];
    for (int run = WORD; run > 1 && cuda_lies_at_16(s->out->data); run = run == WORD ? 2 : 1)
        if (plane % run == 0 && (b->tiles_x == 1 || b->cols % run == 0) && (b->tiles_y == 1 || lines % run == 0)) return run;
    return 1;
}

static dw_status add_product(const kernel_run *run, kernel_launcher *launcher, const conv_shape *s, const conv_layout *l) {
    double us;
    const conv_tile *tile = tile_of(s, l, run->chip->units, &us);
    const conv_boxes b = boxes_of(s, tile);
    const dw_tensor *bias = kernel_operand(run, 2);
    kernel_launch launch;
    if (b.units > INT32_MAX) return base_fail(run->call.context, DW_LIMIT, "conv: the result has more tiles than are counted; ask for cuda_conv_gemm");
    conv_wgmma_arguments *g = cuda_launch(&launch, "conv_wgmma", tile->entries[s->x->format == DW_FORMAT_f16], sizeof *g);
    g->units = (int32_t)b.units;
    g->tiles_m = (int32_t)b.tiles_m;
    g->tiles_x = (int32_t)b.tiles_x;
    g->tiles_y = (int32_t)b.tiles_y;
    g->tiles_b = (int32_t)b.tiles_b;
    g->outputs = (int32_t)s->outputs;
    g->groups = (int32_t)s->groups;
    g->batches = (int32_t)s->batches;
    g->places_x = (int32_t)s->places[1];
    g->places_y = (int32_t)s->places[0];
    g->box_cols = (int32_t)b.cols;
    g->box_lines = (int32_t)b.lines;
    g->box_images = (int32_t)b.images;
    g->segments = (int32_t)l->segments;
    g->blocks = (int32_t)base_ceil_div(l->length, CONV_K);
    g->line_segments = (int32_t)l->line_segments;
    g->step_x = (int32_t)s->dilation[1];
    g->run = run_of(s, &b);
    cuda_take_array(&launch, run, KERNEL_RESULT, &g->out);
    g->has_bias = bias != NULL;
    if (bias != NULL) {
        g->bias_step = bias->strides[0];
        cuda_take_array(&launch, run, 2, &g->bias);
    }
    take_maps(&launch, s, l, tile, &b, g);
    launch.overlaps = true;
    launch.block[0] = CONV_WGMMA_THREADS;
    launch.shared_bytes = (uint32_t)CONV_WGMMA_BYTES(tile->m, tile->n, tile->stages);
    cuda_grid(&launch, least(b.units, run->chip->units), 1, 1);
    return launcher->add(launcher, &launch);
}

dw_status conv_wgmma_cuda_shape(const kernel_run *run, kernel_launcher *launcher) {
    conv_shape s;
    TRY(conv_check_groups(run));
    if (op_tensor_count(run->call.out[0]) == 0) return DW_OK;
    conv_shape_of(&run->call, &s);
    const conv_layout l = layout_of(&s);
    TRY(add_layout(run, launcher, &s, &l));
    return add_product(run, launcher, &s, &l);
}
