//! A head's connection to one server.

use super::frame::{FRAGMENT_MAX, HEADER_BYTES, Header, JobId, Join, Kind, Span, TEXT_MAX, WINDOW};
use crate::bootstrap::handshake::{Hello, Purpose, ROOT};
use crate::bootstrap::secret::Secret;
use crate::bootstrap::sock;
use crate::net::coll::{Head, Reduction, Window};
use crate::net::dial::Dial;
use crate::net::invitation::Invitation;
use crate::net::io::{StreamIo, piece};
use core::ops::Range;
use oxccl_shared::abi::{DataType, Rank, RedOp};
use rustix::io::Errno;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The number that streams of heads have in the handshake.
const PURPOSE: Purpose = Purpose::Stream(0x4f78_4167);

/// A connection until the server has welcomed the head.
pub struct Arriving {
    addr: SocketAddr,
    head: u32,
    state: State,
    join: Vec<u8>,
    input: Input,
}

enum State {
    Dialling(Box<Dial>),
    /// With the bytes of the join that are sent.
    Joining(TcpStream, usize),
    Welcome(TcpStream),
    Over,
}

/// A frame that comes in, except the data of results.
struct Input {
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    text: [u8; TEXT_MAX],
    text_bytes: usize,
}

/// Why a connection is of no use any more.
pub enum Ended {
    /// The server said why.
    Told(String),
    /// The server has gone.
    Closed,
    /// It sent what was not due: what was, and what came.
    Wrong(String, String),
    /// A system call failed.
    Io(io::Error),
}

impl From<Errno> for Ended {
    fn from(errno: Errno) -> Ended {
        let error = io::Error::from(errno);
        if sock::is_end(&error) { Ended::Closed } else { Ended::Io(error) }
    }
}

impl Arriving {
    /// Starts to connect.
    pub fn new(
        addr: SocketAddr,
        token: Secret,
        job: JobId,
        head: Head,
        dead_after: Duration,
    ) -> io::Result<Arriving> {
        let hello = Hello { purpose: PURPOSE, from: Rank(head.index), to: ROOT, tag: 0 };
        let dial = Box::new(Dial::new(&Invitation { addr, token }, None, hello, dead_after)?);
        let join = Join { job, head }.to_bytes().to_vec();
        let (state, input) = (State::Dialling(dial), Input::new());
        Ok(Arriving { addr, head: head.index, state, join, input })
    }

    /// The server.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Whether the server has proved the secret.
    pub fn has_answered(&self) -> bool {
        !matches!(self.state, State::Dialling(_))
    }

    /// Whether the server has welcomed the head, which it does once all heads have come. The error is a text.
    pub fn advance(&mut self) -> Result<bool, String> {
        self.state = match std::mem::replace(&mut self.state, State::Over) {
            State::Dialling(mut dial) => match dial.advance() {
                Ok(true) => State::Joining(dial.into_stream(), 0),
                Ok(false) => State::Dialling(dial),
                Err(error) => return Err(unreachable(&error)),
            },
            state => state,
        };
        let State::Joining(stream, sent) = &mut self.state else {
            return Ok(matches!(self.state, State::Welcome(_)));
        };
        while *sent < self.join.len() {
            match sock::write_some(stream, &self.join[*sent..]) {
                Ok(None) => return Ok(false),
                Ok(Some(n)) => *sent += n,
                Err(error) => return Err(crate::os::describe(&error)),
            }
        }
        match self.input.header(stream).map_err(|ended| ended.to_string())? {
            None => Ok(false),
            Some(Header { kind: Kind::Welcome, .. }) => {
                if let State::Joining(stream, _) = std::mem::replace(&mut self.state, State::Over) {
                    self.state = State::Welcome(stream);
                }
                Ok(true)
            }
            Some(other) => Err(format!("it sent {other} where a welcome was due")),
        }
    }

    /// The connection, once it is welcome.
    pub fn into_link(self) -> Option<Link> {
        let State::Welcome(stream) = self.state else { return None };
        let input = Input::new();
        let server = self.addr.to_string();
        let (head, going, coming) = (self.head, Cursor::default(), Cursor::default());
        Some(Link { stream, head, server, input, going, coming })
    }
}

fn unreachable(error: &io::Error) -> String {
    let said = crate::os::describe(error);
    match error.kind() {
        io::ErrorKind::ConnectionRefused => format!("{said}: does `oxccl aggregate` run there?"),
        _ => said,
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ended::Told(text) => f.write_str(text),
            Ended::Closed => f.write_str("it closed the connection"),
            Ended::Wrong(expected, found) => write!(f, "it sent {found} where {expected} was due"),
            Ended::Io(error) => f.write_str(&crate::os::describe(error)),
        }
    }
}

impl Input {
    fn new() -> Input {
        Input { header: [0; HEADER_BYTES], header_bytes: 0, text: [0; TEXT_MAX], text_bytes: 0 }
    }

    /// The header of the frame that comes in, once it is whole. A failure is an error with its text.
    fn header(&mut self, stream: &TcpStream) -> Result<Option<Header>, Ended> {
        while self.header_bytes < HEADER_BYTES {
            match read(stream, &mut self.header[self.header_bytes..])? {
                None => return Ok(None),
                Some(got) => self.header_bytes += got,
            }
        }
        let header = Header::from_bytes(&self.header)
            .map_err(|bad| Ended::Wrong("a frame".to_owned(), bad.to_string()))?;
        if header.kind != Kind::Failed {
            return Ok(Some(header));
        }
        let len_bytes = header.len_bytes as usize;
        while self.text_bytes < len_bytes {
            match read(stream, &mut self.text[self.text_bytes..len_bytes])? {
                None => return Ok(None),
                Some(got) => self.text_bytes += got,
            }
        }
        Err(Ended::Told(String::from_utf8_lossy(&self.text[..len_bytes]).into_owned()))
    }
}

/// Some bytes; `None` if none have come.
fn read(stream: &TcpStream, room: &mut [u8]) -> Result<Option<usize>, Ended> {
    match sock::read_some(stream, room) {
        Ok(Some(0)) => Err(Ended::Closed),
        Ok(got) => Ok(got),
        Err(error) if sock::is_end(&error) => Err(Ended::Closed),
        Err(error) => Err(Ended::Io(error)),
    }
}

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
    stream: TcpStream,
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
                match unsafe { self.stream.write(&pieces) } {
                    Ok(sent) => self.going.part += sent,
                    Err(Errno::AGAIN) => return Ok(()),
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
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
            let Some(header) = self.input.header(&self.stream)? else { return Ok(()) };
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
                let mut pieces = [piece(start, output.len() - self.coming.part)];
                // SAFETY: the rest of the fragment lies in the operation's output, which nobody else accesses.
                match unsafe { StreamIo::read(&mut self.stream, &mut pieces) } {
                    Ok(0) => return Err(Ended::Closed),
                    Ok(got) => self.coming.part += got,
                    Err(Errno::AGAIN) => return Ok(()),
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            self.input.header_bytes = 0;
            self.coming.advance(&task, &fragment);
        }
    }
}
