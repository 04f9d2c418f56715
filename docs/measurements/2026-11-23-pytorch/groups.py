# starts a process group with 52 communicators; prints seconds and device memory
import os, sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, world, port, label, starts, mode):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.cuda.set_device(rank); x = torch.ones(1 << 20, device="cuda"); torch.cuda.synchronize()
    for s in range(starts):
        free0 = torch.cuda.mem_get_info()[0]; t0 = time.perf_counter()
        kw = dict(device_id=torch.device("cuda", rank)) if mode == "eager" else {}
        dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port + 1 + s}", rank=rank, world_size=world, **kw)
        gs = [dist.new_group() for _ in range(51)]
        t1 = time.perf_counter()
        for g in [None] + gs: dist.all_reduce(x[:256], group=g)
        torch.cuda.synchronize(); t2 = time.perf_counter(); free1 = torch.cuda.mem_get_info()[0]
        for g in [None] + gs: dist.all_reduce(x, group=g)
        torch.cuda.synchronize(); t3 = time.perf_counter(); free2 = torch.cuda.mem_get_info()[0]
        dist.destroy_process_group()
        t4 = time.perf_counter()
        if rank == 0 and (s < 2 or s == starts - 1): print(f"{label} {mode} start {s}: groups {t1-t0:.2f}s, first 1KiB {t2-t1:.2f}s, first 4MiB {t3-t2:.2f}s, end {t4-t3:.2f}s; memory {(free0-free1)>>20} then {(free0-free2)>>20} MiB", flush=True)
if __name__ == "__main__":
    label, starts, mode, port = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    mp.spawn(work, args=(2, port, label, starts, mode), nprocs=2)
