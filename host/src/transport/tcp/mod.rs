//! Layer: host / transport / tcp.
//! Takes: two ranks that the bootstrap connects.
//! Gives: the socket network's communicator over one authenticated TCP stream for each connection, encrypted if the user wants it.
//! Never: knows what travels.

use crate::bootstrap::Reach;
use crate::net::RecvComm;
use crate::net::socket::{receiver_over, sender_over};
use crate::transport::background::Background;
use crate::transport::contract::{
    Asked, Asking, Memory, OpenBy, Opener, Opening, Openings, Transport, TransportError, Wires,
    sealed::Sealed,
};
use crate::transport::kind::{Allowed, TransportKind};
use crate::transport::layout::stream_layout;
use crate::transport::peer::PeerInfo;
use oxccl_shared::abi::ConnLayout;

/// What the streams of connections are for, as the bootstrap's handshake says it: data in the clear, encrypted data.
const PURPOSE: u32 = 1;
const SEALED_PURPOSE: u32 = 2;

fn purpose(encrypt: bool) -> u32 {
    if encrypt { SEALED_PURPOSE } else { PURPOSE }
}

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
        let Asked { bootstrap, to, from, net, .. } = asked;
        let encrypt = net.socket.encrypt;
        let purpose = purpose(encrypt);
        let refused = |peer| move |source| TransportError::of_net(Some(peer), source);
        let to = to.iter().map(|conn| {
            let stream = bootstrap.connect_stream(conn.peer, purpose, conn.tag)?;
            let sender = sender_over(stream, encrypt).map_err(refused(conn.peer))?;
            bootstrap.links().add_all(conn.peer, &sender.streams());
            Ok(sender)
        });
        let to = to.collect::<Result<_, TransportError>>()?;
        let from = from.iter().map(|conn| {
            let stream = bootstrap.accept_stream(conn.peer, purpose, conn.tag)?;
            receiver_over(stream, encrypt).map_err(refused(conn.peer))
        });
        Ok(Wires::Comms { to, from: from.collect::<Result<_, TransportError>>()? })
    }

    fn opener(&self, by: OpenBy<'_>) -> Result<Option<Box<dyn Opener>>, TransportError> {
        Ok(Some(Box::new(Streams { encrypt: by.net.socket.encrypt, reach: by.reach })))
    }
}

/// Streams as operations need them: who sends connects, on a thread beside the operation; the other rank's bootstrap keeps the stream
/// until that rank comes to need it.
struct Streams {
    reach: Reach,
    encrypt: bool,
}

impl Opener for Streams {
    fn open(&self, to: &[Asking], from: &[Asking]) -> Result<Openings, TransportError> {
        let (reach, encrypt) = (self.reach.clone(), self.encrypt);
        let purpose = purpose(encrypt);
        let to = Background::start(to.to_vec(), move |conn: &Asking| {
            let stream = reach.connect_stream(conn.peer, purpose, conn.tag)?;
            let sender = sender_over(stream, encrypt)
                .map_err(|source| TransportError::of_net(Some(conn.peer), source))?;
            reach.links().add_all(conn.peer, &sender.streams());
            Ok(sender)
        })?;
        let from = from.iter().map(|conn| -> Opening<Box<dyn RecvComm>> {
            let (reach, Asking { tag, peer }) = (self.reach.clone(), *conn);
            Box::new(move || {
                let stream = reach.poll_stream(peer, purpose, tag)?;
                let made = stream.map(|stream| receiver_over(stream, encrypt)).transpose();
                made.map_err(|source| TransportError::of_net(Some(peer), source))
            })
        });
        Ok(Openings { to, from: from.collect() })
    }
}
