//! Connections over a network as operations need them: who receives listens and sends the handle, on a thread beside the operation; who
//! sends connects when the handle has come.

use crate::bootstrap::Reach;
use crate::net::{Connector, HANDLE_BYTES, Listener, Net, NetError, NetHandle, RecvComm, SendComm};
use crate::transport::TransportError;
use crate::transport::background::Background;
use crate::transport::contract::{Asking, Opener, Opening, Openings};
use std::sync::Arc;

/// Tag of bootstrap messages with one handle each; a connection's own follows in the low bits.
const HANDLE: u64 = u64::from_le_bytes(*b"\0\0\0\0OxHn");

/// This rank's device of a network for a connection, given whether it is outbound.
pub(crate) type DeviceOf = Arc<dyn Fn(&Asking, bool) -> u32 + Send + Sync>;

/// A network's listeners and connectors.
pub(crate) struct Handles {
    pub reach: Reach,
    pub net: Arc<dyn Net>,
    /// This rank's device of it.
    pub device: DeviceOf,
}

fn message_tag(conn: &Asking) -> u64 {
    HANDLE ^ conn.tag
}

impl Opener for Handles {
    fn open(&self, to: &[Asking], from: &[Asking]) -> Result<Openings, TransportError> {
        let (reach, net, device) = (self.reach.clone(), self.net.clone(), self.device.clone());
        let listeners = Background::start(from.to_vec(), move |conn: &Asking| {
            let refused = |source| TransportError::of_net(Some(conn.peer), source);
            let (NetHandle(handle), listener) = net.listen(device(conn, false)).map_err(refused)?;
            reach.send(conn.peer, message_tag(conn), &handle)?;
            Ok(listener)
        })?;
        let from = from.iter().zip(listeners).map(|(conn, listener)| accepting(*conn, listener));
        let to = to.iter().map(|conn| self.connecting(*conn));
        Ok(Openings { to: to.collect(), from: from.collect() })
    }
}

/// The receiving end: accepts once it listens.
fn accepting(conn: Asking, mut listens: Opening<Box<dyn Listener>>) -> Opening<Box<dyn RecvComm>> {
    let mut listener: Option<Box<dyn Listener>> = None;
    Box::new(move || {
        if listener.is_none() {
            listener = listens()?;
        }
        let Some(listener) = &mut listener else { return Ok(None) };
        listener.poll_accept().map_err(|source| TransportError::of_net(Some(conn.peer), source))
    })
}

impl Handles {
    /// The sending end: connects once it has the handle.
    fn connecting(&self, conn: Asking) -> Opening<Box<dyn SendComm>> {
        let (reach, net, preferred) = (self.reach.clone(), self.net.clone(), (self.device)(&conn, true));
        let mut connector: Option<Box<dyn Connector>> = None;
        let refused = move |source: NetError| TransportError::of_net(Some(conn.peer), source);
        Box::new(move || {
            if connector.is_none() {
                let Some(message) = reach.poll_message(conn.peer, message_tag(&conn))? else {
                    return Ok(None);
                };
                let bytes: [u8; HANDLE_BYTES] =
                    message.try_into().map_err(|_| TransportError::Malformed { peer: conn.peer })?;
                let handle = NetHandle(bytes);
                let device = net.device_towards(&handle, preferred);
                connector = Some(net.connect(device, &handle).map_err(refused)?);
            }
            let Some(connector) = &mut connector else { return Ok(None) };
            let comm = connector.poll_connect().map_err(refused)?;
            comm.iter().for_each(|comm| reach.links().add_all(conn.peer, &comm.streams()));
            Ok(comm)
        })
    }
}
