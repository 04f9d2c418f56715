//! What callers ask of a communicator, and of the library.

use crate::comm::COMMS;
use crate::pointer::Out;
use crate::registry::Handle;
use crate::result::{Outcome, last_error};
use crate::types::{Code, VERSION};
use std::ffi::{c_char, c_int};

/// `ncclGetVersion`.
pub fn version(out: Out<c_int>) -> Outcome {
    out.write(VERSION, "version")
}

/// `ncclCommCount`.
pub fn count(comm: Handle, out: Out<c_int>) -> Outcome {
    out.write(COMMS.get(comm, "comm")?.seat()?.nranks as c_int, "count")
}

/// `ncclCommCuDevice`.
pub fn device(comm: Handle, out: Out<c_int>) -> Outcome {
    let comm = COMMS.get(comm, "comm")?;
    comm.seat()?;
    out.write(comm.device as c_int, "device")
}

/// `ncclCommUserRank`.
pub fn rank(comm: Handle, out: Out<c_int>) -> Outcome {
    out.write(COMMS.get(comm, "comm")?.seat()?.rank as c_int, "rank")
}

/// `ncclCommGetAsyncError`.
pub fn async_error(comm: Handle, out: Out<Code>) -> Outcome {
    out.write(COMMS.get(comm, "comm")?.state(), "asyncError")
}

/// `ncclGetLastError`: the communicator's own failure, else the newest of the process.
pub fn last_error_of(comm: Handle) -> *const c_char {
    let own = COMMS.get(comm, "comm").ok().and_then(|comm| comm.async_failure());
    last_error(own.map(|failure| failure.text))
}
