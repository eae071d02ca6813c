/* What Deepwell needs of MPI: two functions that move bytes along an axis of the mesh, tp here. */
#ifndef EXAMPLES_MPI_H
#define EXAMPLES_MPI_H

#include <deepwell/deepwell.h>

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

/* The ranks along each axis of the mesh that lie with this one: here one axis, and all of them. Of "dp=2,tp=4" MPI_Cart_create makes a grid, and MPI_Cart_sub those. */
typedef struct mpi { MPI_Comm along[1]; char words[MPI_MAX_ERROR_STRING]; } mpi;

static int status_of(mpi *m, int error) {
    int length;
    if (error == MPI_SUCCESS) return DW_OK;
    MPI_Error_string(error, m->words, &length);
    return DW_LOST;
}

static int all_gather(void *user, int axis, const void *part, void *parts, size_t bytes) {
    mpi *m = user;
    return status_of(m, MPI_Allgather(part, (int)bytes, MPI_BYTE, parts, (int)bytes, MPI_BYTE, axis < 0 ? MPI_COMM_WORLD : m->along[axis]));
}

static int all_to_all(void *user, int axis, const void *parts, void *received, size_t bytes) {
    mpi *m = user;
    return status_of(m, MPI_Alltoall(parts, (int)bytes, MPI_BYTE, received, (int)bytes, MPI_BYTE, axis < 0 ? MPI_COMM_WORLD : m->along[axis]));
}

static const char *words_of(void *user) { return ((mpi *)user)->words; }

#define DO(call) if ((call) != DW_OK) { fprintf(stderr, "rank %d: %s\n", rank, dw_context_error(context)); MPI_Abort(MPI_COMM_WORLD, 1); }

#endif
