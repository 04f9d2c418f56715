//! Communicators of GPUs over sockets, without GPUs: what `connect` makes, the tables that kernels read, the plans and the orders of
//! launches are those of GPUs; the memory is the host's, and the kernels' algorithms run on a CPU.

mod cases;
mod collnet;
mod direct;
mod graphs;
mod outages;
mod rings;
mod scale;

use super::*;
use crate::bootstrap::{BootstrapConfig, InterfaceFilter, UniqueId};
use crate::connect::collnet::{HeadListener, Heads, HostRanks, headed};
use crate::connect::gpu::connect::{all_parts, layout};
use crate::connect::gpu::heads::{DeviceHeads, InHosts};
use crate::connect::gpu::routes::{RouteSettings, Routes};
use crate::connect::gpu::tables::{ConnSite, Tables};
use crate::gpu::{CudaError, HostWork, NicMemory};
use crate::launch::{Health, Notice, Notify, Outstanding, PeerTraffic, PlannedTraffic, RawCall};
use crate::machine::ConnKind;
use crate::machine::{ConnLists, Issue, Need, NetProxy, collective_args};
use crate::mem::Segment;
use crate::net::coll::CollNet;
use crate::net::socket::SocketConfig;
use crate::plan::{
    Arrangement, Call, CallPlan, ChannelLimits, Collnet, Facts, Forced, MessageWant, Plan, arrange,
    message_connections, plan,
};
use crate::topology::Channels;
use direct::{Direct, DirectNet, Gpu};
use oxccl_device::coll::{
    self, AtOnce, CollWork, Endpoints, HostEnds, MeshEnds, P2pWork, RingEnds, TreeEnds, send_recv,
};
use oxccl_device::conn::{Conns, RecvConn, SendConn};
use oxccl_device::gpu::cpu::{CpuBlock, Waiter};
use oxccl_device::gpu::{Stop, Wait};
use oxccl_device::prims::Ll;
use oxccl_device::traffic::Traffic;
use oxccl_shared::abi::{
    Algorithm, ConnEnd, DataType, Func, KERNEL_MESSAGE_GRAIN_BYTES, KernelColl, KernelMessage, KernelTree,
    MESSAGE_SENDS, RedOp, SlotHeader,
};
use oxccl_shared::algo::chunk;
use oxccl_shared::algo::collnet::{HostLinks, Owner};
use oxccl_shared::algo::mesh::{peers, place_from};
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::fifo::{ConsumerCursor, ProducerCursor};
use oxccl_shared::reduce::resolve;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What no scene takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(200);

/// A communicator to be.
struct Scene {
    /// The host of each rank.
    hosts: Vec<u64>,
    memory: bool,
    /// Whether connections over the network are made when they are needed.
    by_need: bool,
    forced: Forced,
    step_timeout: Duration,
    /// Of a proxy; every other rank's has one more, since ranks need not agree on that.
    threads: u32,
    /// By rank: whether its NIC uses its GPU's memory. Nobody's, if this is empty.
    direct: Vec<Option<Direct>>,
    /// What reduces between hosts.
    reducing: Option<Arc<dyn CollNet>>,
    healths: Healths,
}

/// Memory of the host for everything.
struct OfProcess;

impl Source for OfProcess {
    fn host(&self, len_bytes: usize) -> Result<HostMemory, CudaError> {
        Ok(HostMemory::of_process(len_bytes))
    }
    fn reached(&self, _: usize) -> Result<Arc<dyn NicMemory>, CudaError> {
        panic!("nobody's NIC uses it")
    }
}

/// Tells the others for whom a rank waits, and no more.
struct Others {
    me: Rank,
    healths: Healths,
}

/// Of all players so far.
type Healths = Arc<Mutex<Vec<Arc<Health>>>>;

impl Notify for Others {
    fn notify(&self, what: Notice) {
        if let Notice::WaitsFor(peer) = what {
            let healths = self.healths.lock().unwrap_or_else(PoisonError::into_inner);
            healths.iter().for_each(|health| health.waits().note(self.me, peer));
        }
    }
    fn gave_up(&self, _: &Outstanding) {}
}

/// A rank as its GPU would have it.
struct Player {
    rank: Rank,
    facts: Facts,
    layout: DeviceLayout,
    /// Connections by kind, with how far they are.
    conns: [KindConns; ConnKind::COUNT],
    tables: Tables,
    links: FarLinks,
    made: HashSet<Part>,
    net: Option<NetProxy>,
    /// Whether launches are captured.
    captures: bool,
    /// How the proxy got the orders of launches since the stream or the graph was last asked for them.
    issues: Vec<Issue>,
    /// Its GPU, if the NIC uses that one's memory.
    gpu: Option<Arc<Gpu>>,
    health: Arc<Health>,
    /// What has gone over its connections, by rank, and what is counted of that by plans.
    moved: Vec<Arc<Traffic>>,
    traffic: PlannedTraffic,
    started: Instant,
    _arenas: Arc<Vec<Segment>>,
}

/// All ends of one kind of channel, as a launch's lists have them.
#[derive(Default)]
struct KindConns {
    /// Entries of a channel in the lists.
    nconns: usize,
    send: Entries<SendConn>,
    recv: Entries<RecvConn>,
}

/// Those entries of a list that there are.
struct Entries<C> {
    /// Their places in the list, sorted.
    places: Vec<usize>,
    conns: Vec<C>,
}

impl<C> Default for Entries<C> {
    fn default() -> Entries<C> {
        Entries { places: Vec::new(), conns: Vec::new() }
    }
}

impl<C> Entries<C> {
    /// The entry at a place of the list, or the next one.
    fn at(&self, place: usize) -> usize {
        self.places.partition_point(|other| *other < place)
    }

    /// Adds what is at a place now, and was not before.
    fn find(&mut self, place: usize, end: ConnEnd, resume: impl FnOnce(ConnEnd) -> C) {
        let at = self.at(place);
        if !end.consumer_side.is_null() && self.places.get(at) != Some(&place) {
            self.places.insert(at, place);
            self.conns.insert(at, resume(end));
        }
    }
}

impl Scene {
    fn new(hosts: &[u64]) -> Scene {
        let (hosts, forced) = (hosts.to_vec(), Forced::default());
        let direct = Vec::new();
        let (reducing, healths) = (None, Healths::default());
        let step_timeout = PATIENCE;
        Scene {
            hosts,
            memory: true,
            by_need: true,
            forced,
            step_timeout,
            threads: 1,
            direct,
            reducing,
            healths,
        }
    }

    fn nranks(&self) -> u32 {
        self.hosts.len() as u32
    }

    fn facts(&self) -> Facts {
        Facts::of_gpus(self.nranks(), (90, 132), self.forced, ChannelLimits::default(), Some(64 << 10))
    }

    /// Every rank on a thread of its own.
    fn play(&self, part: impl Fn(&mut Player) + Sync) {
        let bind_addr = Some("127.0.0.1".parse().unwrap());
        let config = BootstrapConfig { timeout: PATIENCE, bind_addr, ..BootstrapConfig::default() };
        let id = UniqueId::create_by(&config).unwrap();
        // As long as the longest: what memory GPUs of one host share.
        let (facts, channels) = (self.facts(), Channels::in_rank_order(self.nranks()));
        let in_hosts = in_hosts(&channels, &self.hosts);
        let in_hosts = InHosts { chains: in_hosts.clone(), stars: in_hosts };
        let plain = layout(&facts, &channels).with_heads(in_hosts);
        let arena = |rank| Segment::private(plain.len_bytes(rank).iter().sum::<usize>().max(1)).unwrap();
        let arenas = Arc::new((0..self.nranks()).map(Rank).map(arena).collect::<Vec<_>>());
        std::thread::scope(|scope| {
            for rank in 0..self.nranks() {
                let (arenas, part, config) = (arenas.clone(), &part, &config);
                scope.spawn(move || {
                    let bootstrap = Bootstrap::connect(&id, Rank(rank), self.nranks(), config).unwrap();
                    let mut player = self.connect(&bootstrap, arenas);
                    part(&mut player);
                    drop(player.net.take());
                    bootstrap.close();
                });
            }
        });
    }

    /// As `connect` does, with the host's memory for the GPU's.
    fn connect(&self, bootstrap: &Bootstrap, arenas: Arc<Vec<Segment>>) -> Player {
        let rank = bootstrap.rank();
        let peer = |host: &u64| PeerInfo { host: *host, processors: [u64::MAX; 16], ..PeerInfo::default() };
        let peers: Vec<PeerInfo> = self.hosts.iter().map(peer).collect();
        let routes = Routes::new(&peers, RouteSettings { memory: self.memory, network: true });
        let interfaces = InterfaceFilter::parse("=lo");
        let socket = SocketConfig { interfaces, ..SocketConfig::default() };
        let mut config = NetConfig { name: Some("Socket".into()), socket, ..NetConfig::default() };
        let direct = self.direct.get(rank.index()).copied().flatten();
        let own = direct.map(Gpu::new);
        if let Some(gpu) = own.clone() {
            config.own = Some(Arc::new(DirectNet { inner: find(&config).unwrap(), gpu }));
        }
        let gpu = BusId::new(0, 0x77, 0);
        let network = Network::find(bootstrap, &config, (&peers, gpu), self.by_need).unwrap();
        let (mut facts, channels) = (self.facts(), Channels::in_rank_order(self.nranks()));
        // Here a block has one thread.
        facts.tuning.blocks.as_mut().unwrap().ll_threads = 1;
        let facts = facts.on_hosts(peers.iter().map(|peer| peer.host));
        let facts = facts.over_nics(&network.nics(&routes), &channels);
        let named = facts.with_hosts_of_gpus(routes.group_max());
        let [chains, stars] = [named.chain_channels, named.star_channels].map(|count| match count {
            0 => Vec::new(),
            _ => in_hosts(&channels, routes.group_of()),
        });
        let layout = layout(&facts, &channels).with_routes(routes, facts.far_channels);
        let in_hosts = InHosts { chains, stars };
        let heads = self.heads(bootstrap, &mut config, &in_hosts.all());
        let collnet = heads.as_ref().map_or(Collnet::Disabled, |heads| heads.collnet);
        let (chain_channels, star_channels) = (in_hosts.chains.len() as u32, in_hosts.stars.len() as u32);
        let facts = Facts { chain_channels, star_channels, ..facts.with_collnet_of_gpus(collnet) };
        let layout = if heads.is_some() { layout.with_heads(in_hosts) } else { layout };
        let init = if network.by_need { vec![layout.first()] } else { all_parts(&layout, &facts, rank) };
        let wanted = NetWanted {
            rank,
            layout: &layout,
            parts: &init,
            peers: &peers,
            gpu,
            connect_timeout: PATIENCE,
            step_timeout: self.step_timeout,
            gdr: GdrConfig::default(),
            gdr_level: None,
            machine: None,
            ring_nics: &[],
        };
        let source: &dyn Source = own.as_ref().map_or(&OfProcess, |gpu| gpu);
        let gdr = direct.map(|direct| direct.gdr);
        let connected = network
            .connect_in(
                source,
                gdr,
                bootstrap,
                (&wanted, Vec::new()),
                heads.map_or_else(Vec::new, |heads| heads.mine),
            )
            .unwrap();
        let base = |peer: Rank, _| arenas[peer.index()].base().addr() as u64;
        let mut tables = Tables::new(&layout, rank);
        for name in layout.conns_in_memory(rank) {
            let site = ConnSite::new(layout.in_memory(rank, name, &base), layout.slots(name.kind));
            tables.put(&layout, rank, name, site);
        }
        for PlacedConn { name, site, .. } in &connected.conns {
            tables.put(&layout, rank, *name, *site);
        }
        let health = Arc::new(Health::new(rank, self.nranks()));
        self.healths.lock().unwrap_or_else(PoisonError::into_inner).push(health.clone());
        let notify: Arc<dyn Notify + Sync> = Arc::new(Others { me: rank, healths: self.healths.clone() });
        // Machines that test have fewer processors than these ranks have threads.
        let parts = NetParts { idle: Idle::FRUGAL, threads: self.threads + rank.0 % 2, ..connected.parts };
        let net = NetProxy::start(parts, &health, &notify).unwrap();
        let (net, started) = (Some(net), Instant::now());
        let (captures, issues, gpu) = (false, Vec::new(), own);
        let (conns, links, made) = (Default::default(), connected.links, HashSet::from_iter(init));
        let moved = (0..self.nranks()).map(|_| Arc::default()).collect();
        let traffic = PlannedTraffic::new(rank, self.nranks(), layout.places(rank));
        let mut player = Player {
            rank,
            facts,
            layout,
            conns,
            tables,
            links,
            made,
            net,
            captures,
            issues,
            gpu,
            health,
            moved,
            traffic,
            started,
            _arenas: arenas,
        };
        player.read_tables();
        player
    }

    /// What the heads find, if there is anything to find.
    fn heads(&self, bootstrap: &Bootstrap, config: &mut NetConfig, all: &[HostRanks]) -> Option<Heads> {
        config.coll.own = Some(self.reducing.clone()?);
        let rank = bootstrap.rank();
        let mine = match headed(all, rank).count() {
            0 => HeadListener::member(),
            count => HeadListener::listen(config, rank, &Locality::default(), count).unwrap(),
        };
        Some(mine.gather(bootstrap, all).unwrap())
    }
}

/// The ranks of hosts on three channels: along the ring, against it, and along it. A host of several ranks has two heads.
fn in_hosts(channels: &Channels, groups: &[u64]) -> Vec<HostRanks> {
    let there = channels.ring(0).to_vec();
    let back: Vec<Rank> = there.iter().rev().copied().collect();
    [&there, &back, &there].map(|ring| DeviceHeads::along(ring, groups)).to_vec()
}

impl KindConns {
    /// From the bytes that a kernel would find. Channels of trees have room for more neighbours than there are, pairs on different hosts
    /// have fewer channels than others, and what has been found goes on.
    fn read(
        &mut self,
        lists: &ConnLists,
        channels: usize,
        bytes: &[u8],
        counted: impl Fn(Rank) -> Option<Arc<Traffic>>,
    ) {
        let end = |list: u64, index: usize| {
            let at = list as usize + index * size_of::<ConnEnd>();
            let bytes = &bytes[at..at + size_of::<ConnEnd>()];
            // SAFETY: a table's entry holds the fields of a `ConnEnd`, of which every bit pattern is one.
            unsafe { bytes.as_ptr().cast::<ConnEnd>().read_unaligned() }
        };
        self.nconns = lists.nconns as usize;
        for place in 0..channels * self.nconns {
            // SAFETY: (1) the tables' addresses are of memory that outlives the player; (2) each end is resumed once.
            let resume = |end| unsafe { SendConn::resume(end, ProducerCursor::default()) };
            self.send.find(place, end(lists.send, place), |end| {
                let (counted, mut conn) = (counted(end.peer), resume(end));
                counted.into_iter().for_each(|traffic| conn.count_in(traffic));
                conn
            });
            // SAFETY: as above.
            let resume = |end| unsafe { RecvConn::resume(end, ConsumerCursor::default()) };
            self.recv.find(place, end(lists.recv, place), |end| {
                let (counted, mut conn) = (counted(end.peer), resume(end));
                counted.into_iter().for_each(|traffic| conn.count_in(traffic));
                conn
            });
        }
    }

    fn channel(&self, channel: usize, count: usize) -> Conns<'_> {
        let place = channel * self.nconns;
        let (send, recv) = (self.send.at(place), self.recv.at(place));
        Conns { send: &self.send.conns[send..send + count], recv: &self.recv.conns[recv..recv + count] }
    }
}

impl Waiter for Player {
    fn spins(&self) -> u32 {
        1
    }
    fn wait(&self, on: Wait, polls: u32) -> Result<(), Stop> {
        if self.health.is_stopped() {
            return Err(Stop);
        }
        if polls.is_multiple_of(16) {
            assert!(self.started.elapsed() < PATIENCE, "rank {}: stuck: {on:?}", self.rank);
            self.rest(polls);
        }
        Ok(())
    }
    fn refuse(&self, on: Wait, expected: SlotHeader, found: SlotHeader) -> Stop {
        panic!("rank {}: {on:?}: {found:?} instead of {expected:?}", self.rank)
    }
}

fn inputs(call: &Call, rank: Rank, nranks: u32) -> Vec<u32> {
    let blocks = if call.func == Func::ReduceScatter { u64::from(nranks) } else { 1 };
    (0..(call.count * blocks) as u32).map(|i| i.wrapping_mul(7) + 3 * rank.0).collect()
}

/// What `rank` must find in its output; nothing if it is not to be looked at.
fn expected(call: &Call, rank: Rank, n: u32) -> Option<Vec<u32>> {
    let count = call.count as usize;
    let all: Vec<Vec<u32>> = (0..n).map(|rank| inputs(call, Rank(rank), n)).collect();
    let sum = |range: std::ops::Range<usize>| -> Vec<u32> {
        range.map(|i| all.iter().fold(0, |sum: u32, input| sum.wrapping_add(input[i]))).collect()
    };
    match call.func {
        Func::AllReduce => Some(sum(0..count)),
        Func::ReduceScatter => Some(sum(rank.index() * count..(rank.index() + 1) * count)),
        Func::AllGather => Some(all.concat()),
        Func::Broadcast => Some(inputs(call, call.root, n)),
        Func::Reduce => (rank == call.root).then(|| sum(0..count)),
        _ => None,
    }
}

/// A collective's kernel and the memory that it works on.
struct Collective {
    call: Call,
    plan: Plan,
    coll: KernelColl,
    /// Where `coll` points to.
    _input: Vec<u32>,
    output: Vec<u32>,
}

/// The kernels of a group of messages, and the memory that they work on.
struct Messages {
    wants: Vec<MessageWant>,
    launches: Vec<Vec<P2pWork>>,
    /// Where `launches` point to.
    buffers: Vec<Vec<u8>>,
    expected: Vec<Vec<u8>>,
}

impl Player {
    /// As the machine does before it launches what needs it.
    fn need(&mut self, need: &Need) {
        for part in self.layout.parts_of(need, self.rank).collect::<Vec<_>>() {
            if self.made.insert(part) {
                let layout = self.layout.of_part(part);
                let source: &dyn Source = self.gpu.as_ref().map_or(&OfProcess, |gpu| gpu);
                let begun = self.links.begin(source, &layout, &self.health).unwrap();
                for PlacedConn { name, site, .. } in &begun.conns {
                    self.tables.put(&layout, self.rank, *name, *site);
                }
                self.net.as_mut().unwrap().add(begun.made).unwrap();
                self.read_tables();
            }
        }
    }

    fn read_tables(&mut self) {
        let (bytes, lists) = self.tables.on_device();
        for kind in ConnKind::ALL {
            let (moved, routes) = (&self.moved, &self.layout.routes);
            // A network that reduces goes by the name of another head.
            let is_network = |peer| self.layout.heads(kind).is_some() && routes.is_net(self.rank, peer);
            let counted = |peer: Rank| (!is_network(peer)).then(|| moved[peer.index()].clone());
            let channels = self.layout.channels(kind);
            self.conns[kind as usize].read(&lists[kind as usize][0], channels, bytes, counted);
        }
    }

    fn conns(&self, kind: ConnKind) -> &KindConns {
        &self.conns[kind as usize]
    }

    /// A collective, as the engine puts it on a stream, with the kernel's blocks one after the other.
    fn collective(&mut self, call: &Call, tag: u32) -> Result<(), Stop> {
        let mut collective = self.launch_collective(call, tag);
        self.come_to_turns();
        self.run_collective(&mut collective)
    }

    fn launch_collective(&mut self, call: &Call, tag: u32) -> Collective {
        let n = self.facts.nranks;
        let input = inputs(call, self.rank, n);
        let blocks = if call.func == Func::AllGather { n as usize } else { 1 };
        let mut output = vec![0u32; (call.count as usize * blocks).max(1)];
        let raw = RawCall {
            call: *call,
            send: if call.func == Func::Barrier { output.as_ptr().cast() } else { input.as_ptr().cast() },
            recv: output.as_mut_ptr().cast(),
            scalar_bits: 0,
            forced: None,
        };
        let plan = plan(call, &self.facts);
        let kind = ConnKind::of(spec_of(plan.algorithm).connections);
        self.need(&Need { kind, protocol: plan.protocol, channels: plan.channels, peer: None });
        let coll = collective_args(&raw, &plan, &resolve(RedOp::Sum, DataType::U32, n, 0), tag);
        self.net.as_mut().unwrap().collective(&coll, &plan);
        self.issue();
        Collective { call: *call, plan, coll, _input: input, output }
    }

    fn run_collective(&self, collective: &mut Collective) -> Result<(), Stop> {
        let Collective { call, plan, coll, output, .. } = collective;
        output.fill(0);
        self.moved.iter().for_each(|traffic| traffic.begin());
        for channel in 0..plan.channels {
            self.block(plan, coll, channel)?;
        }
        if let Some(expected) = expected(call, self.rank, self.facts.nranks) {
            assert!(*output == expected, "rank {}: wrong result of {call:?} by {plan:?}", self.rank);
        }
        self.check_traffic(&[*call], &[CallPlan::Collective(*plan)]);
        Ok(())
    }

    /// What plans say that these calls moved, with all calls before them, is what went over the connections.
    fn check_traffic(&self, calls: &[Call], plans: &[CallPlan]) {
        let (send, recv) = (std::ptr::null(), std::ptr::null_mut());
        let raw = |call: &Call| RawCall { call: *call, send, recv, scalar_bits: 0, forced: None };
        self.traffic.begin(&calls.iter().map(raw).collect::<Vec<_>>(), plans, |_| true);
        self.traffic.count();
        let moved = self.moved.iter().map(|traffic| traffic.read());
        let moved = moved.map(|moved| PeerTraffic { operations: moved.operations, bytes: moved.bytes });
        assert_eq!(self.traffic.read(), moved.collect::<Vec<_>>(), "rank {}: {plans:?}", self.rank);
    }

    /// As the engine does before a launch.
    fn issue(&mut self) {
        let issue = self.net.as_mut().unwrap().issue(self.captures);
        self.issues.push(issue);
    }

    /// The stream comes to all calls.
    fn come_to_turns(&mut self) {
        assert!(!self.captures);
        for issue in self.issues.drain(..) {
            match issue {
                Issue::ByStream(turn) => turn.run(),
                Issue::Done | Issue::Nothing => {}
                Issue::ByGraph(_) => panic!("not captured"),
            }
        }
    }

    /// A kernel's block.
    fn block(&self, plan: &Plan, coll: &KernelColl, channel: u32) -> Result<(), Stop> {
        let Plan { dtype, protocol, .. } = *plan;
        let dtype = dtype.unwrap_or(DataType::U8);
        let work = CollWork {
            func: plan.func,
            algorithm: plan.algorithm,
            protocol,
            dtype,
            src: coll.src,
            dst: coll.dst,
            count: coll.cut.count as usize,
            part: coll.cut.part(channel),
            chunk_elems: coll.chunk_elems as usize,
            slice_elems: coll.slice_elems as usize,
            grain_elems: coll.cut.grain_elems as usize,
            rank: self.rank,
            nranks: self.facts.nranks,
            root: coll.root,
            host_ranks: coll.host_ranks,
            tag: coll.tag,
            stream: false,
            is_direct: false,
        };
        let at = channel as usize;
        let ring = &self.layout.rings[at.min(self.layout.rings.len() - 1)];
        let position = self.layout.position(at.min(self.layout.rings.len() - 1), self.rank) as u32;
        let ring = RingEnds { order: ring, position, recv: [0], send: [0] };
        let (conns, tree) = match plan.algorithm {
            Algorithm::Ring => (self.conns(ConnKind::Ring).channel(at, 1), TreeEnds::default()),
            Algorithm::Tree => {
                let KernelTree { children, has_parent } = self.layout.trees.place(at, self.rank);
                let children = children as usize;
                let tree = TreeEnds {
                    links: self.layout.trees.links(at, self.rank),
                    children,
                    child_recv: [0, 1, 2],
                    child_send: [0, 1, 2],
                    parent_recv: [children as u16],
                    parent_send: [children as u16],
                };
                (self.conns(ConnKind::Tree).channel(at, children + has_parent as usize), tree)
            }
            Algorithm::OneShot | Algorithm::TwoLevel => {
                (self.conns(ConnKind::Mesh).channel(at, self.facts.nranks as usize - 1), TreeEnds::default())
            }
            Algorithm::CollnetChain | Algorithm::CollnetDirect => {
                let kind = ConnKind::of(spec_of(plan.algorithm).connections);
                let place = self.layout.heads(kind).unwrap().place(at, self.rank).unwrap();
                (self.conns(kind).channel(at, place.conns()), TreeEnds::default())
            }
            Algorithm::TwoShot | Algorithm::Doubling => panic!("not over a proxy of GPUs: {plan:?}"),
        };
        let operator = resolve(RedOp::Sum, dtype, self.facts.nranks, 0);
        let block = CpuBlock::new(self, dtype, &operator);
        if plan.algorithm == Algorithm::OneShot {
            // SAFETY: as below; the connections are those to and from all others.
            return unsafe {
                let ends = MeshEnds { conns, send: &[], recv: &[] };
                coll::oneshot::run::<_, AtOnce<Ll<1>, 7>>(&block, &ends, &work)
            };
        }
        let (chains, stars) = (&self.layout.chains, &self.layout.stars);
        let [chain_owners, star_owners] = [chains, stars].map(|heads| heads.owners(at, self.rank));
        let (me, n) = (self.rank, self.facts.nranks);
        let mesh_send: Vec<u16> = peers(me, n).map(|peer| place_from(me, peer) as u16).collect();
        let mesh_recv: Vec<u16> = (0..n as u16 - 1).collect();
        let ends = Endpoints {
            ring,
            tree: &tree,
            chain: self.host_ends(chains, at, &chain_owners),
            star: self.host_ends(stars, at, &star_owners),
            mesh_recv: &mesh_recv,
            mesh_send: &mesh_send,
        };
        // SAFETY: buffers are as long as the work says; indices are those of the channel's connections.
        unsafe { coll::run(&block, conns, &ends, &work) }
    }

    /// As the kernel has them.
    fn host_ends<'a>(&self, heads: &DeviceHeads, channel: usize, owners: &'a [Owner]) -> HostEnds<'a> {
        let Some(place) = heads.place(channel, self.rank) else { return HostEnds::default() };
        let KernelTree { children, has_parent } = place.of_kernel();
        let all_below = &[0, 1, 2, 3, 4, 5, 6][..children as usize];
        HostEnds {
            links: HostLinks { is_head: has_parent == 0, has_below: children > 0 },
            below_recv: all_below,
            below_send: all_below,
            above_recv: [children as u16],
            above_send: [children as u16],
            owners,
        }
    }

    /// Every rank sends every other `len_bytes`, and itself nothing.
    fn exchange(&mut self, len_bytes: usize, tag: u32) -> Result<(), Stop> {
        self.messages(&self.wants_of_exchange(len_bytes), tag)
    }

    fn want(&self, is_send: bool, peer: Rank, len_bytes: u64) -> MessageWant {
        let is_far = self.layout.routes.is_net(self.rank, peer);
        MessageWant { is_send, peer, is_far, is_exchange: false, len_bytes }
    }

    fn wants_of_exchange(&self, len_bytes: usize) -> Vec<MessageWant> {
        let (me, n) = (self.rank, self.facts.nranks);
        let others = (0..n).map(Rank).filter(|peer| *peer != me);
        let both = |peer| {
            let want = |is_send| self.want(is_send, peer, len_bytes as u64);
            [true, false].map(|is_send| MessageWant { is_exchange: true, ..want(is_send) })
        };
        others.flat_map(both).collect()
    }

    /// A group of messages, in launches as the plan makes them. As on a GPU the proxy is told of all of them before the first has been
    /// carried. The k-th message between two ranks says its number.
    fn messages(&mut self, wants: &[MessageWant], tag: u32) -> Result<(), Stop> {
        let mut messages = self.launch_messages(wants, tag);
        self.come_to_turns();
        self.run_messages(&mut messages)
    }

    fn launch_messages(&mut self, wants: &[MessageWant], tag: u32) -> Messages {
        let (me, n) = (self.rank, self.facts.nranks);
        let content = |from: Rank, to: Rank, number: u32, len_bytes: u64| -> Vec<u8> {
            (0..len_bytes as u32).map(|i| (i * 31 + from.0 * 7 + to.0 + number * 3) as u8).collect()
        };
        let mut numbers = vec![[0; 2]; n as usize];
        let mut number_of = |want: &MessageWant| {
            let number = &mut numbers[want.peer.index()][usize::from(want.is_send)];
            *number += 1;
            *number
        };
        let expected: Vec<Vec<u8>> = wants
            .iter()
            .map(|want| {
                let (from, to) = if want.is_send { (me, want.peer) } else { (want.peer, me) };
                content(from, to, number_of(want), want.len_bytes)
            })
            .collect();
        let fill = |(want, full): (&MessageWant, &Vec<u8>)| {
            if want.is_send { full.clone() } else { vec![0; full.len()] }
        };
        let mut buffers: Vec<Vec<u8>> = wants.iter().zip(&expected).map(fill).collect();
        let (facts, mut scratch, mut launches) = (self.facts, Arrangement::default(), Vec::new());
        for want in wants {
            let (protocol, channels) = message_connections(want, &facts);
            self.need(&Need { kind: ConnKind::Pair, protocol, channels, peer: Some(want.peer) });
        }
        for batch in arrange(wants, me, &facts, &mut scratch) {
            let mut works = Vec::new();
            for placed in batch.placed {
                let MessageWant { is_send, peer, len_bytes, .. } = wants[placed.index];
                let conn = peer.0 - u32::from(peer > me);
                let buffer = buffers[placed.index].as_mut_ptr();
                let message = KernelMessage {
                    buffer,
                    len_bytes,
                    conn,
                    reached: 0,
                    flags: if is_send { MESSAGE_SENDS } else { 0 },
                    tag,
                    lane: placed.lane,
                };
                self.net.as_mut().unwrap().message(&message, peer, batch.kernel.protocol(), batch.channels);
                let len_bytes = len_bytes as usize;
                for channel in 0..batch.channels {
                    let part =
                        chunk::channel_part(len_bytes, batch.channels, channel, KERNEL_MESSAGE_GRAIN_BYTES);
                    if part.is_empty() && (len_bytes > 0 || channel > 0) {
                        continue;
                    }
                    let (pairs, place) = (self.conns(ConnKind::Pair), (channel * (n - 1) + conn) as usize);
                    let conn = if is_send { pairs.send.at(place) } else { pairs.recv.at(place) };
                    let place = (buffer.wrapping_add(part.start), part.len());
                    works.push(P2pWork::new(is_send, conn as u16, batch.kernel.protocol(), place, tag));
                }
            }
            self.issue();
            launches.push(works);
        }
        Messages { wants: wants.to_vec(), launches, buffers, expected }
    }

    fn run_messages(&self, messages: &mut Messages) -> Result<(), Stop> {
        let (me, n) = (self.rank, self.facts.nranks);
        let Messages { wants, launches, buffers, expected } = messages;
        for (_, buffer) in wants.iter().zip(&mut *buffers).filter(|(want, _)| !want.is_send) {
            buffer.fill(0);
        }
        self.moved.iter().for_each(|traffic| traffic.begin());
        for works in launches {
            // The kernel's own, at each launch.
            let mut works = works.clone();
            let operator = resolve(RedOp::Sum, DataType::U8, n, 0);
            let block = CpuBlock::new(self, DataType::U8, &operator);
            let pairs = self.conns(ConnKind::Pair);
            let conns = Conns { send: &pairs.send.conns, recv: &pairs.recv.conns };
            // SAFETY: buffers are as long as the works say; indices are those of the mesh's lists.
            unsafe { send_recv::run(&block, conns, &mut works) }?;
        }
        for (want, (found, expected)) in wants.iter().zip(buffers.iter().zip(expected)) {
            assert!(found == expected, "rank {me}: wrong bytes of {want:?}");
        }
        let of_want = |want: &MessageWant| {
            let (func, dtype) = (Func::of_message(want.is_send), DataType::U8);
            Call { func, dtype, op: RedOp::Sum, root: want.peer, count: want.len_bytes }
        };
        let calls: Vec<Call> = wants.iter().map(of_want).collect();
        self.check_traffic(&calls, &vec![CallPlan::Messages; calls.len()]);
        Ok(())
    }

    /// Whether the proxy has done all that it was told of.
    fn is_finished(&self) -> bool {
        self.net.as_ref().is_some_and(NetProxy::is_done)
    }

    /// Waits for that.
    fn finish(&self) {
        self.wait_until(|| {
            assert_eq!(self.health.fault(), None);
            self.is_finished()
        });
    }

    fn wait_until(&self, is_so: impl Fn() -> bool) {
        while !is_so() {
            assert!(self.started.elapsed() < PATIENCE, "rank {}: waits in vain", self.rank);
            self.rest(u32::MAX);
        }
    }

    /// Leaves the processor to others, longer when it has long been looking.
    fn rest(&self, polls: u32) {
        match polls {
            0..256 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(100)),
        }
    }
}
