//! Sets up connections over a network: every listener's handle goes to the rank that connects to it, then all connect
//! at once.

use crate::bootstrap::Bootstrap;
use crate::net::{Connector, HANDLE_BYTES, Listener, Net, NetError, NetHandle, RecvComm, SendComm};
use crate::transport::TransportError;
use oxccl_shared::abi::Rank;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tag of bootstrap messages with handles.
const HANDLES: u64 = u64::from_le_bytes(*b"OxHandle");
/// Pause between two polls of connections being set up.
const REST: Duration = Duration::from_micros(200);

/// The connections that one rank sets up over a network.
pub(crate) struct Dialing<'a> {
    pub bootstrap: &'a Bootstrap,
    pub net: &'a Arc<dyn Net>,
    /// This rank's device of it for each connection: whether it is outbound, and which.
    pub device: &'a dyn Fn(bool, usize) -> u32,
    /// The peers of outbound connections, and of inbound ones, in the order of both ends.
    pub to: &'a [Rank],
    pub from: &'a [Rank],
    pub timeout: Duration,
}

/// Listeners, with the ranks that are to connect to them.
type Listeners = Vec<(Rank, Box<dyn Listener>)>;

/// Communicators, in the order of their connections.
pub(crate) struct Dialed {
    pub to: Vec<Box<dyn SendComm>>,
    pub from: Vec<Box<dyn RecvComm>>,
}

impl Dialing<'_> {
    /// Connects all.
    pub fn connect(&self) -> Result<Dialed, TransportError> {
        let mut listeners = self.listen()?;
        let handles = self.receive_handles()?;
        let mut connectors = Vec::new();
        for (at, (&peer, handle)) in self.to.iter().zip(handles).enumerate() {
            let device = self.net.device_towards(&handle, (self.device)(true, at));
            let made = self.net.connect(device, &handle);
            let made = made.map_err(|source| self.error(Some(peer), source))?;
            connectors.push((peer, made));
        }
        self.poll(&mut connectors, &mut listeners)
    }

    /// Listens for every inbound connection and sends its handle to the peer.
    fn listen(&self) -> Result<Listeners, TransportError> {
        let mut listeners = Vec::new();
        let mut handles = Vec::new();
        for (at, &peer) in self.from.iter().enumerate() {
            let listening = self.net.listen((self.device)(false, at));
            let (handle, listener) = listening.map_err(|source| self.error(Some(peer), source))?;
            listeners.push((peer, listener));
            handles.push((peer, handle));
        }
        for peer in peers(self.from) {
            let of_peer = handles.iter().filter(|(to, _)| *to == peer);
            let message: Vec<u8> = of_peer.flat_map(|(_, NetHandle(bytes))| *bytes).collect();
            self.bootstrap.send(peer, HANDLES, &message)?;
        }
        Ok(listeners)
    }

    /// The handles of the outbound connections, in their order.
    fn receive_handles(&self) -> Result<Vec<NetHandle>, TransportError> {
        let mut handles = vec![NetHandle([0; HANDLE_BYTES]); self.to.len()];
        for peer in peers(self.to) {
            let message = self.bootstrap.recv(peer, HANDLES)?;
            let (found, rest) = message.as_chunks::<HANDLE_BYTES>();
            let mut places: Vec<&mut NetHandle> =
                self.to.iter().zip(&mut handles).filter(|(to, _)| **to == peer).map(|(_, at)| at).collect();
            if !rest.is_empty() || found.len() != places.len() {
                return Err(TransportError::Malformed { peer });
            }
            places.iter_mut().zip(found).for_each(|(place, bytes)| **place = NetHandle(*bytes));
        }
        Ok(handles)
    }

    fn poll(
        &self,
        connectors: &mut [(Rank, Box<dyn Connector>)],
        listeners: &mut Listeners,
    ) -> Result<Dialed, TransportError> {
        let begin = Instant::now();
        let mut to: Vec<Option<Box<dyn SendComm>>> = connectors.iter().map(|_| None).collect();
        let mut from: Vec<Option<Box<dyn RecvComm>>> = listeners.iter().map(|_| None).collect();
        loop {
            for ((peer, connector), comm) in
                connectors.iter_mut().zip(&mut to).filter(|(_, comm)| comm.is_none())
            {
                *comm = connector.poll_connect().map_err(|source| self.known_better(*peer, source))?;
            }
            for ((peer, listener), comm) in
                listeners.iter_mut().zip(&mut from).filter(|(_, comm)| comm.is_none())
            {
                *comm = listener.poll_accept().map_err(|source| self.known_better(*peer, source))?;
            }
            if to.iter().all(Option::is_some) && from.iter().all(Option::is_some) {
                let (to, from) = (to.into_iter().flatten().collect(), from.into_iter().flatten().collect());
                return Ok(self.count(Dialed { to, from }));
            }
            // A dead rank does not connect.
            self.bootstrap.check_whole()?;
            if begin.elapsed() > self.timeout {
                let missing = from.iter().position(Option::is_none).map(|at| listeners[at].0);
                let reason = format!("it did not connect within {:?}", self.timeout);
                return Err(self.error(missing, NetError::of_call("network", "accept", reason)));
            }
            std::thread::sleep(REST);
        }
    }

    /// Counts what they send from now on.
    fn count(&self, dialed: Dialed) -> Dialed {
        let links = self.bootstrap.links();
        self.to.iter().zip(&dialed.to).for_each(|(peer, comm)| links.add_all(*peer, &comm.streams()));
        dialed
    }

    /// A connection with `peer` failed. Prefer the reason of a rank that gave up; other ranks that wait for it may
    /// have given up because of it.
    fn known_better(&self, peer: Rank, source: NetError) -> TransportError {
        match self.bootstrap.why_broken() {
            Some(error) => error.into(),
            None => self.error(Some(peer), source),
        }
    }

    fn error(&self, peer: Option<Rank>, source: NetError) -> TransportError {
        TransportError::of_net(peer, source)
    }
}

/// The ranks of some connections, each once, in order.
fn peers(conns: &[Rank]) -> Vec<Rank> {
    let mut peers = conns.to_vec();
    peers.sort_unstable();
    peers.dedup();
    peers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::{BootstrapConfig, BootstrapError, UniqueId};
    use crate::net::NetProperties;
    use crate::net::loopback::Loopback;
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A network whose listeners fail as soon as the expected rank is dead.
    #[derive(Debug)]
    struct Abandoned {
        inner: Loopback,
        died: Mutex<Option<Receiver<()>>>,
    }

    struct AbandonedListener(Receiver<()>);

    impl Net for Abandoned {
        fn name(&self) -> &str {
            self.inner.name()
        }
        fn devices(&self) -> u32 {
            self.inner.devices()
        }
        fn properties(&self, device: u32) -> Result<NetProperties, NetError> {
            self.inner.properties(device)
        }
        fn listen(&self, device: u32) -> Result<(NetHandle, Box<dyn Listener>), NetError> {
            let died = self.died.lock().unwrap().take().expect("one listener");
            Ok((self.inner.listen(device)?.0, Box::new(AbandonedListener(died))))
        }
        fn connect(&self, device: u32, handle: &NetHandle) -> Result<Box<dyn Connector>, NetError> {
            self.inner.connect(device, handle)
        }
    }

    impl Listener for AbandonedListener {
        fn poll_accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError> {
            self.0.recv_timeout(PATIENCE).expect("the other rank dies");
            Err(NetError::of_call("network", "accept", "nobody there".to_owned()))
        }
    }

    fn is_abandoned(bootstrap: Bootstrap, died: Receiver<()>) -> TransportError {
        let net: Arc<dyn Net> = Arc::new(Abandoned { inner: Loopback::new(1), died: Mutex::new(Some(died)) });
        let (to, from) = (&[], &[Rank(1)]);
        let device = &|_, _| 0;
        let dialing = Dialing { bootstrap: &bootstrap, net: &net, device, to, from, timeout: PATIENCE };
        dialing.connect().err().expect("nobody connects")
    }

    fn dies(bootstrap: Bootstrap, dead: &Sender<()>) {
        bootstrap.recv(Rank(0), HANDLES).expect("the handle");
        bootstrap.die();
        dead.send(()).expect("the other rank waits for that");
    }

    #[test]
    fn an_accept_that_fails_for_the_death_of_a_rank_names_that_rank() {
        let bind_addr = Some("127.0.0.1".parse().expect("an address"));
        let config = BootstrapConfig { timeout: PATIENCE, bind_addr, ..BootstrapConfig::default() };
        let id = UniqueId::create_by(&config).expect("a root");
        let join = |rank| Bootstrap::connect(&id, Rank(rank), 2, &config).expect("both come");
        let (dead, died) = channel();
        let error = std::thread::scope(|scope| {
            scope.spawn(|| dies(join(1), &dead));
            is_abandoned(join(0), died)
        });
        assert_eq!(error, TransportError::Bootstrap(BootstrapError::PeerLost { rank: Rank(1) }));
    }
}
