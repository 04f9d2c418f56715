#!/bin/bash
# far.sh BIN ranks "cols" sizes variants...: runs only while far
bin=$1 n=$2 cols=$3 sizes=$4; shift 4
one() { # collective variant
 I_MPI_FABRICS=shm PATH=/tmp/mpi/i/bin:$PATH LD_LIBRARY_PATH=/tmp/mpi/i/lib env ${2//,/ } /tmp/setq.sh mpiexec -n $n $bin perf $1 --place out --rounds 5 --min-time 4 -c 0 --sizes $sizes --engine oxccl --engine mpich=/tmp/mpi/i/lib/libmpi.so.12 2>&1 | grep -E "^#\s+[0-9]+\s+[0-9.]+ \(" | awk '{printf " %s(%s)", $3, $(NF-1)}' | sed 's/^/ /'
}
end=$((SECONDS+${LIMIT:-240}))
for c in $cols; do for v in "$@"; do
 got=0
 while [ $SECONDS -lt $end ] && [ $got -lt 2 ]; do
  t0=$(/tmp/z4/rt | sed 's/round trip \([0-9]*\).*/\1/')
  if [ $t0 -gt 400 ]; then r=$(one $c $v); t1=$(/tmp/z4/rt | sed 's/round trip \([0-9]*\).*/\1/'); if [ $t1 -gt 400 ]; then echo "$c $v $t0 $t1 $r"; got=$((got+1)); fi; else sleep 0.3; fi
 done
done; done
