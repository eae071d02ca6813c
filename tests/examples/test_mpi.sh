#!/bin/sh
# examples/mpi.c over two and three ranks of MPI: the carried model as by examples/run, and a graph whose sum over the ranks decides; ranks of another graph, and one that is killed.
set -eu
if [ -n "${DEEPWELL_SANITIZE:-}" ]; then
    echo "not run: sanitizers report what Open MPI does with its memory; tests/comm runs the same calls under them"
    exit 77
fi
program="${DEEPWELL_BUILD:-build}/examples/mpi"
[ -x "$program" ] || { echo "not run: there was no MPI when this was built; scripts/setup.sh installs it"; exit 77; }
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_plm_rsh_agent=false OMPI_MCA_btl_vader_single_copy_mechanism=none

mpirun -np 2 "$program" models/kjv.pt2 73 110 32 116 104 101 32 98 101 103 105 110 110 105 110 | grep -qx 'the likeliest next id is 103'

# A service: what rank 0 has of its texts is what one rank alone makes of them; rank 1 follows until it stops.
printf '73 110 32 116 104 101 32 98\n65 110 100 32\n' | "${DEEPWELL_BUILD:-build}/examples/serve" models/kjv.pt2 12 | sort > "$place/alone"
mpirun -np 2 "${DEEPWELL_BUILD:-build}/examples/mpi_serve" models/kjv.pt2 12 73,110,32,116,104,101,32,98 65,110,100,32 | cmp - "$place/alone"

for ranks in 2 3; do
    cat > "$place/graph$ranks" <<GRAPH
graph ids
  symbol n 1..16
  input ids i64[1,n]
  const table f32[2,3] = 0.25, 0.5, 0.125, 1, 3, 2
  %1 = take table, ids {axis=0}
  %2 = all_reduce %1 {over="tp",ranks=$ranks,by="sum"} at "head"
  output logits %2
GRAPH
    mpirun -np $ranks "$program" "$place/graph$ranks" 0 1 | grep -qx 'the likeliest next id is 1'
done

# Ranks of another mesh than the graph's: the error is everybody's, and nobody waits.
! mpirun -np 3 "$program" "$place/graph2" 0 1 > "$place/out" 2> "$place/err"
grep -q 'MISMATCH: all_reduce %2 is over 2 ranks of tp, and the mesh is tp=3' "$place/err"
