//! The functions of net tables.

use crate::object::{self, Body, give, give_request, handle_of, registration_of};
use crate::plugin::{self, Failed, ended, wrong};
use oxccl::net::plugin::abi::*;
use oxccl::net::{Connector, HANDLE_BYTES, MemoryKinds, NetHandle, NetMemory, NetMemoryKind, NetProperties};
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock, PoisonError};

/// `NCCL_PTR_HOST`.
const PTR_HOST: c_int = 1;
/// Receives of one call: no network of ours groups any.
const RECVS_MAX: c_int = 1;

pub unsafe extern "C" fn init8(log: Logger) -> Code {
    plugin::log_to(log);
    ended("init", || plugin::net().map(drop))
}

pub unsafe extern "C" fn init10(log: Logger, _profiler: Profiler) -> Code {
    // SAFETY: it asks for nothing.
    unsafe { init8(log) }
}

pub unsafe extern "C" fn init11(
    context: *mut Opaque,
    _communicator: u64,
    _config: *const CommConfig,
    log: Logger,
    _profiler: Profiler,
) -> Code {
    plugin::log_to(log);
    ended("init", || {
        plugin::net()?;
        // SAFETY: as the header says. The process has one context.
        unsafe { give(context, null_mut()) }
    })
}

pub unsafe extern "C" fn devices(count: *mut c_int) -> Code {
    ended("devices", || {
        let devices = plugin::net()?.devices();
        // SAFETY: as the header says.
        unsafe { give(count, devices as c_int) }
    })
}

/// Strings that tables point to, which live as long as the process.
pub fn forever(text: &str) -> *const c_char {
    static TEXTS: Mutex<Vec<(String, &'static CString)>> = Mutex::new(Vec::new());
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, found)) = texts.iter().find(|(known, _)| known == text) {
        return found.as_ptr();
    }
    let made: &'static CString =
        Box::leak(Box::new(CString::new(text.replace('\0', "")).unwrap_or_default()));
    texts.push((text.to_owned(), made));
    made.as_ptr()
}

/// What a version's properties have in common, filled in.
macro_rules! fill {
    ($to:expr, $facts:expr) => {{
        let NetProperties { name, pci_path, guid, memory, .. } = $facts;
        $to.name = forever(name);
        $to.pci_path = pci_path.as_ref().map_or(std::ptr::null(), |path| forever(path));
        $to.guid = *guid;
        $to.ptr_support = if memory.contains(MemoryKinds::HOST) { PTR_HOST } else { 0 };
        $to.reg_is_global = c_int::from($facts.registers_globally);
        $to.speed = $facts.speed_mbps as c_int;
        $to.port = $facts.port as c_int;
        $to.latency = $facts.latency_us;
        $to.max_comms = $facts.comms_max as c_int;
        $to.max_recvs = RECVS_MAX;
    }};
}

/// A version's properties of a device's facts.
pub trait Properties: Sized {
    fn of(device: c_int, facts: &NetProperties) -> Self;
}

impl Properties for Properties8 {
    fn of(_device: c_int, facts: &NetProperties) -> Self {
        let mut to = Properties8::empty();
        fill!(to, facts);
        to
    }
}

macro_rules! properties {
    ($type:ident $(, $extra:ident = $value:expr)*) => {
        impl Properties for $type {
            fn of(device: c_int, facts: &NetProperties) -> Self {
                let mut to = $type::empty();
                fill!(to, facts);
                (to.merged, to.merged_devices[0]) = (1, device);
                (to.max_p2p_bytes, to.max_coll_bytes) = (facts.message_max_bytes, facts.message_max_bytes);
                $(to.$extra = $value;)*
                to
            }
        }
    };
}
properties!(Properties9);
properties!(Properties11, max_multi_request_size = 1);
properties!(Properties12, max_multi_request_size = 1, rail = -1, plane = -1);

/// A device's number.
pub fn device(number: c_int) -> Result<u32, Failed> {
    u32::try_from(number).or_else(|_| wrong(format!("device {number}")))
}

pub unsafe extern "C" fn get_properties<P: Properties>(number: c_int, properties: *mut P) -> Code {
    ended("getProperties", || {
        let facts = plugin::net()?.properties(device(number)?)?;
        // SAFETY: as the header says.
        unsafe { give(properties, P::of(number, &facts)) }
    })
}

pub unsafe extern "C" fn listen8(number: c_int, handle: Opaque, listener: *mut Opaque) -> Code {
    ended("listen", || {
        let (made, body) = plugin::net()?.listen(device(number)?)?;
        // SAFETY: as the header says; a handle has 128 bytes.
        unsafe {
            give(handle.cast::<[u8; HANDLE_BYTES]>(), made.0)?;
            give(listener, Body::Listen(body).into_opaque())
        }
    })
}

pub unsafe extern "C" fn listen11(
    _context: Opaque,
    device: c_int,
    handle: Opaque,
    listener: *mut Opaque,
) -> Code {
    // SAFETY: as the header says.
    unsafe { listen8(device, handle, listener) }
}

/// A handle, copied: its place need not be aligned.
///
/// # Safety
/// 1. `handle` is null or readable for a handle.
pub unsafe fn handle(handle: Opaque) -> Result<NetHandle, Failed> {
    if handle.is_null() {
        return wrong("no handle");
    }
    // SAFETY: obligation 1.
    Ok(NetHandle(unsafe { handle.cast::<[u8; HANDLE_BYTES]>().read_unaligned() }))
}

/// Connections that come into being, by the place of the handle with which NCCL asks again, and what that held.
type Connecting = Mutex<HashMap<usize, ([u8; HANDLE_BYTES], Box<dyn Connector>)>>;

fn connecting() -> &'static Connecting {
    static CONNECTING: OnceLock<Connecting> = OnceLock::new();
    CONNECTING.get_or_init(Mutex::default)
}

pub unsafe extern "C" fn connect8(
    number: c_int,
    place: Opaque,
    comm: *mut Opaque,
    device_comm: *mut Opaque,
) -> Code {
    ended("connect", || {
        // SAFETY: as the header says.
        let handle = unsafe { handle(place)? };
        let mut connecting = connecting().lock().unwrap_or_else(PoisonError::into_inner);
        let begun = connecting.remove(&place.addr()).filter(|(of, _)| *of == handle.0);
        let mut connector = match begun {
            Some((_, connector)) => connector,
            None => plugin::net()?.connect(device(number)?, &handle)?,
        };
        let connected = connector.poll_connect()?;
        let made = match connected {
            Some(comm) => Body::Send(comm).into_opaque(),
            None => {
                connecting.insert(place.addr(), (handle.0, connector));
                null_mut()
            }
        };
        if !device_comm.is_null() {
            // SAFETY: as the header says.
            unsafe { device_comm.write(null_mut()) };
        }
        // SAFETY: as the header says.
        unsafe { give(comm, made) }
    })
}

pub unsafe extern "C" fn connect10(
    device: c_int,
    _config: *const CommConfig,
    handle: Opaque,
    comm: *mut Opaque,
    device_comm: *mut Opaque,
) -> Code {
    // SAFETY: as the header says.
    unsafe { connect8(device, handle, comm, device_comm) }
}

pub unsafe extern "C" fn connect11(
    _context: Opaque,
    device: c_int,
    handle: Opaque,
    comm: *mut Opaque,
    device_comm: *mut Opaque,
) -> Code {
    // SAFETY: as the header says.
    unsafe { connect8(device, handle, comm, device_comm) }
}

pub unsafe extern "C" fn accept(listener: Opaque, comm: *mut Opaque, device_comm: *mut Opaque) -> Code {
    ended("accept", || {
        // SAFETY: as the header says.
        let Body::Listen(listener) = (unsafe { object::at(listener)? }) else {
            return wrong("a listener was expected");
        };
        let made = listener.poll_accept()?.map(|comm| Body::Recv(comm).into_opaque());
        if !device_comm.is_null() {
            // SAFETY: as the header says.
            unsafe { device_comm.write(null_mut()) };
        }
        // SAFETY: as the header says.
        unsafe { give(comm, made.unwrap_or(null_mut())) }
    })
}

pub unsafe extern "C" fn reg_mr(
    comm: Opaque,
    data: Opaque,
    len: usize,
    kind: c_int,
    handle: *mut Opaque,
) -> Code {
    ended("regMr", || {
        if kind != PTR_HOST {
            return wrong(format!("memory of kind {kind}: only the host's (1) can be used"));
        }
        let memory = NetMemory { start: data.cast::<c_void>(), len_bytes: len, kind: NetMemoryKind::Host };
        // SAFETY: as the header says: the memory stays until it is deregistered.
        let registration = unsafe { object::at(comm)?.comm()?.register(memory)? };
        // SAFETY: as the header says.
        unsafe { give(handle, handle_of(registration)) }
    })
}

pub unsafe extern "C" fn dereg_mr(comm: Opaque, handle: Opaque) -> Code {
    ended("deregMr", || {
        let registration = registration_of(handle)?;
        // SAFETY: as the header says.
        unsafe { object::at(comm)?.comm()?.deregister(registration)? };
        Ok(())
    })
}

pub unsafe extern "C" fn isend9(
    comm: Opaque,
    data: Opaque,
    len: usize,
    _tag: c_int,
    handle: Opaque,
    request: *mut Opaque,
) -> Code {
    ended("isend", || {
        let registration = registration_of(handle)?;
        // SAFETY: as the header says: the bytes stay until the request is done.
        let sent = unsafe { object::at(comm)?.send()?.isend(data.cast::<u8>(), len, registration)? };
        // SAFETY: as the header says.
        unsafe { give_request(request, comm, sent) }
    })
}

pub unsafe extern "C" fn isend8(
    comm: Opaque,
    data: Opaque,
    len: c_int,
    tag: c_int,
    handle: Opaque,
    request: *mut Opaque,
) -> Code {
    // SAFETY: as the header says.
    unsafe { isend9(comm, data, len.max(0) as usize, tag, handle, request) }
}

pub unsafe extern "C" fn isend10(
    comm: Opaque,
    data: Opaque,
    len: usize,
    tag: c_int,
    handle: Opaque,
    _profiler: Opaque,
    request: *mut Opaque,
) -> Code {
    // SAFETY: as the header says.
    unsafe { isend9(comm, data, len, tag, handle, request) }
}

/// # Safety
/// 1. As the header says of `irecv`, for lists of `n`.
unsafe fn irecv(
    comm: Opaque,
    n: c_int,
    data: *mut Opaque,
    len: impl FnOnce() -> usize,
    handles: *mut Opaque,
    request: *mut Opaque,
) -> Code {
    ended("irecv", || {
        if n != RECVS_MAX {
            return wrong(format!("{n} receives in one call: maxRecvs is {RECVS_MAX}"));
        }
        if data.is_null() || handles.is_null() {
            return wrong("a null pointer for a list");
        }
        // SAFETY: obligation 1: lists of one.
        let (start, registration) = unsafe { ((*data).cast::<u8>(), registration_of(*handles)?) };
        // SAFETY: obligation 1: the bytes stay until the request is done.
        let posted = unsafe { object::at(comm)?.recv()?.irecv(start, len(), registration)? };
        // SAFETY: obligation 1.
        unsafe { give_request(request, comm, posted) }
    })
}

pub unsafe extern "C" fn irecv8(
    comm: Opaque,
    n: c_int,
    data: *mut Opaque,
    lens: *mut c_int,
    _tags: *mut c_int,
    handles: *mut Opaque,
    request: *mut Opaque,
) -> Code {
    // SAFETY: as the header says: a list of one where it is looked at.
    unsafe {
        irecv(comm, n, data, || if lens.is_null() { 0 } else { (*lens).max(0) as usize }, handles, request)
    }
}

pub unsafe extern "C" fn irecv9(
    comm: Opaque,
    n: c_int,
    data: *mut Opaque,
    lens: *mut usize,
    _tags: *mut c_int,
    handles: *mut Opaque,
    request: *mut Opaque,
) -> Code {
    // SAFETY: as above.
    unsafe { irecv(comm, n, data, || if lens.is_null() { 0 } else { *lens }, handles, request) }
}

pub unsafe extern "C" fn irecv10(
    comm: Opaque,
    n: c_int,
    data: *mut Opaque,
    lens: *mut usize,
    tags: *mut c_int,
    handles: *mut Opaque,
    _profilers: *mut Opaque,
    request: *mut Opaque,
) -> Code {
    // SAFETY: as above.
    unsafe { irecv9(comm, n, data, lens, tags, handles, request) }
}

/// Memory of the host needs none.
pub unsafe extern "C" fn iflush(
    _comm: Opaque,
    _n: c_int,
    _data: *mut Opaque,
    _lens: *mut c_int,
    _handles: *mut Opaque,
    request: *mut Opaque,
) -> Code {
    // SAFETY: as the header says.
    ended("iflush", || unsafe { give(request, null_mut()) })
}

pub unsafe extern "C" fn test(request: Opaque, done: *mut c_int, len: *mut c_int) -> Code {
    ended("test", || {
        // SAFETY: as the header says.
        let Body::Request(comm, number) = (unsafe { object::at(request)? }) else {
            return wrong("a request was expected");
        };
        let comm: Opaque = std::ptr::with_exposed_provenance_mut(*comm);
        // SAFETY: as the header says: connections outlive their requests.
        let over = unsafe { object::at(comm)?.comm()?.test(*number)? };
        // SAFETY: as the header says.
        unsafe { give(done, c_int::from(over.is_some()))? };
        let Some(bytes) = over else { return Ok(()) };
        if !len.is_null() {
            // SAFETY: as the header says: room for one length.
            unsafe { len.write(c_int::try_from(bytes).unwrap_or(c_int::MAX)) };
        }
        // SAFETY: it is done, and NCCL asks for it no more.
        unsafe { object::close(request) }
    })
}

pub unsafe extern "C" fn close(object: Opaque) -> Code {
    // SAFETY: as the header says.
    ended("close", || unsafe { object::close(object) })
}

pub unsafe extern "C" fn finalize(_context: Opaque) -> Code {
    plugin::SUCCESS
}

/// `setNetAttr`: nothing depends on what NCCL says it will do.
pub unsafe extern "C" fn set_net_attr() {}
