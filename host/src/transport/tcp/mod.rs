//! Layer: host / transport / tcp.
//! Takes: two ranks that the bootstrap connects.
//! Gives: the socket network's communicator over one authenticated TCP stream for each connection.
//! Never: knows what travels.

use crate::net::socket::{receiver_over, sender_over};
use crate::transport::contract::{Asked, Memory, Transport, TransportError, Wires, sealed::Sealed};
use crate::transport::kind::{Allowed, TransportKind};
use crate::transport::layout::stream_layout;
use crate::transport::peer::PeerInfo;
use oxccl_shared::abi::ConnLayout;

/// What the streams of connections are for, as the bootstrap's handshake says it.
const PURPOSE: u32 = 1;

/// Streams.
pub struct Tcp;

impl Sealed for Tcp {}

impl Transport for Tcp {
    fn kind(&self) -> TransportKind {
        TransportKind::Tcp
    }

    fn connects(&self, allowed: &Allowed, _: &PeerInfo, _: &PeerInfo) -> bool {
        allowed.tcp
    }

    fn memory(&self) -> Memory {
        Memory::Halves
    }

    fn layout(&self, memory: ConnLayout) -> ConnLayout {
        stream_layout(memory)
    }

    fn connect(&self, asked: &Asked<'_>) -> Result<Wires, TransportError> {
        let Asked { bootstrap, to, from, .. } = asked;
        let refused = |peer| move |source| TransportError::of_net(Some(peer), source);
        let to = to.iter().map(|conn| {
            let stream = bootstrap.connect_stream(conn.peer, PURPOSE, conn.tag)?;
            sender_over(stream).map_err(refused(conn.peer))
        });
        let to = to.collect::<Result<_, TransportError>>()?;
        let from = from.iter().map(|conn| {
            let stream = bootstrap.accept_stream(conn.peer, PURPOSE, conn.tag)?;
            receiver_over(stream).map_err(refused(conn.peer))
        });
        Ok(Wires::Comms { to, from: from.collect::<Result<_, TransportError>>()? })
    }
}
