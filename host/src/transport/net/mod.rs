//! Layer: host / transport / net.
//! Takes: ranks, wherever they are, and the network that the user names or that the host has.
//! Gives: a communicator of that network for each connection.
//! Never: moves data (`proxy` does).

mod dialing;
mod opening;

use crate::net::{find, nearest};
use crate::transport::contract::{
    Asked, Memory, OpenBy, Opener, Transport, TransportError, Wires, sealed::Sealed,
};
use crate::transport::kind::{Allowed, TransportKind};
use crate::transport::layout::stream_layout;
use crate::transport::peer::PeerInfo;
pub(crate) use dialing::{Dialed, Dialing};
pub(crate) use opening::{DeviceOf, Handles};
use oxccl_shared::abi::{ConnLayout, Rank};
use std::sync::Arc;

/// A network.
pub struct Net;

impl Sealed for Net {}

impl Transport for Net {
    fn kind(&self) -> TransportKind {
        TransportKind::Net
    }

    fn connects(&self, allowed: &Allowed, _: &PeerInfo, _: &PeerInfo) -> bool {
        allowed.net
    }

    fn memory(&self) -> Memory {
        Memory::Halves
    }

    fn layout(&self, memory: ConnLayout) -> ConnLayout {
        stream_layout(memory)
    }

    fn connect(&self, asked: &Asked<'_>) -> Result<Wires, TransportError> {
        let &Asked { bootstrap, to, from, timeout, .. } = asked;
        let refused = |source| TransportError::of_net(None, source);
        let net = &find(asked.net).map_err(refused)?;
        // There is one: `find` gives no network without.
        let device =
            nearest(net.devices(), |device| net.properties(device), &asked.place).map_err(refused)?;
        let peers =
            |conns: &[crate::transport::Asking]| conns.iter().map(|conn| conn.peer).collect::<Vec<Rank>>();
        let (to, from) = (&peers(to)[..], &peers(from)[..]);
        let device = &|_, _| device;
        let dialed = Dialing { bootstrap, net, device, to, from, timeout }.connect()?;
        Ok(Wires::Comms { to: dialed.to, from: dialed.from })
    }
    fn opener(&self, by: OpenBy<'_>) -> Result<Option<Box<dyn Opener>>, TransportError> {
        let refused = |source| TransportError::of_net(None, source);
        let net = find(by.net).map_err(refused)?;
        let device = nearest(net.devices(), |device| net.properties(device), &by.place).map_err(refused)?;
        Ok(Some(Box::new(Handles { reach: by.reach, net, device: Arc::new(move |_, _| device) })))
    }
}
