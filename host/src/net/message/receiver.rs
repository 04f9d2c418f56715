//! The receiving end.
//!
//! The length of a message stands in its header, so a naive receiver makes two system calls per message. This one reads ahead:
//! ```text
//! nothing known          read(stage)                  header, and all of a short message, in one call
//! last message was long  read(header, body, header)   header, and a body like the last straight to where it belongs
//! header known           read(rest of body, header)   bytes straight to where they belong, and the next header with them
//! ```
//! A read that returns less than asked has emptied the stream: no second call is made to hear `AGAIN`.

use super::ends::{Ends, Fault};
use super::header::{Body, HEADER_BYTES, Header};
use super::requests::{NotUnderWay, Requests};
use super::sender::host_only;
use super::stage::{GUESS_MAX_BYTES, STAGE_BYTES, Stage};
use super::stripes::Stripes;
use crate::net::io::{Piece, StreamIo, piece, pieces_bytes};
use crate::net::{Comm, NetError, NetMemory, RecvComm, Registration, Request};
use rustix::io::Errno;

/// A connection's receiving end over `lanes`, the control lane first.
pub struct Receiver<Io> {
    ends: Ends,
    control: Control<Io>,
    data: Box<[RecvStream<Io>]>,
    requests: Requests<Incoming>,
    /// Of the receives that begin now.
    tag: u32,
    failed: Option<NetError>,
}

/// The control lane.
struct Control<Io> {
    io: Io,
    stage: Stage,
    /// How many headers have come.
    headers: u64,
    /// The body behind the last of them, if it is not whole.
    body: Option<Rest>,
    /// How long the next body will be, if it is long: as the last ones were.
    likely_bytes: usize,
    has_ended: bool,
}

/// Where the rest of a body goes.
#[derive(Clone, Copy)]
struct Rest {
    start: *mut u8,
    len_bytes: usize,
}

/// A data lane and how far it is: `got_bytes` of the stripe of message `number`.
struct RecvStream<Io> {
    io: Io,
    number: u64,
    got_bytes: usize,
}

#[derive(Clone, Copy)]
struct Incoming {
    start: *mut u8,
    max_bytes: usize,
    tag: u32,
    /// Once the header has come.
    len_bytes: usize,
    is_striped: bool,
}

// SAFETY: `irecv` has its caller promise that the bytes stay writable, from whichever thread drives the communicator.
unsafe impl Send for Incoming {}
// SAFETY: part of the memory of an `Incoming`.
unsafe impl Send for Rest {}

impl<Io: StreamIo> Receiver<Io> {
    /// An end over these streams, at least one, on which nothing has travelled.
    pub fn new(ends: Ends, lanes: Vec<Io>) -> Self {
        let mut lanes = lanes.into_iter();
        let io = lanes.next().expect("a connection has a control lane");
        let control =
            Control { io, stage: Stage::new(), headers: 0, body: None, likely_bytes: 0, has_ended: false };
        let data = lanes.map(|io| RecvStream { io, number: 0, got_bytes: 0 }).collect();
        let start = std::ptr::null_mut();
        let nothing = Incoming { start, max_bytes: 0, tag: 0, len_bytes: 0, is_striped: false };
        Receiver { ends, control, data, requests: Requests::new(nothing), tag: 0, failed: None }
    }

    fn check(&self) -> Result<(), NetError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Reads what has come for the receives that are posted.
    fn progress(&mut self) -> Result<(), NetError> {
        self.check()?;
        let moved = self.read();
        moved.map_err(|fault| self.failed.insert(self.ends.error(fault)).clone())
    }

    fn read(&mut self) -> Result<(), Fault> {
        let Receiver { control, data, requests, .. } = self;
        control.read(requests, data.len())?;
        read_data(data, control.headers, requests)?;
        control.check_end(requests)
    }
}

impl<Io: StreamIo> Control<Io> {
    /// Reads headers and the bodies behind them until the stream is empty or every receive has its message.
    fn read(&mut self, requests: &mut Requests<Incoming>, data_lanes: usize) -> Result<(), Fault> {
        let mut is_empty = self.has_ended;
        loop {
            if let Some(rest) = self.body {
                let rest = self.take_staged(rest);
                self.body = self.read_body(rest, &mut is_empty)?;
                if self.body.is_some() {
                    return Ok(());
                }
                requests.part_done(self.headers - 1);
            }
            if self.headers == requests.next() || !self.read_header(requests, data_lanes, &mut is_empty)? {
                return Ok(());
            }
        }
    }

    /// Opens the next message; no if its header has not come.
    fn read_header(
        &mut self,
        requests: &mut Requests<Incoming>,
        data_lanes: usize,
        is_empty: &mut bool,
    ) -> Result<bool, Fault> {
        let number = self.headers;
        let incoming = requests.at(number);
        let mut guessed_bytes = 0;
        if self.stage.len() < HEADER_BYTES && !*is_empty {
            let guess_bytes = if data_lanes == 0 { self.likely_bytes.min(incoming.max_bytes) } else { 0 };
            guessed_bytes = self.read_ahead(piece(incoming.start, guess_bytes), is_empty)?;
        }
        let Some(bytes) = self.stage.take_header() else { return Ok(false) };
        let header = Header::decode(&bytes, number as u32, incoming.tag, incoming.max_bytes, data_lanes > 0);
        let header = header.map_err(Fault::Header)?;
        let got_bytes = guessed_bytes.min(header.len_bytes);
        // SAFETY: the read wrote `guessed_bytes` to the receive's memory, which `irecv` promises to be ours.
        unsafe { self.stage.prepend(incoming.start.add(got_bytes), guessed_bytes - got_bytes) };
        self.learn(header.len_bytes, incoming.max_bytes);
        incoming.len_bytes = header.len_bytes;
        incoming.is_striped = header.body == Body::Striped;
        let (start, len_bytes) = (incoming.start, incoming.len_bytes);
        self.headers += 1;
        if header.body == Body::Striped {
            requests.set_parts(number, Stripes::new(data_lanes, number, len_bytes).count());
        } else {
            self.body = Some(Rest { start, len_bytes }.after(got_bytes));
        }
        Ok(true)
    }

    /// Reads a header, and what is around it: ahead into the stage, or the body at `guess`, if that is not empty, and the header
    /// behind it. Returns the bytes at `guess`.
    fn read_ahead(&mut self, guess: Piece, is_empty: &mut bool) -> Result<usize, Fault> {
        if guess.iov_len == 0 {
            let room = self.stage.room(STAGE_BYTES);
            // SAFETY: the stage's memory.
            let read = of_call(unsafe { self.io.read_short(room) }, false)?;
            let read_bytes = self.note(read, room.iov_len, is_empty);
            self.stage.add(read_bytes);
            return Ok(0);
        }
        // The guess lies between this header and the next, which are neighbours in the stage.
        let header_bytes = HEADER_BYTES - self.stage.len();
        let room = self.stage.room(STAGE_BYTES).iov_base.cast::<u8>();
        let next = piece(room.wrapping_add(header_bytes), HEADER_BYTES);
        let read_bytes = self.read_some(&mut [piece(room, header_bytes), guess, next], is_empty)?;
        let guessed_bytes = read_bytes.saturating_sub(header_bytes).min(guess.iov_len);
        self.stage.add(read_bytes - guessed_bytes);
        Ok(guessed_bytes)
    }

    /// Learns from a message how long the next will be. Of a run, the last is often a little shorter.
    fn learn(&mut self, len_bytes: usize, max_bytes: usize) {
        // The rest of a shorter one mostly arrives while its beginning is copied from the stage.
        let is_long = len_bytes > STAGE_BYTES.max(max_bytes / 4);
        let likely_bytes = match () {
            () if !is_long => 0,
            () if len_bytes >= self.likely_bytes / 2 => len_bytes.max(self.likely_bytes),
            () => len_bytes,
        };
        self.likely_bytes = likely_bytes.min(GUESS_MAX_BYTES);
    }

    /// Moves what was read ahead of a body to where it belongs. Returns the rest.
    fn take_staged(&mut self, rest: Rest) -> Rest {
        let staged = self.stage.take(rest.len_bytes);
        if !staged.is_empty() {
            // SAFETY: no more than the rest of a receive's memory, which `irecv` promises to be writable and ours.
            unsafe { rest.start.copy_from_nonoverlapping(staged.as_ptr(), staged.len()) };
        }
        rest.after(staged.len())
    }

    /// Reads the rest of a body, and ahead. Returns what is still missing.
    fn read_body(&mut self, rest: Rest, is_empty: &mut bool) -> Result<Option<Rest>, Fault> {
        if rest.len_bytes == 0 || *is_empty {
            return Ok((rest.len_bytes > 0).then_some(rest));
        }
        // A body that is not whole has taken all that was staged. Behind a long one probably comes another, of which only the
        // header is welcome here; behind a short one, everything.
        let ahead_bytes = if rest.len_bytes > STAGE_BYTES { HEADER_BYTES } else { STAGE_BYTES };
        let room = self.stage.room(ahead_bytes);
        let read_bytes = self.read_some(&mut [piece(rest.start, rest.len_bytes), room], is_empty)?;
        let body_bytes = read_bytes.min(rest.len_bytes);
        self.stage.add(read_bytes - body_bytes);
        let rest = rest.after(body_bytes);
        Ok((rest.len_bytes > 0).then_some(rest))
    }

    /// One read; a short one has emptied the stream.
    fn read_some(&mut self, pieces: &mut [Piece], is_empty: &mut bool) -> Result<usize, Fault> {
        let wanted_bytes = pieces_bytes(pieces);
        // SAFETY: the stage's and a receive's memory, which `irecv` promises to be writable and ours.
        let read = unsafe { read(&mut self.io, pieces, self.body.is_some()) }?;
        Ok(self.note(read, wanted_bytes, is_empty))
    }

    /// What a read says of the stream. How many bytes it gave.
    fn note(&mut self, read: Option<usize>, wanted_bytes: usize, is_empty: &mut bool) -> usize {
        self.has_ended |= read.is_none();
        let read_bytes = read.unwrap_or(0);
        *is_empty = read_bytes < wanted_bytes;
        read_bytes
    }

    /// Once the peer has closed the control lane: nothing more comes than what the data lanes still owe.
    fn check_end(&self, requests: &Requests<Incoming>) -> Result<(), Fault> {
        let first_known = requests.next().saturating_sub(crate::net::REQUESTS_MAX as u64);
        let is_owed = |number: u64| !requests.is_done(number);
        if !self.has_ended || (self.body.is_none() && (first_known..self.headers).any(is_owed)) {
            return Ok(());
        }
        Err(Fault::Closed { mid_message: self.body.is_some() || self.stage.len() > 0 })
    }
}

/// Reads stripes of the messages whose headers have come.
fn read_data<Io: StreamIo>(
    lanes: &mut [RecvStream<Io>],
    headers: u64,
    requests: &mut Requests<Incoming>,
) -> Result<(), Fault> {
    let count = lanes.len();
    for (index, lane) in lanes.iter_mut().enumerate() {
        while lane.number < headers {
            let incoming = *requests.at(lane.number);
            if incoming.is_striped {
                let stripe = Stripes::new(count, lane.number, incoming.len_bytes).of_lane(index);
                let rest = stripe.start + lane.got_bytes..stripe.end;
                if !rest.is_empty() {
                    let mut pieces = [piece(incoming.start.wrapping_add(rest.start), rest.len())];
                    // SAFETY: the stripe lies within the message, which the header's check keeps within the receive's memory.
                    let read = unsafe { read(&mut lane.io, &mut pieces, true) }?;
                    let read_bytes = read.ok_or(Fault::Closed { mid_message: true })?;
                    lane.got_bytes += read_bytes;
                    if read_bytes < rest.len() {
                        break;
                    }
                    requests.part_done(lane.number);
                }
            }
            lane.number += 1;
            lane.got_bytes = 0;
        }
    }
    Ok(())
}

/// One read: 0 if nothing is there now, `None` at the end of the stream.
///
/// # Safety
/// As [`StreamIo::read`].
unsafe fn read(
    io: &mut impl StreamIo,
    pieces: &mut [Piece],
    mid_message: bool,
) -> Result<Option<usize>, Fault> {
    // SAFETY: the caller's promise.
    of_call(unsafe { io.read(pieces) }, mid_message)
}

/// What a read gave: 0 if nothing is there now, `None` at the end of the stream.
fn of_call(read: Result<usize, Errno>, mid_message: bool) -> Result<Option<usize>, Fault> {
    match read {
        Ok(0) => Ok(None),
        Ok(read_bytes) => Ok(Some(read_bytes)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Some(0)),
        Err(errno) => Err(Fault::of_errno("recvmsg", errno, mid_message)),
    }
}

impl Rest {
    fn after(self, len_bytes: usize) -> Rest {
        Rest { start: self.start.wrapping_add(len_bytes), len_bytes: self.len_bytes - len_bytes }
    }
}

impl<Io: StreamIo + Send> Comm for Receiver<Io> {
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
        let misuse = |NotUnderWay| self.ends.misuse("test", "the receive is not under way");
        if let Some(done) = self.requests.take_done(request).map_err(misuse)? {
            return Ok(Some(done.len_bytes));
        }
        let moved = self.progress();
        // What came before the end counts.
        let done = self.requests.take_done(request).unwrap_or_default();
        match done {
            Some(done) => Ok(Some(done.len_bytes)),
            None => moved.map(|()| None),
        }
    }
}

impl<Io: StreamIo + Send> RecvComm for Receiver<Io> {
    fn be_prompt(&mut self) {
        self.control.io.be_prompt();
    }

    unsafe fn irecv(
        &mut self,
        start: *mut u8,
        max_bytes: usize,
        _registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        self.check()?;
        if self.requests.are_exhausted() {
            return Ok(None);
        }
        let incoming = Incoming { start, max_bytes, tag: self.tag, len_bytes: 0, is_striped: false };
        Ok(Some(self.requests.add(incoming, 1)))
    }

    unsafe fn flush(
        &mut self,
        _start: *mut u8,
        _len_bytes: usize,
        _registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        Ok(None)
    }
}
