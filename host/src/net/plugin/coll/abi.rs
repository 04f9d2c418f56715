//! The tables of NCCL's CollNet plugin ABI, versions 8 to 12, as `net_v8.h` to `net_v12.h` of NCCL's public headers lay them out.

use crate::net::plugin::abi::{
    Close, Code, DeregMr, Devices, Finalize, GetProperties, Init8, Listen8, Listen11, Logger, Opaque,
    Properties8, Properties9, Properties11, Properties12, RegMr, RegMrDmaBuf, Test, Unused,
};
use core::ffi::{c_char, c_int};

pub type CollInit11 = unsafe extern "C" fn(context: *mut Opaque, communicator: u64, log: Logger) -> Code;
pub type CollConnect = unsafe extern "C" fn(
    handles: *mut Opaque,
    nranks: c_int,
    rank: c_int,
    listener: Opaque,
    comm: *mut Opaque,
) -> Code;
pub type ReduceSupport = unsafe extern "C" fn(dtype: c_int, op: c_int, supported: *mut c_int) -> Code;
/// The count is an `int` in version 8, a `size_t` after it.
pub type Iallreduce<Count> = unsafe extern "C" fn(
    comm: Opaque,
    send: Opaque,
    recv: Opaque,
    count: Count,
    dtype: c_int,
    op: c_int,
    send_handle: Opaque,
    recv_handle: Opaque,
    request: *mut Opaque,
) -> Code;
pub type Iallgather<Size> = unsafe extern "C" fn(
    comm: Opaque,
    send: Opaque,
    nparts: c_int,
    parts: *mut Sge<Size>,
    rank_bytes: usize,
    window_offset: usize,
    window_bytes: usize,
    send_handle: Opaque,
    request: *mut Opaque,
) -> Code;
pub type IreduceScatter<Size> = unsafe extern "C" fn(
    comm: Opaque,
    nparts: c_int,
    parts: *mut Sge<Size>,
    recv: Opaque,
    rank_bytes: usize,
    window_offset: usize,
    window_bytes: usize,
    dtype: c_int,
    op: c_int,
    recv_handle: Opaque,
    request: *mut Opaque,
) -> Code;
pub type CollIflush = unsafe extern "C" fn(
    comm: Opaque,
    data: Opaque,
    len: c_int,
    handle: Opaque,
    request: *mut Opaque,
) -> Code;

/// `ncclNetSGE_v8_t` (`Size` is 32 bits) to `_v12_t` (64): a scatter-gather entry.
#[repr(C)]
pub struct Sge<Size> {
    pub handle: Opaque,
    pub address: Opaque,
    pub size: Size,
}

/// A table: the fields that all versions share, in order, with the types in which versions differ.
#[repr(C)]
pub struct CollTable<Init, Properties, Listen, Count, Size> {
    pub name: *const c_char,
    pub init: Option<Init>,
    pub devices: Option<Devices>,
    pub get_properties: Option<GetProperties<Properties>>,
    pub listen: Option<Listen>,
    pub connect: Option<CollConnect>,
    pub reduce_support: Option<ReduceSupport>,
    pub reg_mr: Option<RegMr>,
    pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
    pub dereg_mr: Option<DeregMr>,
    pub iallreduce: Option<Iallreduce<Count>>,
    pub iallgather: Option<Iallgather<Size>>,
    pub ireduce_scatter: Option<IreduceScatter<Size>>,
    pub iflush: Option<CollIflush>,
    pub test: Option<Test>,
    pub close_coll: Option<Close>,
    pub close_listen: Option<Close>,
}

/// A [`CollTable`] and the fields that versions 11 and 12 add.
#[repr(C)]
pub struct CollTableWithContext<T> {
    pub table: T,
    pub make_v_device: Unused,
    pub finalize: Option<Finalize>,
}

/// `ncclCollNet_v8_t`.
pub type CollTable8 = CollTable<Init8, Properties8, Listen8, c_int, u32>;
/// `ncclCollNet_v9_t` and `_v10_t`, less `makeVDevice` at their ends.
pub type CollTable9 = CollTable<Init8, Properties9, Listen8, usize, usize>;
/// `ncclCollNet_v11_t`.
pub type CollTable11 = CollTableWithContext<CollTable<CollInit11, Properties11, Listen11, usize, usize>>;
/// `ncclCollNet_v12_t`.
pub type CollTable12 = CollTableWithContext<CollTable<CollInit11, Properties12, Listen11, usize, usize>>;

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<CollTable8>() == 17 * 8 && offset_of!(CollTable8, test) == 14 * 8);
    assert!(offset_of!(CollTable9, reduce_support) == 6 * 8 && offset_of!(CollTable9, iflush) == 13 * 8);
    assert!(size_of::<CollTable12>() == 19 * 8 && offset_of!(CollTable12, finalize) == 18 * 8);
    assert!(size_of::<Sge<u32>>() == 24 && size_of::<Sge<usize>>() == 24);
    assert!(offset_of!(Sge<u32>, address) == 8 && offset_of!(Sge<u32>, size) == 16);
};
