//! The table of NCCL's names, each with its `p` twin for profilers. Nothing else leaves the library.

use crate::one_sided::To;
use crate::operations::Call;
use crate::pointer::{In, Out, Text};
use crate::registry::Handle;
use crate::result::{describe, run};
use crate::types::{
    Code, CollConfig, CommConfig, CommProperties, EncryptionConfig, SimInfo, Team, UniqueIdBytes, WaitSignal,
};
use crate::{
    encryption, end, group, init, memory, one_sided, operator, params, query, regroup, simulate, suspend,
    unique_id, unsupported, window,
};
use oxccl::Func;
use oxccl::cuda::CUstream;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// The result of functions that return nothing.
type Nothing = ();

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

    fn ncclCommShrink pncclCommShrink(
        comm: Handle, excluded: In<c_int>, count: c_int, child: Out<Handle>, config: In<CommConfig>, flags: c_int,
    ) {
        regroup::shrink(comm, excluded, count, child, config, flags)
    }
    fn ncclCommGetUniqueId pncclCommGetUniqueId(comm: Handle, id: Out<UniqueIdBytes>) { regroup::grow_id(comm, id) }
    fn ncclCommGrow pncclCommGrow(
        comm: Handle, nranks: c_int, id: In<UniqueIdBytes>, rank: c_int, child: Out<Handle>, config: In<CommConfig>,
    ) {
        regroup::grow(comm, nranks, id, rank, child, config)
    }
    fn ncclCommRevoke pncclCommRevoke(comm: Handle, flags: c_int) { regroup::revoke(comm, flags) }

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
    fn ncclAllReduceConfig pncclAllReduceConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int, comm: Handle, stream: CUstream,
        config: In<CollConfig>,
    ) {
        Call { func: Func::AllReduce, send, recv, count, dtype, comm, stream }.with_config(config)?.submit_reducing(op)
    }
    fn ncclBroadcastConfig pncclBroadcastConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: CUstream,
        config: In<CollConfig>,
    ) {
        Call { func: Func::Broadcast, send, recv, count, dtype, comm, stream }.with_config(config)?.submit_to(root)
    }
    fn ncclReduceConfig pncclReduceConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int, root: c_int, comm: Handle, stream: CUstream,
        config: In<CollConfig>,
    ) {
        Call { func: Func::Reduce, send, recv, count, dtype, comm, stream }.with_config(config)?.submit_reducing_to(op, root)
    }
    fn ncclAllGatherConfig pncclAllGatherConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, comm: Handle, stream: CUstream,
        config: In<CollConfig>,
    ) {
        Call { func: Func::AllGather, send, recv, count, dtype, comm, stream }.with_config(config)?.submit()
    }
    fn ncclReduceScatterConfig pncclReduceScatterConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, op: c_int, comm: Handle, stream: CUstream,
        config: In<CollConfig>,
    ) {
        Call { func: Func::ReduceScatter, send, recv, count, dtype, comm, stream }.with_config(config)?.submit_reducing(op)
    }
    fn ncclAlltoAllConfig pncclAlltoAllConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, comm: Handle, stream: CUstream,
        config: In<CollConfig>,
    ) {
        Call { func: Func::AllToAll, send, recv, count, dtype, comm, stream }.with_config(config)?.submit()
    }
    fn ncclGatherConfig pncclGatherConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: CUstream,
        config: In<CollConfig>,
    ) {
        Call { func: Func::Gather, send, recv, count, dtype, comm, stream }.with_config(config)?.submit_to(root)
    }
    fn ncclScatterConfig pncclScatterConfig(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: CUstream,
        config: In<CollConfig>,
    ) {
        Call { func: Func::Scatter, send, recv, count, dtype, comm, stream }.with_config(config)?.submit_to(root)
    }

    fn ncclPutSignal pncclPutSignal(
        buffer: *const c_void, count: usize, dtype: c_int, peer: c_int, window: Handle, offset: usize,
        index: c_int, context: c_int, flags: c_uint, comm: Handle, stream: CUstream,
    ) {
        let to = To { peer, index, context, flags };
        one_sided::put_signal((buffer, count, dtype), to, (window, offset), comm, stream)
    }
    fn ncclSignal pncclSignal(
        peer: c_int, index: c_int, context: c_int, flags: c_uint, comm: Handle, stream: CUstream,
    ) {
        one_sided::signal(To { peer, index, context, flags }, comm, stream)
    }
    fn ncclWaitSignal pncclWaitSignal(count: c_int, waits: In<WaitSignal>, comm: Handle, stream: CUstream) {
        one_sided::wait_signal(count, waits, comm, stream)
    }
    fn ncclGroupSimulateEnd pncclGroupSimulateEnd(info: *mut SimInfo) {
        simulate::end(In::new(info), Out::new(info))
    }

    fn ncclCommSuspend pncclCommSuspend(comm: Handle, flags: c_int) { suspend::suspend(comm, flags) }
    fn ncclCommResume pncclCommResume(comm: Handle) { suspend::resume(comm) }
    fn ncclCommMemStats pncclCommMemStats(comm: Handle, stat: c_int, value: Out<u64>) {
        suspend::memory_stats(comm, stat, value)
    }
    fn ncclMemAlloc pncclMemAlloc(pointer: Out<*mut c_void>, size: usize) { memory::allocate(pointer, size) }
    fn ncclMemFree pncclMemFree(pointer: *mut c_void) { memory::free(pointer) }
    fn ncclCommRegister pncclCommRegister(comm: Handle, buffer: *mut c_void, size: usize, handle: Out<Handle>) {
        memory::register(comm, buffer, size, handle)
    }
    fn ncclCommDeregister pncclCommDeregister(comm: Handle, handle: Handle) { memory::deregister(comm, handle) }
    fn ncclCommWindowRegister pncclCommWindowRegister(
        comm: Handle, buffer: *mut c_void, size: usize, window: Out<Handle>, flags: c_int,
    ) {
        window::register(comm, buffer, size, window, flags)
    }
    fn ncclCommWindowDeregister pncclCommWindowDeregister(comm: Handle, window: Handle) {
        window::deregister(comm, window)
    }
    fn ncclWinGetUserPtr pncclWinGetUserPtr(comm: Handle, window: Handle, pointer: Out<usize>) {
        window::user_pointer(comm, window, pointer)
    }

    fn ncclParamBind pncclParamBind(handle: Out<Handle>, key: Text) { params::bind(handle, key) }
    fn ncclParamGetI8 pncclParamGetI8(handle: Handle, value: Out<i8>) { params::get_number(handle, value) }
    fn ncclParamGetI16 pncclParamGetI16(handle: Handle, value: Out<i16>) { params::get_number(handle, value) }
    fn ncclParamGetI32 pncclParamGetI32(handle: Handle, value: Out<i32>) { params::get_number(handle, value) }
    fn ncclParamGetI64 pncclParamGetI64(handle: Handle, value: Out<i64>) { params::get_number(handle, value) }
    fn ncclParamGetU8 pncclParamGetU8(handle: Handle, value: Out<u8>) { params::get_number(handle, value) }
    fn ncclParamGetU16 pncclParamGetU16(handle: Handle, value: Out<u16>) { params::get_number(handle, value) }
    fn ncclParamGetU32 pncclParamGetU32(handle: Handle, value: Out<u32>) { params::get_number(handle, value) }
    fn ncclParamGetU64 pncclParamGetU64(handle: Handle, value: Out<u64>) { params::get_number(handle, value) }
    fn ncclParamGetStr pncclParamGetStr(handle: Handle, value: Out<*const c_char>) {
        params::get_text(handle, value)
    }
    fn ncclParamGet pncclParamGet(handle: Handle, value: Out<u8>, room: c_int, len: Out<c_int>) {
        params::get_bytes(handle, value, room, len)
    }
    fn ncclParamGetParameter pncclParamGetParameter(key: Text, value: Out<*const c_char>, len: Out<c_int>) {
        params::get_by_key(key, value, len)
    }
    fn ncclParamGetAllParameterKeys pncclParamGetAllParameterKeys(table: Out<*const c_void>, len: Out<c_int>) {
        params::keys(table, len)
    }
    fn ncclParamDumpAll pncclParamDumpAll() -> Nothing { params::dump() }
    fn ncclResetDebugInit pncclResetDebugInit() -> Nothing {}

    fn ncclSetEncryption pncclSetEncryption(config: In<EncryptionConfig>) { encryption::set(config) }
    fn ncclCommQueryProperties pncclCommQueryProperties(comm: Handle, info: *mut CommProperties) {
        unsupported::properties(comm, In::new(info), Out::new(info))
    }
    fn ncclTeamWorld pncclTeamWorld(comm: Handle) -> Team { unsupported::world("ncclTeamWorld", comm) }
    fn ncclTeamRail pncclTeamRail(comm: Handle) -> Team { unsupported::world("ncclTeamRail", comm) }
    fn ncclTeamLsa pncclTeamLsa(comm: Handle) -> Team { unsupported::alone("ncclTeamLsa", comm) }
    fn ncclTeamRankToWorld pncclTeamRankToWorld(comm: Handle, team: Team, rank: c_int) -> c_int {
        unsupported::rank_to_world("ncclTeamRankToWorld", comm, team, rank)
    }
    fn ncclTeamRankToLsa pncclTeamRankToLsa() -> c_int { unsupported::no_number("ncclTeamRankToLsa") }
    fn ncclTeamCft pncclTeamCft() -> Team { unsupported::no_team("ncclTeamCft") }
    fn ncclTeamCftMultimem pncclTeamCftMultimem() -> Team { unsupported::no_team("ncclTeamCftMultimem") }
    fn ncclLLA2ACalcSlots pncclLLA2ACalcSlots() -> c_int { unsupported::no_number("ncclLLA2ACalcSlots") }
    fn ncclDevCommCreate pncclDevCommCreate() { unsupported::device_interface() }
    fn ncclDevCommDestroy pncclDevCommDestroy() { unsupported::device_interface() }
    fn ncclGetCftDeviceLeInfo pncclGetCftDeviceLeInfo() { unsupported::device_interface() }
    fn ncclGetLsaDevicePointer pncclGetLsaDevicePointer() { unsupported::device_interface() }
    fn ncclGetLsaMultimemDevicePointer pncclGetLsaMultimemDevicePointer() { unsupported::device_interface() }
    fn ncclGetMultimemDeviceLeInfo pncclGetMultimemDeviceLeInfo() { unsupported::device_interface() }
    fn ncclGetMultimemDevicePointer pncclGetMultimemDevicePointer() { unsupported::device_interface() }
    fn ncclGetPeerDeviceLeInfo pncclGetPeerDeviceLeInfo() { unsupported::device_interface() }
    fn ncclGetPeerDevicePointer pncclGetPeerDevicePointer() { unsupported::device_interface() }
    fn ncclGinBarrierCreateRequirement pncclGinBarrierCreateRequirement() { unsupported::device_interface() }
    fn ncclGinInboxA2ACreateRequirement pncclGinInboxA2ACreateRequirement() { unsupported::device_interface() }
    fn ncclGinOutboxCreateRequirement pncclGinOutboxCreateRequirement() { unsupported::device_interface() }
    fn ncclLLA2ACreateRequirement pncclLLA2ACreateRequirement() { unsupported::device_interface() }
    fn ncclLsaBarrierCreateRequirement pncclLsaBarrierCreateRequirement() { unsupported::device_interface() }
}

/// What NCCL's own name for it does; it has no twin.
// SAFETY: as for the others.
#[unsafe(no_mangle)]
extern "C" fn ncclResetDebugInitInternal() {}
