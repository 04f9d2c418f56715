//! Windows: memory that ranks show each other.

use crate::comm::{COMMS, Comm};
use crate::group::{Job, member, submit_job};
use crate::pointer::Out;
use crate::registry::{Handle, Registry};
use crate::result::{Failure, Outcome};
use crate::types::Code;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// `NCCL_WIN_REQUIRED_ALIGNMENT`.
const ALIGNMENT: usize = 4096;
/// `NCCL_WIN_COLL_SYMMETRIC`: collectives use it too.
const SYMMETRIC: c_int = 1;
/// Every flag that there is.
const FLAGS: c_int = 0xf;
/// `NCCL_WIN_GIN_ONLY` and `NCCL_WIN_CFT_COUNTED`, which ask for what is not here.
const DEVICE_FLAGS: c_int = 0xc;

pub struct Window {
    comm: Handle,
    buffer: usize,
    /// Every rank's part of it, once all have registered theirs.
    shown: OnceLock<oxccl::Window>,
}

impl Window {
    /// Every rank's part of it.
    ///
    /// # Errors
    /// Its registration has not ended, or failed.
    pub fn shown(&self) -> Outcome<&oxccl::Window> {
        self.shown.get().ok_or_else(|| {
            Failure::invalid_usage(
                "win is not registered yet: ncclCommWindowRegister failed, or is in progress",
            )
        })
    }
}

static WINDOWS: Registry<Window> = Registry::new("window", 3);

/// `ncclCommWindowRegister`, which every rank calls.
pub fn register(
    comm: Handle,
    buffer: *mut c_void,
    len: usize,
    out: Out<Handle>,
    flags: c_int,
) -> Outcome<Code> {
    member(|| show(comm, buffer, len, out, flags))
}

fn show(comm: Handle, buffer: *mut c_void, len: usize, out: Out<Handle>, flags: c_int) -> Outcome<Code> {
    let on = COMMS.get(comm, "comm")?;
    on.seat()?;
    out.write(Handle::NULL, "win")?;
    if buffer.is_null() {
        return Err(Failure::null("buff"));
    }
    if !buffer.addr().is_multiple_of(ALIGNMENT) {
        let text = format!("buff is not a multiple of {ALIGNMENT}: ncclMemAlloc gives memory that is");
        return Err(Failure::invalid_argument(text));
    }
    if len == 0 || buffer.addr().checked_add(len).is_none() {
        return Err(Failure::invalid_argument(format!("size is {len}: no such buffer can exist")));
    }
    if flags & !FLAGS != 0 {
        return Err(Failure::invalid_argument(format!("winFlags is {flags:#x}; the flags are {FLAGS:#x}")));
    }
    if flags & DEVICE_FLAGS != 0 {
        return Err(Failure::invalid_usage(
            "NCCL_WIN_GIN_ONLY and NCCL_WIN_CFT_COUNTED are for kernels that communicate by themselves, which this library \
             does not serve: register without them",
        ));
    }
    let (address, shown) = (buffer.addr(), OnceLock::new());
    let (handle, window) = WINDOWS.add(|_| Window { comm, buffer: address, shown });
    let ticket = on.ticket();
    let step = move |comm: &Comm| {
        ticket.wait();
        let engine = comm.engine()?;
        let (address, len) = (address as u64, len as u64);
        let shown = if flags & SYMMETRIC == 0 {
            // SAFETY: (1) the caller of the C function answers for its buffer.
            unsafe { engine.register_window(address, len) }?
        } else {
            // SAFETY: (1 to 4) as NCCL's flag demands: the caller answers for the buffers that it passes, too.
            unsafe { engine.register_symmetric_window(address, len) }?
        };
        comm.has_signals.store(true, Ordering::Relaxed);
        // This is the only place that sets it.
        let _ = window.shown.set(shown);
        Ok(())
    };
    out.write(handle, "win")?;
    submit_job(Job::Step(on, Box::new(step))).inspect_err(|_| {
        let _ = WINDOWS.remove(handle, "win");
        let _ = out.write(Handle::NULL, "win");
    })
}

/// Forgets the windows of a communicator that ends.
pub fn forget(comm: Handle) {
    WINDOWS.remove_all(|window| window.comm == comm);
}

/// `ncclCommWindowDeregister`. Null is a window that was never made.
pub fn deregister(comm: Handle, window: Handle) -> Outcome {
    COMMS.get(comm, "comm")?;
    if window == Handle::NULL {
        return Ok(());
    }
    find(comm, window)?;
    WINDOWS.remove(window, "win").map(drop)
}

/// A window of this communicator.
pub fn find(comm: Handle, window: Handle) -> Outcome<std::sync::Arc<Window>> {
    let found = WINDOWS.get(window, "win")?;
    if found.comm != comm {
        return Err(Failure::invalid_argument("win is of another communicator"));
    }
    Ok(found)
}

/// `ncclWinGetUserPtr`.
pub fn user_pointer(comm: Handle, window: Handle, out: Out<usize>) -> Outcome {
    COMMS.get(comm, "comm")?;
    out.check("outUserPtr")?;
    out.write(find(comm, window)?.buffer, "outUserPtr")
}
