//! One head's place in a job of a server: its connection, and what comes and goes on it.

use super::frame::{FRAGMENT_MAX, HEADER_MAX_BYTES, Header, Kind, TEXT_MAX, header_bytes};
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
    /// The result that goes next or is going, and its bytes so far, header included.
    going: u64,
    going_bytes: usize,
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
            going_bytes: 0,
        }
    }

    fn head(&self) -> u32 {
        self.member.head.index
    }

    /// The result that goes next, if it is there.
    pub fn result<'a>(&self, table: &'a Table) -> Option<&'a [u8]> {
        table.result(self.head(), self.going)
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
    pub fn awaits(&self, table: &Table) -> Option<PollFlags> {
        let mut flags = PollFlags::RDHUP;
        match &self.state {
            State::Live => {
                flags.set(PollFlags::IN, table.has_room(self.coming));
                flags.set(PollFlags::OUT, !self.welcome.is_sent() || self.result(table).is_some());
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
        is_whole && self.going_bytes == 0 && !self.member.wire.is_mid_write()
    }

    /// Sends and receives after such events.
    pub fn serve(&mut self, flags: PollFlags, table: &mut Table, is_over: bool) -> Result<(), Ended> {
        self.member.wire.progress()?;
        if flags.contains(PollFlags::OUT) {
            self.send(table)?;
        }
        if flags.contains(PollFlags::IN) && !is_over {
            self.receive(table)?;
        } else if flags.intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR) {
            // Nothing that it sent before can matter: its end has left.
            return Err(Ended::Left);
        }
        Ok(())
    }

    /// Sends results, as many as go.
    fn send(&mut self, table: &mut Table) -> Result<(), Ended> {
        if !self.welcome.send(&mut self.member.wire)? {
            return Ok(());
        }
        while let Some(result) = self.result(table) {
            let header = Header { kind: Kind::Result, len_bytes: result.len() as u32, seq: self.going };
            let (header, header_bytes) = (header.to_bytes(), header.kind.header_bytes());
            while self.going_bytes < header_bytes + result.len() {
                let head = &header[self.going_bytes.min(header_bytes)..header_bytes];
                let body = &result[self.going_bytes.saturating_sub(header_bytes)..];
                let pieces = [piece(head.as_ptr(), head.len()), piece(body.as_ptr(), body.len())];
                // SAFETY: both slices are borrowed, so readable and unchanged, through the call.
                match unsafe { self.member.wire.write(&pieces) }? {
                    Some(sent) => self.going_bytes += sent,
                    None => return Ok(()),
                }
            }
            table.is_sent(self.going);
            self.going += 1;
            self.going_bytes = 0;
        }
        Ok(())
    }

    /// Receives as much of one fragment as has come: other heads have their turn then.
    fn receive(&mut self, table: &mut Table) -> Result<(), Ended> {
        let mut budget = FRAGMENT_MAX + HEADER_MAX_BYTES;
        while budget > 0 && table.has_room(self.coming) {
            if self.fragment.is_none() {
                let due = header_bytes(&self.header[..self.header_bytes]);
                match self.member.wire.read_some(&mut self.header[self.header_bytes..due])? {
                    None => return Ok(()),
                    Some(0) => return Err(Ended::Left),
                    Some(got) => self.header_bytes += got,
                }
                if self.header_bytes < header_bytes(&self.header[..self.header_bytes]) {
                    continue;
                }
                self.begin(table)?;
                budget = budget.saturating_sub(self.header_bytes);
            }
            let input = table.input(self.head(), self.coming);
            let input_bytes = input.len();
            let most = (input_bytes - self.fragment_bytes).min(budget);
            // Nothing of a gather's fragment may be this head's.
            if most > 0 {
                let room = &mut input[self.fragment_bytes..][..most];
                match self.member.wire.read_some(room)? {
                    None => return Ok(()),
                    Some(0) => return Err(Ended::Left),
                    Some(got) => {
                        self.fragment_bytes += got;
                        budget -= got;
                    }
                }
            }
            if self.fragment_bytes == input_bytes {
                table.has_come(self.head(), self.coming);
                (self.fragment, self.fragment_bytes, self.header_bytes) = (None, 0, 0);
                self.coming += 1;
            }
        }
        Ok(())
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
