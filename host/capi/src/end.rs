//! The ends of communicators.

use crate::comm::{COMMS, Comm, Phase};
use crate::group::{Job, member, submit_job};
use crate::registry::Handle;
use crate::result::{Failure, Outcome};
use crate::types::Code;
use crate::window;
use std::sync::{Arc, Mutex, PoisonError};

/// Communicators that were destroyed and have not left yet.
static LEAVING: Mutex<Vec<Arc<Comm>>> = Mutex::new(Vec::new());

/// `ncclCommFinalize`.
pub fn finalize(handle: Handle) -> Outcome<Code> {
    // A null communicator is no error, as in NCCL.
    if handle == Handle::NULL {
        return Ok(Code::Success);
    }
    member(|| {
        let comm = COMMS.get(handle, "comm")?;
        if comm.is_revoked() {
            let text = "comm was revoked: ncclCommDestroy ends it, without ncclCommFinalize";
            return Err(Failure::invalid_usage(text));
        }
        submit_job(Job::Finalize(comm.begin_end()?))
    })
}

/// Ends it on a thread of its own: its kernels may wait for ranks that this thread has yet to end.
pub fn in_background(comm: &Arc<Comm>, in_order: bool) -> Outcome {
    let inside = comm.clone();
    let started = crate::comm::in_background("oxccl-end", move || inside.end(in_order));
    started.inspect_err(|_| comm.end(false))
}

/// Whether other ranks of the same communicator are in use in this process: the thread that ends this one may have them too, so it is
/// not made to wait for them.
pub fn has_others_here(comm: &Comm) -> bool {
    COMMS.count(|other| other.clique == comm.clique && other.phase() == Phase::Ready) > 0
}

/// Whether there is nothing to end: null, or a communicator of the process that forked this one, which stays as it is.
fn is_nobodys(handle: Handle) -> bool {
    handle == Handle::NULL || COMMS.maker(handle).is_some()
}

/// `ncclCommDestroy`.
pub fn destroy(handle: Handle) -> Outcome<Code> {
    if is_nobodys(handle) {
        return Ok(Code::Success);
    }
    member(|| {
        let comm = COMMS.remove(handle, "comm")?;
        window::forget(handle);
        submit_job(Job::Destroy(comm))
    })
}

/// Ends a communicator that has no handle any more.
pub fn destroyed(comm: Arc<Comm>) -> Outcome {
    match comm.phase() {
        Phase::Ready | Phase::Suspended => {
            in_background(&comm.begin_end()?.start(), false)?;
        }
        Phase::Ending => {}
        // The thread that connects it will find it freed, and drop the engine.
        Phase::Joining => {
            comm.free();
            return Ok(());
        }
        Phase::Failed | Phase::Ended | Phase::Freed => return Ok(()),
    }
    LEAVING.lock().unwrap_or_else(PoisonError::into_inner).push(comm);
    Ok(())
}

/// Waits for those that leave, except where other ranks of the same communicator are alive in this process: one thread may end them
/// one by one, and the last waits for all.
pub fn await_last() {
    let mut leaving = LEAVING.lock().unwrap_or_else(PoisonError::into_inner);
    let is_last = |comm: &Arc<Comm>| COMMS.count(|other| other.clique == comm.clique) == 0;
    let (last, others) = leaving.drain(..).partition(is_last);
    *leaving = others;
    drop(leaving);
    let last: Vec<Arc<Comm>> = last;
    for comm in &last {
        // A communicator that had failed said so before.
        let _ = comm.wait_ended();
    }
}

/// `ncclCommAbort`.
pub fn abort(handle: Handle) -> Outcome {
    if is_nobodys(handle) {
        return Ok(());
    }
    let comm = COMMS.remove(handle, "comm")?;
    window::forget(handle);
    if matches!(comm.free(), Phase::Ready | Phase::Suspended) {
        comm.drop_engine();
    }
    Ok(())
}
