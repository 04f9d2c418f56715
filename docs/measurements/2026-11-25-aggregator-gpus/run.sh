#!/bin/bash
# run.sh NCCL_2.28 NCCL_2.32 OUR_LIBNCCL PLUGIN OXCCL KERNELS: what the page beside this has. Two GPUs of one host, each a host of its own by name.
set -u
OLD=$1 NEW=$2 OUR=$3 PLUGIN=$4 OXCCL=$5
export OXCCL_PTX_PATH=$6 OXCCL_COMM_SECRET=${OXCCL_COMM_SECRET:-$(openssl rand -hex 32)}
export NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_NVLS_ENABLE=0
here=$(dirname "$0")
# A server for each library, so that each one's memory is seen.
for i in 1 2 3 4; do "$OXCCL" aggregate --listen 127.0.0.1:2804$i & S[i]=$!; done
trap 'kill ${S[@]}' EXIT
sleep 1
drive() { timeout 150 python3 "$here/drive.py" "$@"; }
at() { echo "OXCCL_AGGREGATOR=127.0.0.1:2804$1"; }
PLUG="NCCL_NET_PLUGIN=$PLUGIN NCCL_COLLNET_ENABLE=1 NCCL_COLLNET_NODE_THRESHOLD=2"
CHAIN="$PLUG NCCL_ALGO=allreduce:collnetchain"
OURS="NCCL_COLLNET_ENABLE=1 NCCL_ALGO=CollnetChain NCCL_NET=Socket NCCL_NET_PLUGIN=none"
DIRECT="NCCL_ALGO=allreduce:collnetchain;reducescatter:collnetdirect;allgather:collnetdirect"
TALK="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING"
SECONDS_EACH=${SECONDS_EACH:-35}
drive times --label algorithm-2.28 --nccl "$OLD" --sizes 65536 $CHAIN $TALK "$(at 1)"
drive times --label algorithm-2.32 --nccl "$NEW" --sizes 65536 $CHAIN $TALK "$(at 2)"
drive check --label 2.28 --nccl "$OLD" --seconds "$SECONDS_EACH" --server "${S[1]}" $CHAIN "$(at 1)"
drive check --label 2.32 --nccl "$NEW" --seconds "$SECONDS_EACH" --server "${S[2]}" $CHAIN "$(at 2)"
drive check --label ours --nccl "$OUR" --seconds "$SECONDS_EACH" --server "${S[3]}" $OURS "$(at 3)"
drive check --label 2.28-encrypted --nccl "$OLD" --seconds 5 --server "${S[1]}" $CHAIN OXCCL_ENCRYPT=1 "$(at 1)"
drive check --label ours-encrypted --nccl "$OUR" --seconds 5 --server "${S[3]}" $OURS OXCCL_ENCRYPT=1 "$(at 3)"
drive check --label 2.28-gathers --funcs rs,ag --nccl "$OLD" --seconds 4 --server "${S[4]}" $PLUG "$DIRECT" $TALK "$(at 4)"
drive check --label 2.32-gathers --funcs rs,ag --nccl "$NEW" --seconds 4 --server "${S[4]}" $PLUG "$DIRECT" $TALK "$(at 4)"
for round in 1 2; do
    drive times --label "2.28 chain" --nccl "$OLD" $CHAIN "$(at 1)"
    drive times --label "2.28 ring" --nccl "$OLD" NCCL_NET_PLUGIN=none NCCL_NET=Socket NCCL_ALGO=ring
    drive times --label "2.32 chain" --nccl "$NEW" $CHAIN "$(at 2)"
    drive times --label "2.32 ring" --nccl "$NEW" NCCL_NET_PLUGIN=none NCCL_NET=Socket NCCL_ALGO=ring
    drive times --label "ours" --nccl "$OUR" $OURS "$(at 3)"
    drive times --label "ours, one channel" --nccl "$OUR" $OURS NCCL_MAX_NCHANNELS=1 "$(at 3)"
done
