//! The NCCL of the library: ranks are threads of one process.

use super::*;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([u8; 128]);

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    unsafe { *version = 22_809 };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    let mut bytes = [7u8; 128];
    bytes[120..].copy_from_slice(&NEXT_ID.fetch_add(1, Ordering::SeqCst).to_le_bytes());
    unsafe { *id = UniqueId(bytes) };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRank(comm: *mut Handle, ranks: c_int, id: UniqueId, rank: c_int) -> c_int {
    // Every byte must have come through, in its place.
    if id.0[..120] != [7; 120] || !(0..ranks).contains(&rank) {
        return 4;
    }
    let world = u64::from_le_bytes(std::array::from_fn(|i| id.0[120 + i]));
    let ranks = ranks as usize;
    let new = || World {
        ranks,
        joined: 0,
        queues: vec![VecDeque::new(); ranks],
        sends: HashMap::new(),
        recvs: HashMap::new(),
    };
    let mut worlds = lock(&WORLDS);
    let made = worlds.get_or_insert_default().entry(world).or_insert_with(new);
    made.joined += 1;
    if made.ranks != ranks || made.joined > ranks {
        return 5;
    }
    lock(&USED)[device()] += COMM_BYTES;
    let new = Comm { world, rank: rank as usize, device: device() };
    unsafe { *comm = Box::into_raw(Box::new(new)).cast() };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommDestroy(comm: Handle) -> c_int {
    let comm = unsafe { Box::from_raw(comm.cast::<Comm>()) };
    lock(&USED)[comm.device] -= COMM_BYTES;
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommAbort(comm: Handle) -> c_int {
    unsafe { ncclCommDestroy(comm) }
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommGetAsyncError(_: Handle, code: *mut c_int) -> c_int {
    unsafe { *code = 0 };
    0
}
#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(_: c_int) -> *const c_char {
    c"a fake error".as_ptr()
}
#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_: Handle) -> *const c_char {
    CStr::from_bytes_with_nul(b"\0").unwrap_or_default().as_ptr()
}
#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> c_int {
    0
}
#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> c_int {
    0
}

#[allow(clippy::too_many_arguments)]
unsafe fn enqueue(
    kind: Kind,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    peer: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    let comm = unsafe { &*comm.cast::<Comm>() };
    let Some(size) = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1].get(dtype as usize).copied() else { return 4 };
    let reduces = matches!(kind, Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce);
    if comm.device != device() || (reduces && dtype != 7) {
        return 4;
    }
    let (send, recv, stream) = (send as usize, recv as usize, stream as usize);
    put(Op {
        kind,
        send,
        recv,
        count,
        size,
        peer: peer as usize,
        world: comm.world,
        rank: comm.rank,
        stream,
    });
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclAllReduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    _: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    unsafe { enqueue(Kind::AllReduce, send, recv, count, dtype, 0, comm, stream) }
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclReduceScatter(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    _: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    unsafe { enqueue(Kind::ReduceScatter, send, recv, count, dtype, 0, comm, stream) }
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclReduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    _: c_int,
    root: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    unsafe { enqueue(Kind::Reduce, send, recv, count, dtype, root, comm, stream) }
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclBroadcast(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    root: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    unsafe { enqueue(Kind::Broadcast, send, recv, count, dtype, root, comm, stream) }
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclAllGather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    unsafe { enqueue(Kind::AllGather, send, recv, count, dtype, 0, comm, stream) }
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclSend(
    send: *const c_void,
    count: usize,
    dtype: c_int,
    peer: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    unsafe { enqueue(Kind::Send, send, std::ptr::null_mut(), count, dtype, peer, comm, stream) }
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclRecv(
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    peer: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    unsafe { enqueue(Kind::Recv, std::ptr::null(), recv, count, dtype, peer, comm, stream) }
}
