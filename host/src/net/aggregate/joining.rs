//! A connection that has proved the secret, until it has named its job.

use super::frame::{Header, JOIN_BYTES, Join, Kind};
use super::meeting::Meeting;
use super::wire::{Carrier, Wire};
use crate::bootstrap::channel::DataStream;
use crate::net::{HANDLE_BYTES, Net, NetHandle};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest first message: of a head whose data go over a network, with its handle.
const FIRST_MAX: usize = JOIN_BYTES + HANDLE_BYTES;

/// The connection.
#[derive(Debug)]
pub struct Joining {
    /// Its bytes.
    pub wire: Wire,
    /// Where it comes from.
    pub remote: SocketAddr,
    carrier: Carrier,
    first: [u8; FIRST_MAX],
    got: usize,
    deadline: Instant,
    /// While its network connects.
    meeting: Option<(Join, Meeting)>,
}

impl Joining {
    /// Of a head that carries its data so, has until then, and counts as gone after a silence of so long.
    pub fn new(
        stream: DataStream,
        remote: SocketAddr,
        carrier: Carrier,
        deadline: Instant,
        dead_after: Duration,
    ) -> Joining {
        let wire = Wire::new(stream, carrier, dead_after);
        Joining { wire, remote, carrier, first: [0; FIRST_MAX], got: 0, deadline, meeting: None }
    }

    /// Whether a network connects, which poll(2) does not know.
    pub fn is_meeting(&self) -> bool {
        self.meeting.is_some()
    }

    /// What the head joins, once it has said so and its data can go; an error is why it is refused.
    pub fn advance(&mut self, net: Option<&Arc<dyn Net>>, now: Instant) -> Result<Option<Join>, String> {
        let step = match self.meeting {
            None => self.read(net)?,
            Some(_) => self.meet()?,
        };
        match step {
            None if now >= self.deadline => Err("it did not name its job in time".to_owned()),
            step => Ok(step),
        }
    }

    fn read(&mut self, net: Option<&Arc<dyn Net>>) -> Result<Option<Join>, String> {
        let is_networked = self.carrier == Carrier::Network;
        let due = if is_networked { FIRST_MAX } else { JOIN_BYTES };
        while self.got < due {
            match self.wire.read_some(&mut self.first[self.got..due]) {
                Ok(None) => return Ok(None),
                Ok(Some(0)) => return Err("it left before it named its job".to_owned()),
                Ok(Some(got)) => self.got += got,
                Err(error) => return Err(crate::os::describe(&error)),
            }
        }
        let (join, handle) = self.first.split_at(JOIN_BYTES);
        let join = join.first_chunk().map(Join::from_bytes).transpose();
        let join = join.map_err(|bad| format!("{} sent {bad}", self.remote))?;
        let (Some(join), Some(theirs)) = (join, handle.first_chunk().copied().map(NetHandle)) else {
            return Ok(None);
        };
        if !is_networked {
            return Ok(Some(join));
        }
        let net = net
            .ok_or("this aggregator serves TCP alone: start it with --net, or unset OXCCL_AGGREGATOR_NET")?;
        self.answer(net, join, &theirs)?;
        Ok(None)
    }

    /// Listens on a device of the network, of which heads take turns, and connects to the head.
    fn answer(&mut self, net: &Arc<dyn Net>, join: Join, theirs: &NetHandle) -> Result<(), String> {
        let said = |error: crate::net::NetError| error.to_string();
        let (ours, mut meeting) =
            Meeting::listen(net, join.head.index % net.devices().max(1)).map_err(said)?;
        let header = Header { kind: Kind::Handle, len_bytes: HANDLE_BYTES as u32, seq: 0 };
        let answer = [&header.to_bytes()[..header.kind.header_bytes()], &ours.0].concat();
        // The send buffer of a new connection has room for it.
        match self.wire.write_some(&answer) {
            Ok(Some(sent)) if sent == answer.len() => {}
            _ => return Err("it takes no answer".to_owned()),
        }
        meeting.connect(theirs).map_err(said)?;
        self.meeting = Some((join, meeting));
        Ok(())
    }

    fn meet(&mut self) -> Result<Option<Join>, String> {
        let Some((join, meeting)) = &mut self.meeting else { return Ok(None) };
        match self.wire.read_some(&mut [0]) {
            Ok(None) => {}
            Ok(Some(0)) => return Err("it left while its network connected".to_owned()),
            Ok(Some(_)) => return Err("it sent data while its network connected".to_owned()),
            Err(error) => return Err(crate::os::describe(&error)),
        }
        let Some(messages) = meeting.poll().map_err(|error| error.to_string())? else { return Ok(None) };
        let join = *join;
        self.wire.go_on_by(messages);
        self.meeting = None;
        Ok(Some(join))
    }
}
