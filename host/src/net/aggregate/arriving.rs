//! A head's connection to a server until the server has welcomed it.

use super::frame::{Header, JOIN_BYTES, JobId, Join, Kind};
use super::input::{Ended, Input, read};
use super::link::Link;
use super::meeting::Meeting;
use super::wire::{Carrier, Wire};
use crate::bootstrap::handshake::{Hello, ROOT};
use crate::bootstrap::secret::Secret;
use crate::net::coll::Head;
use crate::net::dial::Dial;
use crate::net::invitation::Invitation;
use crate::net::{HANDLE_BYTES, NetHandle};
use oxccl_shared::abi::Rank;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// The connection.
pub struct Arriving {
    addr: SocketAddr,
    head: u32,
    carrier: Carrier,
    state: State,
    /// What the head sends first.
    join: Vec<u8>,
    sent: usize,
    input: Input,
    /// The server's handle, as far as it has come.
    handle: [u8; HANDLE_BYTES],
    handle_bytes: usize,
    /// Over a network, its part of the two connections.
    meeting: Option<Meeting>,
    /// When a silent server counts as gone.
    dead_after: Duration,
}

enum State {
    Dialling(Box<Dial>),
    Joining(Wire),
    /// The network connects.
    Meeting(Wire),
    /// The server has welcomed the head.
    Welcome(Wire),
    Over,
}

/// How far a step went.
enum Step {
    Waits(State),
    Goes(State),
}

impl Arriving {
    /// Starts to connect. With a meeting, and the handle that the server needs for it, data go over a network.
    pub fn new(
        addr: SocketAddr,
        token: Secret,
        (job, head): (JobId, Head),
        carrier: Carrier,
        meeting: Option<(NetHandle, Meeting)>,
        dead_after: Duration,
    ) -> io::Result<Arriving> {
        let hello = Hello { purpose: carrier.purpose(), from: Rank(head.index), to: ROOT, tag: 0 };
        let dial = Box::new(Dial::new(&Invitation { addr, token }, None, hello, dead_after)?);
        let mut join = Vec::with_capacity(JOIN_BYTES + HANDLE_BYTES);
        join.extend(Join { job, head }.to_bytes());
        let (handle, meeting) = meeting.unzip();
        join.extend(handle.iter().flat_map(|handle| handle.0));
        Ok(Arriving {
            addr,
            head: head.index,
            carrier,
            state: State::Dialling(dial),
            join,
            sent: 0,
            input: Input::new(),
            handle: [0; HANDLE_BYTES],
            handle_bytes: 0,
            meeting,
            dead_after,
        })
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
        loop {
            let step = match std::mem::replace(&mut self.state, State::Over) {
                State::Dialling(dial) => self.dial(dial),
                State::Joining(wire) => self.join(wire),
                State::Meeting(wire) => self.meet(wire),
                state => Ok(Step::Waits(state)),
            };
            match step? {
                Step::Goes(state) => self.state = state,
                Step::Waits(state) => {
                    self.state = state;
                    return Ok(matches!(self.state, State::Welcome(_)));
                }
            }
        }
    }

    fn dial(&mut self, mut dial: Box<Dial>) -> Result<Step, String> {
        if !dial.advance().map_err(|error| unreachable(&error))? {
            return Ok(Step::Waits(State::Dialling(dial)));
        }
        let stream = dial.into_data_stream().map_err(|error| unreachable(&error))?;
        Ok(Step::Goes(State::Joining(Wire::new(stream, self.carrier, self.dead_after))))
    }

    /// Sends what is due, and reads the server's answer.
    fn join(&mut self, mut wire: Wire) -> Result<Step, String> {
        while self.sent < self.join.len() {
            match wire.write_some(&self.join[self.sent..]).map_err(|error| crate::os::describe(&error))? {
                None => return Ok(Step::Waits(State::Joining(wire))),
                Some(n) => self.sent += n,
            }
        }
        let said = |ended: Ended| ended.to_string();
        match self.input.header(&mut wire).map_err(said)? {
            None => Ok(Step::Waits(State::Joining(wire))),
            Some(Header { kind: Kind::Welcome, .. }) if self.meeting.is_none() => {
                Ok(Step::Goes(State::Welcome(wire)))
            }
            Some(Header { kind: Kind::Handle, .. }) if self.meeting.is_some() => {
                while self.handle_bytes < HANDLE_BYTES {
                    match read(&mut wire, &mut self.handle[self.handle_bytes..]).map_err(said)? {
                        None => return Ok(Step::Waits(State::Joining(wire))),
                        Some(got) => self.handle_bytes += got,
                    }
                }
                self.input.next();
                let theirs = NetHandle(self.handle);
                let connecting = self.meeting.as_mut().map_or(Ok(()), |meeting| meeting.connect(&theirs));
                connecting.map_err(|error| error.to_string())?;
                Ok(Step::Goes(State::Meeting(wire)))
            }
            Some(other) => Err(format!("it sent {other} where a welcome was due")),
        }
    }

    fn meet(&mut self, mut wire: Wire) -> Result<Step, String> {
        let Some(meeting) = &mut self.meeting else { return Err("there is no network".to_owned()) };
        // A server that gives up says why over the socket.
        if let Some(other) = self.input.header(&mut wire).map_err(|ended| ended.to_string())? {
            return Err(format!("it sent {other} while the network connects"));
        }
        match meeting.poll().map_err(|error| error.to_string())? {
            None => Ok(Step::Waits(State::Meeting(wire))),
            Some(messages) => {
                wire.go_on_by(messages);
                self.meeting = None;
                Ok(Step::Goes(State::Joining(wire)))
            }
        }
    }

    /// The connection, once it is welcome.
    pub fn into_link(self) -> Option<Link> {
        let State::Welcome(wire) = self.state else { return None };
        Some(Link::new(wire, self.head, self.addr.to_string()))
    }
}

fn unreachable(error: &io::Error) -> String {
    let said = crate::os::describe(error);
    match error.kind() {
        io::ErrorKind::ConnectionRefused => format!("{said}: does `oxccl aggregate` run there?"),
        _ => said,
    }
}
