//! A socket, a state machine and the name of the peer.

use super::block::Block;
use super::error::{Direction, Fault, LinkError};
use super::frame::FrameHeader;
use super::recv::Receiver;
use super::send::Sender;
use crate::net::bypass::Expected;
use oxccl_shared::abi::{ConnLayout, Protocol, Rank, Step};
use std::net::TcpStream;
use std::ops::Range;
use std::ptr::NonNull;

/// The sending end: on the producer's host, the consumer of the block that a local kernel fills.
pub struct StreamSend<'m> {
    socket: TcpStream,
    peer: Rank,
    sender: Sender<'m>,
    failed: Option<LinkError>,
}

/// The receiving end: on the consumer's host, the producer of the block that a local kernel empties.
pub struct StreamRecv<'m> {
    socket: TcpStream,
    peer: Rank,
    receiver: Receiver<'m>,
    failed: Option<LinkError>,
}

impl<'m> StreamSend<'m> {
    /// An end that carries the slots of the connection at `connection` to `peer`, over a socket on which nothing has
    /// travelled since authentication.
    ///
    /// # Errors
    /// [`LinkError::Socket`] if the socket does not take its options.
    ///
    /// # Safety
    /// 1. `connection` is 128-byte aligned and starts `layout.total_bytes()` zeroed bytes that stay mapped for `'m`.
    /// 2. `layout` is valid.
    /// 3. This end is the connection's only consumer.
    pub unsafe fn new(
        socket: TcpStream,
        peer: Rank,
        connection: NonNull<u8>,
        layout: ConnLayout,
    ) -> Result<Self, LinkError> {
        prepare(&socket, peer, Direction::To)?;
        // SAFETY: obligations 1 and 2.
        let block = unsafe { Block::new(connection, layout) };
        Ok(StreamSend { socket, peer, sender: Sender::new(block), failed: None })
    }

    /// Puts complete slots into the socket, at most 8, and gives them back to the kernel. `protocol` is the one under which
    /// the next unsent slots were filled; of another protocol's slots the link must be [idle](Self::is_idle) first. Never
    /// blocks. Returns bytes moved, frame headers included.
    ///
    /// # Errors
    /// [`LinkError::PeerClosed`], [`LinkError::Socket`]. A link that has failed returns the same error for ever.
    pub fn progress(&mut self, protocol: Protocol) -> Result<usize, LinkError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.sender.progress(&mut self.socket, protocol).map_err(|fault| {
            let error = name(fault, self.peer, Direction::To, self.sender.step());
            *self.failed.insert(error)
        })
    }

    /// Has the Simple slot at `slot` stand for `len_bytes` at `body`, so that nobody need copy them there. Nothing happens and
    /// the answer is no if that is not the start of a slot of this link, or the bytes are better copied.
    ///
    /// # Safety
    /// 1. The slot is empty, and is published next with a length of `len_bytes`.
    /// 2. From the next [`Self::progress`] or [`Self::return_loans`] until the link is [idle](Self::is_idle), the bytes were
    ///    returned or [`Self::forget_loans`] was called, they are readable and nobody writes them.
    pub unsafe fn lend(&mut self, slot: *mut u8, body: *const u8, len_bytes: usize) -> bool {
        // SAFETY: the same obligations.
        unsafe { self.sender.lend(slot, body, len_bytes) }
    }

    /// Where the bytes of the Simple slot at `slot` are, if it is one of this link's and lent.
    pub fn lent(&self, slot: *const u8) -> Option<*const u8> {
        self.sender.lent(slot)
    }

    /// Call before writing to this range of addresses: what is lent of it and has not left is copied into its slots.
    pub fn return_loans(&mut self, memory: Range<usize>) {
        self.sender.return_loans(memory);
    }

    /// Ends loans of an operation that will not be finished. If there are any, the link has failed: its slots are lost.
    pub fn forget_loans(&mut self) {
        if self.sender.forget_loans() {
            let (peer, step) = (self.peer, self.sender.step());
            let (direction, call, errno) = (Direction::To, "sendmsg", rustix::io::Errno::CANCELED);
            self.failed.get_or_insert(LinkError::Socket { peer, direction, step, call, errno });
        }
    }

    /// Whether all slots before step `produced` are wholly in the socket.
    pub fn is_idle(&self, produced: Step) -> bool {
        self.sender.step() >= produced
    }

    /// The step that leaves next, or is leaving.
    pub fn step(&self) -> Step {
        self.sender.step()
    }

    /// The rank at the other end.
    pub fn peer(&self) -> Rank {
        self.peer
    }
}

impl<'m> StreamRecv<'m> {
    /// An end that fills the connection at `connection` with the slots that `peer` sends over a socket on which nothing
    /// has travelled since authentication.
    ///
    /// # Errors
    /// [`LinkError::Socket`] if the socket does not take its options.
    ///
    /// # Safety
    /// 1. `connection` is 128-byte aligned and starts `layout.total_bytes()` zeroed bytes that stay mapped for `'m`.
    /// 2. `layout` is valid.
    /// 3. This end is the connection's only producer.
    /// 4. While [`Self::progress`] runs, no other thread and no device reads slots of a protocol whose lines carry flags:
    ///    the operating system copies a line in any order, so the flag may be there before the data. (Simple slots may be
    ///    read at any time.)
    pub unsafe fn new(
        socket: TcpStream,
        peer: Rank,
        connection: NonNull<u8>,
        layout: ConnLayout,
    ) -> Result<Self, LinkError> {
        prepare(&socket, peer, Direction::From)?;
        // SAFETY: obligations 1 and 2.
        let block = unsafe { Block::new(connection, layout) };
        Ok(StreamRecv { socket, peer, receiver: Receiver::new(block), failed: None })
    }

    /// Fills empty slots from the socket, at most 8, and publishes them, each under the protocol that its frame names.
    /// Never blocks. Returns bytes moved, frame headers included.
    ///
    /// # Errors
    /// [`LinkError::PeerClosed`], [`LinkError::BadFrame`], [`LinkError::Socket`]. A link that has failed returns the same
    /// error for ever. What was published before stays so.
    pub fn progress(&mut self) -> Result<usize, LinkError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.receiver.progress(&mut self.socket).map_err(|fault| {
            let error = name(fault, self.peer, Direction::From, self.receiver.step());
            *self.failed.insert(error)
        })
    }

    /// A message will come, whose bytes may go straight to where it says.
    ///
    /// # Safety
    /// 1. Until all of its slots are released or [`Self::forget_arrivals`] is called, the bytes are writable, and nobody else
    ///    accesses those of slots that are not yet published.
    /// 2. Whoever empties a Simple slot of it asks [`Self::take_arrived`] first.
    pub(crate) unsafe fn expect(&mut self, message: Expected) {
        // SAFETY: the same obligations.
        unsafe { self.receiver.expect(message) };
    }

    /// Where the bytes of the full Simple slot at `slot` are, if it is one of this link's and they are not in it. To be asked once
    /// for a slot.
    pub(crate) fn take_arrived(&mut self, slot: *const u8) -> Option<*mut u8> {
        self.receiver.take_arrived(slot)
    }

    /// Ends what an operation that will not be finished expects. If something of it was to come, the link has failed.
    pub fn forget_arrivals(&mut self) {
        if self.receiver.forget_arrivals() {
            let (peer, step) = (self.peer, self.receiver.step());
            let (direction, call, errno) = (Direction::From, "recvmsg", rustix::io::Errno::CANCELED);
            self.failed.get_or_insert(LinkError::Socket { peer, direction, step, call, errno });
        }
    }

    /// Whether no part of a frame has been read that is not yet published.
    pub fn is_idle(&self) -> bool {
        !self.receiver.is_mid_frame()
    }

    /// The step that arrives next, or is arriving.
    pub fn step(&self) -> Step {
        self.receiver.step()
    }

    /// The header of the frame that is arriving: what a report on a stuck rank shows.
    pub fn frame(&self) -> Option<FrameHeader> {
        self.receiver.frame()
    }

    /// The rank at the other end.
    pub fn peer(&self) -> Rank {
        self.peer
    }
}

/// Every frame leaves at once, and no call waits. Buffer sizes stay the kernel's to tune: a fixed SO_SNDBUF or SO_RCVBUF
/// ends its tuning, and without privileges is capped below what tuning reaches. `measure_throughput`, loopback, 2 shared
/// cores, Linux 6.18, 2026-11: tuned 7.0 GB/s; fixed at 256 KiB 4.3, at 1 MiB 4.4, at 4 MiB 5.5; a bare loop of blocking
/// `write` and `read` 4.2.
fn prepare(socket: &TcpStream, peer: Rank, direction: Direction) -> Result<(), LinkError> {
    let set = |call, done: std::io::Result<()>| {
        done.map_err(|error| {
            let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::INVAL);
            LinkError::Socket { peer, direction, step: Step(0), call, errno }
        })
    };
    set("setsockopt(TCP_NODELAY)", socket.set_nodelay(true))?;
    set("fcntl(O_NONBLOCK)", socket.set_nonblocking(true))
}

/// A fault with the peer's name.
fn name(fault: Fault, peer: Rank, direction: Direction, step: Step) -> LinkError {
    let call = match direction {
        Direction::To => "sendmsg",
        Direction::From => "recvmsg",
    };
    match fault {
        Fault::Closed { mid_frame } => LinkError::PeerClosed { peer, direction, step, mid_frame },
        Fault::Socket(errno) => LinkError::Socket { peer, direction, step, call, errno },
        Fault::Frame(fault) => LinkError::BadFrame { peer, step, fault },
    }
}
