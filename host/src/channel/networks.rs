//! Connections over a network: every listener's handle goes to the rank that connects to it, then all connect at once.

use super::connect::ConnectError;
use super::inbox::ConnKey;
use crate::bootstrap::Bootstrap;
use crate::net::{
    Connector, HANDLE_BYTES, Listener, Net, NetConfig, NetError, NetHandle, RecvComm, SendComm, Whereabouts,
    find, nearest,
};
use oxccl_shared::abi::Rank;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the messages with handles are for, among those of the bootstrap.
const HANDLES: u64 = u64::from_le_bytes(*b"OxHandle");
/// How long to rest between two looks at connections that are being made.
const REST: Duration = Duration::from_micros(200);

/// A connection's name and the rank at its other end.
pub(super) type Conn = (ConnKey, u32);

/// The connections that one rank makes over a network.
pub(super) struct Dialing<'a> {
    pub rank: u32,
    pub bootstrap: &'a Bootstrap,
    /// Outbound, and inbound, in the order in which both ends have them.
    pub to: &'a [Conn],
    pub from: &'a [Conn],
    /// Which device is this rank's follows from where it runs.
    pub place: Whereabouts,
    pub timeout: Duration,
}

/// Listeners, with the ranks that are to connect to them.
type Listeners = Vec<(u32, Box<dyn Listener>)>;

/// Communicators, in the order of the connections they are for.
pub(super) struct Dialed {
    pub to: Vec<Box<dyn SendComm>>,
    pub from: Vec<Box<dyn RecvComm>>,
}

impl Dialing<'_> {
    /// Connects all.
    pub fn connect(&self, config: &NetConfig) -> Result<Dialed, ConnectError> {
        let net = find(config).map_err(|source| self.error(None, source))?;
        // There is one: `find` gives no network without.
        let device = nearest(&*net, self.place).map_err(|source| self.error(None, source))?;
        let mut listeners = self.listen(&net, device)?;
        let handles = self.receive_handles()?;
        let mut connectors = Vec::new();
        for (&(_, peer), handle) in self.to.iter().zip(handles) {
            let made = net
                .connect(net.device_towards(&handle, device), &handle)
                .map_err(|source| self.error(Some(peer), source))?;
            connectors.push((peer, made));
        }
        self.poll(&mut connectors, &mut listeners)
    }

    /// Listens for every inbound connection and tells the ranks at their other ends where.
    fn listen(&self, net: &Arc<dyn Net>, device: u32) -> Result<Listeners, ConnectError> {
        let mut listeners = Vec::new();
        let mut handles = Vec::new();
        for &(_, peer) in self.from {
            let (handle, listener) = net.listen(device).map_err(|source| self.error(Some(peer), source))?;
            listeners.push((peer, listener));
            handles.push((peer, handle));
        }
        for peer in peers(self.from) {
            let of_peer = handles.iter().filter(|(to, _)| *to == peer);
            let message: Vec<u8> = of_peer.flat_map(|(_, NetHandle(bytes))| *bytes).collect();
            self.bootstrap.send(Rank(peer), HANDLES, &message)?;
        }
        Ok(listeners)
    }

    /// The handles of the outbound connections, in their order.
    fn receive_handles(&self) -> Result<Vec<NetHandle>, ConnectError> {
        let mut handles = vec![NetHandle([0; HANDLE_BYTES]); self.to.len()];
        for peer in peers(self.to) {
            let message = self.bootstrap.recv(Rank(peer), HANDLES)?;
            let (found, rest) = message.as_chunks::<HANDLE_BYTES>();
            let mut places: Vec<&mut NetHandle> = self
                .to
                .iter()
                .zip(&mut handles)
                .filter(|((_, to), _)| *to == peer)
                .map(|(_, at)| at)
                .collect();
            if !rest.is_empty() || found.len() != places.len() {
                return Err(ConnectError::Malformed { peer });
            }
            places.iter_mut().zip(found).for_each(|(place, bytes)| **place = NetHandle(*bytes));
        }
        Ok(handles)
    }

    fn poll(
        &self,
        connectors: &mut [(u32, Box<dyn Connector>)],
        listeners: &mut Listeners,
    ) -> Result<Dialed, ConnectError> {
        let begin = Instant::now();
        let mut to: Vec<Option<Box<dyn SendComm>>> = connectors.iter().map(|_| None).collect();
        let mut from: Vec<Option<Box<dyn RecvComm>>> = listeners.iter().map(|_| None).collect();
        loop {
            for ((peer, connector), comm) in
                connectors.iter_mut().zip(&mut to).filter(|(_, comm)| comm.is_none())
            {
                *comm = connector.poll_connect().map_err(|source| self.error(Some(*peer), source))?;
            }
            for ((peer, listener), comm) in
                listeners.iter_mut().zip(&mut from).filter(|(_, comm)| comm.is_none())
            {
                *comm = listener.poll_accept().map_err(|source| self.error(Some(*peer), source))?;
            }
            if to.iter().all(Option::is_some) && from.iter().all(Option::is_some) {
                return Ok(Dialed {
                    to: to.into_iter().flatten().collect(),
                    from: from.into_iter().flatten().collect(),
                });
            }
            // A rank that died does not come.
            self.bootstrap.check_whole()?;
            if begin.elapsed() > self.timeout {
                let missing = from.iter().position(Option::is_none).map(|at| listeners[at].0);
                let reason = format!("it did not connect within {:?}", self.timeout);
                return Err(self.error(missing, NetError::of_call("network", "accept", reason)));
            }
            std::thread::sleep(REST);
        }
    }

    fn error(&self, peer: Option<u32>, source: NetError) -> ConnectError {
        ConnectError::Net { rank: self.rank, peer, source: Box::new(source) }
    }
}

/// The ranks of some connections, each once, in order.
fn peers(conns: &[Conn]) -> Vec<u32> {
    let mut peers: Vec<u32> = conns.iter().map(|(_, peer)| *peer).collect();
    peers.sort_unstable();
    peers.dedup();
    peers
}
