/* Runs a model over the ranks of MPI: mpirun -np 2 build/examples/mpi models/kjv.pt2 73 110. Each rank makes the same model with a communicator; rank 0 says which id is the likeliest next.
 * What Deepwell needs of MPI are two functions that move bytes along an axis of the mesh, tp here. */
#include <deepwell/deepwell.h>

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct mpi { MPI_Comm all, along[1]; char words[MPI_MAX_ERROR_STRING]; } mpi;

static int status_of(mpi *m, int error) {
    int length;
    if (error == MPI_SUCCESS) return DW_OK;
    MPI_Error_string(error, m->words, &length);
    return DW_LOST;
}

static int all_gather(void *user, int axis, const void *part, void *parts, size_t bytes) {
    mpi *m = user;
    return status_of(m, MPI_Allgather(part, (int)bytes, MPI_BYTE, parts, (int)bytes, MPI_BYTE, axis < 0 ? m->all : m->along[axis]));
}

static int all_to_all(void *user, int axis, const void *parts, void *received, size_t bytes) {
    mpi *m = user;
    return status_of(m, MPI_Alltoall(parts, (int)bytes, MPI_BYTE, received, (int)bytes, MPI_BYTE, axis < 0 ? m->all : m->along[axis]));
}

static const char *words_of(void *user) { return ((mpi *)user)->words; }

/* The ranks as a grid, one axis long, and those along each axis of it; a mesh "dp=2,tp=4" is a grid of 2 x 4. What fails is returned, so that the message says at which op. */
static void divide(mpi *m, int world) {
    const int periods[1] = {0}, keeps[1] = {1};
    MPI_Cart_create(MPI_COMM_WORLD, 1, &world, periods, 0, &m->all);
    MPI_Cart_sub(m->all, keeps, &m->along[0]);
    MPI_Comm_set_errhandler(m->all, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(m->along[0], MPI_ERRORS_RETURN);
}

#define DO(call) if ((call) != DW_OK) { fprintf(stderr, "rank %d: %s\n", rank, dw_context_error(context)); MPI_Abort(MPI_COMM_WORLD, 1); }

int main(int argc, char **argv) {
    int64_t ids[16], count = argc - 2, best = 0;
    int rank, world;
    mpi m = {0};
    dw_context *context;
    dw_comm *comm;
    dw_model *model;
    dw_session *session;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    if (count < 1 || count > 16 || dw_context_create(&(dw_context_options){.threads = 1}, &context) != DW_OK) MPI_Abort(MPI_COMM_WORLD, 2);
    for (int i = 0; i < count; i++) ids[i] = atoll(argv[i + 2]);

    divide(&m, world);
    const dw_collectives engine = {all_gather, all_to_all, &m, words_of};
    DO(dw_comm_create(context, "cpu", &(dw_comm_options){.rank = rank, .world = world, .engine = &engine}, &comm));
    DO(dw_model_open(context, argv[1], &(dw_model_options){.comm = comm}, &model));
    dw_named_tensor input = {.name = dw_model_input(model, 0, NULL),
                             .tensor = {.format = DW_FORMAT_i64, .rank = 2, .dims = {1, count}, .strides = {count, 1}, .data = ids}};
    dw_named_tensor output;
    DO(dw_session_create(context, model, NULL, &session));
    DO(dw_session_reserve(session, 1, &input));
    DO(dw_session_shapes(session, 1, &input, &output));
    float *logits = output.tensor.data = malloc((size_t)(count * output.tensor.dims[2]) * sizeof *logits);
    DO(dw_session_run(session, 1, &input, 1, &output));

    const float *last = logits + (count - 1) * output.tensor.dims[2];
    for (int64_t i = 1; i < output.tensor.dims[2]; i++) best = last[i] > last[best] ? i : best;
    if (rank == 0) printf("the likeliest next id is %lld\n", (long long)best);
    free(logits);
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_comm_destroy(comm);
    dw_context_destroy(context);
    MPI_Finalize();
    return 0;
}
