/* Registered kernels: the caller's functions as rows of the choice, looked at before Deepwell's own. */
#include "engine/engine.h"

#include <math.h>
#include <string.h>

typedef struct registered {
    dw_kernel_options options;
    dw_format format;
    kernel_row row;
} registered;

struct dw_registry {
    dw_context *context;
    arena arena;
    kernel_registry rows;      /* rows.rows is a growing array; each row's user is its registered */
    size_t capacity;
};

dw_status dw_registry_create(dw_context *context, dw_registry **registry) {
    void *memory;
    *registry = NULL;
    TRY(base_alloc(context, sizeof(dw_registry), _Alignof(max_align_t), &memory));
    *registry = memory;
    **registry = (dw_registry){.context = context};
    arena_init(&(*registry)->arena, context);
    return DW_OK;
}

void dw_registry_destroy(dw_registry *registry) {
    if (registry == NULL) return;
    dw_context *context = registry->context;
    arena_free(&registry->arena);
    base_release(context, registry, sizeof *registry, _Alignof(max_align_t));
}

const kernel_registry *engine_registry_rows(const dw_registry *registry) { return registry ? &registry->rows : NULL; }

/* The least work at any size: symbols at their minimum. */
static double least_work(const kernel_problem *problem) {
    const op_type *out = problem->out[0];
    double work = 1;
    int64_t min, max;
    for (int i = 0; i < out->rank; i++) {
        dim_range(problem->dims, out->dims[i], &min, &max);
        work *= (double)min;
    }
    if (problem->op->id == OP_matmul || problem->op->id == OP_grouped_matmul) {
        dim_range(problem->dims, problem->in[0]->dims[problem->in[0]->rank - 1], &min, &max);
        work *= (double)min;
    }
    return work;
}

static const char *reject_registered(const kernel_problem *problem, text *why) {
    const registered *kernel = problem->user;
    if (kernel->format != DW_FORMAT_COUNT)
        for (int i = 0; i < problem->n_in && i < 2; i++)
            if (problem->in[i] != NULL && problem->in[i]->format != kernel->format) {
                text_printf(why, "operand %d is %s, it takes %s", i, dw_format_name(problem->in[i]->format), dw_format_name(kernel->format));
                return text_string(why);
            }
    if (problem->chip->kind != CHIP_CPU) return "it runs on the CPU";
    if (kernel->options.min_size > 0 && least_work(problem) < (double)kernel->options.min_size) {
        text_printf(why, "the least size is %.0f, below its minimum of %lld", least_work(problem), (long long)kernel->options.min_size);
        return text_string(why);
    }
    return problem->post.count > 0 && !kernel->options.can_post ? "it applies no post list" : NULL;   /* the last reason: without the list it takes the rest */
}

static dw_status print_size(const kernel_run *run, text *out, dim size) {
    int64_t number;
    TRY(dim_eval(run->call.context, size, run->call.symbols, &number));
    text_printf(out, "%lld", (long long)number);
    return DW_OK;
}

/* {"bt":true,"shape":[2,3]} */
static dw_status print_attributes(const kernel_run *run, text *out) {
    const op_attrs *attrs = run->call.attrs;
    bool first = true;
    text_add(out, "{");
    for (int i = 0; i < attrs->count; i++) {
        const op_attr *attr = &attrs->items[i];
        if (attr->id == OP_ATTR_post) continue;
        text_printf(out, "%s\"%s\":", first ? "" : ",", op_attr_name(attr->id));
        first = false;
        switch (op_attr_kind_of(attr->id)) {
        case OP_KIND_INT:    text_printf(out, "%lld", (long long)attr->integer); break;
        case OP_KIND_BOOL:   text_add(out, attr->integer ? "true" : "false"); break;
        case OP_KIND_REAL:
            if (isfinite(attr->real)) text_real(out, attr->real);
            else text_printf(out, "\"%s\"", isnan(attr->real) ? "nan" : attr->real > 0 ? "inf" : "-inf");
            break;
        case OP_KIND_TEXT:   text_json_string(out, attr->text); break;
        case OP_KIND_FORMAT: text_json_string(out, dw_format_name(attr->format)); break;
        case OP_KIND_DIM:    TRY(print_size(run, out, attr->dim)); break;
        case OP_KIND_INTS:
        case OP_KIND_DIMS:
            text_add(out, "[");
            for (int k = 0; k < attr->count; k++) {
                text_add(out, k ? "," : "");
                if (op_attr_kind_of(attr->id) == OP_KIND_DIMS) TRY(print_size(run, out, attr->dims[k]));
                else text_printf(out, "%lld", (long long)attr->integers[k]);
            }
            text_add(out, "]");
            break;
        }
    }
    text_add(out, "}");
    return text_status(out);
}

static dw_status run_registered(const kernel_run *run) {
    const registered *kernel = run->user;
    text post, attributes;
    text_init(&post, run->call.context);
    text_init(&attributes, run->call.context);
    for (int i = 0; i < run->post.count; i++) text_printf(&post, "%s%s", i ? "," : "", op_post_name(run->post.steps[i]));
    dw_kernel_call call = {
        .op = run->call.op->name,
        .input_count = run->call.n_in,
        .output_count = run->call.n_out,
        .inputs = run->call.in,
        .outputs = run->call.out,
        .threads = pool_threads(run->pool),
        .user = kernel->options.user,
    };
    dw_status status = print_attributes(run, &attributes);
    if (status == DW_OK) status = text_status(&post);
    call.post = text_string(&post);
    call.attributes = text_string(&attributes);
    bool called = status == DW_OK;
    if (called) status = kernel->options.run(&call);
    text_free(&post);
    text_free(&attributes);
    if (!called) return status;
    if (status != DW_OK)
        return base_fail(run->call.context, status, "registered kernel %s returned %s", kernel->options.name, dw_status_name(status));
    return DW_OK;
}

static double cost_registered(const kernel_problem *problem) {
    return kernel_roofline(problem, problem->in[0] ? problem->in[0]->format : DW_FORMAT_f32, 1, 1);
}

dw_status dw_registry_add(dw_registry *registry, const dw_kernel_options *options) {
    dw_context *context = registry->context;
    registered *kernel;
    if (options->name == NULL || options->name[0] == '\0' || options->run == NULL)
        return base_fail(context, DW_INVALID, "a registered kernel needs a name and a function");
    for (int i = 0; i < registry->rows.count; i++)
        if (strcmp(registry->rows.rows[i].name, options->name) == 0)
            return base_fail(context, DW_INVALID, "a kernel named %s is registered already", options->name);
    op_id op = op_find(options->op ? options->op : "matmul");
    if (op == OP_COUNT) return base_fail(context, DW_NOT_FOUND, "registered kernel %s: there is no op named %s", options->name, options->op);
    if (op_has(op, OP_TRAIT_COLLECTIVE))
        return base_fail(context, DW_UNSUPPORTED, "registered kernel %s: %s reaches other ranks, which no kernel of the caller's does; what carries the bytes may be the caller's (dw_comm_options.engine)", options->name, options->op);
    dw_format format = options->precision ? dw_format_find(options->precision) : DW_FORMAT_COUNT;
    if (options->precision != NULL && format == DW_FORMAT_COUNT)
        return base_fail(context, DW_NOT_FOUND, "registered kernel %s: there is no format named %s", options->name, options->precision);
    TRY_NEW(kernel, &registry->arena, 1);
    *kernel = (registered){.options = *options, .format = format};
    kernel->options.name = arena_text(&registry->arena, options->name);
    if (kernel->options.name == NULL) return DW_NO_MEMORY;
    kernel_row *rows = arena_grow(&registry->arena, (void *)(uintptr_t)registry->rows.rows, (size_t)registry->rows.count, &registry->capacity,
                                  sizeof *rows);
    if (rows == NULL) return DW_NO_MEMORY;
    rows[registry->rows.count++] = (kernel_row){
        .name = kernel->options.name,
        .op = op,
        .device = CHIP_CPU,
        .in_place = -1,
        .packs = -1,
        .reject = reject_registered,
        .cost = cost_registered,
        .run = run_registered,
        .registered = true,
        .user = kernel,
    };
    registry->rows.rows = rows;
    return DW_OK;
}
