//! Several calls as one.

use super::communicator::DeviceCommunicator;
use crate::api::collectives::Untyped;
use crate::api::error::Error;
use crate::launch::RawCall;
use crate::machine::cuda::driver::StreamRef;
use oxccl_shared::abi::{DataType, Func};
use std::cell::Cell;
use std::marker::PhantomData;

/// Calls to be put on streams together: the sends and receives of a group make progress at the same time, and one thread may be
/// several ranks.
///
/// Collectives of one communicator run in the order in which they were added, then its sends and receives. All-to-all, gather and
/// scatter are made of messages and count as those: between two ranks they are matched, in the order in which each added them.
///
/// A communicator's calls of one group run on the stream of its first call. Other streams that were given come before and after
/// them all the same: the group begins when all of its streams have come to it, and all of them go on when it is done.
pub struct DeviceGroup<'env> {
    scratch: Scratch,
    env: PhantomData<&'env mut DeviceCommunicator>,
}

/// What a group collects. Kept by the thread from one group to the next, so that a group allocates nothing once one of its
/// size has run.
#[derive(Default)]
struct Scratch {
    queued: Vec<Queued>,
    raw: Vec<RawCall>,
}

struct Queued {
    /// Borrowed for `'env`, which the group does not outlive.
    communicator: *const DeviceCommunicator,
    /// Position among the group's calls.
    index: usize,
    /// Of the communicator's device.
    stream: crate::machine::cuda::driver::CUstream,
    call: RawCall,
}

thread_local! {
    static SCRATCH: Cell<Option<Scratch>> = const { Cell::new(None) };
}

/// Puts what `add` puts into the group on its streams, when `add` has returned.
///
/// Nested groups are one group: pass the [`DeviceGroup`] on to whoever adds calls.
///
/// # Errors
/// What `add` returned; nothing is put on any stream then. Otherwise the first communicator's error; each communicator's own can be
/// asked with [`DeviceCommunicator::async_error`].
pub fn device_group<'env>(
    add: impl FnOnce(&mut DeviceGroup<'env>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut group = DeviceGroup { scratch: SCRATCH.take().unwrap_or_default(), env: PhantomData };
    let result = add(&mut group).and_then(|()| group.run());
    let mut scratch = group.scratch;
    scratch.queued.clear();
    scratch.raw.clear();
    SCRATCH.set(Some(scratch));
    result
}

impl<'env> DeviceGroup<'env> {
    /// Adds a call on untyped memory.
    ///
    /// # Errors
    /// Wrong arguments.
    ///
    /// # Safety
    /// 1. As [`DeviceCommunicator::enqueue_untyped`].
    pub unsafe fn add_untyped(
        &mut self,
        communicator: &'env DeviceCommunicator,
        call: &Untyped,
        stream: StreamRef<'env>,
    ) -> Result<(), Error> {
        let call = communicator.check(call, stream)?;
        let index = self.scratch.queued.len();
        self.scratch.queued.push(Queued { communicator, index, stream: stream.raw(), call });
        Ok(())
    }

    /// Adds a barrier.
    ///
    /// # Errors
    /// Wrong arguments.
    pub fn barrier(
        &mut self,
        communicator: &'env DeviceCommunicator,
        stream: StreamRef<'env>,
    ) -> Result<(), Error> {
        // SAFETY: a barrier touches no buffer, and the stream lives for `'env`.
        unsafe { self.add_untyped(communicator, &Untyped::new(Func::Barrier, DataType::U8), stream) }
    }

    fn run(&mut self) -> Result<(), Error> {
        let Scratch { queued, raw } = &mut self.scratch;
        queued.sort_unstable_by_key(|q| (q.communicator as usize, q.index));
        raw.extend(queued.iter().map(|q| q.call));
        let members = || {
            let mut rest = raw.as_slice();
            queued.chunk_by(|a, b| std::ptr::eq(a.communicator, b.communicator)).map(move |same| {
                let calls;
                (calls, rest) = rest.split_at(same.len());
                // SAFETY: `add_untyped` borrowed it for `'env`, and we are still within.
                (unsafe { &*same[0].communicator }, calls, same)
            })
        };
        for (communicator, calls, _) in members() {
            communicator.prepare(calls)?;
        }
        let mut first = Ok(());
        for (communicator, calls, same) in members() {
            let device = communicator.device();
            // SAFETY: (1, 2) it was given as a stream of this device that lives for `'env`.
            let stream = |queued: &Queued| unsafe { StreamRef::from_raw(device, queued.stream) };
            let others = same[1..].iter().filter(|other| other.stream != same[0].stream).map(stream);
            // SAFETY: whoever added a call answered for its buffers and its stream.
            let put = unsafe { communicator.enqueue(calls, stream(&same[0]), others) };
            first = first.and(put);
        }
        first
    }
}
