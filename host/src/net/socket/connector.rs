//! The connecting side of a connection.

use super::config::{DATA_SOCKETS_MAX, SocketConfig};
use super::devices::Device;
use super::over::sender;
use super::purpose::SocketIndex;
use crate::bootstrap::iface::Interface;
use crate::net::dial::Dial;
use crate::net::invitation::Invitation;
use crate::net::message::Ends;
use crate::net::outcome::Outcome;
use crate::net::{Connector, NetError, SendComm};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A connection during setup: its sockets connect and authenticate.
pub(super) struct SocketConnector {
    device: String,
    peer: SocketAddr,
    timeout: Duration,
    deadline: Instant,
    dials: Vec<Dial>,
    encrypt: bool,
    outcome: Outcome,
}

impl SocketConnector {
    pub(super) fn new(
        device: &Device,
        invitation: &Invitation,
        config: &SocketConfig,
    ) -> Result<SocketConnector, NetError> {
        let Interface { name, addr: source, .. } = &device.interface;
        let connection =
            getrandom::u64().map_err(|error| NetError::of_call(name, "getrandom", error.to_string()))?;
        let total = 1 + config.data_sockets.min(DATA_SOCKETS_MAX);
        let dial = |index| {
            let hello = SocketIndex { index, total, connection }.hello();
            Dial::new(invitation, Some(*source), hello, config.peer_dead_after)
        };
        let dials = (0..total)
            .map(dial)
            .collect::<io::Result<Vec<Dial>>>()
            .map_err(|error| NetError::of_io(name, Some(invitation.addr.to_string()), "connect", &error))?;
        Ok(SocketConnector {
            device: name.clone(),
            peer: invitation.addr,
            timeout: config.connect_timeout,
            deadline: Instant::now() + config.connect_timeout,
            dials,
            encrypt: config.encrypt,
            outcome: Outcome::default(),
        })
    }

    fn advance(&mut self) -> Result<bool, NetError> {
        let mut is_ready = true;
        for dial in &mut self.dials {
            let advanced = dial.advance();
            is_ready &=
                advanced.map_err(|error| failed(&self.device, self.peer, crate::os::describe(&error)))?;
        }
        if !is_ready && Instant::now() >= self.deadline {
            return Err(failed(&self.device, self.peer, format!("no answer within {:?}", self.timeout)));
        }
        Ok(is_ready)
    }

    /// The connection, once all its sockets are authenticated.
    fn finish(&mut self) -> Result<Box<dyn SendComm>, NetError> {
        let ends = Ends { device: self.device.clone(), peer: self.peer.to_string() };
        let streams = self.dials.drain(..).map(Dial::into_data_stream).collect::<io::Result<_>>();
        let streams =
            streams.map_err(|error| failed(&self.device, self.peer, crate::os::describe(&error)))?;
        Ok(sender(ends, streams, self.encrypt))
    }
}

fn failed(device: &str, peer: SocketAddr, reason: String) -> NetError {
    NetError::Call { device: device.to_owned(), peer: Some(peer.to_string()), call: "connect", reason }
}

impl Connector for SocketConnector {
    fn poll_connect(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError> {
        self.outcome.check_open()?;
        let step = self.advance();
        let settled = self.outcome.settle(step, &self.device, "poll_connect");
        if !settled.inspect_err(|_| self.dials.clear())? {
            return Ok(None);
        }
        self.finish().map(Some)
    }
}
