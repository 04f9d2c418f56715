//! Heads of one communicator, driven by one thread or several.

use crate::model::{Model, Sample};
use crate::net::until;
use crate::oracle::Inputs;
use oxccl::net::coll::{CollComm, CollListener, CollNet, CollPart, Reduction, Window};
use oxccl::net::{NetError, NetHandle, NetMemory, NetMemoryKind, Registration, Request};
use oxccl::{DataType, Func, RedOp};
use std::collections::VecDeque;
use std::sync::Arc;

/// One head, with the buffers of its operations.
pub struct End {
    /// Its communicator.
    pub comm: Box<dyn CollComm>,
    nheads: u32,
    posted: VecDeque<Posted>,
}

struct Posted {
    request: Request,
    registrations: Vec<Registration>,
    /// Read until the request is done.
    _input: Vec<u8>,
    /// None where the output takes the input's place.
    output: Vec<u8>,
}

/// An operation.
#[derive(Clone, Copy, Debug)]
pub struct What {
    /// All-reduce, all-gather or reduce-scatter.
    pub func: Func,
    /// Elements, as the function counts them.
    pub reduction: Reduction,
    /// Whether the output is the input's memory.
    pub in_place: bool,
}

/// What lies behind every output, and must stay.
const GUARD: u8 = 0xa5;
const GUARD_BYTES: usize = 64;

/// Listeners, and all their handles.
pub fn gather(net: &Arc<dyn CollNet>, count: u32) -> (Vec<Box<dyn CollListener>>, Vec<NetHandle>) {
    let listeners = (0..count).map(|_| net.listen(0).expect("device 0 listens"));
    let (handles, listeners): (Vec<_>, Vec<_>) = listeners.unzip();
    (listeners, handles)
}

/// So many heads of a network's first device, head 0 first to join.
pub fn heads(net: &Arc<dyn CollNet>, count: u32) -> Vec<End> {
    let (listeners, handles) = gather(net, count);
    let joining = (0..).zip(listeners).map(|(index, listener)| listener.join(&handles, index));
    let mut joining: Vec<_> = joining.map(|joining| joining.expect("there is a handle")).collect();
    let mut comms: Vec<Option<Box<dyn CollComm>>> = joining.iter().map(|_| None).collect();
    until("heads that come together", || {
        for (joining, comm) in joining.iter_mut().zip(&mut comms).filter(|(_, comm)| comm.is_none()) {
            *comm = joining.poll_join().expect("all heads are there");
        }
        comms.iter().all(Option::is_some).then_some(())
    });
    comms.into_iter().flatten().map(|comm| End::new(comm, count)).collect()
}

impl End {
    /// Of a communicator of so many heads.
    pub fn new(comm: Box<dyn CollComm>, nheads: u32) -> End {
        End { comm, nheads, posted: VecDeque::new() }
    }

    /// Begins an operation on `input`, of the whole; no if the network does not take it now.
    pub fn post(&mut self, what: &What, input: &[u8], output_bytes: usize) -> Result<bool, NetError> {
        let window = Window::whole(what.reduction.len_bytes(), self.nheads);
        self.post_window(what, window, input, output_bytes)
    }

    /// The same of a window, which does not matter to an all-reduce.
    pub fn post_window(
        &mut self,
        what: &What,
        window: Window,
        input: &[u8],
        output_bytes: usize,
    ) -> Result<bool, NetError> {
        // More bytes than there are, so that even an empty buffer has an address of its own.
        let mut memory = input.to_vec();
        memory.resize(input.len().max(output_bytes) + GUARD_BYTES, GUARD);
        let mut apart = vec![GUARD; if what.in_place { 0 } else { output_bytes + GUARD_BYTES }];
        let mut registrations = Vec::new();
        let mut part = |memory: &mut Vec<u8>| -> Result<CollPart, NetError> {
            let (start, len_bytes) = (memory.as_mut_ptr(), memory.len());
            let memory = NetMemory { start: start.cast(), len_bytes, kind: NetMemoryKind::Host };
            // SAFETY: `posted` keeps the memory, or it is deregistered below; a vector's bytes do not move.
            let registration = unsafe { self.comm.register(memory) }?;
            registrations.push(registration);
            Ok(CollPart { start, registration })
        };
        let send = part(&mut memory)?;
        let recv = if what.in_place { send } else { part(&mut apart)? };
        // SAFETY: the memory is registered and long enough, and nobody accesses it until the request completes.
        let posted = unsafe {
            match what.func {
                Func::AllReduce => self.comm.iallreduce(send, recv, what.reduction),
                Func::AllGather => self.comm.iallgather(send, recv, window),
                _ => {
                    let Reduction { dtype, op, .. } = what.reduction;
                    self.comm.ireduce_scatter(send, recv, (dtype, op), window)
                }
            }
        };
        let Some(request) = posted? else {
            registrations.into_iter().for_each(|it| self.comm.deregister(it).expect("it was registered"));
            return Ok(false);
        };
        let (_input, output) = if what.in_place { (Vec::new(), memory) } else { (memory, apart) };
        self.posted.push_back(Posted { request, registrations, _input, output });
        Ok(true)
    }

    /// Asks for the oldest operation: its output once it is there.
    pub fn oldest(&mut self) -> Result<Option<Vec<u8>>, NetError> {
        let Some(posted) = self.posted.front() else { return Ok(None) };
        let Some(len_bytes) = self.comm.test(posted.request)? else { return Ok(None) };
        let Posted { registrations, mut output, .. } = self.posted.pop_front().expect("it is there");
        registrations.into_iter().for_each(|it| self.comm.deregister(it).expect("it was registered"));
        assert!(
            output[len_bytes..].iter().all(|byte| *byte == GUARD),
            "bytes behind the output were written"
        );
        output.truncate(len_bytes);
        Ok(Some(output))
    }

    /// Operations in flight.
    pub fn under_way(&self) -> usize {
        self.posted.len()
    }

    /// The requests in flight, oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.posted.iter().map(|posted| posted.request).collect()
    }
}

/// Every head's input and output of an operation, by the oracle.
pub fn all_output<T: Model>(what: &What, nheads: u32, seed: u64) -> Vec<(Vec<T>, Vec<T>)> {
    let Reduction { count, op, .. } = what.reduction;
    let elems = if what.func == Func::ReduceScatter { count * nheads as usize } else { count };
    let sample = |rank, index| T::sample(Sample { op, nranks: nheads, rank, index, seed });
    let send: Vec<Vec<T>> =
        (0..nheads).map(|head| (0..elems).map(|index| sample(head, index)).collect()).collect();
    let inputs = Inputs { func: what.func, op, root: 0, count, send: &send, scalars: &[] };
    let outputs = (0..nheads as usize).map(|head| inputs.output(head).expect("every head has one"));
    send.iter().cloned().zip(outputs).collect()
}

impl What {
    /// An all-reduce.
    pub fn all_reduce(count: usize, dtype: DataType, op: RedOp) -> What {
        What { func: Func::AllReduce, reduction: Reduction { count, dtype, op }, in_place: false }
    }
}
