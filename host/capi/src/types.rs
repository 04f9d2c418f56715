//! Numbers and layouts of NCCL's interface, version 2.32.3.

use std::ffi::{c_char, c_int, c_uint};

/// What `ncclGetVersion` returns: 2.32.3.
pub const VERSION: c_int = 23_203;

/// The version that a header of `major.minor.patch` writes into its structures.
pub const fn version(major: c_uint, minor: c_uint, patch: c_uint) -> c_uint {
    major * 10_000 + minor * 100 + patch
}

/// The second word of every structure that callers initialise.
pub const MAGIC: c_uint = 0xcafe_beef;
/// An integer that the caller has not set.
pub const UNDEFINED: c_int = c_int::MIN;
/// The color of a rank that joins no new communicator.
pub const NO_COLOR: c_int = -1;

/// `ncclResult_t`.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    Success = 0,
    UnhandledCudaError = 1,
    SystemError = 2,
    InternalError = 3,
    InvalidArgument = 4,
    InvalidUsage = 5,
    RemoteError = 6,
    InProgress = 7,
    Timeout = 8,
}

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueIdBytes {
    pub internal: [c_char; 128],
}

/// `ncclConfig_t`. It only grows at its end; a caller compiled earlier passes a shorter one and says so in `size`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CommConfig {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub blocking: c_int,
    pub cga_cluster_size: c_int,
    pub min_ctas: c_int,
    pub max_ctas: c_int,
    pub net_name: *const c_char,
    pub split_share: c_int,
    pub traffic_class: c_int,
    pub comm_name: *const c_char,
    pub collnet_enable: c_int,
    pub cta_policy: c_int,
    pub shrink_share: c_int,
    pub nvls_ctas: c_int,
    pub channels_per_net_peer: c_int,
    pub nvlink_centric_sched: c_int,
    pub graph_usage_mode: c_int,
    pub num_rma_ctx: c_int,
    pub max_p2p_peers: c_int,
    pub graph_stream_ordering: c_int,
    pub launch_order_implicit: c_int,
    pub num_rma_sig: c_int,
    pub rma_eager_init: c_int,
    pub host_cft_mode: c_int,
    pub nvls_host_mode: c_int,
}

const _: () = {
    use std::mem::{align_of, offset_of, size_of};
    assert!(size_of::<Code>() == 4);
    assert!(size_of::<UniqueIdBytes>() == 128 && align_of::<UniqueIdBytes>() == 1);
    assert!(size_of::<CommConfig>() == 120 && align_of::<CommConfig>() == 8);
    assert!(offset_of!(CommConfig, magic) == 8);
    assert!(offset_of!(CommConfig, version) == 12);
    assert!(offset_of!(CommConfig, blocking) == 16);
    assert!(offset_of!(CommConfig, net_name) == 32);
    assert!(offset_of!(CommConfig, split_share) == 40);
    assert!(offset_of!(CommConfig, traffic_class) == 44);
    assert!(offset_of!(CommConfig, comm_name) == 48);
    assert!(offset_of!(CommConfig, cta_policy) == 60);
    assert!(offset_of!(CommConfig, max_p2p_peers) == 88);
    assert!(offset_of!(CommConfig, nvls_host_mode) == 112);
};
