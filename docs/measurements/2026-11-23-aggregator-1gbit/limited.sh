#!/bin/bash
# Four hosts (network namespaces on one bridge) whose interfaces carry RATE each way; aggregators on hosts of their own.
# usage: limited.sh OXCCL-TOOL ROUNDS [SIZES]     needs root, iproute2, the tbf queue discipline
set -u
tool=$1 rounds=$2 sizes=${3:-64K,256K,1M,4M,16M,64M} rate=${RATE:-1gbit}
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
for h in 4 5 6 7; do ip netns exec $name-$h $tool aggregate --listen 10.78.0.$((h+1)):28040 >$out/server$h 2>&1 & done
ip netns exec $name-wide $tool aggregate --listen 10.78.0.100:28040 >$out/serverwide 2>&1 &
sleep 0.5
port=29000
job() { # label, variables...
  local label=$1; shift; port=$((port+1)); local pids=()
  for r in 0 1 2 3; do
    ip netns exec $name-$r unshare --uts sh -c "hostname host$r; exec \"\$@\"" sh env "$@" OXCCL_COMM_ID=10.78.0.1:$port RANK=$r WORLD_SIZE=4 NCCL_SOCKET_IFNAME=eth0 \
      $tool perf all-reduce --sizes $sizes --place out --iters ${ITERS:-6} -w 2 --json $out/$label.$r.json >$out/$label.$r.log 2>&1 & pids+=($!)
  done
  for p in ${pids[@]}; do wait $p || echo "$label: a rank failed"; done
}
for i in $(seq 1 $rounds); do
  job ring.$i
  job wide.$i NCCL_COLLNET_ENABLE=1 NCCL_ALGO=CollnetChain OXCCL_AGGREGATOR=10.78.0.100:28040
  job four.$i NCCL_COLLNET_ENABLE=1 NCCL_ALGO=CollnetChain OXCCL_AGGREGATOR=10.78.0.5:28040,10.78.0.6:28040,10.78.0.7:28040,10.78.0.8:28040
done
