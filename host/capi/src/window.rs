//! Windows: memory that ranks show each other.

use crate::comm::COMMS;
use crate::pointer::{In, Out};
use crate::registry::{Handle, Registry};
use crate::result::{Failure, Outcome};
use crate::types::WaitSignal;
use std::ffi::{c_int, c_void};

/// `NCCL_WIN_REQUIRED_ALIGNMENT`.
const ALIGNMENT: usize = 4096;
/// Every flag that there is.
const FLAGS: c_int = 0xf;
/// `NCCL_WIN_GIN_ONLY` and `NCCL_WIN_CFT_COUNTED`, which ask for what is not here.
const DEVICE_FLAGS: c_int = 0xc;

pub struct Window {
    comm: Handle,
    buffer: usize,
}

static WINDOWS: Registry<Window> = Registry::new("window", 3);

/// `ncclCommWindowRegister`.
pub fn register(comm: Handle, buffer: *mut c_void, len: usize, out: Out<Handle>, flags: c_int) -> Outcome {
    COMMS.get(comm, "comm")?.seat()?;
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
    let (handle, _) = WINDOWS.add(|_| Window { comm, buffer: buffer.addr() });
    out.write(handle, "win")
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

fn find(comm: Handle, window: Handle) -> Outcome<std::sync::Arc<Window>> {
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

/// What is refused of one-sided operations.
fn not_served(name: &str) -> Failure {
    Failure::invalid_usage(format!(
        "{name}: one-sided operations are not served; ncclSend and ncclRecv, in a group, do the same with both sides"
    ))
}

/// `ncclPutSignal`.
pub fn put_signal(peer: c_int, window: Handle, comm: Handle) -> Outcome {
    check_peer(comm, peer)?;
    find(comm, window)?;
    Err(not_served("ncclPutSignal"))
}

/// `ncclSignal`.
pub fn signal(peer: c_int, comm: Handle) -> Outcome {
    check_peer(comm, peer)?;
    Err(not_served("ncclSignal"))
}

/// `ncclWaitSignal`.
pub fn wait_signal(count: c_int, waits: In<WaitSignal>, comm: Handle) -> Outcome {
    COMMS.get(comm, "comm")?;
    let count = usize::try_from(count)
        .map_err(|_| Failure::invalid_argument(format!("nDesc is {count}; at least 0 was expected")))?;
    for wait in waits.read_all(count, "signalDescs")? {
        check_peer(comm, wait.peer)?;
    }
    Err(not_served("ncclWaitSignal"))
}

fn check_peer(comm: Handle, peer: c_int) -> Outcome {
    let nranks = COMMS.get(comm, "comm")?.seat()?.nranks;
    if (0..nranks as c_int).contains(&peer) {
        return Ok(());
    }
    Err(Failure::invalid_argument(format!("peer is {peer}; 0 to {} was expected", nranks - 1)))
}
