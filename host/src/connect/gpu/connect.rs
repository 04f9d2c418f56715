//! From a bootstrap and a GPU each to connections.

use super::heads;
use super::layout::{ConnName, DeviceLayout};
use super::net::{NetConnected, NetWanted, Network};
use super::part::Part;
use super::parts::{FarParts, Parts, PartsMade};
use super::routes::{RouteSettings, Routes};
use super::survey::{RingNics, Survey, SurveyWanted, survey};
use super::tables::{ConnSite, Tables};
use crate::bootstrap::Bootstrap;
use crate::connect::collnet::Heads;
use crate::connect::pipeline::{Ranks, Steps};
use crate::connect::vote::vote;
use crate::connect::{ConnectError, Setting};
use crate::gpu::{DeviceId, Gpu, PciBus};
use crate::machine::{ConnKind, ConnTables, Need, NetParts};
use crate::net::NetConfig;
use crate::plan::Forced;
use crate::plan::tuning::{Machine, TuneTable};
use crate::plan::{ChannelLimits, Facts, Nics};
use crate::topology::detect::Found;
use crate::topology::{BusId, Channels, Inventory, PathKind, TopologySettings};
use crate::transport::PeerInfo;
use crate::transport::p2p::{Agreed, Arena, ArenaWanted, Domain, Domains, P2pSettings};
use oxccl_shared::abi::Rank;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// What to connect.
pub struct DeviceWanted<'a> {
    /// This rank's GPU, or why it has none: the others shall hear of it.
    pub device: Result<&'a dyn Gpu, ConnectError>,
    /// This process.
    pub info: &'a PeerInfo,
    /// Those in the digest `info.settings`.
    pub settings: &'a [Setting],
    /// Memory, networks.
    pub routes: RouteSettings,
    /// How GPUs share memory.
    pub p2p: &'a P2pSettings,
    /// Where a network is to be found.
    pub net: &'a NetConfig,
    /// Whether connections over it are made when they are needed; all at init, if any rank says so.
    pub by_need: bool,
    /// How long connections may take to be made, over it and in memory.
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
    /// What makes connections as they are needed.
    pub parts: Arc<Parts>,
    /// The proxy of connections over a network, where there are any.
    pub net: Option<NetParts>,
    /// Bytes of pinned memory of a head's connections to a network that reduces.
    pub head_bytes: usize,
    /// Where everything lies.
    pub layout: DeviceLayout,
    /// Everybody's device.
    pub devices: Vec<DeviceInfo>,
    /// Why a head has no network that reduces, if one was searched for in vain.
    pub no_collnet: String,
    /// Everybody's host.
    pub hosts: Vec<u64>,
}

/// What a rank tells the others of its GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// The same in every process.
    pub uuid: [u8; 16],
    /// Compute capability: 90 is 9.0.
    pub sm: u32,
    /// Multiprocessors.
    pub sm_count: u32,
    /// How that rank names it.
    pub id: DeviceId,
}

impl DeviceInfo {
    fn of(device: &dyn Gpu) -> DeviceInfo {
        let (sm, sm_count) = (device.sm(), device.sm_count());
        DeviceInfo { uuid: device.uuid(), sm, sm_count, id: device.id() }
    }
}

/// What is to be connected.
pub(crate) struct Plan<'s> {
    device: &'s dyn Gpu,
    gpu: BusId,
    peers: Vec<PeerInfo>,
    devices: Vec<DeviceInfo>,
    facts: Facts,
    layout: DeviceLayout,
    /// The devices of rings that have their own.
    ring_nics: Vec<RingNics>,
    /// Whose memory this rank is not to use.
    refused: Vec<Rank>,
    /// This host, if it is known.
    machine: Option<Inventory>,
    network: Option<Network>,
    /// What heads found.
    heads: Heads,
    /// All ranks' memory, once it is shared.
    shared: Option<(Arena, Agreed)>,
}

impl Steps for DeviceWanted<'_> {
    type Unit = DeviceInfo;
    type Plan<'s>
        = Plan<'s>
    where
        Self: 's;
    type Memory<'s>
        = Plan<'s>
    where
        Self: 's;
    type Connected = DeviceConnected;

    fn info(&self) -> &PeerInfo {
        self.info
    }

    fn settings(&self) -> &[Setting] {
        self.settings
    }

    fn net(&self) -> &NetConfig {
        self.net
    }

    fn unit(&self) -> Result<DeviceInfo, ConnectError> {
        self.device.clone().map(DeviceInfo::of)
    }

    fn check(&self, rank: Rank, ranks: &Ranks<DeviceInfo>) -> Result<(), ConnectError> {
        if !self.p2p.shares_gpus {
            check_devices(rank, &ranks.units)?;
        }
        Routes::new(&ranks.peers, self.routes).check(self.routes)
    }

    fn plan<'s>(&'s self, bootstrap: &Bootstrap, ranks: Ranks<DeviceInfo>) -> Result<Plan<'s>, ConnectError> {
        let Ranks { peers, units: devices } = ranks;
        let device = self.device.clone()?;
        let PciBus { domain, bus, device: number } = device.id().bus;
        let gpu = BusId::new(domain, bus, number);
        let routes = Routes::new(&peers, self.routes);
        let is_wide = routes.groups() > 1;
        let network =
            is_wide.then(|| Network::find(bootstrap, self.net, (&peers, gpu), self.by_need)).transpose()?;
        let nics = network.as_ref().map(|network| network.nics(&routes));
        let seen = look_round(bootstrap, gpu, (&peers, &devices), nics.as_ref(), self)?;
        let Seen { facts, channels, ring_nics, refused, machine } = seen;
        let facts = facts.with_hosts_of_gpus(routes.group_max());
        let (heads, in_hosts) = heads::find(bootstrap, gpu, self.net, (&facts, &channels), &routes)?;
        let facts = facts.with_collnet_of_gpus(heads.collnet);
        let layout = layout(&facts, &channels).with_routes(routes, facts.far_channels);
        let layout = layout.with_heads(in_hosts);
        Ok(Plan {
            device,
            gpu,
            peers,
            devices,
            facts,
            layout,
            ring_nics,
            refused,
            machine,
            network,
            heads,
            shared: None,
        })
    }

    fn share<'s>(&'s self, bootstrap: &Bootstrap, mut plan: Plan<'s>) -> Result<Plan<'s>, ConnectError> {
        let Plan { device, peers, refused, facts, layout, .. } = &mut plan;
        if !layout.routes.has_memory() {
            return Ok(plan);
        }
        let made = layout.of_part(layout.first());
        let lens = |domains: &Domains, rank| made.clone().with_domains(domains.clone()).len_bytes(rank);
        let wanted = ArenaWanted { device: *device, peers, settings: self.p2p, refused, lens: &lens };
        let (arena, agreed) = Arena::connect_first(bootstrap, &wanted).map_err(Box::new)?;
        *layout = layout.clone().with_domains(arena.domains().clone());
        let kinds = [ConnKind::Ring, ConnKind::Tree, ConnKind::Mesh];
        *facts = facts.through_host(kinds.map(|kind| layout.is_through_host(kind)));
        Ok(Plan { shared: Some((arena, agreed)), ..plan })
    }

    fn connect<'s>(&'s self, bootstrap: &Bootstrap, plan: Plan<'s>) -> Result<DeviceConnected, ConnectError> {
        let Plan { device, gpu, peers, devices, facts, layout, machine, .. } = plan;
        let Plan { network, shared, ring_nics, heads, .. } = plan;
        let rank = bootstrap.rank();
        let by_need = network.as_ref().is_none_or(|network| network.by_need);
        let parts = if by_need { vec![layout.first()] } else { all_parts(&layout, &facts, rank) };
        let net = NetWanted {
            rank,
            layout: &layout,
            parts: &parts,
            peers: &peers,
            gpu,
            connect_timeout: self.net_timeout,
            step_timeout: self.timeout,
            gdr: self.net.gdr,
            gdr_level: self.topology.gdr_level,
            machine: machine.as_ref(),
            ring_nics: &ring_nics,
        };
        let connected = network.map(|network| network.connect(bootstrap, device, &net, heads.mine));
        let net = connected.transpose()?;
        let (tables, on_device) = first_tables(bootstrap, device, &layout, (shared.as_ref(), net.as_ref()))?;
        let (nranks, mut far, mut proxy, mut head_bytes) = (layout.nranks, None, None, 0);
        if let Some(NetConnected { parts: made, conns, links, head_bytes: bytes }) = net {
            far = Some(FarParts::new(links, nranks, &parts, &conns));
            (proxy, head_bytes) = (Some(made), bytes);
        }
        let made =
            PartsMade { rank, layout: layout.clone(), arena: shared, tables, far, timeout: self.net_timeout };
        Ok(DeviceConnected {
            facts,
            tables: on_device,
            parts: Parts::new(made),
            net: proxy,
            head_bytes,
            layout,
            devices,
            no_collnet: heads.lack,
            hosts: peers.iter().map(|peer| peer.host).collect(),
        })
    }
}

/// The parts that a rank has once all are made.
pub(super) fn all_parts(layout: &DeviceLayout, facts: &Facts, rank: Rank) -> Vec<Part> {
    let mut parts = vec![layout.first()];
    for part in Need::all(facts, rank).iter().flat_map(|need| layout.parts_of(need, rank)) {
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    parts
}

/// The tables, with the connections that there are by now, once all ranks have theirs.
fn first_tables(
    bootstrap: &Bootstrap,
    device: &dyn Gpu,
    layout: &DeviceLayout,
    (shared, net): (Option<&(Arena, Agreed)>, Option<&NetConnected>),
) -> Result<(Tables, ConnTables), ConnectError> {
    let rank = bootstrap.rank();
    let first = layout.of_part(layout.first());
    let base = |peer: Rank, domain: Domain| {
        let base = shared.and_then(|(arena, _)| arena.base(peer, domain));
        base.expect("what no network leads to is reached in memory")
    };
    let made = Tables::upload(layout, rank, device).and_then(|(mut tables, on_device)| {
        if let Some(net) = net {
            let far = net.conns.iter().map(|conn| (conn.name, conn.site));
            tables.add(layout, rank, device, far)?;
        }
        let site = |name: ConnName| ConnSite::new(first.in_memory(rank, name, &base), first.slots(name.kind));
        let near = first.conns_in_memory(rank).filter(|_| layout.nranks > 1);
        tables.add(&first, rank, device, near.map(|name| (name, site(name))))?;
        Ok((tables, on_device))
    });
    vote(bootstrap, made.map_err(|source| ConnectError::Device { rank, source: source.into() }))
}

/// What looking round tells.
struct Seen {
    /// What plans depend on, as far as the machine goes.
    facts: Facts,
    channels: Channels,
    ring_nics: Vec<RingNics>,
    /// Whose memory this rank is not to use.
    refused: Vec<Rank>,
    /// This host, if it is known.
    machine: Option<Inventory>,
}

fn look_round(
    bootstrap: &Bootstrap,
    gpu: BusId,
    (peers, devices): (&[PeerInfo], &[DeviceInfo]),
    nics: Option<&Nics>,
    wanted: &DeviceWanted<'_>,
) -> Result<Seen, ConnectError> {
    let nranks = peers.len() as u32;
    let least = |of: fn(&DeviceInfo) -> u32| devices.iter().map(of).min().unwrap_or(0);
    let weakest =
        (least(|device| device.sm), blocks_max(least(|device| device.sm_count), most_on_one(devices)));
    let facts = Facts::of_gpus(nranks, weakest, wanted.forced, wanted.limits, wanted.buffer_bytes)
        .on_hosts(peers.iter().map(|peer| peer.host))
        .with_table(wanted.table);
    if nranks == 1 && !wanted.topology.wants_files() {
        let channels = Channels::in_rank_order(nranks);
        return Ok(Seen { facts, channels, ring_nics: Vec::new(), refused: Vec::new(), machine: None });
    }
    let Survey { channels, ring_nics, agreed, refused, machine } = look(bootstrap, gpu, peers, wanted)?;
    let facts = facts.on(Machine::of_agreed(weakest.0, &agreed), &channels.rings);
    let facts = nics.map_or(facts, |nics| facts.over_nics(nics, &channels));
    Ok(Seen { facts, channels, ring_nics, refused, machine })
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

/// The most ranks that share a GPU; 1 if each has its own.
fn most_on_one(devices: &[DeviceInfo]) -> u32 {
    let sharing = |device: &DeviceInfo| devices.iter().filter(|other| other.uuid == device.uuid).count();
    devices.iter().map(sharing).max().unwrap_or(1) as u32
}

/// The most blocks of a rank's kernel where so many ranks share a GPU. A multiprocessor has room for at least one block of any kernel. Those of
/// all ranks must run at once; half of the GPU is left to other communicators and to the caller.
fn blocks_max(sm_count: u32, sharing: u32) -> u32 {
    if sharing == 1 { sm_count } else { (sm_count / (2 * sharing)).max(1) }
}

/// Whether each rank has a GPU of its own.
fn check_devices(rank: Rank, devices: &[DeviceInfo]) -> Result<(), ConnectError> {
    for (second, other) in devices.iter().enumerate() {
        if let Some(first) = devices[..second].iter().position(|earlier| earlier.uuid == other.uuid) {
            let device = if rank == Rank(first as u32) { devices[first].id } else { other.id };
            return Err(ConnectError::SameDevice {
                rank: Rank(first as u32),
                peer: Rank(second as u32),
                device,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(number: u8) -> DeviceInfo {
        let id = DeviceId { ordinal: number.into(), bus: PciBus { domain: 1 << 16, bus: number, device: 3 } };
        DeviceInfo { uuid: [number; 16], sm: 90, sm_count: 132, id }
    }

    #[test]
    fn ranks_that_share_a_gpu_are_named() {
        assert_eq!(check_devices(Rank(0), &[device(1), device(2), device(3)]), Ok(()));
        let twice = check_devices(Rank(0), &[device(1), device(2), device(2)]).unwrap_err().to_string();
        assert!(twice.contains("ranks 1 and 2") && twice.contains("OXCCL_DUPLICATE_GPUS=1"), "{twice}");
        assert_eq!(
            [1, 2, 3].map(|n| most_on_one(&[device(1), device(2), device(2), device(2)][..n + 1])),
            [1, 2, 3]
        );
        assert_eq!(most_on_one(&[device(1)]), 1);
        assert_eq!([1, 2, 3, 4, 200].map(|ranks| blocks_max(132, ranks)), [132, 33, 22, 16, 1]);
    }
}
