/* Fuzzes texts of meshes: one is refused with a reason, or printed and read again as the same, and every rank has a place on each axis that leads back to it. */
#include <stdlib.h>
#include <string.h>

#include "op/op.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void find_ranks(const op_mesh *mesh) {
    const int world = op_mesh_world(mesh);
    if (world < 1 || world > OP_MESH_RANKS) abort();
    for (int rank = 0; rank < world; rank += 1 + world / 64) {
        int found = 0;
        for (int axis = 0; axis < mesh->count; axis++) {
            const int place = op_mesh_place(mesh, rank, axis);
            if (place < 0 || place >= mesh->axes[axis].size || op_mesh_find(mesh, mesh->axes[axis].name) != axis) abort();
            found += place * op_mesh_stride(mesh, axis);
        }
        if (found != rank) abort();
    }
}

static void print_again(dw_context *context, const op_mesh *mesh) {
    text words, again;
    op_mesh read;
    text_init(&words, context);
    text_init(&again, context);
    op_mesh_print(&words, mesh);
    if (op_mesh_parse(context, text_string(&words), &read) != DW_OK) abort();
    op_mesh_print(&again, &read);
    if (strcmp(text_string(&words), text_string(&again)) != 0) abort();
    text_free(&words);
    text_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    dw_context *context;
    op_mesh mesh;
    char *given = malloc(length + 1);
    if (given == NULL || dw_context_create(NULL, &context) != DW_OK) return 0;
    if (length > 0) memcpy(given, bytes, length);
    given[length] = '\0';
    const dw_status status = op_mesh_parse(context, given, &mesh);
    if (status == DW_INTERNAL || (status != DW_OK && dw_context_error(context)[0] == '\0')) abort();
    if (status == DW_OK) {
        find_ranks(&mesh);
        print_again(context, &mesh);
    }
    dw_context_destroy(context);
    free(given);
    return 0;
}
