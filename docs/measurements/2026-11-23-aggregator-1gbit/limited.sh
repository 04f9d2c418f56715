#!/bin/bash
# Four hosts (network namespaces on one bridge) whose interfaces carry RATE each way; aggregators on hosts of their own.
# usage: limited.sh OXCCL-TOOL ROUNDS [SIZES]     needs root, iproute2, the tbf queue discipline
# ROUNDS=10 ITERS=1: each operation by itself, 10 times.
# BEFORE=another version's tool: its servers and ranks too, in the same turns. ONLY="ring wide": these alone.
set -u
tool=$1 rounds=$2 sizes=${3:-64K,256K,1M,4M,16M,64M} rate=${RATE:-1gbit} before=${BEFORE:-} only=${ONLY:-ring wide four}
name=oxlim$$; out=${OUT:-out}; mkdir -p $out
hosts=8          # 0 to 3 have ranks, 4 to 7 may have servers
cleanup() { kill $(jobs -p) 2>/dev/null; for h in $(seq 0 $((hosts-1))) hub wide; do ip netns del $name-$h 2>/dev/null; done; }
trap cleanup EXIT
ip netns add $name-hub; ip -n $name-hub link add bridge0 type bridge; ip -n $name-hub link set bridge0 up
host() { # number address rate
  ip netns add $name-$1; ip -n $name-hub link add port$1 type veth peer name eth0 netns $name-$1
  ip -n $name-hub link set port$1 master bridge0 up
  ip -n $name-$1 link set lo up; ip -n $name-$1 address add 10.78.0.$2/24 dev eth0; ip -n $name-$1 link set eth0 up
  if [ $3 != none ]; then
    ip netns exec $name-$1 tc qdisc replace dev eth0 root tbf rate $3 burst 128kb limit 4mb
    ip netns exec $name-hub tc qdisc replace dev port$1 root tbf rate $3 burst 128kb limit 4mb
  fi
}
for h in $(seq 0 $((hosts-1))); do host $h $((h+1)) $rate; done
host wide 100 none
export OXCCL_COMM_SECRET=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
serve() { # tool port
  for h in 4 5 6 7; do ip netns exec $name-$h $1 aggregate --listen 10.78.0.$((h+1)):$2 >$out/server$h.$2 2>&1 & done
  ip netns exec $name-wide $1 aggregate --listen 10.78.0.100:$2 >$out/serverwide.$2 2>&1 &
}
serve $tool 28040
if [ -n "$before" ]; then serve $before 28041; fi
sleep 0.5
port=29000
job() { # tool, label, variables...
  local tool=$1 label=$2; shift 2; port=$((port+1)); local pids=()
  for r in 0 1 2 3; do
    ip netns exec $name-$r unshare --uts sh -c "hostname host$r; exec \"\$@\"" sh env "$@" OXCCL_COMM_ID=10.78.0.1:$port RANK=$r WORLD_SIZE=4 NCCL_SOCKET_IFNAME=eth0 \
      $tool perf all-reduce --sizes $sizes --place out ${ROUNDS:+--rounds $ROUNDS} --iters ${ITERS:-6} -w 2 --json $out/$label.$r.json >$out/$label.$r.log 2>&1 & pids+=($!)
  done
  for p in ${pids[@]}; do wait $p || echo "$label: a rank failed"; done
}
all() { # tool, port of servers, prefix of labels, round
  local chain="NCCL_COLLNET_ENABLE=1 NCCL_ALGO=CollnetChain" four=
  for h in 4 5 6 7; do four=$four,10.78.0.$((h+1)):$2; done
  for what in $only; do case $what in
    ring) if [ "$1" = "$tool" ]; then job $1 ring.$4; fi;;
    wide) job $1 $3wide.$4 $chain OXCCL_AGGREGATOR=10.78.0.100:$2;;
    four) job $1 $3four.$4 $chain OXCCL_AGGREGATOR=${four#,};;
  esac; done
}
for i in $(seq 1 $rounds); do
  all $tool 28040 "" $i
  if [ -n "$before" ]; then all $before 28041 before. $i; fi
  echo "round $i: load $(cut -d' ' -f1-3 /proc/loadavg)" | tee -a $out/load
done
