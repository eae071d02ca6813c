/* Lines of ranks: those along an axis of the mesh with a rank, and all of them. */
#include "comm/internal.h"

int comm_count(const dw_comm *comm, int line) { return line == COMM_ALL ? comm->world : comm->mesh.axes[line].size; }
int comm_place(const dw_comm *comm, int line) { return line == COMM_ALL ? comm->rank : op_mesh_place(&comm->mesh, comm->rank, line); }
int comm_member(const dw_comm *comm, int line, int place) { return line == COMM_ALL ? place : comm->rank + (place - comm_place(comm, line)) * op_mesh_stride(&comm->mesh, line); }
const char *comm_line_name(const dw_comm *comm, int line) { return line == COMM_ALL ? "all ranks" : comm->mesh.axes[line].name; }
