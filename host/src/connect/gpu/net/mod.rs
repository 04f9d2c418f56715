//! Layer: host / connect / gpu / net.
//! Takes: a bootstrap, a GPU, a layout, who is reached over a network.
//! Gives: [`Network`], the device to use, and from it [`NetConnected`]: for each connection over it a block that kernels and the
//! proxy share, and the proxy's end of it.
//! Never: drives a connection, launches a kernel, lets one rank fail alone.
//!
//! From below: `processors`, where the proxy runs; `places`, which connections, pure; `gdr`, whether the NIC uses the GPU's memory, pure;
//! `memory`, what connections lie in; `counted`, those of their slots that lie on the GPU; `chain`, to a network that reduces.

mod processors;
mod places;
mod gdr;
mod memory;
mod counted;
mod chain;
#[cfg(test)]
mod tests;

use super::layout::{ConnName, DeviceLayout};
use super::routes::Routes;
use super::survey::RingNics;
use super::tables::ConnSite;
use crate::bootstrap::Bootstrap;
use crate::connect::ConnectError;
use crate::connect::collnet::Joining;
use crate::connect::vote::{agree, vote_or_abort};
use crate::gpu::Gpu;
use crate::machine::{ConnKind, NetChannels, NetParts};
use crate::net::{GdrConfig, Locality, Net, NetConfig, NetError, NetProperties, UNKNOWN_MBPS, find, nearest};
use crate::plan::Nics;
use crate::plan::tuning::NetSpeed;
use crate::proxy::{EndId, Idle, Keep, ProxyChannel, ProxyEnd, ProxyParts, RecvEnd, SendEnd};
use crate::topology::detect::{GpuFacts, NetFacts, Sysfs};
use crate::topology::{BusId, Inventory, NicReach, PathKind};
use crate::transport::net::{Dialed, Dialing};
use crate::transport::{PeerInfo, processors_each};
use crate::wire::{Message, cut, digest};
use chain::ChainMemory;
use counted::CountedSlots;
use gdr::{Gdr, GdrCase, decide};
use memory::{HostMemory, Source};
use oxccl_shared::abi::{ChannelId, Rank};
use oxccl_shared::algo::spec::Connections;
use places::NetPlaces;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A network, and the device of it that this rank uses.
pub(super) struct Network {
    net: Arc<dyn Net>,
    device: u32,
    properties: NetProperties,
    /// Threads of this rank's proxy.
    threads: u32,
    /// Of the proxy that has fewest.
    threads_least: u32,
    /// Of the slowest rank's device.
    speed: NetSpeed,
    /// A number for each rank's device; ranks of one host with equal ones share it.
    nic_of: Vec<u64>,
}

/// What to connect over it.
pub(super) struct NetWanted<'a> {
    pub rank: Rank,
    pub layout: &'a DeviceLayout,
    pub peers: &'a [PeerInfo],
    pub gpu: BusId,
    /// For connections to be made.
    pub connect_timeout: Duration,
    /// For one that has begun an operation, without a step.
    pub step_timeout: Duration,
    /// Whether the NIC uses the GPU's memory: what the user says, how far it may be, and what is known of this host.
    pub gdr: GdrConfig,
    pub gdr_level: Option<PathKind>,
    pub machine: Option<&'a Inventory>,
    /// The devices of rings that have their own.
    pub ring_nics: &'a [RingNics],
}

/// Connections over a network.
pub struct NetConnected {
    /// For the engine.
    pub parts: NetParts,
    places: NetPlaces,
    memory: HostMemory,
    /// A head's, to the network that reduces, by its channels.
    chains: BTreeMap<usize, ChainMemory>,
}

impl Network {
    /// The network that the user names, or the best that there is, and of its devices the one nearest to `gpu`. Every rank calls it at
    /// the same time.
    pub fn find(
        bootstrap: &Bootstrap,
        config: &NetConfig,
        peers: &[PeerInfo],
        gpu: BusId,
    ) -> Result<Network, ConnectError> {
        let rank = bootstrap.rank();
        let refused = |source| ConnectError::Net { rank, peer: None, source: Box::new(source) };
        let here = peers[rank.index()].host;
        let local_rank = peers[..rank.index()].iter().filter(|peer| peer.host == here).count() as u32;
        let found = find(config).and_then(|net| Network::on_nearest_device(net, gpu, local_rank));
        let found = found.map(|network| {
            let threads = processors::proxy_threads(&*network.net, processors_each(peers, here));
            network.with_threads(config.proxy_threads.unwrap_or(threads))
        });
        let said =
            found.as_ref().map(|network| network.info().to_bytes()).map_err(|error| refused(error.clone()));
        let said = agree(bootstrap, said)?;
        let network = found.map_err(refused)?;
        let (mut speed, mut threads_least) = (network.speed, network.threads);
        let (mut first, mut nic_of) = (None, Vec::new());
        for (peer, block) in (0..).map(Rank).zip(&said) {
            let theirs = NetworkInfo::from_bytes(block).map_err(|_| ConnectError::Malformed { peer })?;
            // All see the same, and all fail.
            if theirs.name != *first.get_or_insert_with(|| theirs.name.clone()) {
                let theirs = theirs.name;
                let reason = format!("rank {peer} found {theirs}, rank 0 did not; set NCCL_NET on all ranks");
                let other = NetError::of_call(network.net.name(), "choose a network", reason);
                return Err(ConnectError::Net { rank, peer: Some(peer), source: Box::new(other) });
            }
            speed.gbytes = speed.gbytes.min(theirs.gbytes);
            speed.latency_us = speed.latency_us.max(theirs.latency_us);
            threads_least = threads_least.min(theirs.threads);
            nic_of.push(theirs.device);
        }
        Ok(Network { speed, threads_least, nic_of, ..network })
    }

    /// What all ranks know of the devices between these groups.
    pub fn nics(&self, routes: &Routes) -> Nics {
        Nics::new(routes.group_of(), self.nic_of.clone(), self.speed, self.threads_least)
    }

    fn with_threads(self, threads: u32) -> Network {
        Network { threads, ..self }
    }

    fn on_nearest_device(net: Arc<dyn Net>, gpu: BusId, local_rank: u32) -> Result<Network, NetError> {
        let place = Locality::of_gpu(Sysfs::live().place(gpu), local_rank);
        let device = nearest(net.devices(), |device| net.properties(device), &place)?;
        let properties = net.properties(device)?;
        let mbps = Some(properties.speed_mbps).filter(|speed| *speed > 0).unwrap_or(UNKNOWN_MBPS);
        let speed =
            NetSpeed { gbytes: f64::from(mbps) / 8000.0, latency_us: f64::from(properties.latency_us) };
        Ok(Network { net, device, properties, threads: 1, threads_least: 1, speed, nic_of: Vec::new() })
    }

    /// What the other ranks are told.
    fn info(&self) -> NetworkInfo {
        let NetSpeed { gbytes, latency_us } = self.speed;
        let name = cut(self.net.name(), NAME_BYTES_MAX).to_owned();
        let device = digest(&(&self.properties.name, self.properties.port));
        NetworkInfo { name, gbytes, latency_us, threads: self.threads, device }
    }

    /// Makes this rank's connections, in memory of its own; a head joins the others. Every rank calls it at the same time.
    pub fn connect(
        &self,
        bootstrap: &Bootstrap,
        device: &dyn Gpu,
        wanted: &NetWanted<'_>,
        joining: Vec<Joining>,
    ) -> Result<NetConnected, ConnectError> {
        let gdr = self.gdr(&self.properties, device, wanted);
        let ring_devices = self.ring_devices(wanted.ring_nics, |nic| self.gdr(nic, device, wanted) == gdr);
        let connected = self.connect_in(&device, gdr, bootstrap, (wanted, &ring_devices), joining);
        vote_or_abort(bootstrap, connected)
    }

    /// For each ring, the devices by which it comes and leaves: those that the search gave it, where the network has them and the GPU's
    /// memory is to them what it is to the rank's own.
    fn ring_devices(
        &self,
        ring_nics: &[RingNics],
        is_like_own: impl Fn(&NetProperties) -> bool,
    ) -> Vec<[u32; 2]> {
        let found = |name: &String| {
            let mut nics =
                (0..self.net.devices()).filter_map(|nic| Some((nic, self.net.properties(nic).ok()?)));
            let (nic, properties) = nics.find(|(_, properties)| properties.name == *name)?;
            (nic == self.device || is_like_own(&properties)).then_some(nic)
        };
        let names: BTreeSet<&String> = ring_nics.iter().flatten().flatten().collect();
        let known: BTreeMap<&String, u32> =
            names.into_iter().filter_map(|name| Some((name, found(name)?))).collect();
        let device = |name: &Option<String>| {
            let nic = name.as_ref().and_then(|name| known.get(name));
            nic.copied().unwrap_or(self.device)
        };
        ring_nics.iter().map(|nics| [device(&nics[0]), device(&nics[1])]).collect()
    }

    /// Whether, and how, a NIC uses this rank's GPU's memory.
    fn gdr(&self, nic: &NetProperties, device: &dyn Gpu, wanted: &NetWanted<'_>) -> Option<Gdr> {
        let (rank, NetProperties { name, pci_path, port, memory, .. }) = (wanted.rank, nic);
        let gpu = match device.rdma() {
            Ok(gpu) => gpu,
            Err(error) => {
                tracing::warn!(%rank, %error, "GPUDirect is not used: the driver does not tell of it");
                return None;
            }
        };
        let sm = device.sm();
        let known = GpuFacts {
            dev: Some(device.id().ordinal),
            rank: Some(rank),
            sm: Some(sm),
            ..GpuFacts::unknown(wanted.gpu)
        };
        let device = format!("{} {name}", self.net.name());
        let (name, port) = (name.clone(), *port);
        let bus_id = pci_path.as_deref().and_then(|path| bus_id_of(Path::new(path)));
        let nic = NetFacts { name, bus_id, speed_mbits: None, port, guid: None, gdr: true };
        let reach = NicReach::find(wanted.machine, &Sysfs::live(), known, nic);
        let (level, config, nic) = (wanted.gdr_level, wanted.gdr, *memory);
        let decided = decide(&GdrCase { level, config, nic, gpu, sm, reach });
        let distance = reach.map(|reach| reach.kind);
        match &decided {
            Ok(gdr) => {
                tracing::info!(%rank, device, ?distance, ?gdr, "GPUDirect: the NIC uses the GPU's memory")
            }
            Err(why) => tracing::info!(%rank, device, ?distance, "GPUDirect is not used: {why}"),
        }
        decided.ok()
    }

    /// Connects, and then makes memory: nobody waits for a rank that has none, because all have connected.
    fn connect_in(
        &self,
        source: &dyn Source,
        gdr: Option<Gdr>,
        bootstrap: &Bootstrap,
        (wanted, ring_devices): (&NetWanted<'_>, &[[u32; 2]]),
        joining: Vec<Joining>,
    ) -> Result<NetConnected, ConnectError> {
        let NetWanted { rank, layout, peers, gpu, connect_timeout, step_timeout, .. } = *wanted;
        let places = NetPlaces::new(layout, rank);
        let (to, from) = (places.peers(true), places.peers(false));
        let device_of = |name: &ConnName| match ring_devices.len() {
            rings if rings > 0 && name.kind == ConnKind::Ring => {
                ring_devices[name.channel % rings][usize::from(name.is_send)]
            }
            _ => self.device,
        };
        let devices = [false, true]
            .map(|is_send| places.one_way(is_send).map(|place| device_of(&place.name)).collect::<Vec<u32>>());
        let (net, device) = (&self.net, &|is_send: bool, at: usize| devices[usize::from(is_send)][at]);
        let dialing = Dialing { bootstrap, net, device, to: &to, from: &from, timeout: connect_timeout };
        let dialed = dialing.connect();
        let mut dialed = dialed.map_err(|error| ConnectError::of_transport(rank, error))?;
        let counted = gdr.map(|gdr| CountedSlots::place(source, gdr, (rank, &places), &mut dialed));
        let counted = counted.unwrap_or_default();
        let places = places.with_counted(|at| counted.of(at).map(|slots| slots.first.addr().get() as u64));
        // Every head joins its channels in their order, so that none waits for one that waits for it.
        let join = |joining: Joining| joining.join(bootstrap, connect_timeout);
        let joined = joining.into_iter().map(join).collect::<Result<Vec<_>, ConnectError>>()?;
        let memory = source
            .host(places.len_bytes)
            .map_err(|source| ConnectError::Device { rank, source: source.into() })?;
        let channels = NetChannels {
            rings: layout.rings.len() as u32,
            trees: layout.trees.channels() as u32,
            pairs: layout.far_channels,
            chains: layout.chains.channels() as u32,
        };
        let slots = layout.slots(ConnKind::Chain);
        let mut chains = BTreeMap::new();
        for joined in &joined {
            chains.insert(joined.channel, ChainMemory::new(source, rank, slots)?);
        }
        let of_chains: Vec<Keep> = chains.values().map(ChainMemory::keep).collect();
        let keep: Keep = Arc::new((memory.keep(), counted.memory.clone(), of_chains));
        let whole = Whole { rank, channels: &channels, memory: &memory, counted: &counted, keep: &keep };
        let nranks = layout.nranks;
        let mut ends = whole.ends(&places, dialed)?;
        for joined in joined {
            let channel = ChannelId(channels.of(Connections::Chain).start + joined.channel as u32);
            ends.push(ProxyEnd::Coll(Box::new(chains[&joined.channel].end(rank, channel, joined)?)));
        }
        let proxy = ProxyParts {
            rank,
            nranks,
            channels: proxy_channels(layout, rank),
            ends,
            timeout: Some(step_timeout),
        };
        let here = &peers[rank.index()];
        let nic = self.properties.pci_path.as_ref().map(PathBuf::from);
        let parts = NetParts {
            proxy,
            channels,
            reaches: (0..nranks).map(Rank).map(|peer| layout.routes.is_net(rank, peer)).collect(),
            device: format!("{} {}", self.net.name(), self.properties.name),
            cpus: processors::near(&Sysfs::live(), nic.as_deref(), gpu, &here.processors),
            idle: if processors_each(peers, here.host) == 0 { Idle::FRUGAL } else { Idle::BALANCED },
            threads: self.threads,
            memory: keep,
        };
        Ok(NetConnected { parts, places, memory, chains })
    }
}

/// What the ends of a rank's connections are made of.
struct Whole<'a> {
    rank: Rank,
    channels: &'a NetChannels,
    memory: &'a HostMemory,
    counted: &'a CountedSlots,
    keep: &'a Keep,
}

impl Whole<'_> {
    /// The ends of all connections.
    fn ends(&self, places: &NetPlaces, dialed: Dialed) -> Result<Vec<ProxyEnd>, ConnectError> {
        let Dialed { to, from } = dialed;
        let (mut to, mut from) = (to.into_iter(), from.into_iter());
        let mut ends = Vec::new();
        for (at, place) in places.places.iter().enumerate() {
            let refused = |source: NetError| ConnectError::Net {
                rank: self.rank,
                peer: Some(place.name.peer),
                source: Box::new(source),
            };
            // SAFETY: (1) every place is walked once; the end keeps the memory; (2) the block is told.
            let mut block = unsafe { self.memory.block(place) };
            if let Some(slots) = self.counted.of(at) {
                // SAFETY: (1) the end keeps the memory; (2) the communicators are in the order in which they were told of it.
                block = unsafe { block.with_counted_slots(slots) };
            }
            let name = place_of(self.channels, place.name);
            ends.push(if place.name.is_send {
                let comm = to.next().expect("every connection was dialed");
                // SAFETY: (1) the block's kernels are its only producers; the end keeps the memory.
                let end = unsafe { SendEnd::new(comm, block, name) }.map_err(refused)?;
                ProxyEnd::Send(end.keeping(self.keep.clone()))
            } else {
                let mut comm = from.next().expect("every connection was dialed");
                // The proxy's threads do nothing else, and it is kernels that wait.
                comm.be_prompt();
                // SAFETY: as above, with kernels as the only consumers.
                let end = unsafe { RecvEnd::new(comm, block, name) }.map_err(refused)?;
                ProxyEnd::Recv(end.keeping(self.keep.clone()))
            });
        }
        Ok(ends)
    }
}

/// The PCI device that a directory of sysfs is, or is below.
fn bus_id_of(directory: &Path) -> Option<BusId> {
    directory.iter().rev().find_map(|name| name.to_str()?.parse().ok())
}

/// What a rank says of its network.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct NetworkInfo {
    name: String,
    /// Of its device.
    gbytes: f64,
    latency_us: f64,
    /// Of its proxy.
    threads: u32,
    /// A digest of its device's name.
    device: u64,
}

/// Networks' names are words.
const NAME_BYTES_MAX: usize = 256;

impl Message for NetworkInfo {
    const VERSION: u8 = 2;
    const BYTES_MAX: usize = 48 + NAME_BYTES_MAX;

    fn is_sound(&self) -> bool {
        let NetworkInfo { gbytes, latency_us, .. } = *self;
        gbytes.is_finite() && gbytes > 0.0 && latency_us.is_finite() && latency_us >= 0.0
    }
}

/// A connection as the proxy knows it.
fn place_of(channels: &NetChannels, name: ConnName) -> EndId {
    let first = channels.of(match name.kind {
        ConnKind::Ring => Connections::Ring,
        ConnKind::Tree => Connections::Tree,
        ConnKind::Mesh | ConnKind::Pair => Connections::Mesh,
        ConnKind::Chain => Connections::Chain,
    });
    let channel = ChannelId(first.start + name.channel as u32);
    EndId { peer: name.peer, channel, is_send: name.is_send }
}

/// This rank's places in rings and trees, in the order of [`NetChannels`]; between pairs there are none.
fn proxy_channels(layout: &DeviceLayout, rank: Rank) -> Box<[ProxyChannel]> {
    let ring = |ring: &Vec<Rank>| ProxyChannel { ring: ring.as_slice().into(), ..ProxyChannel::default() };
    let tree = |channel| ProxyChannel { tree: layout.trees.links(channel, rank), ..ProxyChannel::default() };
    let rings = layout.rings.iter().map(ring);
    let trees = (0..layout.trees.channels()).map(tree);
    let pairs = (0..layout.far_channels).map(|_| ProxyChannel::default());
    // Neighbours in a chain meet in memory. What is above a head goes by the name of the next head.
    let chain = |channel| {
        let above = layout.chains.place(channel, rank).filter(|place| place.is_head).map(|place| place.above);
        ProxyChannel { chain: [above, None], ..ProxyChannel::default() }
    };
    let chains = (0..layout.chains.channels()).map(chain);
    rings.chain(trees).chain(pairs).chain(chains).collect()
}

impl NetConnected {
    /// Where a connection lies for kernels, if it leads over the network.
    pub(super) fn site(&self, name: ConnName) -> Option<ConnSite> {
        if name.kind == ConnKind::Chain {
            let chain = self.chains.get(&name.channel).filter(|_| !self.is_near(name.peer));
            return chain.map(|chain| chain.site(name.is_send));
        }
        let place = self.places.of(name)?;
        let block = self.memory.address(place.offset);
        let behind = ConnSite::new([block; 2], place.slots);
        Some(ConnSite { counted: place.counted.unwrap_or(behind.counted), ..behind })
    }

    fn is_near(&self, peer: Rank) -> bool {
        !self.parts.reaches[peer.index()]
    }

    /// Bytes of pinned memory of a head's connections to the network that reduces.
    pub fn chain_bytes(&self) -> usize {
        self.chains.values().map(ChainMemory::len_bytes).sum()
    }

    /// Bytes of memory, pinned or the GPU's, that the connections to a rank, or from it, take.
    pub fn bytes_with(&self, peer: Rank, is_send: bool) -> usize {
        self.places.bytes_with(peer, is_send)
    }
}
