//! The table of NCCL's names, each with its `p` twin for profilers. Nothing else leaves the library.

use crate::operations::Call;
use crate::pointer::{In, Out};
use crate::registry::Handle;
use crate::result::{describe, run};
use crate::types::{Code, CommConfig, UniqueIdBytes};
use crate::{end, group, init, operator, query, unique_id};
use oxccl::Func;
use oxccl::cuda::CUstream;
use std::ffi::{c_char, c_int, c_void};

/// Declares functions under both names. Those after `->` give something else than a result.
macro_rules! exports {
    ($(fn $name:ident $twin:ident ($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => {
        $(exports!(@one $name ($($argument: $type),*) $(-> $result)? $body);
        exports!(@one $twin ($($argument: $type),*) $(-> $result)? $body);)*
    };
    (@one $name:ident ($($argument:ident: $type:ty),*) $body:block) => {
        // SAFETY: the name is one of NCCL's, and this library is what provides them.
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> Code {
            run(stringify!($name), || $body)
        }
    };
    (@one $name:ident ($($argument:ident: $type:ty),*) -> $result:ty $body:block) => {
        // SAFETY: as above.
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> $result $body
    };
}

exports! {
    fn ncclGetVersion pncclGetVersion(version: Out<c_int>) { query::version(version) }
    fn ncclGetUniqueId pncclGetUniqueId(id: Out<UniqueIdBytes>) { unique_id::create(id) }
    fn ncclGetErrorString pncclGetErrorString(code: c_int) -> *const c_char { describe(code).as_ptr() }
    fn ncclGetLastError pncclGetLastError(comm: Handle) -> *const c_char { query::last_error_of(comm) }

    fn ncclCommInitRank pncclCommInitRank(comm: Out<Handle>, nranks: c_int, id: UniqueIdBytes, rank: c_int) {
        init::init_rank(comm, nranks, id, rank, In::NULL)
    }
    fn ncclCommInitRankConfig pncclCommInitRankConfig(
        comm: Out<Handle>, nranks: c_int, id: UniqueIdBytes, rank: c_int, config: In<CommConfig>,
    ) {
        init::init_rank(comm, nranks, id, rank, config)
    }
    fn ncclCommInitRankScalable pncclCommInitRankScalable(
        comm: Out<Handle>, nranks: c_int, rank: c_int, id_count: c_int, ids: In<UniqueIdBytes>, config: In<CommConfig>,
    ) {
        init::init_rank_scalable(comm, nranks, rank, id_count, ids, config)
    }
    fn ncclCommInitAll pncclCommInitAll(comms: Out<Handle>, count: c_int, devices: In<c_int>) {
        init::init_all(comms, count, devices)
    }
    fn ncclCommSplit pncclCommSplit(
        comm: Handle, color: c_int, key: c_int, child: Out<Handle>, config: In<CommConfig>,
    ) {
        init::split(comm, color, key, child, config)
    }

    fn ncclCommFinalize pncclCommFinalize(comm: Handle) { end::finalize(comm) }
    fn ncclCommDestroy pncclCommDestroy(comm: Handle) { end::destroy(comm) }
    fn ncclCommAbort pncclCommAbort(comm: Handle) { end::abort(comm) }

    fn ncclCommCount pncclCommCount(comm: Handle, count: Out<c_int>) { query::count(comm, count) }
    fn ncclCommCuDevice pncclCommCuDevice(comm: Handle, device: Out<c_int>) { query::device(comm, device) }
    fn ncclCommUserRank pncclCommUserRank(comm: Handle, rank: Out<c_int>) { query::rank(comm, rank) }
    fn ncclCommGetAsyncError pncclCommGetAsyncError(comm: Handle, error: Out<Code>) {
        query::async_error(comm, error)
    }

    fn ncclGroupStart pncclGroupStart() { group::start() }
    fn ncclGroupEnd pncclGroupEnd() { group::end() }

    fn ncclRedOpCreatePreMulSum pncclRedOpCreatePreMulSum(
        op: Out<c_int>, scalar: *const c_void, dtype: c_int, residence: c_int, comm: Handle,
    ) {
        operator::create(op, scalar, dtype, residence, comm)
    }
    fn ncclRedOpDestroy pncclRedOpDestroy(op: c_int, comm: Handle) { operator::destroy(op, comm) }

    fn ncclAllReduce pncclAllReduce(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int, comm: Handle, stream: CUstream,
    ) {
        Call { func: Func::AllReduce, send, recv, count, dtype, comm, stream }.submit_reducing(op)
    }
    fn ncclReduce pncclReduce(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int, root: c_int, comm: Handle,
        stream: CUstream,
    ) {
        Call { func: Func::Reduce, send, recv, count, dtype, comm, stream }.submit_reducing_to(op, root)
    }
    fn ncclReduceScatter pncclReduceScatter(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int, comm: Handle, stream: CUstream,
    ) {
        Call { func: Func::ReduceScatter, send, recv, count, dtype, comm, stream }.submit_reducing(op)
    }
    fn ncclBroadcast pncclBroadcast(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: CUstream,
    ) {
        Call { func: Func::Broadcast, send, recv, count, dtype, comm, stream }.submit_to(root)
    }
    fn ncclBcast pncclBcast(
        buffer: *mut c_void, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: CUstream,
    ) {
        let send = buffer.cast_const();
        Call { func: Func::Broadcast, send, recv: buffer, count, dtype, comm, stream }.submit_to(root)
    }
    fn ncclAllGather pncclAllGather(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, comm: Handle, stream: CUstream,
    ) {
        Call { func: Func::AllGather, send, recv, count, dtype, comm, stream }.submit()
    }
    fn ncclAlltoAll pncclAlltoAll(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, comm: Handle, stream: CUstream,
    ) {
        Call { func: Func::AllToAll, send, recv, count, dtype, comm, stream }.submit()
    }
    fn ncclGather pncclGather(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: CUstream,
    ) {
        Call { func: Func::Gather, send, recv, count, dtype, comm, stream }.submit_to(root)
    }
    fn ncclScatter pncclScatter(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: CUstream,
    ) {
        Call { func: Func::Scatter, send, recv, count, dtype, comm, stream }.submit_to(root)
    }
    fn ncclSend pncclSend(
        send: *const c_void, count: usize, dtype: c_int, peer: c_int, comm: Handle, stream: CUstream,
    ) {
        let recv = std::ptr::null_mut();
        Call { func: Func::Send, send, recv, count, dtype, comm, stream }.submit_to(peer)
    }
    fn ncclRecv pncclRecv(
        recv: *mut c_void, count: usize, dtype: c_int, peer: c_int, comm: Handle, stream: CUstream,
    ) {
        let send = std::ptr::null();
        Call { func: Func::Recv, send, recv, count, dtype, comm, stream }.submit_to(peer)
    }
}
