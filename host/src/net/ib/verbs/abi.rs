//! The structures of libibverbs in use, as `infiniband/verbs.h` of rdma-core lays them out since its first stable ABI
//! (`IBVERBS_1.1`). Later versions append to structures that the library allocates, and never to those that callers
//! allocate. Structures that are declared only up to a field are used only through the library's pointers.
//!
//! Declared by hand: see `docs/adr/0008-verbs-by-hand.md`.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// A device in the list of devices (`struct ibv_device`).
#[repr(C)]
pub struct Device {
    ops: [*mut c_void; 2],
    node_type: c_int,
    transport_type: c_int,
    name: [c_char; 64],
    dev_name: [c_char; 64],
    dev_path: [c_char; 256],
    ibdev_path: [c_char; 256],
}

/// A driver's functions for every message (`struct ibv_context_ops`): the header's `ibv_poll_cq`, `ibv_post_send` and
/// `ibv_post_recv` are inline calls of these.
#[repr(C)]
pub struct ContextOps {
    before_poll: [*mut c_void; 11],
    pub poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    before_post: [*mut c_void; 13],
    pub post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    pub post_recv: unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    after_post: [*mut c_void; 5],
}

/// An open device (`struct ibv_context`), up to `async_fd`.
#[repr(C)]
pub struct Context {
    device: *mut Device,
    pub ops: ContextOps,
    cmd_fd: c_int,
    pub async_fd: c_int,
}

/// `struct ibv_pd`, opaque.
#[repr(C)]
pub struct Pd {
    context: *mut Context,
}

/// A completion queue (`struct ibv_cq`), up to its context.
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
}

/// A queue pair (`struct ibv_qp`), up to its number.
#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    qp_context: *mut c_void,
    pd: *mut Pd,
    send_cq: *mut Cq,
    recv_cq: *mut Cq,
    srq: *mut c_void,
    handle: u32,
    pub qp_num: u32,
}

/// A memory region (`struct ibv_mr`).
#[repr(C)]
pub struct Mr {
    context: *mut Context,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// Attributes of a device (`struct ibv_device_attr`). Unused fields are not split up.
#[repr(C)]
pub struct DeviceAttr {
    fw_ver: [c_char; 64],
    node_guid: u64,
    /// Equal for all ports and functions of one adapter; big-endian.
    pub sys_image_guid: u64,
    max_mr_size: u64,
    page_size_cap: u64,
    vendor: [u32; 3],
    pub max_qp: c_int,
    max_qp_wr: c_int,
    flags_and_sges: [c_int; 3],
    max_cq: c_int,
    max_cqe: c_int,
    limits: [c_int; 22],
    max_pkeys: u16,
    local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// Attributes of a port (`struct ibv_port_attr`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PortAttr {
    pub state: c_uint,
    max_mtu: c_uint,
    /// 1 is 256 bytes, 5 is 4096.
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    port_cap_flags: u32,
    pub max_msg_sz: u32,
    bad_pkey_cntr: u32,
    qkey_viol_cntr: u32,
    pkey_tbl_len: u16,
    pub lid: u16,
    sm_lid: u16,
    lmc: u8,
    max_vl_num: u8,
    sm_sl: u8,
    subnet_timeout: u8,
    init_type_reply: u8,
    /// 1, 2, 4, 8 and 16 for 1, 4, 8, 12 and 2 lanes.
    pub active_width: u8,
    /// A bit per speed of a lane.
    pub active_speed: u8,
    phys_state: u8,
    pub link_layer: u8,
    flags: u8,
    port_cap_flags2: u16,
}

/// A global identifier (`union ibv_gid`), in network order.
#[repr(C, align(8))]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Gid(pub [u8; 16]);

/// `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct GlobalRoute {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// Route of packets (`struct ibv_ah_attr`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct AhAttr {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// Capacity of a queue pair (`struct ibv_qp_cap`).
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub cap: QpCap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpAttr {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// A scatter-gather entry (`struct ibv_sge`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

/// `struct ibv_send_wr`, with the one member of its unions that RDMA reads and writes use.
#[repr(C)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    /// Big-endian.
    pub imm_data: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    pub rest_of_unions: [u64; 9],
}

/// A completion (`struct ibv_wc`).
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Big-endian.
    pub imm_data: u32,
    pub qp_num: u32,
    src_qp: u32,
    wc_flags: c_uint,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

/// `struct ibv_async_event`.
#[repr(C)]
pub struct AsyncEvent {
    /// A union of pointers and the port number.
    pub element: *mut c_void,
    pub event_type: c_uint,
}

/// Values of the header's enumerations.
pub mod value {
    use std::ffi::c_uint;

    pub const PORT_ACTIVE: c_uint = 4;
    pub const LINK_LAYER_INFINIBAND: u8 = 1;
    pub const LINK_LAYER_ETHERNET: u8 = 2;
    pub const QPT_RC: c_uint = 2;

    pub const QPS_INIT: c_uint = 1;
    pub const QPS_RTR: c_uint = 2;
    pub const QPS_RTS: c_uint = 3;

    pub const QP_STATE: c_uint = 1 << 0;
    pub const QP_ACCESS_FLAGS: c_uint = 1 << 3;
    pub const QP_PKEY_INDEX: c_uint = 1 << 4;
    pub const QP_PORT: c_uint = 1 << 5;
    pub const QP_AV: c_uint = 1 << 7;
    pub const QP_PATH_MTU: c_uint = 1 << 8;
    pub const QP_TIMEOUT: c_uint = 1 << 9;
    pub const QP_RETRY_CNT: c_uint = 1 << 10;
    pub const QP_RNR_RETRY: c_uint = 1 << 11;
    pub const QP_RQ_PSN: c_uint = 1 << 12;
    pub const QP_MAX_QP_RD_ATOMIC: c_uint = 1 << 13;
    pub const QP_MIN_RNR_TIMER: c_uint = 1 << 15;
    pub const QP_SQ_PSN: c_uint = 1 << 16;
    pub const QP_MAX_DEST_RD_ATOMIC: c_uint = 1 << 17;
    pub const QP_DEST_QPN: c_uint = 1 << 20;

    pub const ACCESS_LOCAL_WRITE: c_uint = 1;
    pub const ACCESS_REMOTE_WRITE: c_uint = 1 << 1;
    pub const ACCESS_REMOTE_READ: c_uint = 1 << 2;
    pub const ACCESS_RELAXED_ORDERING: c_uint = 1 << 20;

    pub const WR_RDMA_WRITE: c_uint = 0;
    pub const WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
    pub const WR_RDMA_READ: c_uint = 4;
    pub const SEND_SIGNALED: c_uint = 1 << 1;
    pub const SEND_INLINE: c_uint = 1 << 3;

    pub const WC_SUCCESS: c_uint = 0;
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<Device>() == 664);
    assert!(size_of::<ContextOps>() == 256);
    assert!(offset_of!(ContextOps, poll_cq) == 88);
    assert!(offset_of!(ContextOps, post_send) == 200);
    assert!(offset_of!(ContextOps, post_recv) == 208);
    assert!(offset_of!(Context, ops) == 8);
    assert!(offset_of!(Context, async_fd) == 268);
    assert!(offset_of!(Qp, qp_num) == 52);
    assert!(size_of::<Mr>() == 48);
    assert!(offset_of!(Mr, lkey) == 36 && offset_of!(Mr, rkey) == 40);
    assert!(size_of::<DeviceAttr>() == 232);
    assert!(offset_of!(DeviceAttr, sys_image_guid) == 72);
    assert!(offset_of!(DeviceAttr, max_qp) == 108);
    assert!(offset_of!(DeviceAttr, max_cqe) == 132);
    assert!(offset_of!(DeviceAttr, phys_port_cnt) == 227);
    assert!(size_of::<PortAttr>() == 52);
    assert!(offset_of!(PortAttr, active_mtu) == 8);
    assert!(offset_of!(PortAttr, max_msg_sz) == 20);
    assert!(offset_of!(PortAttr, lid) == 34);
    assert!(offset_of!(PortAttr, active_width) == 43);
    assert!(offset_of!(PortAttr, link_layer) == 46);
    assert!(size_of::<GlobalRoute>() == 24);
    assert!(offset_of!(GlobalRoute, traffic_class) == 22);
    assert!(size_of::<AhAttr>() == 32);
    assert!(offset_of!(AhAttr, is_global) == 29 && offset_of!(AhAttr, port_num) == 30);
    assert!(size_of::<QpInitAttr>() == 64);
    assert!(offset_of!(QpInitAttr, cap) == 32 && offset_of!(QpInitAttr, qp_type) == 52);
    assert!(size_of::<QpAttr>() == 144);
    assert!(offset_of!(QpAttr, qp_access_flags) == 32);
    assert!(offset_of!(QpAttr, ah_attr) == 56);
    assert!(offset_of!(QpAttr, pkey_index) == 120);
    assert!(offset_of!(QpAttr, max_rd_atomic) == 126);
    assert!(offset_of!(QpAttr, timeout) == 130);
    assert!(size_of::<Sge>() == 16);
    assert!(size_of::<RecvWr>() == 32 && offset_of!(RecvWr, num_sge) == 24);
    assert!(size_of::<SendWr>() == 128);
    assert!(offset_of!(SendWr, imm_data) == 36);
    assert!(offset_of!(SendWr, remote_addr) == 40 && offset_of!(SendWr, rkey) == 48);
    assert!(size_of::<Wc>() == 48);
    assert!(offset_of!(Wc, imm_data) == 24 && offset_of!(Wc, qp_num) == 28);
    assert!(size_of::<AsyncEvent>() == 16 && offset_of!(AsyncEvent, event_type) == 8);
};
