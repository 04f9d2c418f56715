//! The tables of NCCL's profiler plugin ABI, versions 4 to 6, as `profiler_v4.h` to `profiler_v6.h` of NCCL's public headers lay them out.
//!
//! Field names are the headers', in Rust's spelling. A null function is one that the plugin does not have.

pub use crate::net::plugin::abi::{Code, Logger, Opaque};
use core::ffi::{c_char, c_int, c_void};

/// `ncclProfileGroup`
pub const GROUP: u32 = 1 << 0;
/// `ncclProfileColl`
pub const COLL: u32 = 1 << 1;
/// `ncclProfileP2p`
pub const P2P: u32 = 1 << 2;
/// `ncclProfileGroupApi`
pub const GROUP_API: u32 = 1 << 8;
/// `ncclProfileCollApi`
pub const COLL_API: u32 = 1 << 9;
/// `ncclProfileP2pApi`
pub const P2P_API: u32 = 1 << 10;

/// `groupApi`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GroupApi {
    pub graph_captured: bool,
    pub group_depth: c_int,
}

/// `collApi`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CollApi {
    pub func: *const c_char,
    pub count: usize,
    pub datatype: *const c_char,
    pub root: c_int,
    pub stream: *mut c_void,
    pub graph_captured: bool,
}

/// `p2pApi`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct P2pApi {
    pub func: *const c_char,
    pub count: usize,
    pub datatype: *const c_char,
    pub stream: *mut c_void,
    pub graph_captured: bool,
}

/// `coll`; version 4 ends before `parent_group`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Coll {
    pub seq_number: u64,
    pub func: *const c_char,
    pub send_buff: *const c_void,
    pub recv_buff: *mut c_void,
    pub count: usize,
    pub root: c_int,
    pub datatype: *const c_char,
    pub channels: u8,
    pub warps: u8,
    pub algo: *const c_char,
    pub proto: *const c_char,
    pub parent_group: Opaque,
}

/// `p2p`; version 4 ends before `parent_group`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct P2p {
    pub func: *const c_char,
    pub buff: *mut c_void,
    pub datatype: *const c_char,
    pub count: usize,
    pub peer: c_int,
    pub channels: u8,
    pub parent_group: Opaque,
}

/// What an event is about. As long as the longest that a version has (`ceColl` of version 6).
#[repr(C)]
#[derive(Clone, Copy)]
pub union Facts {
    pub group_api: GroupApi,
    pub coll_api: CollApi,
    pub p2p_api: P2pApi,
    pub coll: Coll,
    pub p2p: P2p,
    pub room: [u64; 16],
}

/// `ncclProfilerEventDescr_v4_t`
#[repr(C)]
pub struct Descr4 {
    pub kind: u8,
    pub parent: Opaque,
    pub rank: c_int,
    pub facts: Facts,
}

/// `ncclProfilerEventDescr_v5_t` and `_v6_t`
#[repr(C)]
pub struct Descr5 {
    pub kind: u64,
    pub parent: Opaque,
    pub rank: c_int,
    pub facts: Facts,
}

pub type Init4 = unsafe extern "C" fn(
    context: *mut Opaque,
    mask: *mut c_int,
    name: *const c_char,
    comm_hash: u64,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    log: Logger,
) -> Code;
pub type Init5 = unsafe extern "C" fn(
    context: *mut Opaque,
    comm_id: u64,
    mask: *mut c_int,
    name: *const c_char,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    log: Logger,
) -> Code;
pub type Start4 = unsafe extern "C" fn(context: Opaque, event: *mut Opaque, descr: *mut Descr4) -> Code;
pub type Start5 = unsafe extern "C" fn(context: Opaque, event: *mut Opaque, descr: *mut Descr5) -> Code;
pub type Stop = unsafe extern "C" fn(event: Opaque) -> Code;
pub type End = unsafe extern "C" fn(context: Opaque) -> Code;

/// `ncclProfiler_v4_t`
#[repr(C)]
pub struct Profiler4 {
    pub name: *const c_char,
    pub init: Option<Init4>,
    pub start_event: Option<Start4>,
    pub stop_event: Option<Stop>,
    /// For events of proxies and kernels, which this library does not report.
    pub record_event_state: *const c_void,
    pub finalize: Option<End>,
}

/// `ncclProfiler_v5_t` and `_v6_t`
#[repr(C)]
pub struct Profiler5 {
    pub name: *const c_char,
    pub init: Option<Init5>,
    pub start_event: Option<Start5>,
    pub stop_event: Option<Stop>,
    /// As in version 4.
    pub record_event_state: *const c_void,
    pub finalize: Option<End>,
}
