//! One head's place in a job of a server: its connection, and what comes and goes on it.

use super::frame::{FRAGMENT_MAX, HEADER_BYTES, HEADER_MAX_BYTES, Header, Kind, TEXT_MAX, header_bytes};
use super::table::Table;
use super::wire::Wire;
use crate::bootstrap::sock;
use crate::net::coll::Head;
use crate::net::io::piece;
use crate::wire::cut;
use rustix::event::PollFlags;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long a head that knows the reason may take to close its end; the stop of the server waits as long.
pub const CLOSED_WITHIN: Duration = Duration::from_secs(2);
/// Bytes of a read that nobody needs.
const DISCARD_BYTES: usize = 16 << 10;
/// A result is sent in parts of so many bytes or more, but for its end: fewer are not worth a system call at each end. At 1 Gbit/s they take 66 us.
const PART_MIN_BYTES: usize = 8 << 10;
/// A head gets a part no sooner after the last frame: the links of a long operation are busy anyway, and each frame costs processor time at both ends.
/// Nobody waits for this time to pass: a part that does not go is followed by more of the same fragment.
const PART_EVERY: Duration = Duration::from_micros(250);

/// A head that has joined.
#[derive(Debug)]
pub struct Member {
    /// Its connection.
    pub wire: Wire,
    /// Its address.
    pub remote: SocketAddr,
    /// Its place.
    pub head: Head,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.head, self.remote)
    }
}

/// A message that is not a fragment, partly sent.
#[derive(Debug)]
pub struct Message {
    bytes: Vec<u8>,
    sent: usize,
}

#[derive(Debug)]
pub enum State {
    Live,
    /// The job is over; what it still has to be told.
    Leaving(Message),
    /// It has been told, and closes its end until then.
    Told(Instant),
    Gone,
}

#[derive(Debug)]
pub struct Seat {
    /// The head.
    pub member: Member,
    /// Whether it takes part.
    pub state: State,
    /// What is sent before any result.
    pub welcome: Message,
    /// The fragment that comes next or is coming, and its bytes so far.
    coming: u64,
    header: [u8; HEADER_MAX_BYTES],
    header_bytes: usize,
    fragment: Option<Header>,
    fragment_bytes: usize,
    /// The result that goes next or is going, and its bytes in frames that have gone.
    going: u64,
    gone_bytes: usize,
    /// The frame that is going: its data, and its bytes so far, header included.
    frame: Option<(usize, usize)>,
    /// When one had gone last.
    framed_at: Option<Instant>,
    /// Whether its connection took less than there was.
    is_blocked: bool,
}

/// Why a head's connection cannot go on.
pub enum Ended {
    Left,
    Broken(io::Error),
    Wrong(String),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Ended {
        match error.kind() {
            _ if sock::is_end(&error) => Ended::Left,
            io::ErrorKind::InvalidData => Ended::Wrong("bytes that were changed on the way".to_owned()),
            _ => Ended::Broken(error),
        }
    }
}

/// The frame that says why a job is over.
pub fn farewell(why: &str) -> Vec<u8> {
    let text = cut(why, TEXT_MAX);
    let header = Header { kind: Kind::Failed, len_bytes: text.len() as u32, seq: 0 };
    [&header.to_bytes()[..header.kind.header_bytes()], text.as_bytes()].concat()
}

impl Message {
    /// None of it is sent.
    pub fn new(bytes: Vec<u8>) -> Message {
        Message { bytes, sent: 0 }
    }

    /// Whether all of it is sent.
    pub fn is_sent(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Sends as much as goes; returns whether that is all.
    fn send(&mut self, wire: &mut Wire) -> io::Result<bool> {
        while !self.is_sent() {
            match wire.write_some(&self.bytes[self.sent..])? {
                None => return Ok(false),
                Some(sent) => self.sent += sent,
            }
        }
        Ok(true)
    }
}

impl Seat {
    /// Of a head that is to be welcomed.
    pub fn new(member: Member) -> Seat {
        let welcome = Header { kind: Kind::Welcome, len_bytes: 0, seq: 0 };
        Seat {
            member,
            state: State::Live,
            welcome: Message::new(welcome.to_bytes()[..welcome.kind.header_bytes()].to_vec()),
            coming: 0,
            header: [0; HEADER_MAX_BYTES],
            header_bytes: 0,
            fragment: None,
            fragment_bytes: 0,
            going: 0,
            gone_bytes: 0,
            frame: None,
            framed_at: None,
            is_blocked: false,
        }
    }

    fn head(&self) -> u32 {
        self.member.head.index
    }

    /// Whether there is something of a result to send. Once the job is over, whole results alone are sent.
    pub fn is_owed(&self, table: &Table, is_over: bool) -> bool {
        self.frame.is_some() || self.next_frame(table, is_over).is_some()
    }

    /// Bytes of the frame that can go next.
    fn next_frame(&self, table: &Table, is_over: bool) -> Option<usize> {
        let result = table.result(self.head(), self.going)?;
        let fresh = result.ready.len() - self.gone_bytes;
        let is_due = || self.framed_at.is_none_or(|at| at.elapsed() >= PART_EVERY);
        let is_worth_it = result.is_whole() || fresh >= PART_MIN_BYTES && !is_over && is_due();
        is_worth_it.then_some(fresh)
    }

    /// The head has gone, or must.
    pub fn close(&mut self) {
        let _ = self.member.wire.shutdown(std::net::Shutdown::Both);
        self.state = State::Gone;
    }

    /// Why its end ends the job.
    pub fn why(&self, ended: &Ended) -> String {
        let middle = if self.fragment.is_some() || self.header_bytes > 0 {
            " in the middle of a fragment"
        } else {
            ""
        };
        match ended {
            Ended::Left => format!("{} closed the connection{middle}", self.member),
            Ended::Broken(error) => format!("{}: {}", self.member, crate::os::describe(error)),
            Ended::Wrong(what) => format!("{} sent {what}", self.member),
        }
    }

    /// The events to wait for; none once it is gone.
    pub fn awaits(&self, table: &Table, is_over: bool) -> Option<PollFlags> {
        let mut flags = PollFlags::RDHUP;
        match &self.state {
            State::Live => {
                flags.set(PollFlags::IN, table.has_room(self.coming));
                flags.set(PollFlags::OUT, !self.welcome.is_sent() || self.is_owed(table, is_over));
            }
            State::Leaving(_) => flags = PollFlags::OUT,
            State::Told(_) => flags |= PollFlags::IN,
            State::Gone => return None,
        }
        Some(flags)
    }

    /// What of these events can be had although poll(2) does not announce it.
    pub fn comes_anyway(&self, awaited: PollFlags) -> PollFlags {
        let wire = &self.member.wire;
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, wire.is_polled() || wire.has_unread());
        flags.set(PollFlags::OUT, wire.is_polled());
        flags & awaited
    }

    /// Whether another frame than the one that is due may be sent.
    pub fn is_between_frames(&self) -> bool {
        let is_whole = self.welcome.sent == 0 || self.welcome.is_sent();
        is_whole && self.frame.is_none() && !self.member.wire.is_mid_write()
    }

    /// Receives after such events.
    pub fn serve(&mut self, flags: PollFlags, table: &mut Table, is_over: bool) -> Result<(), Ended> {
        self.member.wire.progress()?;
        self.member.wire.check_host()?;
        if flags.contains(PollFlags::OUT) {
            self.is_blocked = false;
        }
        if flags.contains(PollFlags::IN) && !is_over {
            self.receive(table)?;
        } else if flags.intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR) {
            // Nothing that it sent before can matter: its end has left.
            return Err(Ended::Left);
        }
        Ok(())
    }

    /// Sends results, as many as there are and go.
    pub fn send(&mut self, table: &mut Table, is_over: bool) -> Result<(), Ended> {
        if self.is_blocked {
            return Ok(());
        }
        if !self.welcome.send(&mut self.member.wire)? {
            self.is_blocked = true;
            return Ok(());
        }
        while let Some((len_bytes, sent)) = self.frame.or_else(|| Some((self.next_frame(table, is_over)?, 0)))
        {
            self.frame = Some((len_bytes, sent));
            if !self.send_frame(table, len_bytes)? {
                self.is_blocked = true;
                return Ok(());
            }
            self.frame = None;
            self.framed_at = Some(Instant::now());
            self.gone_bytes += len_bytes;
            let is_done =
                table.result(self.head(), self.going).is_some_and(|it| self.gone_bytes == it.len_bytes);
            if is_done {
                table.is_sent(self.going);
                (self.going, self.gone_bytes) = (self.going + 1, 0);
            }
        }
        Ok(())
    }

    /// Goes on with the frame; whether all of it has gone.
    fn send_frame(&mut self, table: &Table, len_bytes: usize) -> Result<bool, Ended> {
        let header = Header { kind: Kind::Result, len_bytes: len_bytes as u32, seq: self.going };
        let (header, header_bytes) = (header.to_bytes(), header.kind.header_bytes());
        let Some(result) = table.result(self.head(), self.going) else { return Ok(true) };
        let data = &result.ready[self.gone_bytes..][..len_bytes];
        while let Some((_, sent)) = &mut self.frame {
            if *sent == header_bytes + len_bytes {
                break;
            }
            let head = &header[(*sent).min(header_bytes)..header_bytes];
            let body = &data[sent.saturating_sub(header_bytes)..];
            let pieces = [piece(head.as_ptr(), head.len()), piece(body.as_ptr(), body.len())];
            // SAFETY: both slices are borrowed, so readable and unchanged, through the call.
            match unsafe { self.member.wire.write(&pieces) }? {
                Some(moved) => *sent += moved,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Receives what has come, up to a fragment or so: other heads have their turn then.
    fn receive(&mut self, table: &mut Table) -> Result<(), Ended> {
        let mut budget = FRAGMENT_MAX + HEADER_MAX_BYTES;
        while budget > 0 && table.has_room(self.coming) {
            if self.fragment.is_none() {
                let due = header_bytes(&self.header[..self.header_bytes]);
                if self.header_bytes < due {
                    match self.member.wire.read_some(&mut self.header[self.header_bytes..due])? {
                        None => return Ok(()),
                        Some(0) => return Err(Ended::Left),
                        Some(got) => self.header_bytes += got,
                    }
                    continue;
                }
                self.begin(table)?;
                budget = budget.saturating_sub(self.header_bytes);
            }
            let rest = table.input(self.head(), self.coming).len() - self.fragment_bytes;
            let Some(got) = self.receive_input(table)? else { return Ok(()) };
            if got < rest {
                return Ok(());
            }
            // With the last byte the next header may have come.
            (self.fragment, self.fragment_bytes, self.header_bytes) = (None, 0, got - rest);
            self.coming += 1;
            budget = budget.saturating_sub(got);
        }
        Ok(())
    }

    /// Receives what has come of the fragment's bytes, and the next header behind them. How many bytes that is; none while some are due and none have come.
    fn receive_input(&mut self, table: &mut Table) -> Result<Option<usize>, Ended> {
        let (head, seq) = (self.head(), self.coming);
        let room = &mut table.input(head, seq)[self.fragment_bytes..];
        // Nothing of a gather's fragment may be this head's.
        if room.is_empty() {
            return Ok(Some(0));
        }
        let (rest, next) = (room.len(), &mut self.header[..HEADER_BYTES]);
        let rooms = [piece(room.as_mut_ptr(), rest), piece(next.as_mut_ptr(), next.len())];
        // SAFETY: both are borrowed through the call.
        let got = unsafe { self.member.wire.read(rooms) }?;
        if got == Some(0) {
            return Err(Ended::Left);
        }
        self.fragment_bytes += got.unwrap_or(0).min(rest);
        table.has_come(head, seq, self.fragment_bytes);
        Ok(got)
    }

    /// A header is whole.
    fn begin(&mut self, table: &mut Table) -> Result<(), Ended> {
        let bytes = &self.header[..self.header_bytes];
        let header = Header::from_bytes(bytes).map_err(|bad| Ended::Wrong(bad.to_string()))?;
        let due = self.coming;
        if !header.kind.is_fragment() || header.seq != due {
            return Err(Ended::Wrong(format!("{header} where fragment {due} was due")));
        }
        let begun = table.begin(self.head(), header);
        begun.map_err(|refused| Ended::Wrong(format!("{header}, {refused}")))?;
        self.fragment = Some(header);
        Ok(())
    }

    /// Says why the job is over.
    pub fn leave(&mut self, now: Instant) -> Result<(), Ended> {
        let State::Leaving(message) = &mut self.state else { return Ok(()) };
        if message.send(&mut self.member.wire)? {
            self.member.wire.shutdown(std::net::Shutdown::Write)?;
            self.state = State::Told(now + CLOSED_WITHIN);
        }
        Ok(())
    }

    /// Reads what it sent meanwhile: closing a connection with unread bytes could take the reason from it.
    pub fn discard(&mut self, is_late: bool) -> Result<(), Ended> {
        let mut bytes = [0; DISCARD_BYTES];
        match self.member.wire.read_some(&mut bytes)? {
            Some(0) => Err(Ended::Left),
            _ if is_late => Err(Ended::Left),
            _ => Ok(()),
        }
    }
}
