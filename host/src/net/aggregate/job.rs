//! One job of a server: its heads' connections, on a thread of their own.
//!
//! A head is not read while its next fragment has no room, so a head that falls behind stops its own job's heads only.
//! Once a head leaves or misbehaves the job is over: the other heads get the results that are complete, then the
//! reason.

use super::NAME;
use super::frame::{FRAGMENT_MAX, HEADER_MAX_BYTES, Header, Kind, TEXT_MAX, header_bytes};
use super::table::Table;
use crate::bootstrap::{Cancel, sock};
use crate::net::coll::Head;
use crate::net::io::{StreamIo, piece};
use crate::wire::cut;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How often a job looks whether the server ends.
const STOP_SEEN_AFTER: Duration = Duration::from_millis(50);
/// How long a head may take to fetch complete results when the job is over.
const FETCHED_WITHIN: Duration = Duration::from_secs(600);
/// How long a head that knows the reason may take to close its end; the stop of the server waits as long.
const CLOSED_WITHIN: Duration = Duration::from_secs(2);
/// Bytes of a read that nobody needs.
const DISCARD_BYTES: usize = 16 << 10;

/// A head that has joined.
#[derive(Debug)]
pub struct Member {
    /// Its connection, which does not block.
    pub stream: TcpStream,
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
struct Message {
    bytes: Vec<u8>,
    sent: usize,
}

#[derive(Debug)]
enum State {
    Live,
    /// The job is over; what it still has to be told.
    Leaving(Message),
    /// It has been told, and closes its end until then.
    Told(Instant),
    Gone,
}

#[derive(Debug)]
struct Seat {
    member: Member,
    state: State,
    /// What is sent before any result.
    welcome: Message,
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

/// A job: runs until all heads have gone.
#[derive(Debug)]
pub struct Job {
    seats: Vec<Seat>,
    table: Table,
    /// Why it is over, and when even what is complete is not sent any more.
    over: Option<(String, Instant)>,
}

/// Why a head's connection cannot go on.
enum Ended {
    Left,
    Broken(io::Error),
    Wrong(String),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Ended {
        if sock::is_end(&error) { Ended::Left } else { Ended::Broken(error) }
    }
}

impl From<Errno> for Ended {
    fn from(errno: Errno) -> Ended {
        io::Error::from(errno).into()
    }
}

/// The frame that says why a job is over.
pub fn farewell(why: &str) -> Vec<u8> {
    let text = cut(why, TEXT_MAX);
    let header = Header { kind: Kind::Failed, len_bytes: text.len() as u32, seq: 0 };
    [&header.to_bytes()[..header.kind.header_bytes()], text.as_bytes()].concat()
}

impl Job {
    /// Of these heads: all of them, in order.
    pub fn new(members: Vec<Member>) -> Job {
        let table = Table::new(members.len() as u32);
        Job { seats: members.into_iter().map(Seat::new).collect(), table, over: None }
    }

    /// Serves the heads until all have gone.
    pub fn run(mut self, stop: &Cancel) {
        let mut stopping = false;
        while self.seats.iter().any(|seat| !matches!(seat.state, State::Gone)) {
            if stop.is_called() && !stopping {
                stopping = true;
                self.end("the aggregator was stopped".to_owned(), CLOSED_WITHIN);
            }
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => return tracing::error!("{NAME}: poll: {error}"),
            };
            let now = Instant::now();
            for (index, flags) in ready.into_iter().enumerate() {
                self.serve(index, flags, now);
            }
        }
    }

    /// The job is over, if it is not already.
    fn end(&mut self, why: String, fetched_within: Duration) {
        let by = Instant::now() + fetched_within;
        match &mut self.over {
            None => {
                tracing::info!("{NAME}: a job of {} heads is over: {why}", self.seats.len());
                self.over = Some((why, by));
            }
            Some((_, until)) => *until = by.min(*until),
        }
    }

    fn wait(&self) -> io::Result<Vec<PollFlags>> {
        let mut fds = Vec::with_capacity(self.seats.len());
        let mut of = Vec::with_capacity(self.seats.len());
        for (index, seat) in self.seats.iter().enumerate() {
            if let Some(flags) = seat.awaits(&self.table) {
                fds.push(PollFd::new(&seat.member.stream, flags));
                of.push(index);
            }
        }
        sock::poll(&mut fds, Some(Instant::now() + STOP_SEEN_AFTER))?;
        let mut ready = vec![PollFlags::empty(); self.seats.len()];
        of.into_iter().zip(&fds).for_each(|(index, fd)| ready[index] = fd.revents());
        Ok(ready)
    }

    fn serve(&mut self, index: usize, flags: PollFlags, now: Instant) {
        let (seat, table) = (&mut self.seats[index], &mut self.table);
        let served = match &seat.state {
            State::Live => seat.serve(flags, table, self.over.is_some()),
            State::Leaving(_) => seat.leave(now),
            State::Told(until) => seat.discard(now >= *until),
            State::Gone => Ok(()),
        };
        if let Err(ended) = served {
            let was_live = matches!(seat.state, State::Live);
            let why = seat.why(&ended);
            let is_wrong = matches!(ended, Ended::Wrong(_)) && seat.going_bytes == 0;
            match is_wrong {
                true => seat.state = State::Leaving(Message::new(farewell(&why))),
                false => seat.close(),
            }
            if was_live {
                self.end(why, FETCHED_WITHIN);
            }
        }
        // A head hears the reason once it has all results that are complete.
        let Some((why, until)) = &self.over else { return };
        let seat = &mut self.seats[index];
        let is_owed = !seat.welcome.is_sent() || seat.result(&self.table).is_some();
        match &seat.state {
            State::Live | State::Leaving(_) if now >= *until => seat.close(),
            State::Live if !is_owed => seat.state = State::Leaving(Message::new(farewell(why))),
            _ => {}
        }
    }
}

impl Message {
    fn new(bytes: Vec<u8>) -> Message {
        Message { bytes, sent: 0 }
    }

    fn is_sent(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Sends as much as goes; returns whether that is all.
    fn send(&mut self, stream: &TcpStream) -> io::Result<bool> {
        while !self.is_sent() {
            match sock::write_some(stream, &self.bytes[self.sent..])? {
                None => return Ok(false),
                Some(sent) => self.sent += sent,
            }
        }
        Ok(true)
    }
}

impl Seat {
    fn new(member: Member) -> Seat {
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
    fn result<'a>(&self, table: &'a Table) -> Option<&'a [u8]> {
        table.result(self.head(), self.going)
    }

    fn close(&mut self) {
        let _ = self.member.stream.shutdown(std::net::Shutdown::Both);
        self.state = State::Gone;
    }

    fn why(&self, ended: &Ended) -> String {
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
    fn awaits(&self, table: &Table) -> Option<PollFlags> {
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

    fn serve(&mut self, flags: PollFlags, table: &mut Table, is_over: bool) -> Result<(), Ended> {
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
        if !self.welcome.send(&self.member.stream)? {
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
                match unsafe { self.member.stream.write(&pieces) } {
                    Ok(sent) => self.going_bytes += sent,
                    Err(Errno::AGAIN) => return Ok(()),
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
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
                match sock::read_some(&self.member.stream, &mut self.header[self.header_bytes..due])? {
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
                match sock::read_some(&self.member.stream, room)? {
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
    fn leave(&mut self, now: Instant) -> Result<(), Ended> {
        let State::Leaving(message) = &mut self.state else { return Ok(()) };
        if message.send(&self.member.stream)? {
            self.member.stream.shutdown(std::net::Shutdown::Write)?;
            self.state = State::Told(now + CLOSED_WITHIN);
        }
        Ok(())
    }

    /// Reads what it sent meanwhile: closing a connection with unread bytes could take the reason from it.
    fn discard(&mut self, is_late: bool) -> Result<(), Ended> {
        let mut bytes = [0; DISCARD_BYTES];
        match sock::read_some(&self.member.stream, &mut bytes)? {
            Some(0) => Err(Ended::Left),
            _ if is_late => Err(Ended::Left),
            _ => Ok(()),
        }
    }
}
