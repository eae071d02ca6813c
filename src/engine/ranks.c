/* A model on several ranks: over which axis of the mesh its graphs are cut, and the place of this rank in what loading and runs compute. */
#include "engine/engine.h"

#include <string.h>

#define CUT "tp"          /* the axis over which a model is cut; along */
#define REPLICAS "dp"     /* this one ranks are replicas: nothing in a graph is theirs */

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

dw_status engine_splits_create(const dw_model *model, pass_splits **splits)
{
    op_mesh mesh;
    bool there;
    *splits = NULL;
    TRY(find_mesh(model, &mesh, &there));
    if (!there && model->options.shard != NULL && model->options.shard[0] != '\0')
        return base_fail(model->context, DW_INVALID, "shard: there is one rank, and nothing to cut; give a communicator, or a mesh for a plan alone");
    if (!there) return DW_OK;
    TRY(check_axes(model, &mesh));
    const int axis = op_mesh_find(&mesh, CUT);
    return pass_splits_create(model->context, CUT, axis >= 0 ? mesh.axes[axis].size : 1, "shard", model->options.shard, splits);
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
