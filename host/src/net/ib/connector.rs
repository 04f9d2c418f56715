//! The connecting side of a connection's setup, which becomes the sender.
//!
//! ```text
//! connector                             listener
//!   handshake over the token       <->
//!   metadata: queue pairs, table   ->
//!                                  <-   metadata: queue pairs, connected
//!   connects its queue pairs
//!   READY                          ->
//! ```

use super::cts::CtsTable;
use super::link::{Link, QueuePairs};
use super::metadata::{METADATA_BYTES, Metadata, READY};
use super::metadata_exchange::MetadataExchange;
use super::port::Port;
use super::send::{IbSender, SplitPolicy};
use super::setup::{Settings, hello};
use super::verbs::Region;
use crate::net::dial::Dial;
use crate::net::invitation::Invitation;
use crate::net::{Connector, NetError, SendComm};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// A connection during its setup.
pub(super) struct IbConnector {
    port: Arc<Port>,
    settings: Settings,
    addr: SocketAddr,
    psn: u32,
    deadline: Instant,
    state: State,
}

enum State {
    Dialing(Box<Dial>),
    /// Sends our metadata and awaits the peer's.
    Exchanging(MetadataExchange, Box<LocalEnd>),
    /// The queue pairs are connected; sends READY.
    SendingReady(MetadataExchange, Box<LocalEnd>, Box<Link>),
    Over(NetError),
}

/// The sender's own resources.
struct LocalEnd {
    /// None once they are connected.
    qps: Option<QueuePairs>,
    // Drop order matters: the region before its table.
    table_region: Region,
    table: Box<CtsTable>,
}

/// Allocates and registers a CTS table.
pub(super) fn table(port: &Port) -> Result<(Box<CtsTable>, Region), NetError> {
    let table = CtsTable::new();
    let start = (&raw const *table).cast_mut().cast();
    // Strictly ordered: the sender reads the table while the device writes it, so the writes must not pass earlier
    // ones. SAFETY: both ends drop a table after its region; it does not move, being in a box.
    let region = unsafe { Region::of_memory(&port.device, start, size_of::<CtsTable>(), false) };
    let region = region.map_err(|error| NetError::of_io(&port.name(), None, "ibv_reg_mr", &error))?;
    Ok((table, region))
}

impl IbConnector {
    pub(super) fn new(
        port: &Arc<Port>,
        settings: &Settings,
        invitation: &Invitation,
    ) -> Result<IbConnector, NetError> {
        let name = port.name();
        let connection =
            getrandom::u64().map_err(|error| NetError::of_call(&name, "getrandom", error.to_string()))?;
        let dial = Dial::new(invitation, None, hello(connection), settings.socket.peer_dead_after)
            .map_err(|error| NetError::of_io(&name, Some(invitation.addr.to_string()), "connect", &error))?;
        Ok(IbConnector {
            port: port.clone(),
            settings: settings.clone(),
            addr: invitation.addr,
            psn: connection as u32 & 0xff_ffff,
            deadline: Instant::now() + settings.socket.connect_timeout,
            state: State::Dialing(Box::new(dial)),
        })
    }

    fn failed(&self, error: &io::Error) -> NetError {
        NetError::of_io(&self.port.name(), Some(self.addr.to_string()), "connect", error)
    }

    fn waiting(&self) -> Result<Option<Box<dyn SendComm>>, NetError> {
        if Instant::now() < self.deadline {
            return Ok(None);
        }
        let reason = format!("no answer within {:?}", self.settings.socket.connect_timeout);
        let peer = Some(self.addr.to_string());
        Err(NetError::Call { device: self.port.name(), peer, call: "connect", reason })
    }

    /// Creates queue pairs and the table, and the metadata that describes them.
    fn local_end(&self) -> Result<(LocalEnd, Metadata), NetError> {
        let qps = QueuePairs::new(&self.port, self.settings.ib.queue_pairs as usize)?;
        let (table, table_region) = table(&self.port)?;
        let mut metadata = qps.metadata(&self.settings.ib, self.psn);
        metadata.table_address = (&raw const *table).addr() as u64;
        metadata.table_key = table_region.remote_key();
        Ok((LocalEnd { qps: Some(qps), table_region, table }, metadata))
    }

    fn advance(&mut self, state: State) -> Result<Option<Box<dyn SendComm>>, NetError> {
        match state {
            State::Dialing(mut dial) => {
                if !dial.advance().map_err(|error| self.failed(&error))? {
                    self.state = State::Dialing(dial);
                    return self.waiting();
                }
                let (local, metadata) = self.local_end()?;
                let channel = dial.into_channel().map_err(|error| self.failed(&error))?;
                let exchange = MetadataExchange::new(channel, &metadata.to_bytes(), METADATA_BYTES);
                self.advance(State::Exchanging(exchange, Box::new(local)))
            }
            State::Exchanging(mut exchange, local) => {
                match exchange.advance().map_err(|error| self.failed(&error))? {
                    None => {
                        self.state = State::Exchanging(exchange, local);
                        self.waiting()
                    }
                    Some(bytes) => {
                        let bytes: &[u8; METADATA_BYTES] =
                            bytes.try_into().expect("the exchange reads exactly so many bytes");
                        let metadata = read_metadata(bytes, &self.port, self.addr)?;
                        self.connect(exchange, local, &metadata)
                    }
                }
            }
            State::SendingReady(mut exchange, local, link) => {
                if exchange.advance().map_err(|error| self.failed(&error))?.is_none() {
                    self.state = State::SendingReady(exchange, local, link);
                    return self.waiting();
                }
                let policy = SplitPolicy::new(&self.settings.ib, self.port.is_ethernet);
                let LocalEnd { table_region, table, .. } = *local;
                let again = "poll_connect is called again after it has connected".to_owned();
                self.state = State::Over(NetError::of_call(&self.port.name(), "poll_connect", again));
                Ok(Some(Box::new(IbSender::new(*link, table, table_region, policy))))
            }
            State::Over(error) => Err(error),
        }
    }

    fn connect(
        &mut self,
        exchange: MetadataExchange,
        mut local: Box<LocalEnd>,
        metadata: &Metadata,
    ) -> Result<Option<Box<dyn SendComm>>, NetError> {
        let Some(qps) = local.qps.take() else { unreachable!("queue pairs are connected once") };
        let stream = exchange.channel.stream.try_clone().map_err(|error| self.failed(&error))?;
        let link = qps.connect(&self.settings.ib, metadata, self.psn, stream)?;
        let ready = MetadataExchange::new(exchange.channel, &READY, 0);
        self.advance(State::SendingReady(ready, local, Box::new(link)))
    }
}

/// Decodes the peer's metadata.
pub(super) fn read_metadata(
    bytes: &[u8; METADATA_BYTES],
    port: &Port,
    addr: SocketAddr,
) -> Result<Metadata, NetError> {
    Metadata::from_bytes(bytes).map_err(|found| NetError::Protocol {
        device: port.name(),
        peer: addr.to_string(),
        expected: "its connection metadata".to_owned(),
        found: found.to_owned(),
    })
}

impl Connector for IbConnector {
    fn poll_connect(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError> {
        let broken = NetError::of_call(&self.port.name(), "poll_connect", "it was interrupted".to_owned());
        let state = std::mem::replace(&mut self.state, State::Over(broken));
        self.advance(state).inspect_err(|error| self.state = State::Over(error.clone()))
    }
}
