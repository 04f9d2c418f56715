#!/usr/bin/env python3
"""Random collectives of any libnccl.so.2, each process a GPU and a host of its own, checked element by element, and times.

    drive.py check --nccl LIB --seconds 60 [--funcs ar,rs,ag] [--server PID]... [NAME=VALUE]...
    drive.py times --nccl LIB [NAME=VALUE]...

Every rank computes every rank's input, so that nothing but the library moves data. Inputs are such that every result is exact in
its type, whatever the order: integers wrap around, floating-point inputs are few small numbers. Needs numpy, ml_dtypes and libcuda, no toolkit.
"""
import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time

import ml_dtypes
import numpy as np

# NCCL's numbers of types and operators.
TYPES = {
    "i8": (0, np.int8), "u8": (1, np.uint8), "i32": (2, np.int32), "u32": (3, np.uint32), "i64": (4, np.int64), "u64": (5, np.uint64),
    "f16": (6, np.float16), "f32": (7, np.float32), "f64": (8, np.float64), "bf16": (9, ml_dtypes.bfloat16),
    "f8e4m3": (10, ml_dtypes.float8_e4m3fn), "f8e5m2": (11, ml_dtypes.float8_e5m2),
}
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4, "premul": None}
FUNCS = {"ar": "ncclAllReduce", "rs": "ncclReduceScatter", "ag": "ncclAllGather"}
SCALAR = 2


def sample(dtype, op, count, seed, rank):
    """A rank's input."""
    rng = np.random.default_rng([seed, rank])
    if np.issubdtype(dtype, np.integer):
        if op in ("avg", "premul"):
            return rng.integers(0, 16, count).astype(dtype)
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    if op == "prod":
        return rng.choice(np.array([-2.0, -1.0, 0.5, 1.0, 2.0]), count).astype(dtype)
    if op in ("max", "min"):
        return rng.integers(-200, 200, count).astype(np.float32).astype(dtype)
    return rng.integers(-2, 3, count).astype(np.float32).astype(dtype)


def reduced(dtype, op, inputs):
    """All inputs, reduced."""
    is_integer = np.issubdtype(dtype, np.integer)
    wide = inputs if is_integer else [it.astype(np.float64) for it in inputs]
    with np.errstate(over="ignore"):
        result = wide[0].copy()
        for it in wide[1:]:
            result = {"prod": np.multiply, "max": np.maximum, "min": np.minimum}.get(op, np.add)(result, it)
        if op == "premul":
            result = result * dtype(SCALAR) if is_integer else result * SCALAR
        if op == "avg":
            result = result // dtype(len(inputs)) if is_integer else result / len(inputs)
    exact = result.astype(dtype)
    assert is_integer or (exact.astype(np.float64) == result).all(), (dtype, op)
    return exact


class Cuda:
    """As much of the driver as is needed."""

    def __init__(self, device):
        self.lib = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        count, handle, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        self("cuDeviceGetCount", ctypes.byref(count))
        self("cuDeviceGet", ctypes.byref(handle), device % count.value)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self("cuCtxSetCurrent", context)
        self.stream = ctypes.c_void_p()
        # Ordered after copies: a copy of pageable memory returns before it has come.
        self("cuStreamCreate", ctypes.byref(self.stream), 0)

    def __call__(self, name, *args):
        code = getattr(self.lib, name)(*args)
        if code:
            raise RuntimeError(f"{name}: {code}")

    def memory(self, size):
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def put(self, address, array):
        self("cuMemcpyHtoD_v2", ctypes.c_uint64(address), array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(array.nbytes))

    def get(self, address, count, dtype):
        array = np.empty(count, dtype)
        self("cuMemcpyDtoH_v2", array.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(address), ctypes.c_size_t(array.nbytes))
        return array

    def wait(self):
        self("cuStreamSynchronize", self.stream)


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 128)]


class Nccl:
    def __init__(self, path, rank, nranks, meeting):
        self.lib = ctypes.CDLL(path)
        self.lib.ncclGetErrorString.restype = ctypes.c_char_p
        self.lib.ncclGetLastError.restype = ctypes.c_char_p
        version, unique = ctypes.c_int(), UniqueId()
        self("ncclGetVersion", ctypes.byref(version))
        self.version = version.value
        if rank == 0:
            self("ncclGetUniqueId", ctypes.byref(unique))
            with open(meeting + ".new", "wb") as file:
                file.write(bytes(unique))
            os.rename(meeting + ".new", meeting)
        while not os.path.exists(meeting):
            time.sleep(0.01)
        with open(meeting, "rb") as file:
            unique = UniqueId.from_buffer_copy(file.read())
        self.comm = ctypes.c_void_p()
        self("ncclCommInitRank", ctypes.byref(self.comm), nranks, unique, rank)

    def __call__(self, name, *args):
        code = getattr(self.lib, name)(*args)
        if code:
            said = self.lib.ncclGetErrorString(code), self.lib.ncclGetLastError(None)
            raise RuntimeError(f"{name}: {said}")

    def premul(self, number, dtype):
        op, scalar = ctypes.c_int(), np.array([SCALAR]).astype(dtype)
        self("ncclRedOpCreatePreMulSum", ctypes.byref(op), scalar.ctypes.data_as(ctypes.c_void_p), number, 1, self.comm)
        return op.value

    def start(self, cuda, func, send, recv, count, number, op):
        args = [ctypes.c_void_p(send), ctypes.c_void_p(recv), ctypes.c_size_t(count), number]
        if func != "ag":
            args.append(op)
        self(FUNCS[func], *args, self.comm, cuda.stream)


def resident(pid="self"):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


MAX_BYTES = 24 << 20


def check(args, rank, nranks, nccl, cuda):
    """Random collectives until the time is up: what was done, what was wrong."""
    a, b = cuda.memory(MAX_BYTES), cuda.memory(MAX_BYTES)
    flag = cuda.memory(8)
    rng = np.random.default_rng(args.seed)
    funcs = args.funcs.split(",")
    begin, done, wrong, moved, residents = time.monotonic(), 0, [], 0, []
    # Every type and operator once, then at random; every rank draws the same.
    plan = [(func, name, op) for func in funcs for name in TYPES for op in OPS]
    while True:
        for _ in range(25):
            func, name, op = plan.pop() if plan else (
                rng.choice(funcs), rng.choice(list(TYPES)), rng.choice(list(OPS)))
            number, dtype = TYPES[name]
            size = np.dtype(dtype).itemsize
            most = [64, 100_000, 4 << 20, MAX_BYTES][int(rng.choice(4, p=[0.2, 0.45, 0.3, 0.05]))] // size
            count = int(rng.integers(1, max(2, most // (1 if func == "ar" else nranks) + 1)))
            in_place, seed = bool(rng.integers(2)) and func == "ar", int(rng.integers(1 << 30))
            parts = nranks if func == "rs" else 1
            inputs = [sample(dtype, op, count * parts, seed, peer) for peer in range(nranks)]
            expected = np.concatenate(inputs) if func == "ag" else reduced(dtype, op, inputs)
            if func == "rs":
                expected = expected[rank * count:(rank + 1) * count]
            cuda.put(a, inputs[rank])
            cuda.put(b, np.zeros(expected.nbytes + 64, np.uint8))
            recv = a if in_place else b
            code = nccl.premul(number, dtype) if op == "premul" and func != "ag" else OPS[op]
            nccl.start(cuda, func, a, recv, count, number, code)
            cuda.wait()
            if op == "premul" and func != "ag":
                nccl("ncclRedOpDestroy", code, nccl.comm)
            got = cuda.get(recv, expected.size, dtype)
            # Bits, so that a NaN that is right is right; both zeros are one number.
            same = got.view(np.uint8).reshape(-1, size) == expected.view(np.uint8).reshape(-1, size)
            differ = ~(same.all(axis=1) | (got == expected))
            if differ.any():
                at = int(differ.argmax())
                wrong.append(f"{func} {name} {op} {count}: {int(differ.sum())} wrong, first [{at}] {got[at]} for {expected[at]}")
            done, moved = done + 1, moved + expected.nbytes
            residents.append((time.monotonic() - begin, resident()))
        over = int(time.monotonic() - begin > args.seconds and not plan)
        cuda.put(flag, np.array([over], np.int32))
        nccl.start(cuda, "ar", flag, flag, 1, 2, 2)
        cuda.wait()
        if cuda.get(flag, 1, np.int32)[0]:
            break
    total = residents[-1][0]
    # Arrays of a long operation come and go: the least of a part of the time is what stays.
    first = [held for at, held in residents if total * 0.2 < at < total * 0.5]
    last = [held for at, held in residents if at > total * 0.7]
    return {"operations": done, "wrong": len(wrong), "examples": wrong[:5], "bytes": moved, "seconds": round(total, 1),
            "resident_first_mib": round(min(first) / 2**20, 1), "resident_last_mib": round(min(last) / 2**20, 1)}


def times(args, nccl, cuda):
    """Medians of seven means, in microseconds, by bytes."""
    a, b = cuda.memory(64 << 20), cuda.memory(64 << 20)
    table = {}
    for size in args.sizes:
        each = 3 if size > 8 << 20 else 10 if size > 1 << 20 else 30
        taken = []
        for round_ in range(8):
            begin = time.perf_counter()
            for _ in range(each):
                nccl.start(cuda, "ar", a, b, size // 4, 7, 0)
            cuda.wait()
            taken.append((time.perf_counter() - begin) / each * 1e6)
        taken = sorted(taken[1:])
        table[size] = [round(it, 1) for it in (taken[3], taken[0], taken[-1])]
    return table


def rank_main(args):
    rank, nranks = int(os.environ["DRIVE_RANK"]), args.nranks
    cuda = Cuda(rank)
    nccl = Nccl(args.nccl, rank, nranks, os.environ["DRIVE_MEETING"])
    out = times(args, nccl, cuda) if args.what == "times" else check(args, rank, nranks, nccl, cuda)
    nccl("ncclCommDestroy", nccl.comm)
    print("RESULT " + json.dumps({"rank": rank, "version": nccl.version, "result": out}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["check", "times", "selftest"])
    parser.add_argument("--nccl")
    parser.add_argument("--label", default="")
    parser.add_argument("--nranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--funcs", default="ar")
    parser.add_argument("--limit", type=float, default=60)
    parser.add_argument("--sizes", type=lambda text: [int(it) for it in text.split(",")],
                        default=[4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20])
    parser.add_argument("--server", type=int, action="append", default=[], help="its resident memory is watched")
    args, rest = parser.parse_known_args()
    if args.what == "selftest":
        for dtype in (it[1] for it in TYPES.values()):
            for op in OPS:
                for nranks in (2, 4):
                    reduced(dtype, op, [sample(dtype, op, 5000, 3, rank) for rank in range(nranks)])
        return print("every result is exact")
    if "DRIVE_RANK" in os.environ:
        return rank_main(args)
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(args.nranks):
            env = dict(os.environ, DRIVE_RANK=str(rank), DRIVE_MEETING=folder + "/id", NCCL_HOSTID=f"host{rank}")
            env.update(pair.split("=", 1) for pair in rest)
            out = open(f"{folder}/{rank}", "w+")
            ranks.append((subprocess.Popen([sys.executable, *sys.argv], env=env, stdout=out, stderr=subprocess.STDOUT), out))
        begin, held = time.monotonic(), []
        while any(process.poll() is None for process, _ in ranks):
            if time.monotonic() - begin > args.seconds + args.limit:
                [process.kill() for process, _ in ranks]
            held.append((time.monotonic() - begin, [resident(pid) for pid in args.server]))
            time.sleep(0.25)
        total = held[-1][0]
        servers = [{"resident_first_mib": round(max(it[i] for at, it in held if at < total * 0.4) / 2**20, 1),
                    "resident_last_mib": round(min(it[i] for at, it in held if at > total * 0.9) / 2**20, 1)}
                   for i in range(len(args.server))]
        algorithms = {}
        for process, out in ranks:
            out.seek(0)
            text = out.read()
            lines = [line for line in text.splitlines() if line.startswith("RESULT ")]
            for line in text.splitlines():
                if "Algo " in line:
                    chosen = line.split("Algo ")[1].split()[0]
                    algorithms[chosen] = algorithms.get(chosen, 0) + 1
            if process.returncode or not lines:
                print(f"{args.label}: FAILED {process.returncode}\n" + text[-3000:], flush=True)
            for line in lines:
                print(f"{args.label} {line[7:]}", flush=True)
        print(f"{args.label} servers {json.dumps(servers)} algorithms {json.dumps(algorithms)}", flush=True)


if __name__ == "__main__":
    main()
