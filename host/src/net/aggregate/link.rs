//! A head's connection to one server.

use super::frame::{FRAGMENT_MAX, FRAGMENT_MIN, Header, Kind, Span, WINDOW};
use super::input::{Ended, Input};
use super::wire::Wire;
use crate::net::NetError;
use crate::net::coll::{Reduction, Window};
use crate::net::io::piece;
use core::ops::Range;
use oxccl_shared::abi::{DataType, RedOp};

/// A link's place among those of a communicator: fragment k of all operations goes to server `k % count`.
#[derive(Clone, Copy)]
struct Place {
    index: u64,
    count: u64,
}

/// How far one direction is.
#[derive(Clone, Copy)]
struct Cursor {
    /// The operation of the fragment that is next; those before it are done here.
    op: u64,
    /// Which of its fragments that is. Beyond its last one: the operation that has it is not there yet.
    index: u64,
    /// Bytes of that fragment that have moved; of one that goes, with its header.
    part: usize,
    /// Fragments that are done.
    seq: u64,
}

/// A fragment, and at which byte of the operation it begins.
#[derive(Clone, Copy)]
struct Cut {
    header: Header,
    at: usize,
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

    /// Bytes of a fragment, but for the last. All servers get an equal share of an operation, a short one too: one server's link would carry it
    /// once for each head.
    fn fragment_bytes(&self, servers: u64) -> usize {
        let (len_bytes, servers) = (self.len_bytes(), servers as usize);
        let each = len_bytes.div_ceil(servers * FRAGMENT_MAX).max(1);
        len_bytes.div_ceil(servers * each).next_multiple_of(FRAGMENT_MIN).max(FRAGMENT_MIN)
    }

    /// The number of its fragments.
    fn fragments(&self, servers: u64) -> u64 {
        self.len_bytes().div_ceil(self.fragment_bytes(servers)) as u64
    }

    /// A fragment of it.
    fn fragment(&self, place: Place, cursor: &Cursor) -> Cut {
        let Cursor { index, seq, .. } = *cursor;
        let most = self.fragment_bytes(place.count);
        let at = index as usize * most;
        let len_bytes = (self.len_bytes() - at).min(most) as u32;
        let span = |window: &Window| Span {
            head_bytes: window.head_bytes as u64,
            start: (window.start + at) as u64,
        };
        let kind = match self {
            Task::Reduce(what) => Kind::Reduce(what.dtype, what.op),
            Task::Gather(window) => Kind::Gather(span(window)),
            Task::Scatter(dtype, op, window) => Kind::Scatter(*dtype, *op, span(window)),
        };
        Cut { header: Header { kind, len_bytes, seq }, at }
    }

    /// Which bytes of its input a head sends of a fragment.
    fn input(&self, Cut { header, at }: Cut, head: u32) -> Range<usize> {
        let before = if let Task::Gather(window) = self { window.share(head).start } else { 0 };
        moved(header.input(head), at, before)
    }

    /// Which bytes of its output a head gets by one.
    fn output(&self, Cut { header, at }: Cut, head: u32) -> Range<usize> {
        let before = if let Task::Scatter(_, _, window) = self { window.share(head).start } else { 0 };
        moved(header.output(head), at, before)
    }
}

/// Bytes of a fragment at `at`, in a buffer that begins `before` bytes into the window. What is empty may lie before the buffer.
fn moved(bytes: Range<usize>, at: usize, before: usize) -> Range<usize> {
    let start = (at + bytes.start).saturating_sub(before);
    start..start + bytes.len()
}

/// A connection to a server.
pub struct Link {
    wire: Wire,
    /// This head's place among the heads.
    head: u32,
    place: Place,
    /// The server's address.
    pub server: String,
    input: Input,
    going: Cursor,
    coming: Cursor,
    /// Bytes of the frame that comes in that have not come.
    frame_bytes: Option<usize>,
    /// Why nothing more goes or comes.
    pub ended: Option<NetError>,
}

impl Cursor {
    /// Before the first fragment.
    fn new(place: Place) -> Cursor {
        Cursor { op: 0, index: place.index, part: 0, seq: 0 }
    }

    /// The fragment is done.
    fn advance(&mut self, place: Place) {
        self.index += place.count;
        self.part = 0;
        self.seq += 1;
    }

    /// Goes on to the operation that has the next fragment, among those that are posted. What it is, if it is posted.
    fn operation(&mut self, place: Place, posted: u64, op: &impl Fn(u64) -> Buffers) -> Option<Buffers> {
        while self.op < posted {
            let buffers = op(self.op);
            let fragments = buffers.task.fragments(place.count);
            if self.index < fragments {
                return Some(buffers);
            }
            self.index -= fragments;
            self.op += 1;
        }
        None
    }
}

impl Link {
    /// Of this head, over a connection on which the server has welcomed it.
    pub fn new(wire: Wire, head: u32, server: String) -> Link {
        let place = Place { index: 0, count: 1 };
        let (going, coming) = (Cursor::new(place), Cursor::new(place));
        Link { wire, head, place, server, input: Input::new(), going, coming, frame_bytes: None, ended: None }
    }

    /// The one at `index` of `count` of a communicator. Before its first operation.
    #[must_use]
    pub fn at(self, index: usize, count: usize) -> Link {
        let place = Place { index: index as u64, count: count as u64 };
        let (going, coming) = (Cursor::new(place), Cursor::new(place));
        Link { place, going, coming, ..self }
    }

    /// How many operations are done here: their fragments of this link, if they have any.
    pub fn done(&self) -> u64 {
        self.coming.op
    }

    /// Goes past the operations that have nothing more to receive here.
    pub fn pass(&mut self, posted: u64, op: &impl Fn(u64) -> Buffers) {
        let _ = self.coming.operation(self.place, posted, op);
    }

    /// Whether fragments are in flight.
    pub fn is_busy(&self) -> bool {
        self.going.part > 0 || self.coming.seq < self.going.seq
    }

    /// Sends the next fragment, or its rest, as far as it goes without blocking; whether all of it has gone. There are `posted` operations; `op`
    /// gives those that are not done on all links.
    ///
    /// # Safety
    /// 1. The buffers of `op` are readable and writable, and nobody else accesses them.
    pub unsafe fn send(&mut self, posted: u64, op: &impl Fn(u64) -> Buffers) -> Result<bool, Ended> {
        // Asked first: the cursor must not stay at an operation that is done.
        let due = self.going.operation(self.place, posted, op);
        let Some(Buffers { send, task, .. }) = due.filter(|_| self.going.seq < self.coming.seq + WINDOW)
        else {
            return Ok(false);
        };
        let cut = task.fragment(self.place, &self.going);
        let input = task.input(cut, self.head);
        let (header, header_bytes) = (cut.header.to_bytes(), cut.header.kind.header_bytes());
        while self.going.part < header_bytes + input.len() {
            let head = &header[self.going.part.min(header_bytes)..header_bytes];
            let sent = self.going.part.saturating_sub(header_bytes);
            let body = send.wrapping_add(input.start + sent);
            let pieces = [piece(head.as_ptr(), head.len()), piece(body, input.len() - sent)];
            // SAFETY: the header is borrowed; the body lies in the operation's input, which nobody writes (obligation 1).
            match unsafe { self.wire.write(&pieces) }? {
                Some(sent) => self.going.part += sent,
                None => return Ok(false),
            }
        }
        self.going.advance(self.place);
        Ok(true)
    }

    /// Receives what has come; an error too if the server's host has vanished.
    ///
    /// # Safety
    /// 1. As [`Self::send`].
    pub unsafe fn receive(&mut self, posted: u64, op: &impl Fn(u64) -> Buffers) -> Result<(), Ended> {
        self.wire.check_host()?;
        loop {
            let due = self.coming.operation(self.place, posted, op);
            let frame_bytes = match self.frame_bytes {
                Some(bytes) => bytes,
                None => match self.frame(due.as_ref())? {
                    Some(bytes) => *self.frame_bytes.insert(bytes),
                    None => return Ok(()),
                },
            };
            let Some(Buffers { recv, task, .. }) = due else { return Ok(()) };
            let output = task.output(task.fragment(self.place, &self.coming), self.head);
            let mut of_next = 0;
            if frame_bytes > 0 {
                let room = piece(recv.wrapping_add(output.start + self.coming.part), frame_bytes);
                let next = self.input.room();
                // SAFETY: the rest of the frame lies in the operation's output, which nobody else accesses (obligation 1); the other room is ours.
                let got = match unsafe { self.wire.read([room, piece(next.as_ptr(), next.len())]) }? {
                    Some(0) => return Err(Ended::Closed),
                    Some(got) => got,
                    None => return Ok(()),
                };
                let of_this = got.min(frame_bytes);
                of_next = got - of_this;
                self.coming.part += of_this;
                self.frame_bytes = Some(frame_bytes - of_this);
                if of_this < frame_bytes {
                    return Ok(());
                }
            }
            self.frame_bytes = None;
            self.input.begin_next(of_next);
            if self.coming.part == output.len() {
                self.coming.advance(self.place);
            }
        }
    }

    /// Bytes of the next frame, of the result that is due, once its header has come.
    fn frame(&mut self, due: Option<&Buffers>) -> Result<Option<usize>, Ended> {
        let Some(header) = self.input.header(&mut self.wire)? else { return Ok(None) };
        let Header { kind, len_bytes, seq } = header;
        // The beginning of a result may come before this head has sent all of the fragment.
        let is_under_way = seq < self.going.seq || seq == self.going.seq && self.going.part > 0;
        let Some(Buffers { task, .. }) = due.filter(|_| is_under_way && self.coming.seq <= self.going.seq)
        else {
            return Err(Ended::Wrong("nothing".to_owned(), header.to_string()));
        };
        let due = format!("result {}", self.coming.seq);
        if kind != Kind::Result || seq != self.coming.seq {
            return Err(Ended::Wrong(due, header.to_string()));
        }
        let output = task.output(task.fragment(self.place, &self.coming), self.head);
        let (len_bytes, left) = (len_bytes as usize, output.len() - self.coming.part);
        // An empty frame is a result that is empty.
        if len_bytes > left || len_bytes == 0 && left > 0 {
            return Err(Ended::Wrong(format!("{due} of at most {left} bytes"), header.to_string()));
        }
        Ok(Some(len_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(len_bytes: usize) -> Task {
        Task::Reduce(Reduction { count: len_bytes, dtype: DataType::U8, op: RedOp::Sum })
    }

    proptest! {
        /// One server used to get all of a short operation, and its link carried it once for each head.
        #[test]
        fn every_server_has_its_share_of_an_operation(len_bytes in 1usize..2_000_000, count in 1u64..17) {
            let task = sum(len_bytes);
            let mut shares = vec![0; count as usize];
            let mut next = 0;
            for index in 0..task.fragments(count) {
                let place = Place { index: index % count, count };
                let Cut { header, at } = task.fragment(place, &Cursor { op: 0, index, part: 0, seq: 0 });
                let bytes = header.len_bytes as usize;
                prop_assert!(at == next && (1..=FRAGMENT_MAX).contains(&bytes));
                next += bytes;
                prop_assert!(bytes.is_multiple_of(FRAGMENT_MIN) || next == len_bytes);
                shares[place.index as usize] += bytes;
            }
            prop_assert_eq!(next, len_bytes);
            // Fragments are cut at whole pages: so much can a server have more than its share for each fragment.
            let each = len_bytes.div_ceil(count as usize);
            let rounds = task.fragments(count).div_ceil(count) as usize;
            prop_assert!(shares.iter().all(|share| *share < each + (rounds + 1) * FRAGMENT_MIN), "{shares:?}");
        }

        /// Each link's cursor passes its own fragments of all operations, in order, and ends behind the last operation.
        #[test]
        fn links_share_all_fragments(lens in proptest::collection::vec(0usize..300_000, 0..20), count in 1u64..6) {
            let op = |number: u64| {
                let task = sum(lens[number as usize]);
                Buffers { send: core::ptr::null(), recv: core::ptr::null_mut(), task }
            };
            let posted = lens.len() as u64;
            let mut moved = vec![0; lens.len()];
            for index in 0..count {
                let place = Place { index, count };
                let mut cursor = Cursor::new(place);
                while let Some(Buffers { task, .. }) = cursor.operation(place, posted, &op) {
                    moved[cursor.op as usize] += task.fragment(place, &cursor).header.len_bytes as usize;
                    cursor.advance(place);
                }
                prop_assert_eq!(cursor.op, posted);
            }
            prop_assert_eq!(moved, lens);
        }
    }
}
