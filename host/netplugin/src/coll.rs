//! The functions of CollNet tables.

use crate::net::{Properties, device, handle};
use crate::object::{self, Body, give, give_request, registration_of};
use crate::plugin::{self, Failed, ended, wrong};
use oxccl::net::coll::{CollNet, CollPart, Reduction, Window};
use oxccl::net::plugin::abi::{Code, Logger, Opaque};
use oxccl::net::plugin::coll_abi::Sge;
use oxccl::net::{HANDLE_BYTES, NetProperties};
use oxccl_shared::abi::{DataType, RedOp};
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Pause between two looks whether all heads have joined.
const REST: Duration = Duration::from_micros(200);

fn net() -> Result<&'static Arc<dyn CollNet>, Failed> {
    match plugin::coll()? {
        Some(net) => Ok(net),
        None => Err(Failed::Unused(
            "no aggregators: OXCCL_AGGREGATOR names no server (host:port of `oxccl aggregate`)",
        )),
    }
}

pub unsafe extern "C" fn init8(log: Logger) -> Code {
    plugin::log_to(log);
    ended("init of CollNet", || net().map(drop))
}

pub unsafe extern "C" fn init11(context: *mut Opaque, _communicator: u64, log: Logger) -> Code {
    plugin::log_to(log);
    ended("init of CollNet", || {
        net()?;
        // SAFETY: as the header says. The process has one context.
        unsafe { give(context, null_mut()) }
    })
}

/// The net table's: a server is reached from each. NCCL takes two of one name for one NIC that does both; of different names it has found none
/// that reduces (2.32.3).
fn facts(number: u32) -> Result<NetProperties, Failed> {
    let net = net()?;
    let NetProperties { name, pci_path, guid, speed_mbps, port, .. } = plugin::net()?.properties(number)?;
    let facts = net.properties(number % net.devices().max(1))?;
    Ok(NetProperties { name, pci_path, guid, speed_mbps, port, ..facts })
}

/// As many as the net table has: NCCL pairs them by number.
pub unsafe extern "C" fn devices(count: *mut c_int) -> Code {
    ended("devices of CollNet", || {
        net()?;
        let devices = plugin::net()?.devices();
        // SAFETY: as the header says.
        unsafe { give(count, devices as c_int) }
    })
}

pub unsafe extern "C" fn get_properties<P: Properties>(number: c_int, properties: *mut P) -> Code {
    ended("getProperties of CollNet", || {
        let facts = facts(device(number)?)?;
        // SAFETY: as the header says.
        unsafe { give(properties, P::of(number, &facts)) }
    })
}

pub unsafe extern "C" fn listen8(number: c_int, handle: Opaque, listener: *mut Opaque) -> Code {
    ended("listen of CollNet", || {
        let number = device(number)?;
        facts(number)?;
        let net = net()?;
        let (made, body) = net.listen(number % net.devices().max(1))?;
        // SAFETY: as the header says; a handle has 128 bytes.
        unsafe {
            give(handle.cast::<[u8; HANDLE_BYTES]>(), made.0)?;
            give(listener, Body::CollListen(Some(body)).into_opaque())
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

/// Waits until all heads have joined: NCCL calls it once.
pub unsafe extern "C" fn connect(
    places: *mut Opaque,
    nranks: c_int,
    rank: c_int,
    listener: Opaque,
    comm: *mut Opaque,
) -> Code {
    ended("connect of CollNet", || {
        let (Ok(nranks), Ok(rank)) = (usize::try_from(nranks), u32::try_from(rank)) else {
            return wrong(format!("rank {rank} of {nranks}"));
        };
        if places.is_null() {
            return wrong("no handles");
        }
        // SAFETY: as the header says: a list of so many handles.
        let handles: Result<Vec<_>, _> = (0..nranks).map(|at| unsafe { handle(*places.add(at)) }).collect();
        // SAFETY: as the header says.
        let Body::CollListen(listening) = (unsafe { object::at(listener)? }) else {
            return wrong("a CollNet listener was expected");
        };
        let Some(listening) = listening.take() else { return wrong("a listener that has connected before") };
        let mut joining = listening.join(&handles?, rank)?;
        let (begin, patience) = (Instant::now(), plugin::patience()?);
        let joined = loop {
            match joining.poll_join()? {
                Some(joined) => break joined,
                None if begin.elapsed() > patience => {
                    return wrong(format!(
                        "not all {nranks} heads came to the aggregator within {patience:?}"
                    ));
                }
                None => sleep(REST),
            }
        };
        // SAFETY: as the header says.
        unsafe { give(comm, Body::Coll(joined).into_opaque()) }
    })
}

/// NCCL's numbers are the library's.
fn element(dtype: c_int, op: c_int) -> Option<(DataType, RedOp)> {
    let dtype = DataType::ALL.iter().copied().find(|known| *known as c_int == dtype)?;
    let op = RedOp::ALL.iter().copied().find(|known| *known as c_int == op)?;
    Some((dtype, op))
}

pub unsafe extern "C" fn reduce_support(dtype: c_int, op: c_int, supported: *mut c_int) -> Code {
    ended("reduceSupport", || {
        let has = match element(dtype, op) {
            Some((dtype, op)) => net()?.reduces(dtype, op)?,
            None => false,
        };
        // SAFETY: as the header says.
        unsafe { give(supported, c_int::from(has)) }
    })
}

pub unsafe extern "C" fn iallreduce_size(
    comm: Opaque,
    send: Opaque,
    recv: Opaque,
    count: usize,
    dtype: c_int,
    op: c_int,
    send_handle: Opaque,
    recv_handle: Opaque,
    request: *mut Opaque,
) -> Code {
    ended("iallreduce", || {
        let Some((dtype, op)) = element(dtype, op) else {
            return wrong(format!("type {dtype}, operator {op}"));
        };
        let send = CollPart { start: send.cast(), registration: registration_of(send_handle)? };
        let recv = CollPart { start: recv.cast(), registration: registration_of(recv_handle)? };
        // SAFETY: as the header says: both are registered, and stay until the request is done.
        let started =
            unsafe { object::at(comm)?.coll()?.iallreduce(send, recv, Reduction { count, dtype, op })? };
        // SAFETY: as the header says.
        unsafe { give_request(request, comm, started) }
    })
}

pub unsafe extern "C" fn iallreduce_int(
    comm: Opaque,
    send: Opaque,
    recv: Opaque,
    count: c_int,
    dtype: c_int,
    op: c_int,
    send_handle: Opaque,
    recv_handle: Opaque,
    request: *mut Opaque,
) -> Code {
    let count = count.max(0) as usize;
    // SAFETY: as the header says.
    unsafe { iallreduce_size(comm, send, recv, count, dtype, op, send_handle, recv_handle, request) }
}

/// A list of parts, which NCCL makes of one part as long as the window.
///
/// # Safety
/// 1. `parts` is null or a list of `nparts`.
unsafe fn only_part<Size: Copy + TryInto<usize>>(
    parts: *const Sge<Size>,
    nparts: c_int,
    window: Window,
) -> Result<CollPart, Failed> {
    if nparts != 1 || parts.is_null() {
        return wrong(format!("{nparts} parts; this plugin takes one"));
    }
    // SAFETY: obligation 1.
    let Sge { handle, address, size } = unsafe { parts.read() };
    if size.try_into().ok() != Some(window.len_bytes) {
        return wrong(format!("a part that is not as long as the window, {} bytes", window.len_bytes));
    }
    Ok(CollPart { start: address.cast(), registration: registration_of(handle)? })
}

/// `send` begins with what of this rank's block lies in the window.
pub unsafe extern "C" fn iallgather<Size: Copy + TryInto<usize>>(
    comm: Opaque,
    send: Opaque,
    nparts: c_int,
    parts: *mut Sge<Size>,
    rank_bytes: usize,
    window_offset: usize,
    window_bytes: usize,
    send_handle: Opaque,
    request: *mut Opaque,
) -> Code {
    ended("iallgather", || {
        let window = Window { head_bytes: rank_bytes, start: window_offset, len_bytes: window_bytes };
        // SAFETY: as the header says: a list of so many parts.
        let recv = unsafe { only_part(parts, nparts, window)? };
        let send = CollPart { start: send.cast(), registration: registration_of(send_handle)? };
        // SAFETY: as the header says: both are registered, and stay until the request is done.
        let started = unsafe { object::at(comm)?.coll()?.iallgather(send, recv, window)? };
        // SAFETY: as the header says.
        unsafe { give_request(request, comm, started) }
    })
}

/// `recv` is for what of this rank's block lies in the window.
pub unsafe extern "C" fn ireduce_scatter<Size: Copy + TryInto<usize>>(
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
) -> Code {
    ended("ireducescatter", || {
        let Some(element) = element(dtype, op) else {
            return wrong(format!("type {dtype}, operator {op}"));
        };
        let window = Window { head_bytes: rank_bytes, start: window_offset, len_bytes: window_bytes };
        // SAFETY: as the header says: a list of so many parts.
        let send = unsafe { only_part(parts, nparts, window)? };
        let recv = CollPart { start: recv.cast(), registration: registration_of(recv_handle)? };
        // SAFETY: as the header says: both are registered, and stay until the request is done.
        let started = unsafe { object::at(comm)?.coll()?.ireduce_scatter(send, recv, element, window)? };
        // SAFETY: as the header says.
        unsafe { give_request(request, comm, started) }
    })
}

/// Memory of the host needs none.
pub unsafe extern "C" fn iflush(
    _comm: Opaque,
    _data: Opaque,
    _len: c_int,
    _handle: Opaque,
    request: *mut Opaque,
) -> Code {
    // SAFETY: as the header says.
    ended("iflush of CollNet", || unsafe { give(request, null_mut()) })
}
