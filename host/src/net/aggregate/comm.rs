//! A head's communicator.

use super::frame::is_reduced;
use super::input::Ended;
use super::link::{Buffers, Link, Task};
use crate::net::coll::{CollComm, CollPart, Head, Reduction, Started, Window};
use crate::net::{Comm, NetError, NetMemory, NetMemoryKind, REQUESTS_MAX, Registration, Request};
use core::ptr::{null, null_mut};
use oxccl_shared::abi::{DataType, RedOp};

/// Most bytes of an operation.
pub const OPERATION_MAX_BYTES: usize = 1 << 30;

/// A head's end: a connection to each server.
pub struct AggregatorComm {
    device: String,
    head: Head,
    links: Vec<Link>,
    /// Operation k at `k % REQUESTS_MAX`.
    ops: [Op; REQUESTS_MAX],
    next: u64,
    /// Which registrations are valid. Memory of this process needs none.
    registered: Vec<bool>,
    failed: Option<NetError>,
}

#[derive(Clone, Copy)]
struct Op {
    buffers: Buffers,
    number: u64,
    /// Whether somebody will still ask for it.
    is_open: bool,
}

// SAFETY: the pointers are those of operations, which any one thread at a time may drive.
unsafe impl Send for AggregatorComm {}

impl AggregatorComm {
    /// A head's, over these connections, in the order of the servers. `device` names the device and the head for errors.
    pub fn new(device: String, head: Head, links: Vec<Link>) -> AggregatorComm {
        let task = Task::Gather(Window::whole(0, 0));
        let count = links.len();
        let links = links.into_iter().enumerate().map(|(index, link)| link.at(index, count)).collect();
        let nothing =
            Op { buffers: Buffers { send: null(), recv: null_mut(), task }, number: 0, is_open: false };
        AggregatorComm {
            device,
            head,
            links,
            ops: [nothing; REQUESTS_MAX],
            next: 0,
            registered: Vec::new(),
            failed: None,
        }
    }

    fn misused(&self, what: &str) -> NetError {
        NetError::of_call(&self.device, "OxCCL", format!("{what} was named"))
    }

    fn unsupported(&self, what: &str) -> NetError {
        NetError::Unsupported { device: self.device.clone(), what: what.to_owned() }
    }

    /// # Errors
    /// The first error, if it is broken.
    fn check_usable(&self) -> Result<(), NetError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn check(&self, registration: Registration) -> Result<(), NetError> {
        match self.registered.get(registration.0 as usize) {
            Some(true) => Ok(()),
            _ => Err(self.misused("memory that is not registered")),
        }
    }

    fn check_operator(&self, dtype: DataType, op: RedOp) -> Result<(), NetError> {
        if is_reduced(op) { Ok(()) } else { Err(self.unsupported(&format!("{op} of {dtype}"))) }
    }

    fn check_length(&self, count: usize, size_bytes: usize) -> Result<(), NetError> {
        if count <= OPERATION_MAX_BYTES / size_bytes {
            return Ok(());
        }
        Err(self.misused(&format!("an operation of more than {OPERATION_MAX_BYTES} bytes")))
    }

    fn check_window(&self, window: Window, size_bytes: usize) -> Result<(), NetError> {
        let Window { head_bytes, start, len_bytes } = window;
        self.check_length(len_bytes, 1)?;
        let is_whole = [head_bytes, start, len_bytes].iter().all(|bytes| bytes.is_multiple_of(size_bytes));
        if is_whole && window.is_inside(self.head.count) {
            return Ok(());
        }
        Err(self.misused(&format!("a window of {len_bytes} bytes at {start} of blocks of {head_bytes}")))
    }

    /// Starts an operation, if there is room.
    ///
    /// # Safety
    /// As that of the operation.
    unsafe fn start(&mut self, send: CollPart, recv: CollPart, task: Task) -> Started {
        self.check_usable()?;
        self.check(send.registration)?;
        self.check(recv.registration)?;
        let number = self.next;
        if self.ops[at(number)].is_open {
            // Nobody may be testing the one that is in the way.
            self.drive()?;
            return Ok(None);
        }
        let buffers = Buffers { send: send.start, recv: recv.start, task };
        self.ops[at(number)] = Op { buffers, number, is_open: true };
        self.next += 1;
        self.drive()?;
        Ok(Some(Request(number as u32)))
    }

    /// Moves what goes, on all links. One that ends stops no other: the server of a head that has left ends this head's connection, while
    /// complete results come from another server.
    fn drive(&mut self) -> Result<(), NetError> {
        self.check_usable()?;
        let (ops, posted, device) = (&self.ops, self.next, &self.device);
        let op = |number: u64| ops[at(number)].buffers;
        // Fragment by fragment in turns: if one server got all of its own first, its link would carry all heads' at once and the others' nothing.
        let mut goes_on = true;
        while std::mem::take(&mut goes_on) {
            for link in self.links.iter_mut().filter(|link| link.ended.is_none()) {
                // SAFETY: the callers of the operations have promised it.
                match unsafe { link.send(posted, &op) } {
                    Ok(goes) => goes_on |= goes,
                    Err(ended) => {
                        // Where the server has left, it may have said why. That it has left is no better reason than this one.
                        // SAFETY: likewise.
                        let why = match unsafe { link.receive(posted, &op) } {
                            Err(told @ Ended::Told(_)) => told,
                            _ => ended,
                        };
                        link.ended = Some(why.into_error(device, link));
                    }
                }
            }
        }
        for link in &mut self.links {
            if link.ended.is_some() {
                link.pass(posted, &op);
            // SAFETY: likewise.
            } else if let Err(ended) = unsafe { link.receive(posted, &op) } {
                link.ended = Some(ended.into_error(device, link));
                link.pass(posted, &op);
            }
        }
        Ok(())
    }

    /// Fails for good if an operation needs a link that has ended.
    fn check_links(&mut self, number: u64) -> Result<(), NetError> {
        let ended =
            self.links.iter().filter(|link| link.done() <= number).find_map(|link| link.ended.clone());
        ended.map_or(Ok(()), |error| Err(self.failed.insert(error).clone()))
    }

    /// Every link has gone past it: [`Self::drive`] moves them past what they have no part in.
    fn is_done(&self, number: u64) -> bool {
        self.links.iter().all(|link| link.done() > number)
    }
}

fn at(number: u64) -> usize {
    (number % REQUESTS_MAX as u64) as usize
}

impl Ended {
    fn into_error(self, device: &str, link: &Link) -> NetError {
        let (device, peer) = (device.to_owned(), link.server.clone());
        match self {
            Ended::Told(reason) => NetError::Call { device, peer: Some(peer), call: "a reduction", reason },
            Ended::Closed => NetError::Closed { device, peer, mid_message: link.is_busy() },
            Ended::Wrong(expected, found) => NetError::Protocol { device, peer, expected, found },
            Ended::Altered => NetError::Altered { device, peer },
            Ended::Io(error) => NetError::of_io(&device, Some(peer), "a reduction", &error),
        }
    }
}

impl Comm for AggregatorComm {
    unsafe fn register(&mut self, memory: NetMemory<'_>) -> Result<Registration, NetError> {
        if !matches!(memory.kind, NetMemoryKind::Host) {
            return Err(self.unsupported("memory of a device"));
        }
        let free = self.registered.iter().position(|is_valid| !is_valid);
        let index = free.unwrap_or_else(|| {
            self.registered.push(false);
            self.registered.len() - 1
        });
        self.registered[index] = true;
        Ok(Registration(index as u32))
    }

    fn deregister(&mut self, registration: Registration) -> Result<(), NetError> {
        self.check(registration)?;
        self.registered[registration.0 as usize] = false;
        Ok(())
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>, NetError> {
        let index = at(u64::from(request.0));
        let Op { buffers, number, is_open } = self.ops[index];
        if !is_open || number as u32 != request.0 {
            return Err(self.misused("a request that is not in flight"));
        }
        let driven = self.drive();
        if self.is_done(number) {
            self.ops[index].is_open = false;
            return Ok(Some(buffers.task.output_bytes(self.head.index)));
        }
        driven.and_then(|()| self.check_links(number)).map(|()| None)
    }
}

impl CollComm for AggregatorComm {
    unsafe fn iallreduce(&mut self, send: CollPart, recv: CollPart, what: Reduction) -> Started {
        self.check_operator(what.dtype, what.op)?;
        self.check_length(what.count, what.dtype.size_bytes())?;
        // SAFETY: the same obligation.
        unsafe { self.start(send, recv, Task::Reduce(what)) }
    }

    unsafe fn iallgather(&mut self, send: CollPart, recv: CollPart, window: Window) -> Started {
        self.check_window(window, 1)?;
        // SAFETY: the same obligation.
        unsafe { self.start(send, recv, Task::Gather(window)) }
    }

    unsafe fn ireduce_scatter(
        &mut self,
        send: CollPart,
        recv: CollPart,
        (dtype, op): (DataType, RedOp),
        window: Window,
    ) -> Started {
        self.check_operator(dtype, op)?;
        self.check_window(window, dtype.size_bytes())?;
        // SAFETY: the same obligation.
        unsafe { self.start(send, recv, Task::Scatter(dtype, op, window)) }
    }

    unsafe fn flush(&mut self, _part: CollPart, _len_bytes: usize) -> Started {
        Ok(None)
    }

    fn awaited(&self) -> String {
        let busy = self.links.iter().filter(|link| link.is_busy());
        let servers: Vec<&str> = busy.map(|link| link.server.as_str()).collect();
        format!("{}: {}", self.device, servers.join(" and "))
    }
}
