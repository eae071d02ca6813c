/* A model on several ranks: over which axis of the mesh its graphs are cut, and the place of this rank in what loading and runs compute. */
#include "engine/engine.h"

#include <string.h>

#define CUT ENGINE_CUT_AXIS
#define REPLICAS "dp"     /* along it ranks are replicas: nothing in a graph is theirs */

/* That of the communicator, or of a plan alone. *there is false where the rank is alone. */
static dw_status find_mesh(const dw_model *model, op_mesh *mesh, bool *there)
{
    const dw_model_options *options = &model->options;
    *there = options->comm != NULL || options->mesh != NULL;
    if (options->comm != NULL && options->mesh != NULL)
        return base_fail(model->context, DW_INVALID, "mesh %s: the communicator has a mesh already, %s; leave it out", options->mesh, dw_comm_mesh(options->comm));
    if (options->mesh != NULL && !(model->flags & DW_MODEL_PLAN_ONLY))
        return base_fail(model->context, DW_INVALID, "mesh %s: a mesh alone is for plans that are not run; a model that runs on several ranks is given a communicator", options->mesh);
    if (options->comm != NULL) *mesh = *comm_mesh(options->comm);
    else if (options->mesh != NULL) return op_mesh_parse(model->context, options->mesh, mesh);
    return DW_OK;
}

static dw_status check_axes(const dw_model *model, const op_mesh *mesh)
{
    for (int i = 0; i < mesh->count; i++) {
        const op_mesh_axis *axis = &mesh->axes[i];
        if (axis->size == 1 || strcmp(axis->name, CUT) == 0 || strcmp(axis->name, REPLICAS) == 0) continue;
        return base_fail(model->context, DW_INVALID, "mesh: no model is cut over axis '%s' (%d ranks); there are " CUT ", over which it is, and " REPLICAS ", over which ranks are replicas", axis->name, axis->size);
    }
    return DW_OK;
}

dw_status engine_splits_create(dw_model *model, pass_splits **splits)
{
    op_mesh mesh;
    bool there;
    *splits = NULL;
    model->chip.link = model->options.comm == NULL || comm_kernels(model->options.comm)->shares_memory ? CHIP_LINK_threads : CHIP_LINK_engine;
    TRY(find_mesh(model, &mesh, &there));
    if (there) TRY(check_axes(model, &mesh));
    const int axis = there ? op_mesh_find(&mesh, CUT) : -1, ranks = axis >= 0 ? mesh.axes[axis].size : 1;
    if (ranks == 1 && model->options.shard != NULL && model->options.shard[0] != '\0')
        return base_fail(model->context, DW_INVALID, "shard: there is one rank of " CUT ", and nothing to cut; give a communicator with more, or such a mesh for a plan alone");
    return there ? pass_splits_create(model->context, CUT, ranks, "shard", model->options.shard, splits) : DW_OK;
}

/* Plans alone are those of the first rank: all have one text. */
dw_status engine_place(const dw_model *model, plan *plan)
{
    const dw_comm *comm = model->options.comm;
    const dim_table *dims = plan->graph->dims;
    for (int i = 0; i < dim_symbol_count(dims); i++) {
        const char *name = dim_symbol_name(dims, i);
        if (strncmp(name, DIM_RANK, strlen(DIM_RANK)) != 0) continue;
        const int axis = comm != NULL ? op_mesh_find(comm_mesh(comm), name + strlen(DIM_RANK)) : -1;
        if (comm != NULL && axis < 0) return base_fail(model->context, DW_MISMATCH, "the graph has the place %s, and the mesh is %s", name, dw_comm_mesh(comm));
        if (comm == NULL && !(model->flags & DW_MODEL_PLAN_ONLY))
            return base_fail(model->context, DW_INVALID, "the graph has the place %s, and this rank is alone: give the model a communicator", name);
        plan->typical[i] = comm != NULL ? op_mesh_place(comm_mesh(comm), dw_comm_rank(comm), axis) : 0;
    }
    return DW_OK;
}

/* ---- bytes of all ranks ---- */

static const kernel_row *find_gather(void)
{
    for (int i = 0; i < kernel_count(); i++)
        if (kernel_at(i)->op == OP_all_gather && kernel_at(i)->device == CHIP_CPU) return kernel_at(i);
    return NULL;
}

int engine_cut_ranks(const dw_model *model)
{
    const dw_comm *comm = model->options.comm;
    const int axis = comm != NULL ? op_mesh_find(comm_mesh(comm), CUT) : -1;
    return axis >= 0 ? comm_mesh(comm)->axes[axis].size : 1;
}

int engine_cut_place(const dw_model *model)
{
    const dw_comm *comm = model->options.comm;
    const int axis = comm != NULL ? op_mesh_find(comm_mesh(comm), CUT) : -1;
    return axis >= 0 ? op_mesh_place(comm_mesh(comm), dw_comm_rank(comm), axis) : 0;
}

/* One all_gather of bytes, apart from any plan; its tensors point into itself. */
typedef struct gather { dw_tensor part, all; const dw_tensor *in[1], *out[1]; op_attr items[3]; op_attrs attrs; kernel_run run; const kernel_row *row; } gather;

static dw_status make_gather(dw_context *context, const dw_model *model, size_t bytes, gather *g)
{
    const int ranks = engine_cut_ranks(model);
    const int64_t one[] = {1, (int64_t)bytes}, all[] = {ranks, (int64_t)bytes};
    *g = (gather){.items = {op_set_int(OP_ATTR_axis, 0), op_set_text(OP_ATTR_over, CUT), op_set_int(OP_ATTR_ranks, ranks)}, .row = find_gather()};
    if (g->row == NULL) return base_fail(context, DW_INTERNAL, "no kernel gathers bytes");
    g->attrs = (op_attrs){COUNT_OF(g->items), g->items};
    g->in[0] = &g->part;
    g->out[0] = &g->all;
    op_tensor_init(&g->part, DW_FORMAT_u8, DW_SCALE_plain, 2, one, NULL);
    op_tensor_init(&g->all, DW_FORMAT_u8, DW_SCALE_plain, 2, all, NULL);
    g->run = (kernel_run){.call = {.context = context, .op = op_get(OP_all_gather), .attrs = &g->attrs, .n_in = 1, .in = g->in, .n_out = 1, .out = g->out},
                          .chip = &model->chip, .comm = comm_kernels(model->options.comm), .user = g->row->user};
    return base_pool(context, &g->run.pool);
}

dw_status engine_gather_room(dw_context *context, const dw_model *model, size_t bytes, size_t *room)
{
    gather g;
    TRY(make_gather(context, model, bytes, &g));
    *room = kernel_workspace(g.row, &g.run);
    return DW_OK;
}

/* It fails before it meets the others, who may be there. */
static dw_status cannot_gather(dw_context *context, const dw_model *model, dw_status status)
{
    comm_begin(model->options.comm);
    comm_tell(model->options.comm, context, CUT, 0, status);
    return status;
}

dw_status engine_gather_in(dw_context *context, const dw_model *model, const void *part, size_t bytes, void *parts, void *workspace)
{
    gather g;
    const dw_status status = make_gather(context, model, bytes, &g);
    if (status != DW_OK) return cannot_gather(context, model, status);
    g.part.data = (void *)(uintptr_t)part;
    g.all.data = parts;
    g.run.workspace = workspace;
    return kernel_execute(g.row, &g.run);
}

dw_status engine_gather_bytes(dw_context *context, const dw_model *model, const void *part, size_t bytes, void *parts)
{
    void *workspace = NULL;
    size_t room = 0;
    dw_status status = engine_gather_room(context, model, bytes, &room);
    if (status == DW_OK && room > 0) status = base_alloc(context, room, ENGINE_ALIGN, &workspace);
    if (status != DW_OK) return cannot_gather(context, model, status);
    status = engine_gather_in(context, model, part, bytes, parts, workspace);
    if (room > 0) base_release(context, workspace, room, ENGINE_ALIGN);
    return status;
}
