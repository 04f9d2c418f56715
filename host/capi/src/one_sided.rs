//! One-sided operations: puts into windows, signals, waits for signals.

use crate::comm::{COMMS, Comm};
use crate::group::{Step, member, run_steps, submit_one_sided};
use crate::operator;
use crate::pointer::In;
use crate::registry::Handle;
use crate::result::{Failure, Outcome};
use crate::types::WaitSignal;
use crate::window::{self, Window};
use oxccl::cuda::{CUstream, StreamRef};
use oxccl::{Put, Signal};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An operation, with its arguments checked as far as one rank can.
pub struct OneSided {
    comm: Arc<Comm>,
    stream: CUstream,
    what: What,
}

enum What {
    Put { from: u64, len_bytes: u64, window: Arc<Window>, offset: u64, signal: Signal },
    Signal(Signal),
    Wait(Vec<(Signal, u32)>),
}

// SAFETY: the stream is a handle that every thread may use.
unsafe impl Send for OneSided {}

/// Whom `ncclPutSignal` and `ncclSignal` signal, and how.
#[derive(Clone, Copy)]
pub struct To {
    pub peer: c_int,
    pub index: c_int,
    pub context: c_int,
    pub flags: c_uint,
}

/// `ncclPutSignal`.
pub fn put_signal(
    (buffer, count, dtype): (*const c_void, usize, c_int),
    to: To,
    (window, offset): (Handle, usize),
    comm: Handle,
    stream: CUstream,
) -> Outcome {
    member(|| {
        let on = COMMS.get(comm, "comm")?;
        let signal = to.check(&on)?;
        let window = window::find(comm, window)?;
        let dtype = operator::data_type(dtype)?;
        let Some(len_bytes) = count.checked_mul(dtype.size_bytes()) else {
            let text = format!("count is {count}, more elements of {dtype} than memory can hold");
            return Err(Failure::invalid_argument(text));
        };
        if buffer.is_null() && len_bytes > 0 {
            return Err(Failure::null("localbuff"));
        }
        let (from, len_bytes, offset) = (buffer.addr() as u64, len_bytes as u64, offset as u64);
        let what = What::Put { from, len_bytes, window, offset, signal };
        submit_one_sided(OneSided { comm: on, stream, what })
    })
}

/// `ncclSignal`.
pub fn signal(to: To, comm: Handle, stream: CUstream) -> Outcome {
    member(|| {
        let comm = COMMS.get(comm, "comm")?;
        let what = What::Signal(to.check(&comm)?);
        submit_one_sided(OneSided { comm, stream, what })
    })
}

/// `ncclWaitSignal`.
pub fn wait_signal(count: c_int, waits: In<WaitSignal>, comm: Handle, stream: CUstream) -> Outcome {
    member(|| {
        let comm = COMMS.get(comm, "comm")?;
        let count = check_count(&comm, count)?;
        let mut checked = Vec::with_capacity(count);
        for WaitSignal { op_count, peer, signal, context } in waits.read_all(count, "signalDescs")? {
            let times = u32::try_from(op_count).map_err(|_| {
                Failure::invalid_argument(format!("opCnt is {op_count}; at least 0 was expected"))
            })?;
            let from = To { peer, index: signal, context, flags: 0 };
            checked.push((from.check(&comm)?, times));
        }
        submit_one_sided(OneSided { comm, stream, what: What::Wait(checked) })
    })
}

/// How many signals are described. A false number is refused before that much memory is read.
fn check_count(comm: &Comm, count: c_int) -> Outcome<usize> {
    let (contexts, signals) = comm.settings.signals();
    let (nranks, kinds) = (comm.seat()?.nranks, contexts * signals);
    let all = u64::from(nranks) * u64::from(kinds);
    usize::try_from(count).ok().filter(|count| *count as u64 <= all).ok_or_else(|| {
        Failure::invalid_argument(format!(
            "nDesc is {count}; 0 to {all} was expected: each of {nranks} ranks has {kinds} signals"
        ))
    })
}

impl To {
    fn check(self, comm: &Comm) -> Outcome<Signal> {
        let nranks = comm.seat()?.nranks;
        let (contexts, signals) = comm.settings.signals();
        let in_range = |name: &str, value: c_int, limit: u32| {
            u32::try_from(value).ok().filter(|value| *value < limit).ok_or_else(|| {
                Failure::invalid_argument(format!("{name} is {value}; 0 to {} was expected", limit - 1))
            })
        };
        let peer = in_range("peer", self.peer, nranks)?;
        let context = in_range("ctx", self.context, contexts)?;
        let index = in_range("sigIdx", self.index, signals)?;
        if self.flags != 0 {
            let text = format!("flags is {:#x}; 0 was expected, others are reserved", self.flags);
            return Err(Failure::invalid_argument(text));
        }
        Ok(Signal { peer, kind: context * signals + index })
    }
}

/// Enqueues the operations of a group, or a single one. Waits come last: what a rank waits for may depend on what it sends in the
/// same group.
pub fn run(operations: Vec<OneSided>) -> Outcome {
    connect(&operations)?;
    let (waits, others): (Vec<_>, Vec<_>) =
        operations.iter().partition(|operation| matches!(operation.what, What::Wait(_)));
    others.into_iter().chain(waits).try_for_each(enqueue)
}

/// Makes the signals of communicators that have none yet, all at once: a thread may have several ranks. All ranks do so by their first
/// operation, unless they have registered a window.
fn connect(operations: &[OneSided]) -> Outcome {
    let mut lacking: Vec<&Arc<Comm>> = operations.iter().map(|operation| &operation.comm).collect();
    lacking.retain(|comm| !comm.has_signals.load(Ordering::Relaxed));
    lacking.sort_unstable_by_key(|comm| comm.handle);
    lacking.dedup_by_key(|comm| comm.handle);
    let steps = lacking.into_iter().map(|comm| {
        let ticket = comm.ticket();
        let step = move |comm: &Comm| {
            ticket.wait();
            comm.engine()?.connect_signals()?;
            comm.has_signals.store(true, Ordering::Relaxed);
            Ok(())
        };
        (comm.clone(), Box::new(step) as Step)
    });
    run_steps(steps.collect())
}

fn enqueue(operation: &OneSided) -> Outcome {
    let OneSided { comm, stream, what } = operation;
    let engine = comm.engine()?;
    // SAFETY: (1, 2) the caller of the C function answers for its stream.
    let stream = unsafe { StreamRef::from_raw(engine.device(), *stream) };
    match what {
        What::Put { from, len_bytes, window, offset, signal } => {
            let to = Put { window: window.shown()?, offset: *offset, signal: *signal };
            // SAFETY: (1, 2, 3) the caller of the C function answers for its buffers and its window.
            unsafe { engine.put_signal(*from, *len_bytes, to, stream) }?;
        }
        What::Signal(signal) => engine.signal(*signal, stream)?,
        What::Wait(waits) => engine.wait_signals(waits, stream)?,
    }
    Ok(())
}
