//! Connections over a network: their proxy gets an order for every kernel before the kernel runs.
//!
//! Orders are issued before the launch, because a launch may wait (`CUDA_LAUNCH_BLOCKING`) for a kernel that waits for its proxy. If
//! the launch then fails, the communicator ends. Kernels of graphs: `order_gate`.

use super::conns::{ConnKind, NetEnds};
use super::order_gate::{OrderGate, Replay, SharedGate, Sink};
use super::verdict::Verdict;
use crate::launch::{Direction, Fault, Health, LEFT_GRACE, LinkError, Notice, Notify, collective_order};
use crate::plan::{FAR_CHANNELS_MAX, Plan};
use crate::proxy::{
    Concerns, Elements, EndError, EndFault, EndId, Idle, Keep, ORDERS_OPEN_MAX, ProxyChannel, ProxyEnd,
    ProxyFailure, ProxyOrder, ProxyOwner, ProxyParts, ProxyThread, ProxyThreadConfig, proxy, share,
};
use oxccl_shared::abi::{ChannelId, KERNEL_MESSAGES_MAX, KernelColl, KernelMessage, Protocol, Rank};
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::algo::spec::Connections;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Groups of messages need no order of the proxy's own, unlike on CPUs (`launch/net_links.rs`): launches come in an
/// order that sender and receiver share, so all launches before the first incomplete one are complete everywhere, and
/// a proxy's open orders have room for that whole launch, with each message on several channels.
const _: () = assert!(KERNEL_MESSAGES_MAX * FAR_CHANNELS_MAX as usize <= ORDERS_OPEN_MAX);

/// Channel numbers of a GPU communicator's proxy: those of rings, then of trees, of the mesh, of pairs, of chains and of stars.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetChannels {
    /// Of rings.
    pub rings: u32,
    /// Of trees.
    pub trees: u32,
    /// Between any two ranks, for collectives.
    pub mesh: u32,
    /// Between any two ranks, for messages.
    pub pairs: u32,
    /// Of chains to a network that reduces.
    pub chains: u32,
    /// Of stars to a network that reduces.
    pub stars: u32,
}

impl NetChannels {
    /// All.
    pub fn count(&self) -> u32 {
        self.of(ConnKind::Star).end
    }

    /// The channels of a kind.
    pub fn of(&self, kind: ConnKind) -> Range<u32> {
        let NetChannels { rings, trees, mesh, pairs, chains, stars } = *self;
        let (first, count) = match kind {
            ConnKind::Ring => (0, rings),
            ConnKind::Tree => (rings, trees),
            ConnKind::Mesh => (rings + trees, mesh),
            ConnKind::Pair => (rings + trees + mesh, pairs),
            ConnKind::Chain => (rings + trees + mesh + pairs, chains),
            ConnKind::Star => (rings + trees + mesh + pairs + chains, stars),
        };
        first..first + count
    }

    /// A head's channel of those to networks that reduce, chains before stars: its kind and its number among these.
    pub fn headed(&self, at: u32) -> (ConnKind, u32) {
        match at.checked_sub(self.chains) {
            None => (ConnKind::Chain, at),
            Some(star) => (ConnKind::Star, star),
        }
    }

    /// An end of a connection, as the proxy knows it.
    pub fn end(&self, kind: ConnKind, channel: usize, peer: Rank, is_send: bool) -> EndId {
        EndId { peer, channel: ChannelId(self.of(kind).start + channel as u32), is_send }
    }

    /// The proxy order of a collective's kernel.
    pub fn order_of_collective(&self, coll: &KernelColl, plan: &Plan) -> ProxyOrder {
        let connections = spec_of(plan.algorithm).connections;
        let first_channel = self.of(ConnKind::of(connections)).start;
        let order = ProxyOrder { tag: coll.tag, first_channel, ..collective_order(plan, coll.root) };
        match (connections, plan.dtype) {
            (Connections::Chain | Connections::Star, Some(dtype)) => {
                order.with_elements(Elements::new(dtype, coll.combines()))
            }
            _ => order,
        }
    }

    /// The proxy order of a message that a kernel of this protocol divides among `channels`.
    pub fn order_of_message(
        &self,
        message: &KernelMessage,
        peer: Rank,
        protocol: Protocol,
        channels: u32,
    ) -> ProxyOrder {
        let first = self.of(ConnKind::Pair).start;
        ProxyOrder::of_message(message, peer, protocol, first..first + channels)
    }

    /// A name for messages.
    fn name(&self, channel: ChannelId) -> String {
        let kinds = [
            (ConnKind::Ring, "ring"),
            (ConnKind::Tree, "tree"),
            (ConnKind::Mesh, "mesh"),
            (ConnKind::Pair, "pair"),
            (ConnKind::Chain, "chain"),
            (ConnKind::Star, "star"),
        ];
        let found = kinds.into_iter().find(|(kind, _)| self.of(*kind).contains(&channel.0));
        found.map_or_else(
            || format!("channel {channel}"),
            |(kind, name)| format!("{name} channel {}", channel.0 - self.of(kind).start),
        )
    }
}

/// What `connect` creates at init for connections over a network.
pub struct NetParts {
    /// This rank.
    pub rank: Rank,
    /// Ranks of the communicator.
    pub nranks: u32,
    /// The connections that there are by now.
    pub made: NetEnds,
    /// Channels of the proxy.
    pub channels: NetChannels,
    /// This rank's positions in rings and trees, by channel.
    pub places: Box<[ProxyChannel]>,
    /// Timeout for the other end of a connection with an operation in progress.
    pub step_timeout: Duration,
    /// By rank: whether it is reached over the network.
    pub reaches: Box<[bool]>,
    /// The network and its device, for messages.
    pub device: String,
    /// The processors near that device; none: any.
    pub cpus: Vec<usize>,
    /// How the proxy polls while it is idle.
    pub idle: Idle,
    /// Threads of the proxy, which divide the connections. One starts with its first connection.
    pub threads: u32,
}

/// A communicator's proxy. Dropping it ends it; kernels must have ended.
pub struct NetProxy {
    gate: OrderGate<Threads>,
    /// Of the launch that comes next.
    orders: Vec<ProxyOrder>,
    channels: NetChannels,
    reaches: Box<[bool]>,
    /// By kind: whether it drives connections.
    has: [bool; ConnKind::COUNT],
    /// Dropped last.
    memory: Vec<Keep>,
}

impl NetProxy {
    /// Starts the threads. A failure on them becomes a fault in `health`, whose alarm ends kernels; a stop of
    /// `health` ends the threads.
    ///
    /// # Errors
    /// The system cannot create a thread.
    pub fn start(
        parts: NetParts,
        health: &Arc<Health>,
        notify: &Arc<dyn Notify + Sync>,
    ) -> io::Result<NetProxy> {
        let NetParts { rank, nranks, made, channels, places, step_timeout, reaches, .. } = parts;
        let NetParts { device, cpus, idle, threads, .. } = parts;
        let owner = Owner { health: health.clone(), notify: notify.clone(), channels, device };
        let by_share = (0..threads.max(1)).map(|_| None).collect();
        let threads = Threads { by_share, rank, nranks, places, step_timeout, cpus, idle, owner };
        let (gate, orders) =
            (OrderGate::new(threads, health.clone()), Vec::with_capacity(KERNEL_MESSAGES_MAX));
        let has = [false; ConnKind::COUNT];
        let mut proxy = NetProxy { gate, orders, channels, reaches, has, memory: Vec::new() };
        proxy.add(made)?;
        Ok(proxy)
    }

    /// Adds connections, for the kernels of later calls. Those of earlier ones, in graphs too, do not use them.
    ///
    /// # Errors
    /// The system cannot create a thread.
    pub(crate) fn add(&mut self, made: NetEnds) -> io::Result<()> {
        let NetEnds { ends, memory } = made;
        self.memory.extend(memory);
        for end in ends {
            let channel = end.place().channel.0;
            for kind in ConnKind::ALL {
                self.has[kind as usize] |= self.channels.of(kind).contains(&channel);
            }
            self.gate.with_sink(|threads| threads.add(end)).transpose()?;
        }
        Ok(())
    }

    /// Adds the order of a collective's kernel, which [`Self::issue`] issues.
    pub(crate) fn collective(&mut self, coll: &KernelColl, plan: &Plan) {
        // Of rings, trees and chains some ranks have neighbours in memory alone.
        if self.has[ConnKind::of(spec_of(plan.algorithm).connections) as usize] {
            self.orders.push(self.channels.order_of_collective(coll, plan));
        }
    }

    /// Whether a rank is reached over the network.
    pub(crate) fn is_far(&self, peer: Rank) -> bool {
        self.reaches[peer.index()]
    }

    /// Adds the order of a message of the next kernel, which [`Self::issue`] issues.
    pub(crate) fn message(&mut self, message: &KernelMessage, peer: Rank, protocol: Protocol, channels: u32) {
        if self.reaches[peer.index()] {
            self.orders.push(self.channels.order_of_message(message, peer, protocol, channels));
        }
    }

    /// Issues the orders of the next kernel, or says how they will be issued.
    #[must_use = "the orders may not have been issued yet"]
    pub(crate) fn issue(&mut self, is_captured: bool) -> Issue {
        let issue = match self.orders.is_empty() {
            true => Issue::Nothing,
            false if is_captured => Issue::ByGraph(Box::new(self.gate.capture(&self.orders))),
            false => self.gate.call(&self.orders).map_or(Issue::Done, Issue::ByStream),
        };
        self.orders.clear();
        issue
    }

    /// Drops the orders of the latest [`Issue::ByStream`], whose kernel is not launched.
    pub(crate) fn withdraw(&mut self) {
        self.gate.withdraw();
    }

    /// Whether all orders are done: everything has been sent and published.
    pub(crate) fn is_done(&self) -> bool {
        self.gate.is_done()
    }
}

/// How the orders of a kernel reach the proxy.
pub(crate) enum Issue {
    /// There are none: the kernel uses no connection over the network.
    Nothing,
    /// They were issued.
    Done,
    /// The stream must run this before the kernel.
    ByStream(Arc<SharedGate<Threads>>),
    /// The graph must run this at each launch before the kernel.
    ByGraph(Box<Replay<Threads>>),
}

/// The proxy's threads: each drives a part of the connections, and starts with the first of these.
pub(crate) struct Threads {
    by_share: Box<[Option<(Concerns, ProxyThread)>]>,
    rank: Rank,
    nranks: u32,
    places: Box<[ProxyChannel]>,
    step_timeout: Duration,
    cpus: Vec<usize>,
    idle: Idle,
    owner: Owner,
}

impl Threads {
    /// Adds a connection, for orders that are given from now on.
    fn add(&mut self, end: ProxyEnd) -> io::Result<()> {
        let place = end.place();
        let number = share(place, self.by_share.len());
        if let Some((concerns, thread)) = &mut self.by_share[number] {
            concerns.add(place);
            let added = thread.orders().add(end);
            assert!(added, "a proxy of this process takes every connection");
            return Ok(());
        }
        let Threads { rank, nranks, step_timeout, idle, .. } = *self;
        let (channels, timeout) = (self.places.clone(), Some(step_timeout));
        let name = format!("oxccl prx {rank}.{number}");
        let config = ProxyThreadConfig { name, idle, cpus: self.cpus.clone() };
        let mut concerns = Concerns::of_none(channels.len());
        concerns.add(place);
        let (orders, progress) = proxy(ProxyParts { rank, nranks, channels, ends: vec![end], timeout });
        let thread = ProxyThread::start(orders, progress, &config, self.owner.clone())?;
        self.by_share[number] = Some((concerns, thread));
        Ok(())
    }
}

impl Sink for Threads {
    fn give(&mut self, order: ProxyOrder) {
        let threads = self.by_share.iter_mut().flatten();
        for (_, thread) in threads.filter(|(concerns, _)| concerns.has_part_in(&order)) {
            let queued = thread.orders().queue(order);
            queued.expect("a proxy of this process has room for every order");
        }
    }

    fn is_done(&self) -> bool {
        self.by_share.iter().flatten().all(|(_, thread)| thread.is_done())
    }
}

/// The state that a proxy's failure ends.
#[derive(Clone)]
struct Owner {
    health: Arc<Health>,
    notify: Arc<dyn Notify + Sync>,
    channels: NetChannels,
    device: String,
}

impl ProxyOwner for Owner {
    fn is_stopped(&self) -> bool {
        self.health.is_stopped()
    }

    fn waits_for(&self, head: Option<Rank>) {
        self.notify.notify(Notice::WaitsFor(head));
    }

    fn failed(&self, failure: &ProxyFailure) {
        let verdict = Verdict { health: &self.health, notify: &*self.notify, latest: self.health.latest() };
        let Some(error) = &failure.error else {
            let (peer, direction) = (failure.rank, Direction::To);
            let error = LinkError::Net { peer, direction, reason: keep(failure.said.clone()) };
            verdict.fail(Fault::Link { error });
            return;
        };
        let peer = error.place.peer;
        match &error.why {
            EndFault::Timeout { limit } => verdict.overdue(peer, *limit, None),
            EndFault::Unreduced { awaited, limit } => {
                verdict.overdue(peer, *limit, Some(LinkError::unreduced(awaited, *limit)))
            }
            why if why.is_mismatch() => verdict.mismatch(peer),
            EndFault::Net(_) | EndFault::Coll(_) => {
                // The monitor may know whether the rank that the network lost has died.
                verdict.listen(LEFT_GRACE * 2);
                let has_left = self.health.has_left(peer);
                verdict.fail(if has_left { Fault::PeerLeft { rank: peer } } else { self.link(error) })
            }
            _ => verdict.fail(self.link(error)),
        };
    }
}

impl Owner {
    fn link(&self, error: &EndError) -> Fault {
        if let EndFault::Coll(fault) = &error.why {
            return Fault::Link { error: LinkError::Coll { reason: keep(fault.to_string()) } };
        }
        let direction = if error.place.is_send { Direction::To } else { Direction::From };
        let (channel, outstanding) = (self.channels.name(error.place.channel), error.outstanding);
        let outstanding = outstanding.map(|was| format!(" ({was})")).unwrap_or_default();
        let reason = keep(format!("{channel} over {}: {}{outstanding}", self.device, error.why));
        Fault::Link { error: LinkError::Net { peer: error.place.peer, direction, reason } }
    }
}

/// Keeps a text for the rest of the process: a communicator fails only once.
fn keep(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tuning::NetSpeed;
    use crate::plan::{Call, ChannelLimits, Facts, Forced, plan};
    use oxccl_shared::abi::{Algorithm, DataType, Func, MESSAGE_SENDS, RedOp};
    use oxccl_shared::algo::chunk::ChannelCut;

    const CHANNELS: NetChannels = NetChannels { rings: 4, trees: 3, mesh: 2, pairs: 2, chains: 1, stars: 2 };

    #[test]
    fn channels_of_a_kind_follow_those_of_another() {
        assert_eq!(CHANNELS.of(ConnKind::Ring), 0..4);
        assert_eq!(CHANNELS.of(ConnKind::Tree), 4..7);
        assert_eq!(CHANNELS.of(ConnKind::Mesh), 7..9);
        assert_eq!(CHANNELS.of(ConnKind::Pair), 9..11);
        assert_eq!([ConnKind::Chain, ConnKind::Star].map(|kind| CHANNELS.of(kind)), [11..12, 12..14]);
        let headed = [0, 1, 2].map(|at| CHANNELS.headed(at));
        assert_eq!(headed, [(ConnKind::Chain, 0), (ConnKind::Star, 0), (ConnKind::Star, 1)]);
        let names = [0, 6, 7, 9, 11, 12, 14].map(|channel| CHANNELS.name(ChannelId(channel)));
        let expected = [
            "ring channel 0",
            "tree channel 2",
            "mesh channel 0",
            "pair channel 0",
            "chain channel 0",
            "star channel 0",
            "channel 14",
        ];
        assert_eq!(names, expected);
    }

    /// An order describes a launch by its kernel's arguments, and names the proxy's connections.
    #[test]
    fn orders_are_made_of_what_kernels_are_launched_with() {
        let forced = Forced::only(Some(Algorithm::Tree), Some(Protocol::Simple));
        let slow = NetSpeed { gbytes: 1.0, latency_us: 10.0 };
        let facts =
            Facts::of_gpus(4, (90, 132), forced, ChannelLimits::default(), None).over_network(2, slow, 1);
        let call = Call {
            func: Func::AllReduce,
            dtype: DataType::F32,
            op: RedOp::Sum,
            root: Rank(0),
            count: 1 << 28,
        };
        for (call, first, algorithm) in [
            (call, 4, Algorithm::Tree),
            (Call { func: Func::Broadcast, root: Rank(3), ..call }, 0, Algorithm::Ring),
            (Call { func: Func::Barrier, count: 0, ..call }, 7, Algorithm::OneShot),
        ] {
            let plan = plan(&call, &facts);
            let coll = KernelColl {
                src: std::ptr::null(),
                dst: std::ptr::null_mut(),
                cut: ChannelCut::new(plan.count as usize, plan.channels, plan.grain_elems as usize),
                chunk_elems: plan.chunk_elems,
                slice_elems: plan.slice_elems,
                arg: oxccl_shared::reduce::OpArg::NONE,
                kind: 0,
                flags: 0,
                func: plan.func as u32,
                root: call.root,
                tag: 77,
                host_ranks: plan.host_ranks,
            };
            let order = CHANNELS.order_of_collective(&coll, &plan);
            assert_eq!((order.first_channel, order.nchannels), (first, plan.channels), "{plan:?}");
            let protocol = plan.protocol;
            let numbers = [plan.func as u8, algorithm as u8, protocol as u8];
            assert_eq!([order.func, order.algorithm, order.protocol], numbers);
            assert_eq!((order.count, order.chunk_elems, order.tag), (plan.count, plan.chunk_elems, 77));
            assert_eq!(order.rank, call.root);
        }
        let message = KernelMessage {
            buffer: std::ptr::null_mut(),
            len_bytes: 500,
            conn: 2,
            reached: 0,
            flags: MESSAGE_SENDS,
            tag: 78,
            lane: 0,
        };
        let order = CHANNELS.order_of_message(&message, Rank(3), Protocol::LL, 2);
        assert_eq!((order.first_channel, order.nchannels, order.rank, order.count), (9, 2, Rank(3), 500));
        assert_eq!((order.func, order.protocol, order.tag), (Func::Send as u8, Protocol::LL as u8, 78));
    }
}
