//! The sending end.

use super::MESSAGE_MAX_BYTES;
use super::ends::{Ends, Fault};
use super::header::{Body, HEADER_BYTES, Header};
use super::requests::{NotUnderWay, Requests};
use super::stripes::Stripes;
use crate::net::io::{Piece, StreamIo, piece, pieces_bytes};
use crate::net::{Comm, NetError, NetMemory, NetMemoryKind, Registration, Request, SendComm};
use heapless::Vec as FixedVec;
use rustix::io::Errno;
use std::net::TcpStream;
use std::sync::Arc;

/// Most messages of one call on the control stream, while they are short.
const BATCH: usize = 16;
/// From this size on a body is worth its own call.
const LONG_BYTES: usize = 64 << 10;

/// The sending end of a connection over `lanes`, the control stream first.
pub struct Sender<Io> {
    ends: Ends,
    lanes: Box<[SendStream<Io>]>,
    requests: Requests<Outgoing>,
    /// Of the messages that begin now.
    tag: u32,
    failed: Option<NetError>,
}

/// State of a stream: `sent_bytes` of its part of message `number`.
struct SendStream<Io> {
    io: Io,
    number: u64,
    sent_bytes: usize,
}

#[derive(Clone, Copy)]
struct Outgoing {
    header: [u8; HEADER_BYTES],
    body: *const u8,
    len_bytes: usize,
    is_striped: bool,
}

// SAFETY: the caller of `isend` promises that the bytes stay readable, from the thread that drives the communicator.
unsafe impl Send for Outgoing {}

impl<Io: StreamIo> Sender<Io> {
    /// An end over these fresh streams, at least one.
    pub fn new(ends: Ends, lanes: Vec<Io>) -> Self {
        assert!(!lanes.is_empty(), "a connection has a control lane");
        let nothing =
            Outgoing { header: [0; HEADER_BYTES], body: std::ptr::null(), len_bytes: 0, is_striped: false };
        let lanes = lanes.into_iter().map(|io| SendStream { io, number: 0, sent_bytes: 0 }).collect();
        Sender { ends, lanes, requests: Requests::new(nothing), tag: 0, failed: None }
    }

    fn check(&self) -> Result<(), NetError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Writes as much as the streams accept.
    fn progress(&mut self) -> Result<(), NetError> {
        self.check()?;
        let moved = self.write();
        moved.map_err(|fault| self.failed.insert(self.ends.error(fault)).clone())
    }

    fn write(&mut self) -> Result<(), Fault> {
        let Sender { lanes, requests, .. } = self;
        let Some((control, data)) = lanes.split_first_mut() else { return Ok(()) };
        write_control(control, requests)?;
        write_data(data, requests)
    }
}

/// Writes headers, and bodies that are not striped. Several short messages are sent together.
fn write_control<Io: StreamIo>(
    lane: &mut SendStream<Io>,
    requests: &mut Requests<Outgoing>,
) -> Result<(), Fault> {
    while lane.number < requests.next() {
        let mut pieces = FixedVec::new();
        gather(lane.number, lane.sent_bytes, requests, &mut pieces);
        let wanted_bytes = pieces_bytes(&pieces);
        // SAFETY: headers are ours; bodies stay unchanged until their request is complete (`isend`).
        let written_bytes = unsafe { write(&mut lane.io, &pieces, lane.sent_bytes > 0) }?;
        let mut left_bytes = lane.sent_bytes + written_bytes;
        while lane.number < requests.next() && left_bytes >= requests.at(lane.number).control_bytes() {
            left_bytes -= requests.at(lane.number).control_bytes();
            requests.part_done(lane.number);
            lane.number += 1;
        }
        lane.sent_bytes = left_bytes;
        if written_bytes < wanted_bytes {
            return Ok(());
        }
    }
    Ok(())
}

/// Adds the pieces on the control stream from `sent_bytes` of message `number` on.
fn gather(
    number: u64,
    sent_bytes: usize,
    requests: &mut Requests<Outgoing>,
    pieces: &mut FixedVec<Piece, { 2 * BATCH }>,
) {
    let mut skip_bytes = sent_bytes;
    for number in number..requests.next().min(number + BATCH as u64) {
        let outgoing = requests.at(number);
        let header = &outgoing.header[skip_bytes.min(HEADER_BYTES)..];
        let body_sent = skip_bytes.saturating_sub(HEADER_BYTES);
        let body_bytes = outgoing.control_bytes() - HEADER_BYTES - body_sent;
        for (start, len_bytes) in [
            (header.as_ptr(), header.len()),
            // Bytes after the body's end are never reached: the stream advances when all is sent.
            (outgoing.body.wrapping_add(body_sent), body_bytes),
        ] {
            // Only non-empty pieces: the kernel walks every piece.
            if len_bytes > 0 {
                pieces.push(piece(start, len_bytes)).expect("two of each message");
            }
        }
        skip_bytes = 0;
        if body_bytes >= LONG_BYTES {
            break;
        }
    }
}

/// Writes stripes.
fn write_data<Io: StreamIo>(
    lanes: &mut [SendStream<Io>],
    requests: &mut Requests<Outgoing>,
) -> Result<(), Fault> {
    let count = lanes.len();
    for (index, lane) in lanes.iter_mut().enumerate() {
        while lane.number < requests.next() {
            let outgoing = *requests.at(lane.number);
            if outgoing.is_striped {
                let stripe = Stripes::new(count, lane.number, outgoing.len_bytes).of_lane(index);
                let rest = stripe.start + lane.sent_bytes..stripe.end;
                if !rest.is_empty() {
                    let pieces = [piece(outgoing.body.wrapping_add(rest.start), rest.len())];
                    // SAFETY: the stripe lies within the body, which stays unchanged until its request is complete
                    // (`isend`).
                    let written_bytes = unsafe { write(&mut lane.io, &pieces, true) }?;
                    lane.sent_bytes += written_bytes;
                    if written_bytes < rest.len() {
                        break;
                    }
                    requests.part_done(lane.number);
                }
            }
            lane.number += 1;
            lane.sent_bytes = 0;
        }
    }
    Ok(())
}

/// One write; 0 if the stream accepts nothing now.
///
/// # Safety
/// As [`StreamIo::write`].
unsafe fn write(io: &mut impl StreamIo, pieces: &[Piece], mid_message: bool) -> Result<usize, Fault> {
    // SAFETY: the caller's promise.
    match unsafe { io.write(pieces) } {
        Ok(written_bytes) => Ok(written_bytes),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(errno) => Err(Fault::of_errno("sendmsg", errno, mid_message)),
    }
}

impl Outgoing {
    /// Its bytes on the control stream.
    fn control_bytes(&self) -> usize {
        HEADER_BYTES + if self.is_striped { 0 } else { self.len_bytes }
    }
}

impl<Io: StreamIo + Send> Comm for Sender<Io> {
    unsafe fn register(&mut self, memory: NetMemory<'_>) -> Result<Registration, NetError> {
        host_only(&self.ends, memory)
    }

    fn reaches_all_memory(&self) -> bool {
        true
    }

    fn set_tag(&mut self, tag: u32) -> bool {
        self.tag = tag;
        true
    }

    fn deregister(&mut self, _registration: Registration) -> Result<(), NetError> {
        Ok(())
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>, NetError> {
        let misuse = |NotUnderWay| self.ends.misuse("test", "the send is not under way");
        if let Some(done) = self.requests.take_done(request).map_err(misuse)? {
            return Ok(Some(done.len_bytes));
        }
        self.progress()?;
        let done = self.requests.take_done(request).unwrap_or_default();
        Ok(done.map(|done| done.len_bytes))
    }
}

impl<Io: StreamIo + Send> SendComm for Sender<Io> {
    unsafe fn isend(
        &mut self,
        start: *const u8,
        len_bytes: usize,
        _registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        self.check()?;
        if len_bytes > MESSAGE_MAX_BYTES {
            return Err(self.ends.misuse("isend", "the message is longer than any may be"));
        }
        if self.requests.are_exhausted() {
            return Ok(None);
        }
        let (data_lanes, number) = (self.lanes.len() - 1, self.requests.next());
        let is_striped = Stripes::pay(data_lanes, len_bytes);
        let body = if is_striped { Body::Striped } else { Body::Inline };
        let header = Header { body, number: number as u32, tag: self.tag, len_bytes }.encode();
        let stripes = if is_striped { Stripes::new(data_lanes, number, len_bytes).count() } else { 0 };
        let outgoing = Outgoing { header, body: start, len_bytes, is_striped };
        // It is sent at the next test, with all sends until then: each system call costs as much as copying
        // kilobytes.
        Ok(Some(self.requests.add(outgoing, 1 + stripes)))
    }

    unsafe fn relocate(&mut self, request: Request, start: *const u8) -> bool {
        if let Some(outgoing) = self.requests.moving(request) {
            outgoing.body = start;
        }
        true
    }

    fn streams(&self) -> Vec<Arc<TcpStream>> {
        self.lanes.iter().filter_map(|lane| lane.io.socket().cloned()).collect()
    }
}

/// Memory of this process needs no registration, and no other kind is supported.
pub(super) fn host_only(ends: &Ends, memory: NetMemory<'_>) -> Result<Registration, NetError> {
    match memory.kind {
        NetMemoryKind::Host => Ok(Registration(0)),
        NetMemoryKind::Cuda | NetMemoryKind::DmaBuf { .. } => {
            Err(NetError::Unsupported { device: ends.device.clone(), what: "memory of a GPU".to_owned() })
        }
    }
}
