//! The connecting side of a set-up, which becomes the sender.
//!
//! ```text
//! connector                             listener
//!   handshake over the token       <->
//!   card: queue pairs, table       ->
//!                                  <-   card: queue pairs, connected
//!   connects its queue pairs
//!   READY                          ->
//! ```

use super::card::{CARD_BYTES, Card, READY};
use super::exchange::Exchange;
use super::link::{Lanes, Link};
use super::offer::Table;
use super::port::Port;
use super::send::{Cut, IbSender};
use super::verbs::Region;
use super::{Settings, hello};
use crate::net::dial::Dial;
use crate::net::invitation::Invitation;
use crate::net::{Connector, NetError, SendComm};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// A connection on its way.
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
    /// Our card is on its way, the peer's is awaited.
    Cards(Exchange, Box<Ours>),
    /// The queue pairs are connected, and the peer is being told.
    Telling(Exchange, Box<Ours>, Box<Link>),
    Over(NetError),
}

/// What the sender brings.
struct Ours {
    /// None once they are connected.
    lanes: Option<Lanes>,
    // Dropped in this order.
    table_region: Region,
    table: Box<Table>,
}

/// Registers a table of offers.
pub(super) fn table(port: &Port) -> Result<(Box<Table>, Region), NetError> {
    let table = Table::new();
    let start = (&raw const *table).cast_mut().cast();
    // Strictly ordered: what a sender reads of it must not pass what was written before.
    // SAFETY: both ends drop a table after its region; it does not move, being in a box.
    let region = unsafe { Region::of_memory(&port.device, start, size_of::<Table>(), false) };
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

    /// Queue pairs and the table, and the card that tells of them.
    fn ours(&self) -> Result<(Ours, Card), NetError> {
        let lanes = Lanes::new(&self.port, self.settings.ib.queue_pairs as usize)?;
        let (table, table_region) = table(&self.port)?;
        let mut card = lanes.card(&self.settings.ib, self.psn);
        card.table_address = (&raw const *table).addr() as u64;
        card.table_key = table_region.remote_key();
        Ok((Ours { lanes: Some(lanes), table_region, table }, card))
    }

    fn advance(&mut self, state: State) -> Result<Option<Box<dyn SendComm>>, NetError> {
        match state {
            State::Dialing(mut dial) => {
                if !dial.advance().map_err(|error| self.failed(&error))? {
                    self.state = State::Dialing(dial);
                    return self.waiting();
                }
                let (ours, card) = self.ours()?;
                let exchange = Exchange::new(dial.into_stream(), &card.to_bytes(), CARD_BYTES);
                self.advance(State::Cards(exchange, Box::new(ours)))
            }
            State::Cards(mut exchange, ours) => {
                match exchange.advance().map_err(|error| self.failed(&error))? {
                    None => {
                        self.state = State::Cards(exchange, ours);
                        self.waiting()
                    }
                    Some(bytes) => {
                        let bytes: &[u8; CARD_BYTES] =
                            bytes.try_into().expect("an exchange reads what it was told to");
                        let card = read_card(bytes, &self.port, self.addr)?;
                        self.connect(exchange, ours, &card)
                    }
                }
            }
            State::Telling(mut exchange, ours, link) => {
                if exchange.advance().map_err(|error| self.failed(&error))?.is_none() {
                    self.state = State::Telling(exchange, ours, link);
                    return self.waiting();
                }
                let cut = Cut::new(&self.settings.ib, self.port.is_ethernet);
                let Ours { table_region, table, .. } = *ours;
                let again = "poll_connect is called again after it has connected".to_owned();
                self.state = State::Over(NetError::of_call(&self.port.name(), "poll_connect", again));
                Ok(Some(Box::new(IbSender::new(*link, table, table_region, cut))))
            }
            State::Over(error) => Err(error),
        }
    }

    fn connect(
        &mut self,
        exchange: Exchange,
        mut ours: Box<Ours>,
        card: &Card,
    ) -> Result<Option<Box<dyn SendComm>>, NetError> {
        let Some(lanes) = ours.lanes.take() else { unreachable!("lanes are connected once") };
        let stream = exchange.stream.try_clone().map_err(|error| self.failed(&error))?;
        let link = lanes.connect(&self.settings.ib, card, self.psn, stream)?;
        let ready = Exchange::new(exchange.stream, &READY, 0);
        self.advance(State::Telling(ready, ours, Box::new(link)))
    }
}

/// The peer's card.
pub(super) fn read_card(bytes: &[u8; CARD_BYTES], port: &Port, addr: SocketAddr) -> Result<Card, NetError> {
    Card::from_bytes(bytes).map_err(|found| NetError::Protocol {
        device: port.name(),
        peer: addr.to_string(),
        expected: "its card".to_owned(),
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
