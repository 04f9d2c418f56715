//! Operations of GPUs without `unsafe`: on cudarc's streams and buffers, whose own records keep them until the work is done.

use super::all_to_all_v::{Blocks, UntypedV, add_all};
use super::shapes::Span;
use super::untyped::Untyped;
use super::v;
#[cfg(doc)]
use crate::DeviceCommunicator;
use crate::api::communicator::Comm;
use crate::api::error::{ArgumentError, BlocksError, DeviceError, Error};
use crate::api::group::Group;
use crate::api::operator::ReduceOp;
use crate::gpu::CudaError;
use crate::launch::StreamMachine;
use crate::machine::cuda::{
    Access, Cuda, GpuElement, GpuRead, GpuWrite, Place, Record, StreamRef, check_stream,
};
use cudarc::driver::CudaStream;
use oxccl_shared::reduce::Element;
use std::sync::Arc;

/// The operations of a communicator on one of cudarc's streams: see [`DeviceCommunicator::on`].
///
/// Each is enqueued and returns. Its buffers may be used, moved and dropped at once: cudarc orders what is done with them after the
/// operation, on whichever stream, by the events that it keeps with each buffer. (Who switches these off by its
/// `disable_event_tracking`, which is `unsafe`, answers for the order.) Streams may be dropped at once, too.
///
/// cudarc remembers the latest read of a buffer alone. So what follows an operation on its stream waits for the reads of the operation's
/// input on other streams, too. A copy or kernel of cudarc itself that reads the input on another stream while an operation still does has to
/// be ordered after it by [`CudaStream::join`].
///
/// A group has its buffers until it has run:
///
/// ```compile_fail,E0499
/// # use oxccl::{DeviceCommunicator, ReduceOp, cudarc::driver::{CudaSlice, CudaStream}};
/// # use std::sync::Arc;
/// fn twice(comm: &DeviceCommunicator, stream: &Arc<CudaStream>, data: &mut CudaSlice<f32>) -> Result<(), oxccl::Error> {
///     oxccl::stream_group(|group| {
///         group.on(comm, stream)?.all_reduce_in_place(data, ReduceOp::SUM)?;
///         group.on(comm, stream)?.all_reduce_in_place(data, ReduceOp::SUM)
///     })
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct OnStream<'a> {
    comm: &'a Comm<Cuda>,
    stream: &'a Arc<CudaStream>,
}

/// Calls of one or several communicators on cudarc's streams, which are enqueued together: see [`stream_group`].
pub struct StreamGroup<'g, 'env> {
    group: &'g mut Group<'env, Cuda>,
    used: &'g mut Vec<Used<'env>>,
}

/// The calls of a [`StreamGroup`] of one communicator on one stream.
pub struct InGroup<'s, 'g, 'env> {
    group: &'s mut StreamGroup<'g, 'env>,
    comm: &'env Comm<Cuda>,
    stream: &'env Arc<CudaStream>,
}

/// What a group has used of cudarc.
enum Used<'env> {
    Stream(&'env Comm<Cuda>, &'env Arc<CudaStream>),
    /// Only held.
    Buffer {
        _record: Record<'env>,
    },
}

/// Calls `add` to collect calls, then enqueues them: sends and receives progress at the same time, and one thread may drive several
/// ranks. A communicator's calls run on the stream of its first call, ordered with its other streams.
///
/// # Errors
/// The error of `add`, in which case nothing is enqueued. Otherwise the first communicator's error.
///
/// # Examples
/// ```no_run
/// # use oxccl::{DeviceCommunicator, ReduceOp, cudarc::driver::{CudaSlice, CudaStream}};
/// # use std::sync::Arc;
/// fn sum(ranks: &mut [(DeviceCommunicator, Arc<CudaStream>, CudaSlice<f32>)]) -> Result<(), oxccl::Error> {
///     oxccl::stream_group(|group| {
///         ranks.iter_mut().try_for_each(|(comm, stream, data)| {
///             group.on(comm, stream)?.all_reduce_in_place(data, ReduceOp::SUM)
///         })
///     })
/// }
/// ```
pub fn stream_group<'env>(
    add: impl FnOnce(&mut StreamGroup<'_, 'env>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut used = Vec::new();
    let result = Group::collect(|group| add(&mut StreamGroup { group, used: &mut used }));
    // In reverse: of a communicator's streams the first is the one that its calls went to.
    for used in used.iter().rev() {
        if let Used::Stream(comm, stream) = used {
            comm.keep(stream, result.is_ok());
        }
    }
    // The calls are enqueued: cudarc records the uses of the buffers.
    drop(used);
    result
}

impl<'g, 'env> StreamGroup<'g, 'env> {
    /// Adds calls of `comm` on `stream`.
    ///
    /// # Errors
    /// As [`DeviceCommunicator::on`].
    pub fn on<'s>(
        &'s mut self,
        comm: &'env Comm<Cuda>,
        stream: &'env Arc<CudaStream>,
    ) -> Result<InGroup<'s, 'g, 'env>, Error> {
        comm.check_place("stream", Place::of_stream(stream))?;
        self.used.push(Used::Stream(comm, stream));
        Ok(InGroup { group: self, comm, stream })
    }
}

impl Comm<Cuda> {
    /// The operations on `stream`, without `unsafe`.
    ///
    /// # Errors
    /// [`ArgumentError::StreamDevice`], [`ArgumentError::OtherContext`]: the stream is not of this rank's GPU and its primary context.
    ///
    /// # Examples
    /// ```no_run
    /// # fn sum(comm: &oxccl::DeviceCommunicator) -> Result<(), Box<dyn std::error::Error>> {
    /// use oxccl::{ReduceOp, cudarc::driver::CudaContext};
    /// let stream = CudaContext::new(comm.device().ordinal() as usize)?.new_stream()?;
    /// let send = stream.clone_htod(&[1f32, 2.0, 3.0])?;
    /// let mut recv = stream.alloc_zeros::<f32>(3)?;
    /// comm.on(&stream)?.all_reduce(&send, &mut recv, ReduceOp::SUM)?;
    /// println!("{:?}", stream.clone_dtoh(&recv)?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on<'a>(&'a self, stream: &'a Arc<CudaStream>) -> Result<OnStream<'a>, Error> {
        self.check_place("stream", Place::of_stream(stream))?;
        Ok(OnStream { comm: self, stream })
    }

    fn check_place(&self, what: &'static str, found: Place) -> Result<(), ArgumentError> {
        let own = Place::of_device(self.device());
        let (rank, device) = (self.member.rank, own.ordinal);
        match found {
            found if found == own => Ok(()),
            Place { ordinal, .. } if what == "stream" && ordinal != device => {
                Err(ArgumentError::StreamDevice { rank, device, stream: ordinal })
            }
            Place { ordinal, .. } => Err(ArgumentError::OtherContext { rank, device, what, ordinal }),
        }
    }

    fn stream_error(&self, error: CudaError) -> Error {
        let (rank, nranks) = (self.member.rank, self.size());
        DeviceError { rank, nranks, source: Box::new(error.into()) }.into()
    }

    /// Keeps the stream of the latest operations alive, so that no other gets its address, by which their order is kept, and so that
    /// cudarc goes on tracking. A call that failed may have left the order with another stream.
    fn keep(&self, stream: &Arc<CudaStream>, is_the_only_one: bool) {
        let mut kept = self.kept.borrow_mut();
        if kept.iter().any(|kept| Arc::ptr_eq(kept, stream)) && (kept.len() == 1 || !is_the_only_one) {
            return;
        }
        if is_the_only_one {
            kept.clear();
        }
        kept.push(stream.clone());
    }
}

impl<'a> OnStream<'a> {
    /// Enqueues a call on buffers whose accesses the caller holds.
    fn enqueue(&self, call: &Untyped) -> Result<(), Error> {
        let OnStream { comm, stream } = *self;
        check_stream(comm.device(), stream).map_err(|error| comm.stream_error(error))?;
        // SAFETY: (1) `on` compared the contexts; (2) the communicator keeps the stream.
        let on = unsafe { StreamRef::from_raw(comm.device(), stream.cu_stream()) };
        // SAFETY: (1) the addresses are those of buffers of this context, long enough for the call by the check of shapes, and cudarc
        // frees none before the work that was enqueued when its record is dropped; (2) inputs are shared borrows and outputs unique
        // ones, in order with their other uses by cudarc's records; (3) the communicator keeps the stream.
        let enqueued = unsafe { comm.enqueue_untyped(call, on) };
        comm.keep(stream, enqueued.is_ok());
        enqueued
    }

    /// Enqueues a barrier: later work on the stream starts after every rank's stream has reached it.
    ///
    /// # Errors
    /// See [`DeviceCommunicator`].
    pub fn barrier(&self) -> Result<(), Error> {
        self.enqueue(&Untyped::barrier())
    }

    /// As [`DeviceCommunicator::all_to_all_v`].
    ///
    /// # Errors
    /// As there.
    pub fn all_to_all_v<T: GpuElement>(
        &self,
        send: &impl GpuRead<T>,
        send_blocks: Blocks<'_>,
        recv: &mut impl GpuWrite<T>,
        recv_blocks: Blocks<'_>,
    ) -> Result<(), Error> {
        let OnStream { comm, stream } = *self;
        let (send, _reads) = read::<T>(comm, send, stream)?;
        let (recv, _writes) = write::<T>(comm, recv, stream)?;
        let call = UntypedV::of_spans((send, send_blocks), (recv, recv_blocks), comm.size());
        let call = call.map_err(ArgumentError::from)?;
        check_stream(comm.device(), stream).map_err(|error| comm.stream_error(error))?;
        // SAFETY: as in `enqueue`.
        let on = unsafe { StreamRef::from_raw(comm.device(), stream.cu_stream()) };
        // SAFETY: as in `enqueue`: the blocks were found to lie in the buffers.
        let enqueued = unsafe { comm.enqueue_untyped_v(&call, on) };
        comm.keep(stream, enqueued.is_ok());
        enqueued
    }

    /// As [`DeviceCommunicator::all_gather_v`].
    ///
    /// # Errors
    /// As there.
    pub fn all_gather_v<T: GpuElement>(
        &self,
        send: &impl GpuRead<T>,
        recv: &mut impl GpuWrite<T>,
        blocks: Blocks<'_>,
    ) -> Result<(), Error> {
        let (send, _reads) = read::<T>(self.comm, send, self.stream)?;
        let (recv, _writes) = write::<T>(self.comm, recv, self.stream)?;
        self.enqueue_all(v::gather(&send, &recv, self.comm.place(blocks)))
    }

    /// As [`DeviceCommunicator::reduce_scatter_v`].
    ///
    /// # Errors
    /// As there.
    pub fn reduce_scatter_v<T: GpuElement>(
        &self,
        send: &impl GpuRead<T>,
        recv: &mut impl GpuWrite<T>,
        blocks: Blocks<'_>,
        op: ReduceOp,
    ) -> Result<(), Error> {
        let (send, _reads) = read::<T>(self.comm, send, self.stream)?;
        let (recv, _writes) = write::<T>(self.comm, recv, self.stream)?;
        self.enqueue_all(v::reduce(&send, &recv, op, self.comm.place(blocks)))
    }

    /// Enqueues calls on blocks of buffers whose accesses the caller holds, as one group.
    fn enqueue_all(
        &self,
        calls: Result<impl Iterator<Item = Untyped> + Clone, BlocksError>,
    ) -> Result<(), Error> {
        let OnStream { comm, stream } = *self;
        let calls = calls.map_err(ArgumentError::from)?;
        check_stream(comm.device(), stream).map_err(|error| comm.stream_error(error))?;
        // SAFETY: as in `enqueue`.
        let on = unsafe { StreamRef::from_raw(comm.device(), stream.cu_stream()) };
        let calls = calls.map(|call| comm.check(&call, on));
        // As in `enqueue`: the blocks were found to lie in the buffers, apart from each other.
        let enqueued = Group::collect(|group| add_all(group, comm, calls, Cuda::raw(on)));
        comm.keep(stream, enqueued.is_ok());
        enqueued
    }
}

impl<'env> InGroup<'_, '_, 'env> {
    /// Adds a call on buffers whose accesses the group holds.
    fn add(&mut self, call: &Untyped) -> Result<(), Error> {
        let (comm, stream) = (self.comm, self.stream);
        check_stream(comm.device(), stream).map_err(|error| comm.stream_error(error))?;
        // SAFETY: as in `OnStream::enqueue`; the stream is borrowed for `'env`.
        let on = unsafe { StreamRef::from_raw(comm.device(), stream.cu_stream()) };
        // SAFETY: (1) as there: the borrows last for `'env`, and the records are held until the group has run.
        unsafe { self.group.group.add_untyped(comm, call, on) }
    }

    /// Adds a barrier.
    ///
    /// # Errors
    /// Wrong arguments; everything else is the group's own result.
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.add(&Untyped::barrier())
    }

    /// Adds an all-to-all-v, as [`OnStream::all_to_all_v`].
    ///
    /// # Errors
    /// Wrong arguments, as there; everything else is the group's own result.
    pub fn all_to_all_v<T: GpuElement>(
        &mut self,
        send: &'env impl GpuRead<T>,
        send_blocks: Blocks<'_>,
        recv: &'env mut impl GpuWrite<T>,
        recv_blocks: Blocks<'_>,
    ) -> Result<(), Error> {
        let (comm, stream) = (self.comm, self.stream);
        let (send, recv) = (read::<T>(comm, send, stream)?, write::<T>(comm, recv, stream)?);
        let (send, recv) = (self.hold(send), self.hold(recv));
        let call = UntypedV::of_spans((send, send_blocks), (recv, recv_blocks), comm.size());
        let call = call.map_err(ArgumentError::from)?;
        check_stream(comm.device(), stream).map_err(|error| comm.stream_error(error))?;
        // SAFETY: as in `add`.
        let on = unsafe { StreamRef::from_raw(comm.device(), stream.cu_stream()) };
        // SAFETY: (1) as in `add`: the blocks were found to lie in the buffers.
        unsafe { self.group.group.add_untyped_v(comm, &call, on) }
    }

    fn hold<E: Element>(&mut self, (span, record): (Span<E>, Record<'env>)) -> Span<E> {
        self.group.used.push(Used::Buffer { _record: record });
        span
    }
}

/// The elements of a buffer that work on the stream reads, and cudarc's record of it.
fn read<'a, T: GpuElement>(
    comm: &Comm<Cuda>,
    buffer: &'a impl GpuRead<T>,
    stream: &'a Arc<CudaStream>,
) -> Result<(Span<T::Element>, Record<'a>), ArgumentError> {
    comm.check_place("send buffer", buffer.place())?;
    let Access { address, len, record } = buffer.read(stream);
    Ok((Span::on_device(address, len), record))
}

/// The same of one that it writes.
fn write<'a, T: GpuElement>(
    comm: &Comm<Cuda>,
    buffer: &'a mut impl GpuWrite<T>,
    stream: &'a Arc<CudaStream>,
) -> Result<(Span<T::Element>, Record<'a>), ArgumentError> {
    comm.check_place("receive buffer", buffer.place())?;
    let Access { address, len, record } = buffer.write(stream);
    Ok((Span::on_device(address, len), record))
}

/// The same operations twice: enqueued at once, and added to a group. The buffers of each: what it reads, what it writes.
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident [$($send:ident)?] [$($recv:ident)?] ($($arg:ident: $kind:ty),*);)+) => {
        impl OnStream<'_> { $(
            $(#[$doc])*
            ///
            /// # Errors
            /// As there. [`ArgumentError::OtherContext`]: a buffer is not of this rank's GPU.
            pub fn $name<T: GpuElement>(
                &self,
                $($send: &impl GpuRead<T>,)?
                $($recv: &mut impl GpuWrite<T>,)?
                $($arg: $kind),*
            ) -> Result<(), Error> {
                // The records are dropped, in which case cudarc takes them, when the call has been enqueued.
                $(let ($send, _reads) = read::<T>(self.comm, $send, self.stream)?;)?
                $(let ($recv, _writes) = write::<T>(self.comm, $recv, self.stream)?;)?
                let call = self.comm.ranks().$name($($send,)? $($recv,)? $($arg),*)?;
                self.enqueue(&call)
            }
        )+ }

        impl<'env> InGroup<'_, '_, 'env> { $(
            $(#[$doc])*
            ///
            /// # Errors
            /// Wrong arguments, as there; everything else is the group's own result.
            pub fn $name<T: GpuElement>(
                &mut self,
                $($send: &'env impl GpuRead<T>,)?
                $($recv: &'env mut impl GpuWrite<T>,)?
                $($arg: $kind),*
            ) -> Result<(), Error> {
                $(let $send = read::<T>(self.comm, $send, self.stream)?;)?
                $(let $recv = write::<T>(self.comm, $recv, self.stream)?;)?
                $(let $send = self.hold($send);)?
                $(let $recv = self.hold($recv);)?
                let call = self.comm.ranks().$name($($send,)? $($recv,)? $($arg),*)?;
                self.add(&call)
            }
        )+ }
    };
}

operations! {
    /// As [`DeviceCommunicator::all_reduce`]: every rank's `recv` becomes `op` over all ranks' `send`.
    all_reduce [send] [recv] (op: ReduceOp);
    /// As [`DeviceCommunicator::all_reduce_in_place`].
    all_reduce_in_place [] [buffer] (op: ReduceOp);
    /// As [`DeviceCommunicator::all_gather`]: `send` of rank r becomes block r of every rank's `recv`.
    all_gather [send] [recv] ();
    /// As [`DeviceCommunicator::all_gather_in_place`]: this rank's input is its block of `buffer`.
    all_gather_in_place [] [buffer] ();
    /// As [`DeviceCommunicator::reduce_scatter`]: block r of `op` over all ranks' `send` goes to `recv` of rank r.
    reduce_scatter [send] [recv] (op: ReduceOp);
    /// As [`DeviceCommunicator::reduce_scatter_in_place`]: this rank's output is its block of `buffer`.
    reduce_scatter_in_place [] [buffer] (op: ReduceOp);
    /// As [`DeviceCommunicator::broadcast`]: the root's `send` becomes every rank's `recv`.
    broadcast [send] [recv] (root: u32);
    /// As [`DeviceCommunicator::broadcast_in_place`].
    broadcast_in_place [] [buffer] (root: u32);
    /// As [`DeviceCommunicator::reduce`]: the root's `recv` becomes `op` over all ranks' `send`.
    reduce [send] [recv] (op: ReduceOp, root: u32);
    /// As [`DeviceCommunicator::reduce_in_place`].
    reduce_in_place [] [buffer] (op: ReduceOp, root: u32);
    /// As [`DeviceCommunicator::send`]: a message to `peer`, which receives it.
    send [send] [] (peer: u32);
    /// As [`DeviceCommunicator::recv`]: a message of `peer`, which sends it.
    recv [] [recv] (peer: u32);
    /// As [`DeviceCommunicator::all_to_all`]: block j of rank i's `send` becomes block i of rank j's `recv`.
    all_to_all [send] [recv] ();
    /// As [`DeviceCommunicator::gather`]: `send` of rank r becomes block r of the root's `recv`.
    gather [send] [recv] (root: u32);
    /// As [`DeviceCommunicator::scatter`]: block r of the root's `send` becomes `recv` of rank r.
    scatter [send] [recv] (root: u32);
}
