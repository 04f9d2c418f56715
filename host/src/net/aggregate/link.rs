//! A head's connection to one server.

use super::frame::{FRAGMENT_MAX, Header, Kind, Span, WINDOW};
use super::input::{Ended, Input};
use super::wire::Wire;
use crate::net::coll::{Reduction, Window};
use crate::net::io::piece;
use core::ops::Range;
use oxccl_shared::abi::{DataType, RedOp};

/// How far one direction is.
#[derive(Clone, Copy, Default)]
struct Cursor {
    /// Operations of this link that are done.
    ops: u64,
    /// Bytes of the next one's fragments that are done.
    at: usize,
    /// Bytes of the fragment that is under way, header included.
    part: usize,
    /// Fragments that are done.
    seq: u64,
}

/// An operation as a link needs it.
#[derive(Clone, Copy)]
pub struct Buffers {
    /// Its input.
    pub send: *const u8,
    /// Its output.
    pub recv: *mut u8,
    /// What it is.
    pub task: Task,
}

/// What an operation does.
#[derive(Clone, Copy)]
pub enum Task {
    /// An all-reduce.
    Reduce(Reduction),
    /// An all-gather.
    Gather(Window),
    /// A reduce-scatter.
    Scatter(DataType, RedOp, Window),
}

impl Task {
    /// Bytes that are cut into fragments.
    pub fn len_bytes(&self) -> usize {
        match self {
            Task::Reduce(what) => what.len_bytes(),
            Task::Gather(window) | Task::Scatter(_, _, window) => window.len_bytes,
        }
    }

    /// Bytes of a head's output.
    pub fn output_bytes(&self, head: u32) -> usize {
        match self {
            Task::Scatter(_, _, window) => window.share(head).len(),
            _ => self.len_bytes(),
        }
    }

    /// The fragment that begins at a byte.
    fn fragment(&self, at: usize, seq: u64) -> Header {
        let len_bytes = (self.len_bytes() - at).min(FRAGMENT_MAX) as u32;
        let span = |window: &Window| Span {
            head_bytes: window.head_bytes as u64,
            start: (window.start + at) as u64,
        };
        let kind = match self {
            Task::Reduce(what) => Kind::Reduce(what.dtype, what.op),
            Task::Gather(window) => Kind::Gather(span(window)),
            Task::Scatter(dtype, op, window) => Kind::Scatter(*dtype, *op, span(window)),
        };
        Header { kind, len_bytes, seq }
    }

    /// Which bytes of its input a head sends of the fragment that begins at a byte.
    fn input(&self, fragment: &Header, at: usize, head: u32) -> Range<usize> {
        let before = if let Task::Gather(window) = self { window.share(head).start } else { 0 };
        moved(fragment.input(head), at, before)
    }

    /// Which bytes of its output a head gets by it.
    fn output(&self, fragment: &Header, at: usize, head: u32) -> Range<usize> {
        let before = if let Task::Scatter(_, _, window) = self { window.share(head).start } else { 0 };
        moved(fragment.output(head), at, before)
    }
}

/// Bytes of a fragment at `at`, in a buffer that begins `before` bytes into the window. What is empty may lie before the buffer.
fn moved(bytes: Range<usize>, at: usize, before: usize) -> Range<usize> {
    let start = (at + bytes.start).saturating_sub(before);
    start..start + bytes.len()
}

/// A connection to a server. Operations of a link are numbered from 0.
pub struct Link {
    wire: Wire,
    /// This head's place.
    head: u32,
    /// The server's address.
    pub server: String,
    input: Input,
    going: Cursor,
    coming: Cursor,
}

impl Cursor {
    /// The fragment is done.
    fn advance(&mut self, task: &Task, fragment: &Header) {
        self.at += fragment.len_bytes as usize;
        self.part = 0;
        self.seq += 1;
        self.end_op(task);
    }

    /// Goes on to the next operation if this one is done.
    fn end_op(&mut self, task: &Task) {
        if self.at == task.len_bytes() {
            (self.ops, self.at) = (self.ops + 1, 0);
        }
    }
}

impl Link {
    /// Of this head, over a connection on which the server has welcomed it.
    pub fn new(wire: Wire, head: u32, server: String) -> Link {
        let (going, coming) = (Cursor::default(), Cursor::default());
        Link { wire, head, server, input: Input::new(), going, coming }
    }

    /// Operations whose results have come.
    pub fn done(&self) -> u64 {
        self.coming.ops
    }

    /// Whether fragments are in flight.
    pub fn is_busy(&self) -> bool {
        self.going.part > 0 || self.coming.seq < self.going.seq
    }

    /// Moves what goes without blocking. There are `posted` operations; `op` gives those that are not done.
    ///
    /// # Safety
    /// The buffers of `op` are readable and writable, and nobody else accesses them.
    pub unsafe fn drive(&mut self, posted: u64, op: impl Fn(u64) -> Buffers) -> Result<(), Ended> {
        // SAFETY: the same obligation.
        let sent = unsafe { self.send(posted, &op) };
        // Where the server has left, it may have said why.
        // SAFETY: the same obligation.
        unsafe { self.receive(&op) }?;
        sent
    }

    /// # Safety
    /// As [`Self::drive`].
    unsafe fn send(&mut self, posted: u64, op: &impl Fn(u64) -> Buffers) -> Result<(), Ended> {
        while self.going.ops < posted && self.going.seq < self.coming.seq + WINDOW {
            let Buffers { send, task, .. } = op(self.going.ops);
            if task.len_bytes() == 0 {
                self.going.end_op(&task);
                continue;
            }
            let fragment = task.fragment(self.going.at, self.going.seq);
            let input = task.input(&fragment, self.going.at, self.head);
            let (header, header_bytes) = (fragment.to_bytes(), fragment.kind.header_bytes());
            while self.going.part < header_bytes + input.len() {
                let head = &header[self.going.part.min(header_bytes)..header_bytes];
                let sent = self.going.part.saturating_sub(header_bytes);
                let body = send.wrapping_add(input.start + sent);
                let pieces = [piece(head.as_ptr(), head.len()), piece(body, input.len() - sent)];
                // SAFETY: the header is borrowed; the body lies in the operation's input, which nobody writes.
                match unsafe { self.wire.write(&pieces) }? {
                    Some(sent) => self.going.part += sent,
                    None => return Ok(()),
                }
            }
            self.going.advance(&task, &fragment);
        }
        Ok(())
    }

    /// # Safety
    /// As [`Self::drive`].
    unsafe fn receive(&mut self, op: &impl Fn(u64) -> Buffers) -> Result<(), Ended> {
        loop {
            while self.coming.ops < self.going.ops && op(self.coming.ops).task.len_bytes() == 0 {
                self.coming.ops += 1;
            }
            let Some(header) = self.input.header(&mut self.wire)? else { return Ok(()) };
            let is_due = self.coming.seq < self.going.seq;
            let due = || if is_due { format!("result {}", self.coming.seq) } else { "nothing".to_owned() };
            if !is_due || header.kind != Kind::Result || header.seq != self.coming.seq {
                return Err(Ended::Wrong(due(), header.to_string()));
            }
            let Buffers { recv, task, .. } = op(self.coming.ops);
            let fragment = task.fragment(self.coming.at, self.coming.seq);
            let output = task.output(&fragment, self.coming.at, self.head);
            if header.len_bytes as usize != output.len() {
                return Err(Ended::Wrong(format!("{} of {} bytes", due(), output.len()), header.to_string()));
            }
            while self.coming.part < output.len() {
                let start = recv.wrapping_add(output.start + self.coming.part);
                let room = piece(start, output.len() - self.coming.part);
                // SAFETY: the rest of the fragment lies in the operation's output, which nobody else accesses.
                match unsafe { self.wire.read(room) }? {
                    Some(0) => return Err(Ended::Closed),
                    Some(got) => self.coming.part += got,
                    None => return Ok(()),
                }
            }
            self.input.next();
            self.coming.advance(&task, &fragment);
        }
    }
}
