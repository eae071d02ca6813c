/* Meshes of ranks: axes by name and size, as text and as numbers. Knows nothing of who the ranks are. */
#include "op/op.h"

#include <string.h>

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static dw_status fail(dw_context *context, dw_status status, const char *text, const char *why) {
    return base_fail(context, status, "mesh '%s': %s; a mesh is axes with their sizes, the outermost first, as in dp=2,tp=4", text, why);
}

/* One axis from *at on, which moves behind it. */
static dw_status parse_axis(dw_context *context, const char *text, const char **at, op_mesh *mesh) {
    const char *name = *at;
    size_t length = 0;
    int64_t size = 0;
    if (mesh->count == OP_MESH_AXES) return fail(context, DW_LIMIT, text, "it has more than 5 axes");
    while (is_letter(name[length]) || (length > 0 && is_digit(name[length]))) length++;
    if (length == 0 || name[length] != '=') return fail(context, DW_SYNTAX, text, "a name and '=' are expected");
    if (length >= OP_MESH_NAME) return fail(context, DW_LIMIT, text, "the name of an axis has more than 15 letters");
    const char *digits = name + length + 1;
    for (*at = digits; is_digit(**at); ++*at) size = size > OP_MESH_RANKS ? size : size * 10 + (**at - '0');
    if (*at == digits) return fail(context, DW_SYNTAX, text, "a size is expected behind '='");
    if (size < 1) return fail(context, DW_INVALID, text, "an axis has 1 rank or more");
    if (size > OP_MESH_RANKS) return fail(context, DW_LIMIT, text, "it has more than 4096 ranks");
    op_mesh_axis *axis = &mesh->axes[mesh->count];
    memcpy(axis->name, name, length);
    axis->name[length] = '\0';
    axis->size = (int)size;
    if (op_mesh_find(mesh, axis->name) >= 0) return fail(context, DW_INVALID, text, "an axis is there twice");
    mesh->count++;
    return DW_OK;
}

dw_status op_mesh_parse(dw_context *context, const char *text, op_mesh *mesh) {
    int64_t world = 1;
    const char *at = text;
    *mesh = (op_mesh){0};
    for (;; at++) {
        TRY(parse_axis(context, text, &at, mesh));
        world *= mesh->axes[mesh->count - 1].size;
        if (world > OP_MESH_RANKS) return fail(context, DW_LIMIT, text, "it has more than 4096 ranks");
        if (*at == '\0') return DW_OK;
        if (*at != ',') return fail(context, DW_SYNTAX, text, "',' is expected between axes");
    }
}

void op_mesh_print(text *text, const op_mesh *mesh) {
    for (int i = 0; i < mesh->count; i++) text_printf(text, "%s%s=%d", i > 0 ? "," : "", mesh->axes[i].name, mesh->axes[i].size);
}

int op_mesh_find(const op_mesh *mesh, const char *name) {
    for (int i = 0; i < mesh->count; i++)
        if (strcmp(mesh->axes[i].name, name) == 0) return i;
    return -1;
}

int op_mesh_stride(const op_mesh *mesh, int axis) {
    int stride = 1;
    for (int i = axis + 1; i < mesh->count; i++) stride *= mesh->axes[i].size;
    return stride;
}

int op_mesh_world(const op_mesh *mesh) { return op_mesh_stride(mesh, -1); }

int op_mesh_place(const op_mesh *mesh, int rank, int axis) { return rank / op_mesh_stride(mesh, axis) % mesh->axes[axis].size; }
