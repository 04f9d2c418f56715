#!/bin/sh
# What `cargo xtask gpu-pack` packed, run on a machine with GPUs. Needs a driver, no toolchain.
#
#   run.sh [PART..]      parts: tests net checks sanitizer measure lines graphs init pairs (all of them)
#   OUT=DIR              where logs and figures go (default: ./out beside the caller)
#   NCCL=FILE            a libnccl.so.2 to be measured beside (default: the one of an installed PyTorch, if any)
#   BUDGET=S             seconds that a measurement of six collectives may take (default 120)
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-$PWD/out}
budget=${BUDGET:-120}
export OXCCL_PTX_PATH="$here/oxccl.oxptx" NCCL_NVLS_ENABLE="${NCCL_NVLS_ENABLE:-0}"
mkdir -p "$out" && cd "$out" || exit 1
failed=0

# step NAME SECONDS COMMAND..: its output in NAME.log, one line here.
step() {
    name=$1 limit=$2
    shift 2
    start=$(date +%s)
    timeout -k 5 "$limit" "$@" >"$name.log" 2>&1
    status=$?
    seconds=$(($(date +%s) - start))
    if [ $status -eq 0 ]; then
        printf 'ok      %4d s  %s\n' $seconds "$name"
    else
        failed=1
        printf 'FAILED  %4d s  %s (status %d), the end of %s:\n' $seconds "$name" $status "$out/$name.log"
        tail -n 12 "$name.log" | cut -c -400 | sed 's/^/    /'
    fi
}

find_nccl() {
    python3 -c 'import torch, glob, os
root = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "nvidia/nccl/lib/libnccl.so.2")
print("".join(glob.glob(root)))' 2>/dev/null
}

find_sanitizer() {
    command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1
}

tests() {
    # Short ones first: whoever has little time learns most.
    for test in $("$here/gpu_conformance" --ignored --list | sed -n 's/: test$//p' | sort -t_ -k1,1 -s); do
        case $test in matrix::needs_gpu_conformance_* | net::* | net_graphs::* | gdr::*) continue ;; esac
        step "$test" 320 "$here/gpu_conformance" --ignored --nocapture --test-threads=1 --exact "$test"
    done
    for n in 2 4 3 8; do
        step "matrix_$n" 520 "$here/gpu_conformance" --ignored --nocapture --test-threads=1 --exact \
            "matrix::needs_gpu_conformance_$n"
    done
}

checks() {
    step driver_checks 120 "$here/cuda_check"
    step example 120 "$here/device_all_reduce"
}

sanitizer() {
    tool=$(find_sanitizer)
    if [ -z "$tool" ]; then
        echo 'skipped         sanitizer: no compute-sanitizer on this machine'
        return
    fi
    # Two GPUs and short messages: every access is instrumented.
    for check in memcheck racecheck; do
        step "sanitizer_$check" 240 "$tool" --tool $check --error-exitcode 9 "$here/device_all_reduce" 2 65536
    done
}

# suite NAME ARGUMENTS..: six collectives beside NCCL.
suite() {
    name=$1
    shift
    nccl=${NCCL:-$(find_nccl)}
    mkdir -p "$out/$name"
    step "$name" $((budget * 2 + 60)) "$here/oxccl" perf suite --backend cuda --engine oxccl \
        ${nccl:+--engine "nccl=$nccl"} -a 3 --rounds 5 --time-budget "$budget" --json "$out/$name" "$@"
}

# GPUs of this machine as if each were a host of its own: proxies over sockets of the loopback, beside NCCL's in the same run.
net() {
    for test in $("$here/gpu_conformance" --ignored --list | sed -n 's/: test$//p' | grep -E '^(net|net_graphs|gdr)::'); do
        step "$test" 320 "$here/gpu_conformance" --ignored --nocapture --test-threads=1 --exact "$test"
    done
    (
        export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo
        suite suite_net --sizes 8,1K,64K,1M,16M,64M
        suite suite_net_2 --ranks 2 --sizes 8,1K,64K,1M,16M,64M
        suite suite_net_graphs -G 20 --sizes 8,64K,1M
        exit $failed
    ) || failed=1
}

measure() { suite suite; }
graphs() { suite suite_graphs -G 20 --sizes 8,1K,64K,256K,1M,16M; }
pairs() { suite suite_2 --ranks 2 --sizes 8,1K,64K,256K,1M,4M,16M,64M,256M,1G; }

# What the built-in table does not take by itself: the sizes for which one-shot and two-shot LL128 were made, to find out where it pays.
lines() {
    for collective in all-reduce all-gather reduce-scatter alltoall; do
        for proto in ll ll128 simple; do
            algo=direct
            [ $proto = simple ] && algo=ring
            [ $collective-$proto = alltoall-simple ] && continue
            step "lines_${collective}_${algo}_$proto" 60 "$here/oxccl" perf $collective --backend cuda --engine oxccl \
                --algo $algo --proto $proto -b 64K -e 16M -f 2 -a 3 --json "$out/lines_${collective}_${algo}_$proto.json"
        done
    done
}

init() {
    nccl=${NCCL:-$(find_nccl)}
    step init 200 "$here/oxccl" perf all-reduce --backend cuda --engine oxccl \
        ${nccl:+--engine "nccl=$nccl"} --init-time --rounds 5
}

[ $# -gt 0 ] || set -- checks tests net sanitizer measure lines graphs init pairs
for part in "$@"; do
    case $part in
        tests | net | checks | sanitizer | measure | lines | graphs | init | pairs) "$part" ;;
        *) echo "run.sh: no part is called $part" >&2; exit 2 ;;
    esac
done
exit $failed
