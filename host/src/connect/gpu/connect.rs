//! From a bootstrap and a GPU each to connections.

use super::layout::{ConnKind, DeviceLayout};
use super::net::{NetConnected, NetWanted, Network};
use super::routes::{RouteSettings, Routes};
use super::survey::{Survey, SurveyWanted, survey};
use super::tables::{ConnSite, upload};
use crate::bootstrap::Bootstrap;
use crate::connect::ConnectError;
use crate::connect::agree::agree;
use crate::gpu::{DeviceId, Gpu, PciBus};
use crate::machine::ConnTables;
use crate::net::NetConfig;
use crate::plan::Forced;
use crate::plan::tuning::{Machine, TuneTable};
use crate::plan::{ChannelLimits, Facts};
use crate::topology::detect::Found;
use crate::topology::{BusId, Channels, Inventory, PathKind, TopologySettings};
use crate::transport::PeerInfo;
use crate::transport::p2p::{Arena, ArenaWanted, Domain, Domains, P2pSettings};
use crate::wire::Message;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What to connect.
pub struct DeviceWanted<'a> {
    /// This rank's GPU, or why it has none: the others shall hear of it.
    pub device: Result<&'a dyn Gpu, ConnectError>,
    /// This process.
    pub info: &'a PeerInfo,
    /// The variables whose digest `info.settings` is.
    pub settings: &'static str,
    /// Memory, networks.
    pub routes: RouteSettings,
    /// How GPUs share memory.
    pub p2p: &'a P2pSettings,
    /// Where a network is to be found.
    pub net: &'a NetConfig,
    /// How long connections over it may take to be made.
    pub net_timeout: Duration,
    /// How long one that has begun an operation may go without a step.
    pub timeout: Duration,
    /// The machine and the channels through it, as far as the user says.
    pub topology: &'a TopologySettings,
    /// The user's algorithm and protocol.
    pub forced: Forced,
    /// The user's limits.
    pub limits: ChannelLimits,
    /// What was measured here.
    pub table: Option<TuneTable>,
    /// Bytes of the eight Simple slots of a connection, if the user says so.
    pub buffer_bytes: Option<usize>,
}

/// Everything connected.
pub struct DeviceConnected {
    /// What plans depend on.
    pub facts: Facts,
    /// The tables for kernels.
    pub tables: ConnTables,
    /// All ranks' memory; nothing where none shares any.
    pub arena: Option<Arena>,
    /// The connections over a network, where there are any.
    pub net: Option<NetConnected>,
    /// Where everything lies.
    pub layout: DeviceLayout,
    /// Everybody's device.
    pub cards: Vec<DeviceCard>,
}

/// What a rank tells the others of its GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceCard {
    /// The same in every process.
    pub uuid: [u8; 16],
    /// Compute capability: 90 is 9.0.
    pub sm: u32,
    /// Multiprocessors.
    pub sm_count: u32,
    /// How that rank names it.
    pub id: DeviceId,
}

impl DeviceCard {
    fn of(device: &dyn Gpu) -> DeviceCard {
        let (sm, sm_count) = (device.sm(), device.sm_count());
        DeviceCard { uuid: device.uuid(), sm, sm_count, id: device.id() }
    }
}

/// What a rank tells the others before anything is connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Introduction {
    info: PeerInfo,
    card: DeviceCard,
}

impl Message for Introduction {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = PeerInfo::BYTES_MAX + 64;
}

/// Connects this rank's GPU with all others. Every rank calls it at the same time.
///
/// # Errors
/// The same step fails on every rank: on the guilty one with its own error, elsewhere with one that names it.
pub fn connect(bootstrap: &Bootstrap, wanted: DeviceWanted<'_>) -> Result<DeviceConnected, ConnectError> {
    let rank = bootstrap.rank().0;
    let said = wanted
        .device
        .clone()
        .map(|device| Introduction { info: *wanted.info, card: DeviceCard::of(device) }.to_bytes());
    let (peers, cards) = read_cards(&agree(bootstrap, said)?)?;
    let routes = Routes::new(&peers, wanted.routes);
    // All see the same, but must not leave before all have heard of it.
    let fit = check(rank, &peers, &cards, wanted.settings).and_then(|()| routes.check(wanted.routes));
    agree(bootstrap, fit.map(|()| Vec::new()))?;

    let device = wanted.device.clone()?;
    let PciBus { domain, bus, device: number } = device.id().bus;
    let gpu = BusId::new(domain, bus, number);
    let is_wide = routes.groups() > 1;
    let network = is_wide.then(|| Network::find(bootstrap, wanted.net, &peers, gpu)).transpose()?;
    let seen = look_round(bootstrap, gpu, (&peers, &cards), is_wide, &wanted)?;
    let Seen { mut facts, channels, refused, machine } = seen;
    let mut layout = layout(&facts, &channels).with_routes(routes);
    let arena = if layout.routes.has_memory() {
        let lens = |domains: &Domains, rank| layout.clone().with_domains(domains.clone()).len_bytes(rank);
        let (peers, settings) = (&peers[..], wanted.p2p);
        let wanted = ArenaWanted { device, peers, settings, refused: &refused, lens: &lens };
        Some(Arena::connect(bootstrap, &wanted).map_err(Box::new)?)
    } else {
        None
    };
    if let Some(arena) = &arena {
        layout = layout.with_domains(arena.domains().clone());
        let kinds = [ConnKind::Ring, ConnKind::Tree, ConnKind::Mesh];
        facts.machine = facts.machine.through_host(kinds.map(|kind| layout.is_through_host(kind)));
    }
    if let Some(network) = &network {
        facts = facts.over_network(layout.routes.groups(), network.speed, network.threads_least);
    }
    let net = NetWanted {
        rank,
        layout: &layout,
        peers: &peers,
        gpu,
        connect_timeout: wanted.net_timeout,
        step_timeout: wanted.timeout,
        gdr: wanted.net.gdr,
        gdr_level: wanted.topology.gdr_level,
        machine: machine.as_ref(),
    };
    let net = network.map(|network| network.connect(bootstrap, device, &net)).transpose()?;
    let tables = make_tables(bootstrap, device, &layout, arena.as_ref(), net.as_ref())?;
    Ok(DeviceConnected { facts, tables, arena, net, layout, cards })
}

/// The tables of all connections, once all ranks have theirs.
fn make_tables(
    bootstrap: &Bootstrap,
    device: &dyn Gpu,
    layout: &DeviceLayout,
    arena: Option<&Arena>,
    net: Option<&NetConnected>,
) -> Result<ConnTables, ConnectError> {
    let rank = bootstrap.rank().0;
    let base = |peer: u32, domain: Domain| {
        let base = arena.and_then(|arena| arena.base(peer, domain));
        base.expect("what no network leads to is reached in memory")
    };
    let tables = upload(layout, rank, device, &|name| match net.and_then(|net| net.site(name)) {
        Some(site) => site,
        None => ConnSite::new(layout.in_memory(rank, name, &base), layout.slots(name.kind)),
    });
    let tables = tables.map_err(|source| ConnectError::Device { rank, source: source.into() });
    agree(bootstrap, tables.as_ref().map(|_| Vec::new()).map_err(Clone::clone))?;
    tables
}

/// What looking round tells.
struct Seen {
    /// What plans depend on, as far as the machine goes.
    facts: Facts,
    channels: Channels,
    /// Whose memory this rank is not to use.
    refused: Vec<u32>,
    /// This host, if it is known.
    machine: Option<Inventory>,
}

fn look_round(
    bootstrap: &Bootstrap,
    gpu: BusId,
    (peers, cards): (&[PeerInfo], &[DeviceCard]),
    is_wide: bool,
    wanted: &DeviceWanted<'_>,
) -> Result<Seen, ConnectError> {
    let nranks = peers.len() as u32;
    let least = |of: fn(&DeviceCard) -> u32| cards.iter().map(of).min().unwrap_or(0);
    let weakest = (least(|card| card.sm), least(|card| card.sm_count));
    let facts = Facts::of_gpus(nranks, weakest, wanted.forced, wanted.limits, wanted.buffer_bytes)
        .on_hosts(peers.iter().map(|peer| peer.host))
        .with_table(wanted.table);
    let facts = if is_wide { facts.with_few_channels() } else { facts };
    if nranks == 1 && !wanted.topology.wants_files() {
        let channels = Channels::in_rank_order(nranks);
        return Ok(Seen { facts, channels, refused: Vec::new(), machine: None });
    }
    let Survey { channels, agreed, refused, machine } = look(bootstrap, gpu, peers, wanted)?;
    let facts = facts.on(Machine::of_agreed(weakest.0, &agreed), &channels.rings);
    Ok(Seen { facts, channels, refused, machine })
}

/// Which channels the ranks' machines have.
fn look(
    bootstrap: &Bootstrap,
    gpu: BusId,
    peers: &[PeerInfo],
    wanted: &DeviceWanted<'_>,
) -> Result<Survey, ConnectError> {
    let mut settings = wanted.topology.clone();
    if !wanted.p2p.enabled {
        settings.p2p_level = Some(PathKind::Loc);
    }
    let hosts: Vec<u64> = peers.iter().map(|peer| peer.host).collect();
    survey(bootstrap, &SurveyWanted { gpu, hosts: &hosts, settings: &settings, look: Found::look })
}

pub(super) fn layout(facts: &Facts, channels: &Channels) -> DeviceLayout {
    let rings = (0..facts.ring_channels).map(|channel| channels.ring(channel as usize).to_vec()).collect();
    let trees = (0..facts.tree_channels).map(|channel| channels.tree(channel as usize).to_vec()).collect();
    DeviceLayout::new(facts.nranks, rings, facts.mesh_channels, facts.ring_layout, facts.mesh_layout)
        .with_trees(trees, facts.tree_layout)
}

fn read_cards(blocks: &[Vec<u8>]) -> Result<(Vec<PeerInfo>, Vec<DeviceCard>), ConnectError> {
    let (mut peers, mut cards) = (Vec::new(), Vec::new());
    for (peer, block) in blocks.iter().enumerate() {
        let malformed = ConnectError::Malformed { peer: peer as u32 };
        let Introduction { info, card } = Introduction::from_bytes(block).map_err(|_| malformed)?;
        peers.push(info);
        cards.push(card);
    }
    Ok((peers, cards))
}

/// Whether these ranks can be connected.
fn check(
    rank: u32,
    peers: &[PeerInfo],
    cards: &[DeviceCard],
    settings: &'static str,
) -> Result<(), ConnectError> {
    if let Some(peer) = peers.iter().position(|peer| peer.settings != peers[0].settings) {
        return Err(ConnectError::Settings { peer: peer as u32, settings });
    }
    for (second, card) in cards.iter().enumerate() {
        if let Some(first) = cards[..second].iter().position(|earlier| earlier.uuid == card.uuid) {
            let device = if rank == first as u32 { cards[first].id } else { card.id };
            return Err(ConnectError::SameDevice { rank: first as u32, peer: second as u32, device });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(number: u8) -> DeviceCard {
        let id = DeviceId { ordinal: number.into(), bus: PciBus { domain: 1 << 16, bus: number, device: 3 } };
        DeviceCard { uuid: [number; 16], sm: 90, sm_count: 132, id }
    }

    #[test]
    fn cards_round_trip_and_nothing_else_is_one() {
        let said = Introduction { info: PeerInfo::default(), card: card(7) };
        let bytes = said.to_bytes();
        assert_eq!(Introduction::from_bytes(&bytes), Ok(said));
        assert!(Introduction::from_bytes(&bytes[1..]).is_err());
    }

    #[test]
    fn ranks_that_cannot_be_connected_are_named() {
        let here = PeerInfo { host: 1, ..PeerInfo::default() };
        let peers = [here; 3];
        assert_eq!(check(0, &peers, &[card(1), card(2), card(3)], "X"), Ok(()));
        let twice = check(0, &peers, &[card(1), card(2), card(2)], "X").unwrap_err().to_string();
        assert!(twice.contains("ranks 1 and 2"), "{twice}");
        let other = [here, PeerInfo { settings: 9, ..here }, here];
        let other = check(0, &other, &[card(1), card(2), card(3)], "X").unwrap_err();
        assert_eq!(other, ConnectError::Settings { peer: 1, settings: "X" });
    }
}
