//! The tables of NCCL's net plugin ABI, versions 8 to 12, as `net_v8.h` to `net_v12.h` of NCCL's public headers lay
//! them out.
//!
//! Field names are the headers', in Rust's spelling. A null function is one that the plugin does not have.

use core::ffi::{c_char, c_float, c_int, c_void};

/// `ncclResult_t`; 0 is success.
pub type Code = c_int;
/// An opaque pointer of the plugin.
pub type Opaque = *mut c_void;

/// `ncclDebugLogger_t`, which is variadic.
pub type Logger = unsafe extern "C" fn(
    level: c_int,
    flags: u64,
    file: *const c_char,
    line: c_int,
    format: *const c_char,
    ...
);
/// `ncclProfilerCallback_t`.
pub type Profiler =
    unsafe extern "C" fn(event: *mut Opaque, kind: c_int, parent: Opaque, plugin: i64, extra: Opaque) -> Code;

pub type Devices = unsafe extern "C" fn(count: *mut c_int) -> Code;
pub type Accept = unsafe extern "C" fn(listener: Opaque, comm: *mut Opaque, device_comm: *mut Opaque) -> Code;
pub type RegMr =
    unsafe extern "C" fn(comm: Opaque, data: Opaque, len: usize, kind: c_int, handle: *mut Opaque) -> Code;
pub type RegMrDmaBuf = unsafe extern "C" fn(
    comm: Opaque,
    data: Opaque,
    len: usize,
    kind: c_int,
    offset: u64,
    fd: c_int,
    handle: *mut Opaque,
) -> Code;
pub type DeregMr = unsafe extern "C" fn(comm: Opaque, handle: Opaque) -> Code;
pub type Iflush = unsafe extern "C" fn(
    comm: Opaque,
    n: c_int,
    data: *mut Opaque,
    lens: *mut c_int,
    handles: *mut Opaque,
    request: *mut Opaque,
) -> Code;
pub type Test = unsafe extern "C" fn(request: Opaque, done: *mut c_int, lens: *mut c_int) -> Code;
pub type Close = unsafe extern "C" fn(Opaque) -> Code;
/// Functions for kernels that drive a NIC themselves and for merged NICs. OxCCL never calls them.
pub type Unused = Option<unsafe extern "C" fn()>;

pub type Init8 = unsafe extern "C" fn(log: Logger) -> Code;
pub type Init10 = unsafe extern "C" fn(log: Logger, profiler: Profiler) -> Code;
pub type Init11 = unsafe extern "C" fn(
    context: *mut Opaque,
    communicator: u64,
    config: *const CommConfig,
    log: Logger,
    profiler: Profiler,
) -> Code;
pub type GetProperties<P> = unsafe extern "C" fn(device: c_int, properties: *mut P) -> Code;
pub type Listen8 = unsafe extern "C" fn(device: c_int, handle: Opaque, listener: *mut Opaque) -> Code;
pub type Listen11 =
    unsafe extern "C" fn(context: Opaque, device: c_int, handle: Opaque, listener: *mut Opaque) -> Code;
pub type Connect8 =
    unsafe extern "C" fn(device: c_int, handle: Opaque, comm: *mut Opaque, device_comm: *mut Opaque) -> Code;
pub type Connect10 = unsafe extern "C" fn(
    device: c_int,
    config: *const CommConfig,
    handle: Opaque,
    comm: *mut Opaque,
    device_comm: *mut Opaque,
) -> Code;
pub type Connect11 = unsafe extern "C" fn(
    context: Opaque,
    device: c_int,
    handle: Opaque,
    comm: *mut Opaque,
    device_comm: *mut Opaque,
) -> Code;
pub type Isend8 = unsafe extern "C" fn(
    comm: Opaque,
    data: Opaque,
    len: c_int,
    tag: c_int,
    handle: Opaque,
    request: *mut Opaque,
) -> Code;
pub type Isend9 = unsafe extern "C" fn(
    comm: Opaque,
    data: Opaque,
    len: usize,
    tag: c_int,
    handle: Opaque,
    request: *mut Opaque,
) -> Code;
pub type Isend10 = unsafe extern "C" fn(
    comm: Opaque,
    data: Opaque,
    len: usize,
    tag: c_int,
    handle: Opaque,
    profiler: Opaque,
    request: *mut Opaque,
) -> Code;
pub type Irecv8 = unsafe extern "C" fn(
    comm: Opaque,
    n: c_int,
    data: *mut Opaque,
    lens: *mut c_int,
    tags: *mut c_int,
    handles: *mut Opaque,
    request: *mut Opaque,
) -> Code;
pub type Irecv9 = unsafe extern "C" fn(
    comm: Opaque,
    n: c_int,
    data: *mut Opaque,
    lens: *mut usize,
    tags: *mut c_int,
    handles: *mut Opaque,
    request: *mut Opaque,
) -> Code;
pub type Irecv10 = unsafe extern "C" fn(
    comm: Opaque,
    n: c_int,
    data: *mut Opaque,
    lens: *mut usize,
    tags: *mut c_int,
    handles: *mut Opaque,
    profilers: *mut Opaque,
    request: *mut Opaque,
) -> Code;
pub type Finalize = unsafe extern "C" fn(context: Opaque) -> Code;

/// `ncclNetCommConfig_t` (10 to 12).
#[repr(C)]
pub struct CommConfig {
    /// Traffic class of packets; -1 leaves it to the plugin.
    pub traffic_class: c_int,
}

macro_rules! properties {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        pub struct $name {
            pub name: *const c_char,
            pub pci_path: *const c_char,
            pub guid: u64,
            pub ptr_support: c_int,
            pub reg_is_global: c_int,
            $(pub $field: $type,)*
        }

        impl $name {
            /// Zeroes, for the plugin to fill in.
            pub fn empty() -> Self {
                // SAFETY: numbers, and pointers that may be null.
                unsafe { core::mem::zeroed() }
            }
        }
    };
}

properties! {
    /// `ncclNetProperties_v8_t`.
    Properties8 {
        speed: c_int,
        port: c_int,
        latency: c_float,
        max_comms: c_int,
        max_recvs: c_int,
        device_type: c_int,
        device_version: c_int,
    }
}

properties! {
    /// `ncclNetProperties_v9_t` and `_v10_t`.
    Properties9 {
        force_flush: c_int,
        speed: c_int,
        port: c_int,
        latency: c_float,
        max_comms: c_int,
        max_recvs: c_int,
        device_type: c_int,
        device_version: c_int,
        merged: c_int,
        merged_devices: [c_int; 4],
        max_p2p_bytes: usize,
        max_coll_bytes: usize,
    }
}

properties! {
    /// `ncclNetProperties_v11_t`.
    Properties11 {
        force_flush: c_int,
        speed: c_int,
        port: c_int,
        latency: c_float,
        max_comms: c_int,
        max_recvs: c_int,
        device_type: c_int,
        device_version: c_int,
        merged: c_int,
        merged_devices: [c_int; 4],
        max_p2p_bytes: usize,
        max_coll_bytes: usize,
        max_multi_request_size: c_int,
    }
}

properties! {
    /// `ncclNetProperties_v12_t`.
    Properties12 {
        force_flush: c_int,
        speed: c_int,
        port: c_int,
        latency: c_float,
        max_comms: c_int,
        max_recvs: c_int,
        device_type: c_int,
        device_version: c_int,
        merged: c_int,
        merged_devices: [c_int; 8],
        max_p2p_bytes: usize,
        max_coll_bytes: usize,
        max_multi_request_size: c_int,
        rail: i16,
        plane: i16,
    }
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Properties8>() == 64 && offset_of!(Properties8, speed) == 32);
    assert!(size_of::<Properties9>() == 104 && offset_of!(Properties9, max_p2p_bytes) == 88);
    assert!(size_of::<Properties11>() == 112 && offset_of!(Properties11, max_multi_request_size) == 104);
    assert!(size_of::<Properties12>() == 128 && offset_of!(Properties12, max_p2p_bytes) == 104);
    assert!(offset_of!(Properties12, rail) == 124);
};

/// A table: the fields that all versions share, in order, with the types in which versions differ.
#[repr(C)]
pub struct Table<Init, Properties, Listen, Connect, Isend, Irecv> {
    pub name: *const c_char,
    pub init: Option<Init>,
    pub devices: Option<Devices>,
    pub get_properties: Option<GetProperties<Properties>>,
    pub listen: Option<Listen>,
    pub connect: Option<Connect>,
    pub accept: Option<Accept>,
    pub reg_mr: Option<RegMr>,
    pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
    pub dereg_mr: Option<DeregMr>,
    pub isend: Option<Isend>,
    pub irecv: Option<Irecv>,
    pub iflush: Option<Iflush>,
    pub test: Option<Test>,
    pub close_send: Option<Close>,
    pub close_recv: Option<Close>,
    pub close_listen: Option<Close>,
    pub get_device_mr: Unused,
    pub irecv_consumed: Unused,
}

/// A [`Table`] and the fields that versions 11 and 12 add.
#[repr(C)]
pub struct TableWithContext<T> {
    pub table: T,
    pub make_v_device: Unused,
    pub finalize: Option<Finalize>,
    pub set_net_attr: Unused,
}

/// `ncclNet_v8_t`.
pub type Table8 = Table<Init8, Properties8, Listen8, Connect8, Isend8, Irecv8>;
/// `ncclNet_v9_t`, less `makeVDevice` at its end.
pub type Table9 = Table<Init8, Properties9, Listen8, Connect8, Isend9, Irecv9>;
/// `ncclNet_v10_t`, less `makeVDevice` at its end.
pub type Table10 = Table<Init10, Properties9, Listen8, Connect10, Isend10, Irecv10>;
/// `ncclNet_v11_t`.
pub type Table11 = TableWithContext<Table<Init11, Properties11, Listen11, Connect11, Isend10, Irecv10>>;
/// `ncclNet_v12_t`.
pub type Table12 = TableWithContext<Table<Init11, Properties12, Listen11, Connect11, Isend10, Irecv10>>;

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Table8>() == 19 * 8 && offset_of!(Table8, test) == 13 * 8);
    assert!(size_of::<Table12>() == 22 * 8 && offset_of!(Table12, finalize) == 20 * 8);
};
