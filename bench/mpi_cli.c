/* The command line over the ranks of MPI: mpirun -np 2 build/bench/mpi_cli run FILE --in X.safetensors --out Y.safetensors. Each process is a rank of the command; the first writes results.
 * bench/ranks.py holds models by it beside threads and gloo. How a program of one's own does it is examples/mpi.c. */
#include <deepwell/deepwell.h>

#include <mpi.h>
#include <stdio.h>

#include "cli.h"

static int status_of(int error) { return error == MPI_SUCCESS ? DW_OK : DW_LOST; }

/* The mesh has one axis, of all ranks. */
static int all_gather(void *user, int axis, const void *part, void *parts, size_t bytes) {
    (void)user;
    (void)axis;
    return status_of(MPI_Allgather(part, (int)bytes, MPI_BYTE, parts, (int)bytes, MPI_BYTE, MPI_COMM_WORLD));
}

static int all_to_all(void *user, int axis, const void *parts, void *received, size_t bytes) {
    (void)user;
    (void)axis;
    return status_of(MPI_Alltoall(parts, (int)bytes, MPI_BYTE, received, (int)bytes, MPI_BYTE, MPI_COMM_WORLD));
}

int main(int argc, char **argv) {
    int rank, world, code = CLI_FAILED;
    dw_context *context;
    dw_comm *comm;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    if (dw_context_create(&(dw_context_options){.threads = 1}, &context) != DW_OK) MPI_Abort(MPI_COMM_WORLD, 2);
    const dw_collectives engine = {.all_gather = all_gather, .all_to_all = all_to_all};
    if (dw_comm_create(context, "cpu", &(dw_comm_options){.rank = rank, .world = world, .engine = &engine}, &comm) == DW_OK) {
        code = cli_main_of_rank(argc, argv, comm);
        dw_comm_destroy(comm);
    } else {
        fprintf(stderr, "mpi_cli: %s\n", dw_context_error(context));
    }
    dw_context_destroy(context);
    MPI_Finalize();
    return code;
}
