//! Suspended communicators, and what memory communicators hold.
//!
//! A communicator's memory is mapped by its peers and named in their kernels' tables, so none of it can be given back while it
//! lives: `ncclStatGpuMemSuspend` is 0, and suspending only keeps operations out.

use crate::comm::{COMMS, Phase};
use crate::pointer::Out;
use crate::registry::Handle;
use crate::result::{Failure, Outcome};
use std::ffi::c_int;

/// `NCCL_SUSPEND_MEM`.
const SUSPEND_MEMORY: c_int = 1;

/// `ncclCommSuspend`.
pub fn suspend(comm: Handle, flags: c_int) -> Outcome {
    let comm = COMMS.get(comm, "comm")?;
    if flags != SUSPEND_MEMORY {
        let text = format!("flags is {flags}; NCCL_SUSPEND_MEM (1) was expected");
        return Err(Failure::invalid_argument(text));
    }
    comm.suspend()
}

/// `ncclCommResume`.
pub fn resume(comm: Handle) -> Outcome {
    COMMS.get(comm, "comm")?.resume()
}

/// `ncclCommMemStats`.
pub fn memory_stats(comm: Handle, stat: c_int, out: Out<u64>) -> Outcome {
    let comm = COMMS.get(comm, "comm")?;
    let value = match stat {
        0 => 0,
        1 => u64::from(comm.phase() == Phase::Suspended),
        2 | 3 => comm.memory_bytes()?,
        _ => return Err(Failure::invalid_argument(format!("stat is {stat}; 0 to 3 was expected"))),
    };
    out.write(value, "value")
}
