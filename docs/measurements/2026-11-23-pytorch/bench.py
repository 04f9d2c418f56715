import os, sys, time, json, statistics as st
import torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, world, port, eager, label, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.cuda.set_device(rank)
    kw = dict(device_id=torch.device("cuda", rank)) if eager else {}
    dist.init_process_group("nccl", rank=rank, world_size=world, **kw)
    big = 1 << 30
    a = torch.ones(big // 4, dtype=torch.float32, device="cuda"); b = torch.empty(big // 4, dtype=torch.float32, device="cuda")
    a.zero_()
    rows = {}
    sizes = [8, 64, 1024, 8192, 65536, 524288, 4 << 20, 32 << 20, 256 << 20, 1 << 30]
    if eager: sizes = [8, 1024, 65536]
    def ops(n):
        e = n // 4; x = a[:e]; y = b[:e]; xs = a[:e // world]; ys = b[:e // world]
        yield "all_reduce", lambda: dist.all_reduce(x)
        yield "all_gather", lambda: dist.all_gather_into_tensor(y, xs)
        yield "reduce_scatter", lambda: dist.reduce_scatter_tensor(ys, x)
        yield "broadcast", lambda: dist.broadcast(x, 0)
        yield "reduce", lambda: dist.reduce(x, 0)
        yield "all_to_all", lambda: dist.all_to_all_single(y, x)
        peer = 1 - rank
        def sr():
            if rank == 0: dist.send(x, peer)
            else: dist.recv(y, peer)
        yield "send_recv", sr
    w = a[:256]
    for _ in range(3000): dist.all_reduce(w)
    torch.cuda.synchronize()
    mode = os.environ.get("MODE", "launch")
    if mode == "graph": sizes = [8, 64, 1024, 8192, 65536, 1 << 20, 4 << 20]
    for n in sizes:
        calls, batches = (200, 9) if n <= 65536 else (50, 7) if n <= 4 << 20 else (10, 5) if n <= 32 << 20 else (3, 5)
        for name, op in ops(n):
            for _ in range(10 if n <= 4 << 20 else 2): op()
            torch.cuda.synchronize()
            t = []
            if mode == "graph":
                g = torch.cuda.CUDAGraph()
                with torch.cuda.graph(g):
                    for _ in range(20): op()
                g.replay(); torch.cuda.synchronize(); one = op; op = g.replay; calls_, calls = calls, 20
            for _ in range(batches):
                dist.barrier(); torch.cuda.synchronize()
                t0 = time.perf_counter()
                for _ in range(calls): op()
                torch.cuda.synchronize()
                t.append((time.perf_counter() - t0) / calls * 1e6 / (20 if mode == "graph" else 1))
            if mode == "graph": calls = calls_; del g
            rows[f"{name} {n}"] = [round(min(t), 2), round(st.median(t), 2), round(max(t), 2)]
    if rank == 0:
        json.dump(dict(label=label, eager=eager, version=torch.cuda.nccl.version(), rows=rows), open(out, "w"))
    dist.barrier(); dist.destroy_process_group()
if __name__ == "__main__":
    label, eager, port = sys.argv[1], sys.argv[2] == "eager", int(sys.argv[3])
    mp.spawn(work, args=(2, port, eager, label, f"/tmp/b-{label}.json"), nprocs=2)
