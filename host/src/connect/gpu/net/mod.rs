//! Layer: host / connect / gpu / net.
//! Takes: a bootstrap, a GPU, a layout, who is reached over a network.
//! Gives: [`Network`], the device to use, and from it [`NetConnected`]: for each connection over it a block that kernels and the
//! proxy share, and the proxy's end of it.
//! Never: drives a connection, launches a kernel, lets one rank fail alone.
//!
//! From below: `processors`, where the proxy runs; `places`, which connections, pure; `gdr`, whether the NIC uses the GPU's memory, pure;
//! `memory`, what connections lie in; `counted`, those of their slots that lie on the GPU; `head`, to a network that reduces; `devices`,
//! by which they go, pure; `far`, connections that an operation is the first to need.

mod processors;
mod places;
mod gdr;
mod memory;
mod counted;
mod head;
mod devices;
mod far;
#[cfg(test)]
mod tests;

use super::layout::{ConnName, DeviceLayout};
use super::part::Part;
use super::routes::Routes;
use super::survey::RingNics;
use crate::bootstrap::Bootstrap;
use crate::connect::ConnectError;
use crate::connect::collnet::Joining;
use crate::connect::gpu::heads::DeviceHeads;
use crate::connect::vote::{agree, vote_or_abort};
use crate::gpu::Gpu;
use crate::launch::ChannelPlaces;
use crate::machine::{NetChannels, NetEnds, NetParts};
use crate::net::{GdrConfig, Locality, Net, NetConfig, NetError, NetProperties, UNKNOWN_MBPS, find, nearest};
use crate::plan::Nics;
use crate::plan::tuning::NetSpeed;
use crate::proxy::{DeviceSlots, Idle, Keep, ProxyChannel, ProxyEnd, ProxyPlace, RecvEnd, SendEnd};
use crate::topology::detect::{GpuFacts, NetFacts, Sysfs};
use crate::topology::{BusId, Inventory, NicReach, PathKind};
use crate::transport::net::{Dialed, Dialing, Handles};
use crate::transport::{PeerInfo, processors_each};
use crate::wire::{Message, cut, digest};
use counted::CountedSlots;
use devices::Devices;
pub use far::FarLinks;
use gdr::{Gdr, GdrCase, decide};
use head::HeadMemory;
use memory::HostMemory;
pub(in crate::connect::gpu) use memory::{PlacedConn, Source};
use oxccl_shared::abi::{ChannelId, Rank};
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
    /// Whether all ranks make connections when they are needed.
    pub by_need: bool,
}

/// What to connect over it.
pub(super) struct NetWanted<'a> {
    pub rank: Rank,
    pub layout: &'a DeviceLayout,
    /// What is to be connected at init.
    pub parts: &'a [Part],
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
    /// Where kernels find those that there are by now.
    pub(in crate::connect::gpu) conns: Vec<PlacedConn>,
    /// What makes the others.
    pub(in crate::connect::gpu) links: FarLinks,
    /// Bytes of pinned memory of a head's connections to the network that reduces.
    pub head_bytes: usize,
}

impl Network {
    /// The network that the user names, or the best that there is, and of its devices the one nearest to `gpu`. Every rank calls it at
    /// the same time.
    pub fn find(
        bootstrap: &Bootstrap,
        config: &NetConfig,
        (peers, gpu): (&[PeerInfo], BusId),
        by_need: bool,
    ) -> Result<Network, ConnectError> {
        let rank = bootstrap.rank();
        let refused = |source| ConnectError::Net { rank, peer: None, source: Box::new(source) };
        let here = peers[rank.index()].host;
        let local_rank = peers[..rank.index()].iter().filter(|peer| peer.host == here).count() as u32;
        let found = find(config).and_then(|net| Network::on_nearest_device(net, gpu, local_rank));
        let found = found.map(|network| {
            let threads = processors::proxy_threads(&*network.net, processors_each(peers, here));
            Network { threads: config.proxy_threads.unwrap_or(threads), by_need, ..network }
        });
        let said =
            found.as_ref().map(|network| network.info().to_bytes()).map_err(|error| refused(error.clone()));
        let said = agree(bootstrap, said)?;
        let network = found.map_err(refused)?;
        let (mut speed, mut threads_least, mut by_need) = (network.speed, network.threads, by_need);
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
            by_need &= theirs.by_need;
            nic_of.push(theirs.device);
        }
        Ok(Network { speed, threads_least, nic_of, by_need, ..network })
    }

    /// What all ranks know of the devices between these groups.
    pub fn nics(&self, routes: &Routes) -> Nics {
        Nics::new(routes.group_of(), self.nic_of.clone(), self.speed, self.threads_least)
    }

    fn on_nearest_device(net: Arc<dyn Net>, gpu: BusId, local_rank: u32) -> Result<Network, NetError> {
        let place = Locality::of_gpu(Sysfs::live().place(gpu), local_rank);
        let device = nearest(net.devices(), |device| net.properties(device), &place)?;
        let properties = net.properties(device)?;
        let mbps = Some(properties.speed_mbps).filter(|speed| *speed > 0).unwrap_or(UNKNOWN_MBPS);
        let speed =
            NetSpeed { gbytes: f64::from(mbps) / 8000.0, latency_us: f64::from(properties.latency_us) };
        let (threads, nic_of) = (1, Vec::new());
        Ok(Network { net, device, properties, threads, threads_least: 1, speed, nic_of, by_need: true })
    }

    /// What the other ranks are told.
    fn info(&self) -> NetworkInfo {
        let NetSpeed { gbytes, latency_us } = self.speed;
        let name = cut(self.net.name(), NAME_BYTES_MAX).to_owned();
        let device = digest(&(&self.properties.name, self.properties.port));
        NetworkInfo { name, gbytes, latency_us, threads: self.threads, device, by_need: self.by_need }
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
        let connected = self.connect_in(&device, gdr, bootstrap, (wanted, ring_devices), joining);
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
        (wanted, ring_devices): (&NetWanted<'_>, Vec<[u32; 2]>),
        joining: Vec<Joining>,
    ) -> Result<NetConnected, ConnectError> {
        let NetWanted { rank, layout, connect_timeout, .. } = *wanted;
        let channels = channels_of(layout);
        let devices = Devices { own: self.device, rings: ring_devices, ring_channels: channels.rings };
        let places = NetPlaces::of_parts(layout, rank, wanted.parts);
        let mut dialed = self.dial(bootstrap, wanted, (&places, &channels, &devices))?;
        let counted = gdr.and_then(|gdr| CountedSlots::allocate(source, gdr, (rank, &places)));
        let registered = counted.as_ref().map(|counted| counted.register_all((rank, &places), &mut dialed));
        let (slots, are_all) = registered.unwrap_or_default();
        // Where the first are refused, later ones are not tried.
        let gdr = gdr.filter(|_| are_all || slots.is_empty());
        let slots_of = |at: usize| slots.get(at).copied().flatten();
        let places = places.with_counted(|at| slots_of(at).map(|slots| slots.first.addr().get() as u64));
        // Every head joins its channels in their order, so that none waits for one that waits for it.
        let join = |joining: Joining| joining.join(bootstrap, connect_timeout);
        let joined = joining.into_iter().map(join).collect::<Result<Vec<_>, ConnectError>>()?;
        // A rank within a host may have no connection to another one yet.
        let memory = (places.len_bytes > 0).then(|| source.host(places.len_bytes)).transpose();
        let memory = memory.map_err(|source| ConnectError::Device { rank, source: source.into() })?;
        let mut heads = Vec::with_capacity(joined.len());
        for joined in joined {
            let (kind, channel) = channels.headed(joined.channel as u32);
            let memory = HeadMemory::new(source, rank, (kind, layout.slots(kind)))?;
            heads.push((joined, kind, channel, memory));
        }
        let of_heads: Vec<Keep> = heads.iter().map(|(.., memory)| memory.keep()).collect();
        let keep: Keep = Arc::new((
            memory.as_ref().map(HostMemory::keep),
            counted.map(|counted| counted.keep()),
            of_heads,
        ));
        let (mut ends, mut conns) = (Vec::new(), Vec::new());
        if let Some(memory) = &memory {
            let whole = Whole { rank, channels: &channels, memory, slots: &slots_of, keep: &keep };
            (ends, conns) = (whole.ends(&places, dialed)?, memory.conns(&places));
        }
        let head_bytes = heads.iter().map(|(.., memory)| memory.len_bytes()).sum();
        for (joined, kind, channel, memory) in heads {
            conns.extend(memory.conns(channel as usize, joined.next_head));
            let of_proxy = ChannelId(channels.of(kind).start + channel);
            ends.push(ProxyEnd::Coll(Box::new(memory.end(rank, of_proxy, joined)?)));
        }
        let links = FarLinks {
            rank,
            handles: Handles {
                reach: bootstrap.reach(),
                net: self.net.clone(),
                device: far::device_of(devices),
            },
            channels,
            gdr,
        };
        let parts = self.parts(wanted, channels, NetEnds { ends, memory: vec![keep] });
        Ok(NetConnected { parts, conns, links, head_bytes })
    }

    /// Connects these places.
    fn dial(
        &self,
        bootstrap: &Bootstrap,
        wanted: &NetWanted<'_>,
        (places, channels, devices): (&NetPlaces, &NetChannels, &Devices),
    ) -> Result<Dialed, ConnectError> {
        let (to, from) = (places.peers(true), places.peers(false));
        let by_place = [false, true].map(|is_send| {
            let names = places.one_way(is_send).map(|place| place.name);
            let ends = names.map(|name| channels.end(name.kind, name.channel, name.peer, is_send));
            ends.map(|end| devices.of(end.channel.0, is_send)).collect::<Vec<u32>>()
        });
        let device = &|is_send: bool, at: usize| by_place[usize::from(is_send)][at];
        let (net, timeout) = (&self.net, wanted.connect_timeout);
        let dialed = Dialing { bootstrap, net, device, to: &to, from: &from, timeout }.connect();
        dialed.map_err(|error| ConnectError::of_transport(wanted.rank, error))
    }

    /// For the engine.
    fn parts(&self, wanted: &NetWanted<'_>, channels: NetChannels, made: NetEnds) -> NetParts {
        let NetWanted { rank, layout, peers, gpu, step_timeout, .. } = *wanted;
        let here = &peers[rank.index()];
        let nic = self.properties.pci_path.as_ref().map(PathBuf::from);
        NetParts {
            rank,
            nranks: layout.nranks,
            made,
            channels,
            places: proxy_channels(layout, rank),
            step_timeout,
            reaches: (0..layout.nranks).map(Rank).map(|peer| layout.routes.is_net(rank, peer)).collect(),
            device: format!("{} {}", self.net.name(), self.properties.name),
            cpus: processors::near(&Sysfs::live(), nic.as_deref(), gpu, &here.processors),
            idle: if processors_each(peers, here.host) == 0 { Idle::FRUGAL } else { Idle::BALANCED },
            threads: self.threads,
        }
    }
}

/// The channels of a communicator's proxies.
fn channels_of(layout: &DeviceLayout) -> NetChannels {
    NetChannels {
        rings: layout.rings.len() as u32,
        trees: layout.trees.channels() as u32,
        mesh: layout.far_channels,
        pairs: layout.far_channels,
        chains: layout.chains.channels() as u32,
        stars: layout.stars.channels() as u32,
    }
}

/// What the ends of a rank's connections are made of.
struct Whole<'a> {
    rank: Rank,
    channels: &'a NetChannels,
    memory: &'a HostMemory,
    /// Slots on the GPU, by place.
    slots: &'a dyn Fn(usize) -> Option<DeviceSlots>,
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
            if let Some(slots) = (self.slots)(at) {
                // SAFETY: (1) the end keeps the memory; (2) the communicators are in the order in which they were told of it.
                block = unsafe { block.with_counted_slots(slots) };
            }
            let ConnName { kind, channel, peer, is_send } = place.name;
            let name = self.channels.end(kind, channel, peer, is_send);
            ends.push(if is_send {
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
    /// Whether it makes connections when they are needed.
    by_need: bool,
}

/// Networks' names are words.
const NAME_BYTES_MAX: usize = 256;

impl Message for NetworkInfo {
    const VERSION: u8 = 3;
    const BYTES_MAX: usize = 48 + NAME_BYTES_MAX;

    fn is_sound(&self) -> bool {
        let NetworkInfo { gbytes, latency_us, .. } = *self;
        gbytes.is_finite() && gbytes > 0.0 && latency_us.is_finite() && latency_us >= 0.0
    }
}

/// This rank's places in rings and trees, in the order of [`NetChannels`]; between pairs there are none.
fn proxy_channels(layout: &DeviceLayout, rank: Rank) -> Box<[ProxyChannel]> {
    let ChannelPlaces { rings, trees, .. } = layout.places(rank);
    let pairs = (0..2 * layout.far_channels).map(|_| ProxyChannel::default());
    // Ranks of a host meet in memory. What is above a head goes by the name of the next head.
    let head = |heads: &DeviceHeads, channel| {
        let place = heads.place(channel, rank).filter(|place| place.is_head);
        place.map(|place| ProxyPlace::of_head(place.above, layout.nranks)).unwrap_or_default()
    };
    let chains = (0..layout.chains.channels())
        .map(|channel| ProxyChannel { chain: head(&layout.chains, channel), ..ProxyChannel::default() });
    let stars = (0..layout.stars.channels())
        .map(|channel| ProxyChannel { star: head(&layout.stars, channel), ..ProxyChannel::default() });
    rings.into_iter().chain(trees).chain(pairs).chain(chains).chain(stars).collect()
}
