//! The tables of NCCL's tuner plugin ABI, versions 2 to 6, as `tuner_v2.h` to `tuner_v6.h` of NCCL's public headers lay them out.
//!
//! Field names are the headers', in Rust's spelling. A null function is one that the plugin does not have.

pub use crate::net::plugin::abi::{Code, Logger, Opaque};
use core::ffi::{c_char, c_double, c_float, c_int, c_void};

/// Rows of a cost table: `NCCL_ALGO_TREE`, `RING`, `COLLNET_DIRECT`, `COLLNET_CHAIN`, `NVLS`, `NVLS_TREE`, `PAT`.
pub const ALGORITHMS: usize = 7;
/// Its columns: `NCCL_PROTO_LL`, `LL128`, `SIMPLE`.
pub const PROTOCOLS: usize = 3;
/// A cost that excludes an entry (`NCCL_ALGO_PROTO_IGNORE`).
pub const IGNORE: f32 = -1.0;
/// Kinds of links, generations and scales of the constants.
const LINKS: usize = 3;
const GENERATIONS: usize = 4;
const SCALES: usize = 3;

/// `float collCostTable[NCCL_NUM_ALGORITHMS][NCCL_NUM_PROTOCOLS]`: microseconds. Its address is passed as a `float **`.
pub type CostTable = [[c_float; PROTOCOLS]; ALGORITHMS];

/// `ncclNvlDomainInfo_v5_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NvlDomains {
    pub domains: c_int,
    pub min_ranks_per_domain: c_int,
    pub max_ranks_per_domain: c_int,
}

/// `ncclTunerConstants_v5_t`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Constants {
    pub base_latencies: [[c_double; PROTOCOLS]; ALGORITHMS],
    pub hw_latencies: [[[c_double; PROTOCOLS]; ALGORITHMS]; LINKS],
    pub ll_max_bws: [[c_double; SCALES]; GENERATIONS],
    pub per_ch_max_ring_ll128_bws: [[c_double; SCALES]; GENERATIONS],
    pub per_ch_max_tree_ll128_bws: [[c_double; SCALES]; GENERATIONS],
    pub per_ch_max_tree_bws: [[c_double; SCALES]; GENERATIONS],
    pub per_ch_max_nvls_tree_bws: [[c_double; SCALES]; GENERATIONS],
}

pub type Init2 =
    unsafe extern "C" fn(nranks: usize, nnodes: usize, log: Logger, context: *mut Opaque) -> Code;
pub type Init5 = unsafe extern "C" fn(
    context: *mut Opaque,
    comm_id: u64,
    nranks: usize,
    nnodes: usize,
    log: Logger,
    domains: *mut NvlDomains,
    constants: *mut Constants,
) -> Code;
pub type CollInfo2 = unsafe extern "C" fn(
    context: Opaque,
    coll_type: c_int,
    bytes: usize,
    collnet_support: c_int,
    nvls_support: c_int,
    pipe_ops: c_int,
    algorithm: *mut c_int,
    protocol: *mut c_int,
    channels: *mut c_int,
) -> Code;
pub type CollInfo3 = unsafe extern "C" fn(
    context: Opaque,
    coll_type: c_int,
    bytes: usize,
    pipe_ops: c_int,
    table: *mut CostTable,
    algorithms: c_int,
    protocols: c_int,
    channels: *mut c_int,
) -> Code;
pub type CollInfo4 = unsafe extern "C" fn(
    context: Opaque,
    coll_type: c_int,
    bytes: usize,
    pipe_ops: c_int,
    table: *mut CostTable,
    algorithms: c_int,
    protocols: c_int,
    registered: c_int,
    channels: *mut c_int,
) -> Code;
pub type End = unsafe extern "C" fn(context: Opaque) -> Code;

/// `ncclTuner_v2_t`
#[repr(C)]
pub struct Tuner2 {
    pub name: *const c_char,
    pub init: Option<Init2>,
    pub get_coll_info: Option<CollInfo2>,
    pub destroy: Option<End>,
}

/// `ncclTuner_v3_t`
#[repr(C)]
pub struct Tuner3 {
    pub name: *const c_char,
    pub init: Option<Init2>,
    pub get_coll_info: Option<CollInfo3>,
    pub destroy: Option<End>,
}

/// `ncclTuner_v4_t`
#[repr(C)]
pub struct Tuner4 {
    pub name: *const c_char,
    pub init: Option<Init2>,
    pub get_coll_info: Option<CollInfo4>,
    pub destroy: Option<End>,
}

/// `ncclTuner_v5_t`
#[repr(C)]
pub struct Tuner5 {
    pub name: *const c_char,
    pub init: Option<Init5>,
    pub get_coll_info: Option<CollInfo4>,
    pub finalize: Option<End>,
}

/// `ncclTuner_v6_t`. Its chunk sizes are NCCL's, of buffers that this library has not: `get_chunk_size` is not called.
#[repr(C)]
pub struct Tuner6 {
    pub name: *const c_char,
    pub init: Option<Init5>,
    pub get_coll_info: Option<CollInfo4>,
    pub finalize: Option<End>,
    pub get_chunk_size: *const c_void,
}
