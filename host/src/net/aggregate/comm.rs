//! A head's communicator.

use super::link::{Buffers, Ended, Link};
use crate::net::coll::{CollComm, CollPart, Reduction, Started};
use crate::net::{Comm, NetError, NetMemory, NetMemoryKind, REQUESTS_MAX, Registration, Request};
use core::ptr::{null, null_mut};
use oxccl_shared::abi::{DataType, RedOp};

/// A head's end: a connection to each server. Operation k goes to server `k % n`.
pub struct AggregatorComm {
    device: String,
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
    /// Over these connections, in the order of the servers. `device` names the device and the head for errors.
    pub fn new(device: String, links: Vec<Link>) -> AggregatorComm {
        let what = Reduction { count: 0, dtype: DataType::U8, op: RedOp::Sum };
        let nothing =
            Op { buffers: Buffers { send: null(), recv: null_mut(), what }, number: 0, is_open: false };
        AggregatorComm {
            device,
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

    /// Moves what goes, on all links.
    fn drive(&mut self) -> Result<(), NetError> {
        self.check_usable()?;
        let nlinks = self.links.len() as u64;
        for (index, link) in (0..).zip(&mut self.links) {
            let ops = &self.ops;
            let posted = (self.next + nlinks - 1 - index) / nlinks;
            let op = |of_link: u64| ops[at(of_link * nlinks + index)].buffers;
            // SAFETY: the callers of the operations have promised it.
            if let Err(ended) = unsafe { link.drive(posted, op) } {
                let error = ended.into_error(&self.device, link);
                return Err(self.failed.insert(error).clone());
            }
        }
        Ok(())
    }

    fn is_done(&self, number: u64) -> bool {
        let nlinks = self.links.len() as u64;
        self.links[(number % nlinks) as usize].done() > number / nlinks
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
            return Ok(Some(buffers.what.len_bytes()));
        }
        driven.map(|()| None)
    }
}

impl CollComm for AggregatorComm {
    unsafe fn iallreduce(&mut self, send: CollPart, recv: CollPart, what: Reduction) -> Started {
        self.check_usable()?;
        self.check(send.registration)?;
        self.check(recv.registration)?;
        if !super::frame::is_reduced(what.op) {
            return Err(self.unsupported(&format!("{} of {}", what.op, what.dtype)));
        }
        let number = self.next;
        if self.ops[at(number)].is_open {
            // Nobody may be testing the one that is in the way.
            self.drive()?;
            return Ok(None);
        }
        let buffers = Buffers { send: send.start, recv: recv.start, what };
        self.ops[at(number)] = Op { buffers, number, is_open: true };
        self.next += 1;
        self.drive()?;
        Ok(Some(Request(number as u32)))
    }

    unsafe fn iallgather(&mut self, _send: CollPart, _recv: CollPart, _head_bytes: usize) -> Started {
        Err(self.unsupported("an all-gather"))
    }

    unsafe fn ireduce_scatter(&mut self, _send: CollPart, _recv: CollPart, _what: Reduction) -> Started {
        Err(self.unsupported("a reduce-scatter"))
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
