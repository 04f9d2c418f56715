//! What NCCL holds pointers to.

use crate::plugin::{Failed, wrong};
use oxccl::net::coll::{CollComm, CollListener};
use oxccl::net::plugin::abi::Opaque;
use oxccl::net::{Comm, Listener, RecvComm, Registration, Request, SendComm};

/// By which a pointer is recognised as one of ours.
const ALIVE: u64 = 0x4f78_4343_4c4e_6574;

/// A connection, a listener or a request.
#[repr(C)]
pub struct Object {
    mark: u64,
    body: Body,
}

/// What it is.
pub enum Body {
    Listen(Box<dyn Listener>),
    Send(Box<dyn SendComm>),
    Recv(Box<dyn RecvComm>),
    CollListen(Option<Box<dyn CollListener>>),
    Coll(Box<dyn CollComm>),
    /// An operation under way over the object at this address.
    Request(usize, Request),
}

impl Body {
    /// A pointer for NCCL, which gives it back by [`close`].
    pub fn into_opaque(self) -> Opaque {
        Box::into_raw(Box::new(Object { mark: ALIVE, body: self })).cast()
    }

    /// The end of a connection that it is.
    pub fn comm(&mut self) -> Result<&mut dyn Comm, Failed> {
        match self {
            Body::Send(comm) => Ok(&mut **comm),
            Body::Recv(comm) => Ok(&mut **comm),
            Body::Coll(comm) => Ok(&mut **comm),
            _ => wrong("a connection was expected"),
        }
    }

    pub fn send(&mut self) -> Result<&mut dyn SendComm, Failed> {
        match self {
            Body::Send(comm) => Ok(&mut **comm),
            _ => wrong("a sender's connection was expected"),
        }
    }

    pub fn recv(&mut self) -> Result<&mut dyn RecvComm, Failed> {
        match self {
            Body::Recv(comm) => Ok(&mut **comm),
            _ => wrong("a receiver's connection was expected"),
        }
    }

    pub fn coll(&mut self) -> Result<&mut dyn CollComm, Failed> {
        match self {
            Body::Coll(comm) => Ok(&mut **comm),
            _ => wrong("a CollNet communicator was expected"),
        }
    }
}

/// The object at `at`.
///
/// # Errors
/// It is null, not aligned, or has no mark.
///
/// # Safety
/// 1. `at` is null, or readable for a mark; if it is a living object, nobody else uses it meanwhile.
pub unsafe fn at<'a>(at: Opaque) -> Result<&'a mut Body, Failed> {
    let object = at.cast::<Object>();
    if object.is_null() || !object.is_aligned() {
        return wrong("a null pointer, or none of this plugin's");
    }
    // SAFETY: obligation 1.
    if unsafe { (&raw const (*object).mark).read() } != ALIVE {
        return wrong("a pointer that is not this plugin's, or was closed");
    }
    // SAFETY: obligation 1: the mark says that it is one of ours.
    Ok(unsafe { &mut (*object).body })
}

/// Frees an object.
///
/// # Errors
/// As [`at`].
///
/// # Safety
/// 1. As [`at`]; a living object is not used again.
pub unsafe fn close(object: Opaque) -> Result<(), Failed> {
    // SAFETY: obligation 1.
    unsafe { at(object)? };
    let object = object.cast::<Object>();
    // SAFETY: obligation 1: a living object, made by `into_opaque`.
    let mut object = unsafe { Box::from_raw(object) };
    object.mark = 0;
    drop(object);
    Ok(())
}

/// A registration as NCCL keeps it: not null.
pub fn handle_of(registration: Registration) -> Opaque {
    std::ptr::without_provenance_mut(registration.0 as usize + 1)
}

/// The reverse.
pub fn registration_of(handle: Opaque) -> Result<Registration, Failed> {
    match handle.addr().checked_sub(1).map(u32::try_from) {
        Some(Ok(number)) => Ok(Registration(number)),
        _ => wrong("memory that is not registered"),
    }
}

/// Tells NCCL of a request: null where it has to repeat the call.
///
/// # Safety
/// 1. `to` is null or writable.
pub unsafe fn give_request(to: *mut Opaque, comm: Opaque, request: Option<Request>) -> Result<(), Failed> {
    let made = request.map(|request| Body::Request(comm.expose_provenance(), request).into_opaque());
    // SAFETY: obligation 1.
    unsafe { give(to, made.unwrap_or(std::ptr::null_mut())) }
}

/// Writes a result.
///
/// # Errors
/// There is no place for it.
///
/// # Safety
/// 1. `to` is null or writable.
pub unsafe fn give<T>(to: *mut T, value: T) -> Result<(), Failed> {
    if to.is_null() {
        return wrong("a null pointer for a result");
    }
    // SAFETY: obligation 1.
    unsafe { to.write(value) };
    Ok(())
}
