//! Groups: what a thread has asked for between `ncclGroupStart` and `ncclGroupEnd`.

use crate::comm::{Comm, Ending, Engine, connect_in_background};
use crate::end;
use crate::one_sided::{self, OneSided};
use crate::registry::Handle;
use crate::result::{Failure, Outcome};
use crate::types::Code;
use oxccl::cuda::{CUstream, StreamRef};
use oxccl::{DeviceCommunicator, Untyped, device_group};
use std::cell::RefCell;
use std::sync::Arc;

/// An operation that waits for the group's end.
pub struct Queued {
    pub comm: Arc<Comm>,
    pub call: Untyped,
    stream: CUstream,
}

/// What connects a new communicator, and gives it what aborts that.
pub type Work = Box<dyn FnOnce(&Comm) -> Outcome<Option<DeviceCommunicator>> + Send>;

/// What all ranks of a communicator do together, in its place.
pub type Step = Box<dyn FnOnce(&Comm) -> Outcome + Send>;

/// Something that waits for other ranks.
pub enum Job {
    /// Connects a communicator.
    Connect(Arc<Comm>, Work),
    /// A step of all ranks of one that is connected.
    Step(Arc<Comm>, Step),
    /// Finalizes one.
    Finalize(Ending),
    /// Ends one that has lost its handle.
    Destroy(Arc<Comm>),
}

#[derive(Default)]
struct Open {
    depth: u32,
    calls: Vec<Queued>,
    one_sided: Vec<OneSided>,
    jobs: Vec<Job>,
    failed: Option<Failure>,
}

thread_local! {
    static OPEN: RefCell<Open> = RefCell::default();
}

fn with<T>(body: impl FnOnce(&mut Open) -> T) -> Outcome<T> {
    let ended = |_| Failure::invalid_usage("called while this thread ends");
    OPEN.try_with(|open| body(&mut open.borrow_mut())).map_err(ended)
}

/// Runs a call that belongs into a group if one is open: its failure is the group's.
pub fn member<T>(body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    body().inspect_err(|failure| {
        let note = |open: &mut Open| {
            if open.depth > 0 && failure.code != Code::InProgress {
                open.failed.get_or_insert_with(|| failure.clone());
            }
        };
        let _ = with(note);
    })
}

/// `ncclGroupStart`.
pub fn start() -> Outcome {
    with(|open| open.depth += 1)
}

/// Enqueues an operation, or leaves it to the group's end.
pub fn submit_call(comm: Arc<Comm>, call: Untyped, stream: CUstream) -> Outcome {
    let queued = Queued { comm, call, stream };
    let direct = with(|open| {
        if open.depth == 0 {
            return Some(queued);
        }
        open.calls.push(queued);
        None
    })?;
    let Some(Queued { comm, call, stream }) = direct else { return Ok(()) };
    let engine = comm.engine()?;
    // SAFETY: (1, 2) the caller of the C function answers for its stream.
    let stream = unsafe { StreamRef::from_raw(engine.device(), stream) };
    // SAFETY: (1, 2, 3) the caller of the C function answers for its buffers and its stream.
    Ok(unsafe { engine.enqueue_untyped(&call, stream) }?)
}

/// Enqueues a one-sided operation, or leaves it to the group's end.
pub fn submit_one_sided(operation: OneSided) -> Outcome {
    let direct = with(|open| {
        if open.depth == 0 {
            return Some(operation);
        }
        open.one_sided.push(operation);
        None
    })?;
    direct.map_or(Ok(()), |operation| one_sided::run(vec![operation]))
}

/// Runs a job, or leaves it to the group's end.
pub fn submit_job(job: Job) -> Outcome<Code> {
    let direct = with(|open| {
        if open.depth == 0 {
            return Some(job);
        }
        open.jobs.push(job);
        None
    })?;
    direct.map_or(Ok(Code::Success), |job| run_jobs(vec![job]))
}

/// `ncclGroupEnd`.
pub fn end() -> Outcome<Code> {
    let Some(Open { calls, one_sided, jobs, failed, .. }) = close()? else { return Ok(Code::Success) };
    if let Some(failure) = failed {
        discard(jobs, &failure);
        let text = format!("nothing of the group was run: {}", failure.text);
        return Err(Failure { text, ..failure });
    }
    let is_begin = |job: &Job| matches!(job, Job::Connect(..) | Job::Step(..));
    let (connects, ends) = jobs.into_iter().partition(is_begin);
    let begun = run_jobs(connects).and_then(|connected| {
        run_calls(&calls)?;
        one_sided::run(one_sided)?;
        Ok(connected)
    });
    let connected = match begun {
        Ok(connected) => connected,
        Err(failure) => {
            discard(ends, &failure);
            return Err(failure);
        }
    };
    let ended = run_jobs(ends)?;
    Ok(if connected == Code::InProgress { connected } else { ended })
}

/// Ends a group without running it. Gives its operations if it was the outermost.
///
/// # Errors
/// No group is open, or a call of it was refused.
pub fn abandon() -> Outcome<Option<Vec<Queued>>> {
    let Some(Open { calls, jobs, failed, .. }) = close()? else { return Ok(None) };
    discard(jobs, &Failure::invalid_usage("its group was simulated, not run"));
    failed.map_or(Ok(Some(calls)), Err)
}

/// One group less. Gives the outermost's content.
fn close() -> Outcome<Option<Open>> {
    with(|open| match open.depth {
        0 => Err(Failure::invalid_usage("no group is open on this thread: ncclGroupStart comes first")),
        1 => Ok(Some(std::mem::take(open))),
        _ => {
            open.depth -= 1;
            Ok(None)
        }
    })?
}

/// Jobs that are not run because of a failure.
fn discard(jobs: Vec<Job>, failure: &Failure) {
    for job in jobs {
        match job {
            Job::Connect(comm, _) => comm.joined(Err(failure.clone())),
            Job::Step(..) | Job::Finalize(_) => {}
            // Its handle is gone already. That it failed, or was not ready, changes nothing: it is dropped then.
            Job::Destroy(comm) => _ = end::destroyed(comm),
        }
    }
}

/// Starts all, then waits for those whose communicators block.
fn run_jobs(jobs: Vec<Job>) -> Outcome<Code> {
    let mut waits: Vec<(Arc<Comm>, bool)> = Vec::new();
    let (mut first, mut steps) = (Ok(()), Vec::new());
    for job in jobs {
        let started = match job {
            Job::Connect(comm, work) => {
                waits.push((comm.clone(), true));
                connect_in_background(&comm, work)
            }
            Job::Step(comm, step) => {
                steps.push(start_step(comm, step));
                Ok(())
            }
            Job::Finalize(ending) => {
                let comm = ending.start();
                waits.push((comm.clone(), false));
                end::in_background(&comm, true)
            }
            Job::Destroy(comm) => end::destroyed(comm),
        };
        first = first.and(started);
    }
    let mut code = Code::Success;
    for (comm, started) in steps {
        if comm.is_blocking() {
            first = first.and(started.and_then(await_step));
        } else {
            code = Code::InProgress;
            first = first.and(started.map(drop));
        }
    }
    for (comm, connects) in waits {
        if !comm.is_blocking() {
            code = Code::InProgress;
        } else if connects {
            first = first.and(comm.wait_joined());
        } else if !end::has_others_here(&comm) {
            first = first.and(comm.wait_ended());
        }
    }
    end::await_last();
    first.map(|()| code)
}

/// How a step went, once its thread says so.
type StepDone = std::sync::mpsc::Receiver<Outcome>;

/// Runs a step on a thread of its own.
fn start_step(comm: Arc<Comm>, step: Step) -> (Arc<Comm>, Outcome<StepDone>) {
    let (done, waiting) = std::sync::mpsc::channel();
    let inside = comm.clone();
    let working = comm.begin_work();
    let started = crate::comm::in_background("oxccl-step", move || {
        let outcome = step(&inside).inspect_err(|failure| tracing::warn!(target: "nccl", "{}", failure.text));
        drop(working);
        // Nobody waits for a communicator that does not block.
        let _ = done.send(outcome);
    });
    (comm, started.map(|()| waiting))
}

/// Runs steps at the same time, and waits for all.
pub fn run_steps(steps: Vec<(Arc<Comm>, Step)>) -> Outcome {
    let started: Vec<_> = steps.into_iter().map(|(comm, step)| start_step(comm, step).1).collect();
    let ended: Vec<Outcome> = started.into_iter().map(|started| started.and_then(await_step)).collect();
    ended.into_iter().collect()
}

/// Waits for a step.
fn await_step(done: StepDone) -> Outcome {
    let lost = |_| Failure::new(Code::InternalError, "a defect of the library: a step of all ranks panicked");
    done.recv().map_err(lost)?
}

/// Enqueues the operations of a group together.
fn run_calls(calls: &[Queued]) -> Outcome {
    if calls.is_empty() {
        return Ok(());
    }
    // In the order of their handles: two threads with the same communicators take them in the same order.
    let mut comms: Vec<&Arc<Comm>> = calls.iter().map(|queued| &queued.comm).collect();
    comms.sort_unstable_by_key(|comm| comm.handle);
    comms.dedup_by_key(|comm| comm.handle);
    let engines: Vec<Engine<'_>> = comms.iter().map(|comm| comm.engine()).collect::<Outcome<_>>()?;
    let done = device_group(|group| {
        for Queued { comm, call, stream } in calls {
            let at = comms.partition_point(|other| other.handle < comm.handle);
            let engine: &DeviceCommunicator = &engines[at];
            // SAFETY: (1, 2) the caller of the C function answers for its stream.
            let stream = unsafe { StreamRef::from_raw(engine.device(), *stream) };
            // SAFETY: (1) the caller of the C function answers for its buffers and its stream.
            unsafe { group.add_untyped(engine, call, stream) }?;
        }
        Ok(())
    });
    Ok(done?)
}

/// The handle of a communicator that has none.
pub const GHOST: Handle = Handle::NULL;
