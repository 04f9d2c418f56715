//! The receiving state machine: where the next bytes go, and what their arrival means.
//!
//! The length of a frame stands in its header, so a naive receiver makes two system calls per frame. This one reads ahead:
//! ```text
//! nothing known        read(stage)                     header, and all of a short frame, in one call
//! last frame was long  read(16 bytes, slot, 16 bytes)  header, and a body like the last straight into the slot
//! frame known          read(rest of slot, 16 bytes)    payload straight into the slot, and the next header with it
//! ```
//! so a short message costs one call and a copy of at most [`STAGE_BYTES`], and a run of long ones one call each and
//! no copy. A read that returns less than asked has emptied the socket: no second call is made to hear `AGAIN`.

use super::block::Block;
use super::error::Fault;
use super::frame::{FrameHeader, HEADER_BYTES};
use crate::net::bypass::{Arrivals, Expected};
use crate::net::io::{Piece, StreamIo, piece, pieces_bytes};
use oxccl_shared::abi::{Protocol, Step};
use oxccl_shared::fifo::{STEPS, StepProducer, split};
use oxccl_shared::proto;
use rustix::io::Errno;

/// How far the receiver reads ahead of what it knows. The copy out of the stage is of bytes that the kernel has just
/// put into the cache.
const STAGE_BYTES: usize = 4096;

/// Turns frames into filled slots of a block.
pub(super) struct Receiver<'m> {
    block: Block<'m>,
    producer: StepProducer<'m>,
    frame: Option<Incoming>,
    stage: Stage,
    /// How long the next frame's body will be, if it is long and of Simple: as the last ones were.
    expected_bytes: usize,
    arrivals: Arrivals,
}

/// A frame whose header has arrived.
struct Incoming {
    header: FrameHeader,
    body: *mut u8,
    body_bytes: usize,
    got_bytes: usize,
}

// SAFETY: `body` points into the block, which is Send, or to where a message is expected, which whoever expects it says is writable.
unsafe impl Send for Incoming {}

/// Bytes read ahead: those of `start..end`.
struct Stage {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl<'m> Receiver<'m> {
    pub(super) fn new(block: Block<'m>) -> Self {
        // What was taken for a frame's body and is more, is longer than no slot.
        let capacity = STAGE_BYTES + block.layout().simple_slot_bytes as usize;
        let stage = Stage { bytes: vec![0; capacity].into_boxed_slice(), start: 0, end: 0 };
        let arrivals = Arrivals::new(block.layout().simple_slot_bytes as usize);
        let producer = split(block.control()).0;
        Receiver { block, producer, frame: None, stage, expected_bytes: 0, arrivals }
    }

    /// A message will come, whose bytes may go straight to where it says.
    ///
    /// # Safety
    /// 1. Until all of its slots are released or [`Self::forget_arrivals`] is called, the bytes are writable, and nobody else
    ///    accesses those of slots that are not yet published.
    /// 2. Whoever empties a Simple slot of it asks [`Self::take_arrived`] first.
    pub(super) unsafe fn expect(&mut self, message: Expected) {
        self.arrivals.expect(message);
    }

    /// Where the bytes of the full Simple slot at `slot` are, if it is one of this block's and they are not in it. To be asked once
    /// for a slot.
    pub(super) fn take_arrived(&mut self, slot: *const u8) -> Option<*mut u8> {
        if self.arrivals.is_empty() {
            return None;
        }
        self.arrivals.take(self.block.simple_slot(slot)?)
    }

    /// Expects nothing any more. Whether something was under way: then this end cannot go on.
    pub(super) fn forget_arrivals(&mut self) -> bool {
        self.arrivals.forget(self.producer.step())
    }

    /// The step that arrives next, or is arriving.
    pub(super) fn step(&self) -> Step {
        self.producer.step()
    }

    /// Whether part of a frame has arrived.
    pub(super) fn is_mid_frame(&self) -> bool {
        self.frame.is_some() || self.stage.len() > 0
    }

    /// The header of the frame that is arriving.
    pub(super) fn frame(&self) -> Option<FrameHeader> {
        self.frame.as_ref().map(|frame| frame.header)
    }

    /// Fills and publishes slots until the stream is empty or no slot is; at most as many as a block has, so that the
    /// caller's other links get their turn. Returns bytes read from the stream or taken from the stage.
    pub(super) fn progress(&mut self, io: &mut impl StreamIo) -> Result<usize, Fault> {
        let mut moved_bytes = 0;
        let mut is_empty = false;
        for _ in 0..STEPS {
            if self.frame.is_none() {
                // Without credit nothing is read: what the kernel's buffers hold is TCP's to slow down.
                if !self.producer.poll_credit() {
                    break;
                }
                moved_bytes += self.read_header(io, &mut is_empty)?;
            }
            let Some(frame) = &mut self.frame else { break };
            moved_bytes += frame.take_staged(&mut self.stage);
            moved_bytes += self.read_body(io, &mut is_empty)?;
            if !self.finish_frame() {
                break;
            }
        }
        Ok(moved_bytes)
    }

    /// Gets a frame's header into the stage and opens the frame, with as much of its body as came along. Returns the bytes
    /// of both.
    fn read_header(&mut self, io: &mut impl StreamIo, is_empty: &mut bool) -> Result<usize, Fault> {
        let (layout, step) = (self.block.layout(), self.producer.step());
        let wanted = self.arrivals.of(step);
        let guess = match wanted {
            Some(at) => piece(at.start, at.len_bytes),
            None => piece(self.block.slot(Protocol::Simple, step), self.expected_bytes),
        };
        let mut guessed_bytes = 0;
        if self.stage.len() < HEADER_BYTES {
            let mid_frame = self.stage.len() > 0;
            let room = self.stage.room();
            let mut pieces = [room, guess, room];
            let pieces = if guess.iov_len > 0 {
                // The guess lies between this header and the next, which are neighbours in the stage.
                pieces[0].iov_len = HEADER_BYTES - self.stage.len();
                pieces[2] = piece(room.iov_base.cast::<u8>().wrapping_add(pieces[0].iov_len), HEADER_BYTES);
                &mut pieces[..]
            } else {
                &mut pieces[..1]
            };
            let header_bytes = pieces[0].iov_len;
            let read_bytes = read(io, pieces, is_empty, mid_frame)?;
            guessed_bytes = read_bytes.saturating_sub(header_bytes).min(guess.iov_len);
            self.stage.end += read_bytes - guessed_bytes;
        }
        let Some(bytes) = self.stage.take_header() else { return Ok(0) };
        let header = FrameHeader::decode(&bytes, layout, step).map_err(Fault::Frame)?;
        let body_bytes = proto::travel_bytes(header.protocol, layout, step, header.slot);
        // Any other frame goes to its slot, where the kernel finds what it is.
        let is_simple = header.protocol == Protocol::Simple;
        let wanted = wanted.filter(|at| {
            is_simple && (at.tag, at.len_bytes) == (header.slot.tag, header.slot.len_bytes as usize)
        });
        let body = wanted.map_or_else(|| self.block.slot(header.protocol, step), |at| at.start);
        let got_bytes = if body.cast() == guess.iov_base { guessed_bytes.min(body_bytes) } else { 0 };
        // SAFETY: the read wrote `guessed_bytes` to the slot, which is empty and so ours alone, or to where a message was expected.
        unsafe { self.stage.prepend(guess.iov_base.cast::<u8>().add(got_bytes), guessed_bytes - got_bytes) };
        self.frame = Some(Incoming { header, body, body_bytes, got_bytes });
        self.learn(header.protocol, body_bytes);
        Ok(HEADER_BYTES + got_bytes)
    }

    /// Learns from a frame how long the next will be. Of a run, the last is often a little shorter.
    fn learn(&mut self, protocol: Protocol, body_bytes: usize) {
        // The rest of a shorter one mostly arrives while its beginning is copied from the stage.
        let long_bytes = STAGE_BYTES.max(self.block.layout().simple_slot_bytes as usize / 4);
        let is_long = protocol == Protocol::Simple && body_bytes > long_bytes;
        self.expected_bytes = match () {
            () if !is_long => 0,
            () if body_bytes >= self.expected_bytes / 2 => body_bytes.max(self.expected_bytes),
            () => body_bytes,
        };
    }

    /// Reads the rest of the open frame into its slot, and ahead into the stage.
    fn read_body(&mut self, io: &mut impl StreamIo, is_empty: &mut bool) -> Result<usize, Fault> {
        let Some(frame) = self.frame.as_mut().filter(|frame| !frame.is_whole()) else { return Ok(0) };
        // An unfinished frame has taken all that was staged. Behind a long frame probably comes another, of which only
        // the header is welcome here; behind a short one, everything.
        let ahead_bytes = if frame.body_bytes > STAGE_BYTES { HEADER_BYTES } else { STAGE_BYTES };
        let rest = frame.rest();
        let mut pieces = [rest, self.stage.room()];
        pieces[1].iov_len = pieces[1].iov_len.min(ahead_bytes);
        let read_bytes = read(io, &mut pieces, is_empty, true)?;
        let body_bytes = read_bytes.min(rest.iov_len);
        frame.got_bytes += body_bytes;
        self.stage.end += read_bytes - body_bytes;
        Ok(body_bytes)
    }

    /// Publishes the open frame's slot, if it is whole.
    fn finish_frame(&mut self) -> bool {
        let Some(frame) = self.frame.take_if(|frame| frame.is_whole()) else { return false };
        if frame.body != self.block.slot(frame.header.protocol, self.producer.step()) {
            self.arrivals.place(self.producer.step().slot(), frame.body);
        }
        proto::publish(frame.header.protocol, &mut self.producer, frame.header.slot);
        true
    }
}

impl Incoming {
    fn is_whole(&self) -> bool {
        self.got_bytes == self.body_bytes
    }

    /// What has not arrived.
    fn rest(&self) -> Piece {
        // SAFETY: got_bytes <= body_bytes, which the frame's validation keeps within the slot, or the message that was expected.
        piece(unsafe { self.body.add(self.got_bytes) }, self.body_bytes - self.got_bytes)
    }

    /// Moves what the stage has of this frame into the slot.
    fn take_staged(&mut self, stage: &mut Stage) -> usize {
        let rest = self.rest();
        let n = stage.len().min(rest.iov_len);
        // SAFETY: n bytes lie in the stage, n bytes are missing in the slot, which is empty and so ours alone, or where they are
        // expected.
        unsafe {
            rest.iov_base.cast::<u8>().copy_from_nonoverlapping(stage.bytes[stage.start..].as_ptr(), n)
        };
        stage.start += n;
        self.got_bytes += n;
        n
    }
}

impl Stage {
    fn len(&self) -> usize {
        self.end - self.start
    }

    /// Where to read ahead. There is always room for a header: at most part of one is moved to the front.
    fn room(&mut self) -> Piece {
        debug_assert!(self.len() < HEADER_BYTES);
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.len());
        let room = &mut self.bytes[self.end..STAGE_BYTES];
        piece(room.as_mut_ptr(), room.len())
    }

    /// Adds bytes, at most a slot, that came before those in the stage, at most a header.
    ///
    /// # Safety
    /// 1. `from` is readable for `len_bytes`.
    unsafe fn prepend(&mut self, from: *const u8, len_bytes: usize) {
        if len_bytes > 0 {
            let kept_bytes = self.len();
            self.bytes.copy_within(self.start..self.end, len_bytes);
            (self.start, self.end) = (0, len_bytes + kept_bytes);
            // SAFETY: obligation 1; the index checks that there is room; a slot is no part of the stage.
            unsafe { self.bytes[..len_bytes].as_mut_ptr().copy_from_nonoverlapping(from, len_bytes) };
        }
    }

    fn take_header(&mut self) -> Option<[u8; HEADER_BYTES]> {
        let header = *self.bytes[self.start..self.end].first_chunk()?;
        self.start += HEADER_BYTES;
        Some(header)
    }
}

/// One read, unless an earlier one has found the stream empty.
fn read(
    io: &mut impl StreamIo,
    pieces: &mut [Piece],
    is_empty: &mut bool,
    mid_frame: bool,
) -> Result<usize, Fault> {
    if *is_empty {
        return Ok(0);
    }
    let wanted_bytes = pieces_bytes(pieces);
    // SAFETY: every piece is the stage's or an empty slot's, which its consumer leaves alone until `publish`, or expected bytes
    // (`Receiver::expect`).
    let outcome = unsafe { io.read(pieces) };
    let read_bytes = match outcome {
        Ok(0) => return Err(Fault::Closed { mid_frame }),
        Ok(n) => n,
        Err(Errno::AGAIN | Errno::INTR) => 0,
        Err(errno) => return Err(Fault::from_errno(errno, mid_frame)),
    };
    *is_empty = read_bytes < wanted_bytes;
    Ok(read_bytes)
}
