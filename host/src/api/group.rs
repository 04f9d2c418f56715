//! Groups of calls.

use super::communicator::Comm;
use super::error::{ArgumentError, Error};
use super::init::Init;
use crate::launch::{Behind, Engine, Job, Occupied, RawCall, RawQueue, in_flight};
use crate::machine::cpu::Cpu;
use crate::machine::cuda::Cuda;
use std::cell::{Cell, RefMut};
use std::marker::PhantomData;

/// A group of calls: its sends and receives progress at the same time, and so do its communicators, so that one
/// thread may drive several ranks.
///
/// Collectives of one communicator run in the order in which they were added, then its sends and receives.
/// All-to-all, gather and scatter consist of messages and count as those: between two ranks they are matched in the
/// order in which each rank added them.
pub struct Group<'env, M: Init = Cpu> {
    scratch: Box<Scratch>,
    env: PhantomData<&'env mut Comm<M>>,
}

/// A group of calls on streams: its sends and receives progress at the same time, and one thread may drive several
/// ranks.
///
/// Collectives of one communicator run in the order in which they were added, then its sends and receives.
/// All-to-all, gather and scatter consist of messages and count as those: between two ranks they are matched in the
/// order in which each rank added them.
///
/// A communicator's calls of one group run on the stream of its first call. The group is still ordered with the other
/// streams passed to it: it starts when all of its streams have reached it, and all of them continue when it is
/// complete.
pub type DeviceGroup<'env> = Group<'env, Cuda>;

/// The most communicators that a group of any machine may hold.
const MEMBERS_MAX: usize = 128;

/// The calls of a group. The thread keeps it from one group to the next, so that a group allocates nothing once one
/// of its size has run. It stays where it is.
#[derive(Default)]
struct Scratch {
    /// In the order in which they were added.
    added: Calls,
    /// Of several communicators: each one's together.
    sorted: Calls,
    /// By place in `sorted`: the place in `added`.
    order: Vec<usize>,
}

/// Calls, by place.
#[derive(Default)]
struct Calls {
    /// Each a `Comm<M>`, borrowed for `'env`, which the group does not outlive.
    communicators: Vec<*const ()>,
    raw: Vec<RawCall>,
    queues: Vec<RawQueue>,
}

/// A communicator with its calls.
type Member<'a, M> = (&'a Comm<M>, RefMut<'a, Engine<M>>, &'a [RawCall], &'a [RawQueue]);

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Calls `add` to collect calls, then runs them.
///
/// To add calls from several places to one group, pass the [`Group`] to them. A `group` called within `add` is a
/// separate one and has run when it returns, before any call of the outer one: a send in one and its receive in the
/// other do not match.
///
/// # Errors
/// The error of `add`, in which case nothing is run. Otherwise the first communicator's error;
/// [`Communicator::async_error`](crate::Communicator::async_error) returns each communicator's own.
///
/// # Examples
/// ```no_run
/// # fn exchange(comm: &oxccl::Communicator, a: &[f32], b: &mut [f32], peer: u32) -> Result<(), oxccl::Error> {
/// oxccl::group(|group| {
///     group.send(comm, a, peer)?;
///     group.recv(comm, b, peer)
/// })
/// # }
/// ```
pub fn group<'env>(add: impl FnOnce(&mut Group<'env>) -> Result<(), Error>) -> Result<(), Error> {
    Group::collect(add)
}

/// Calls `add` to collect calls, then enqueues them on their streams.
///
/// Nested groups are one group: pass the [`DeviceGroup`] to the functions that add calls.
///
/// # Errors
/// The error of `add`, in which case nothing is enqueued. Otherwise the first communicator's error;
/// [`DeviceCommunicator::async_error`](crate::DeviceCommunicator::async_error) returns each communicator's own.
///
/// Where the driver refuses the calls of one communicator, those of the others are made: who repeats the whole group makes these twice, and
/// `finalize` finds it. A group of one communicator is made or not, or that communicator fails.
pub fn device_group<'env>(
    add: impl FnOnce(&mut DeviceGroup<'env>) -> Result<(), Error>,
) -> Result<(), Error> {
    Group::collect(add)
}

impl<'env, M: Init> Group<'env, M> {
    /// Calls `add` to collect calls, then runs them.
    ///
    /// # Errors
    /// As [`group`].
    pub(super) fn collect(add: impl FnOnce(&mut Group<'env, M>) -> Result<(), Error>) -> Result<(), Error> {
        let mut group = Group { scratch: SCRATCH.take().unwrap_or_default(), env: PhantomData };
        let result = add(&mut group).and_then(|()| group.run());
        let mut scratch = group.scratch;
        scratch.added.clear();
        SCRATCH.set(Some(scratch));
        result
    }

    /// Adds a call whose arguments have been checked, for whose buffers and queue the caller answers until the group has run.
    pub(super) fn add(&mut self, communicator: &'env Comm<M>, call: RawCall, queue: RawQueue) {
        let Calls { communicators, raw, queues } = &mut self.scratch.added;
        communicators.push(std::ptr::from_ref(communicator).cast());
        raw.push(call);
        queues.push(queue);
    }

    fn run(&mut self) -> Result<(), Error> {
        let Calls { communicators, raw, queues } = &self.scratch.added;
        let Some(first) = communicators.first() else { return Ok(()) };
        if communicators.iter().all(|communicator| communicator == first) {
            // SAFETY: `add` borrowed it for `'env`, and we are still within; all of a group are of one type.
            let communicator: &Comm<M> = unsafe { &*first.cast() };
            // SAFETY: the callers that added the calls answered for their buffers and queues until now.
            return unsafe { communicator.run(raw, queues) };
        }
        self.run_several()
    }

    /// As [`Self::run`], for calls of several communicators.
    fn run_several(&mut self) -> Result<(), Error> {
        let Calls { communicators, raw, queues } = self.scratch.sort();
        let mut members = heapless::Vec::<Member<'_, M>, MEMBERS_MAX>::new();
        let (mut calls, mut to) = (raw.as_slice(), queues.as_slice());
        if in_flight::any() && communicators.iter().any(|communicator| has_in_flight::<M>(*communicator)) {
            return run_behind::<M>(communicators, raw);
        }
        for same in communicators.chunk_by(|a, b| a == b) {
            // SAFETY: `add` borrowed it for `'env`, and we are still within; all of a group are of one type.
            let communicator: &Comm<M> = unsafe { &*same[0].cast() };
            let (its_calls, its_queues);
            (its_calls, calls) = calls.split_at(same.len());
            (its_queues, to) = to.split_at(same.len());
            let member = (communicator, communicator.engine()?, its_calls, its_queues);
            if members.len() == M::GROUP_MAX || members.push(member).is_err() {
                return Err(ArgumentError::GroupSize { max: M::GROUP_MAX }.into());
            }
        }
        run_together(&mut members)
    }
}

impl Calls {
    fn clear(&mut self) {
        self.communicators.clear();
        self.raw.clear();
        self.queues.clear();
    }
}

impl Scratch {
    /// The calls by communicator, each one's in the order in which they were added.
    fn sort(&mut self) -> &Calls {
        let Scratch { added, sorted, order } = self;
        order.clear();
        order.extend(0..added.raw.len());
        order.sort_unstable_by_key(|at| (added.communicators[*at].addr(), *at));
        sorted.clear();
        sorted.communicators.extend(order.iter().map(|at| added.communicators[*at]));
        sorted.raw.extend(order.iter().map(|at| added.raw[*at]));
        sorted.queues.extend(order.iter().map(|at| added.queues[*at]));
        sorted
    }
}

/// Whether operations of the communicator are in flight on this thread.
fn has_in_flight<M: Init>(communicator: *const ()) -> bool {
    // SAFETY: as in `Group::run_several`.
    let communicator: &Comm<M> = unsafe { &*communicator.cast() };
    matches!(communicator.cell().enter(), Err(Occupied::InFlight))
}

/// As [`run_together`], where operations of one of the communicators are in flight: the group comes behind those.
#[cold]
fn run_behind<M: Init>(sorted: &[*const ()], mut calls: &[RawCall]) -> Result<(), Error> {
    let mut communicators = heapless::Vec::<&Comm<M>, MEMBERS_MAX>::new();
    let mut jobs = heapless::Vec::<Behind<'_, M>, MEMBERS_MAX>::new();
    for same in sorted.chunk_by(|a, b| a == b) {
        // SAFETY: as in `Group::run_several`.
        let communicator: &Comm<M> = unsafe { &*same[0].cast() };
        let its_calls;
        (its_calls, calls) = calls.split_at(same.len());
        let job = Behind { cell: communicator.cell(), calls: its_calls, result: Ok(()) };
        if jobs.len() == M::GROUP_MAX || jobs.push(job).is_err() || communicators.push(communicator).is_err()
        {
            return Err(ArgumentError::GroupSize { max: M::GROUP_MAX }.into());
        }
    }
    // SAFETY: the callers that added the calls answered for their buffers until now.
    unsafe { M::run_behind(&mut jobs) };
    let results = communicators.iter().zip(jobs).map(|(communicator, job)| communicator.behind(job.result));
    results.fold(Ok(()), Result::and)
}

/// Runs the calls of all members; the first member's error.
///
/// Jobs stay where they are: an array with room for all members is some 17 KB, and three moves of such arrays took longer than the rest
/// of a call.
fn run_together<M: Init>(members: &mut [Member<'_, M>]) -> Result<(), Error> {
    let mut communicators = heapless::Vec::<&Comm<M>, MEMBERS_MAX>::new();
    let mut jobs = heapless::Vec::<Job<'_, M>, MEMBERS_MAX>::new();
    for (communicator, engine, calls, queues) in members.iter_mut() {
        // Neither can be full: they hold as many as `members`.
        let _ = communicators.push(communicator);
        let _ = jobs.push(Job { engine, calls, queues, result: Ok(()) });
    }
    // SAFETY: the callers that added the calls answered for their buffers until now.
    unsafe { M::run_together(&mut jobs) }.map_err(|error| ArgumentError::GroupMemory {
        communicators: jobs.len(),
        errno: error.raw_os_error().unwrap_or(0),
    })?;
    let mut first = Ok(());
    for (communicator, job) in communicators.iter().zip(&mut jobs) {
        let result = std::mem::replace(&mut job.result, Ok(()));
        first = first.and(result.map_err(|error| communicator.error(error)));
    }
    first
}
