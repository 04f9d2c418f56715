//! Numbers and layouts of NCCL's interface, version 2.32.3.

use std::ffi::{c_char, c_int, c_uint, c_void};

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

/// `ncclCollConfig_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CollConfig {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub ext: *const c_void,
    pub min_ctas: c_int,
    pub max_ctas: c_int,
    pub nvls_ctas: c_int,
    pub cga_cluster_size: c_int,
    pub alg_selection: *const c_char,
    pub force_alg_selection: c_int,
    pub cta_policy: c_int,
    pub user_profiler_tag: u64,
    pub launch_completion_event: *mut c_void,
}

/// `ncclSimInfo_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SimInfo {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    /// In microseconds.
    pub estimated_time: f32,
}

/// The second word of [`SimInfo`].
pub const SIM_INFO_MAGIC: c_uint = 0x7468_5283;

/// `ncclWaitSignalDesc_t`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitSignal {
    pub op_count: c_int,
    pub peer: c_int,
    pub signal: c_int,
    pub context: c_int,
}

/// `ncclEncryptionConfig_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EncryptionConfig {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub mode: c_int,
    pub psk: *const c_char,
}

/// `ncclTeam_t` of the device interface: some ranks of a communicator, as far apart as `stride` says.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Team {
    pub nranks: c_int,
    pub rank: c_int,
    pub stride: c_int,
}

/// `ncclCommProperties_t`, as far as 2.30.7 has it; later versions go on behind it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CommProperties {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub rank: c_int,
    pub nranks: c_int,
    pub cuda_device: c_int,
    pub nvml_device: c_int,
    pub device_api_support: bool,
    pub multimem_support: bool,
    pub gin_type: c_int,
    pub lsa_teams: c_int,
    pub host_rma_support: bool,
    pub railed_gin_type: c_int,
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
    assert!(size_of::<CollConfig>() == 72);
    assert!(offset_of!(CollConfig, ext) == 16);
    assert!(offset_of!(CollConfig, alg_selection) == 40);
    assert!(offset_of!(CollConfig, user_profiler_tag) == 56);
    assert!(offset_of!(CollConfig, launch_completion_event) == 64);
    assert!(size_of::<SimInfo>() == 24 && offset_of!(SimInfo, estimated_time) == 16);
    assert!(size_of::<WaitSignal>() == 16);
    assert!(size_of::<EncryptionConfig>() == 32 && offset_of!(EncryptionConfig, psk) == 24);
    assert!(size_of::<Team>() == 12);
    assert!(size_of::<CommProperties>() == 56 && offset_of!(CommProperties, gin_type) == 36);
};
