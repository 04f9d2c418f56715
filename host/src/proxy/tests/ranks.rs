//! Whole proxies: ranks on threads, each with real kernels, all of whose connections go over networks with bad manners.
//!
//! That the steps a proxy expects are those that kernels make shows by itself: with one too few a kernel waits for ever, with one
//! too many an order does.

use super::network::{self, Manners};
use crate::mem::Segment;
use crate::net::fault::{FaultNet, FaultPlan};
use crate::net::loopback::Loopback;
use crate::net::socket::{self, SocketConfig};
use crate::net::{Net, RecvComm, SendComm};
use crate::proxy::*;
use oxccl_device::coll::{self, CollWork, Endpoints, HostEnds, P2pWork, RingEnds, TreeEnds, send_recv};
use oxccl_device::conn::{Conns, RecvConn, SendConn};
use oxccl_device::gpu::cpu::{CpuBlock, Waiter};
use oxccl_device::gpu::{Stop, Wait};
use oxccl_device::prims::{Ll, Ll128, Simple};
use oxccl_shared::abi::{
    Algorithm, ChannelId, ConnLayout, DataType, Func, KERNEL_MESSAGE_GRAIN_BYTES, KernelMessage,
    MESSAGE_SENDS, Protocol, Rank, RedOp, SlotHeader,
};
use oxccl_shared::algo::chunk;
use oxccl_shared::algo::{mesh, tree};
use oxccl_shared::proto;
use oxccl_shared::reduce::resolve;
use proptest::prelude::*;
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LAYOUT: ConnLayout = ConnLayout { ll_slot_bytes: 512, ll128_slot_bytes: 1024, simple_slot_bytes: 768 };
/// Channels of each kind.
const LANES: u32 = 2;
/// The first of each kind.
const RING: u32 = 0;
const TREE: u32 = LANES;
const MESH: u32 = 2 * LANES;
const CHANNELS: usize = 3 * LANES as usize;
const ELEM: usize = 4;
/// What no game takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(200);

/// What one call is, the same on all ranks.
#[derive(Clone, Copy, Debug)]
struct Call {
    func: Func,
    algorithm: Algorithm,
    protocol: Protocol,
    count: usize,
    /// Root, or the sender of a message to the rank after it.
    rank: Rank,
    slices_per_chunk: usize,
    nchannels: u32,
}

/// One rank's kernels' ends.
#[derive(Default)]
struct Ends {
    send: [Vec<SendConn>; CHANNELS],
    recv: [Vec<RecvConn>; CHANNELS],
    proxy: Vec<ProxyEnd>,
}

/// Leaked: tests are short.
fn block() -> (NonNull<u8>, ProxyBlock) {
    let segment: &'static Segment = Box::leak(Box::new(Segment::private(LAYOUT.total_bytes()).unwrap()));
    let base = NonNull::new(segment.base()).unwrap();
    // SAFETY: leaked, zeroed, page aligned and long enough.
    (base, unsafe { ProxyBlock::in_host(base, LAYOUT) })
}

/// What ranks are connected by.
#[derive(Clone)]
enum Wires {
    /// Memory, with these manners.
    Memory(Manners),
    /// The first device of a network.
    Net(Arc<dyn Net>),
}

impl Wires {
    fn pair(&mut self) -> (Box<dyn SendComm>, Box<dyn RecvComm>) {
        let net = match self {
            Wires::Memory(manners) => {
                manners.seed = manners.seed.rotate_left(7) ^ 0x9e37_79b9;
                let (send, recv) = network::pair(*manners);
                return (Box::new(send), Box::new(recv));
            }
            Wires::Net(net) => net,
        };
        let (handle, mut listener) = net.listen(0).unwrap();
        let mut connector = net.connect(0, &handle).unwrap();
        let (mut send, mut recv) = (None, None);
        while send.is_none() || recv.is_none() {
            send = send.or_else(|| connector.poll_connect().unwrap());
            recv = recv.or_else(|| listener.poll_accept().unwrap());
            std::thread::yield_now();
        }
        (send.unwrap(), recv.unwrap())
    }
}

/// Connects `from` to `to`, appending to their lists.
fn connect(ends: &mut [Ends], channel: u32, from: Rank, to: Rank, wires: &mut Wires) {
    let (send, recv) = wires.pair();
    let ((here, near), (there, far)) = (block(), block());
    let place = |peer, is_send| EndId { peer, channel: ChannelId(channel), is_send };
    // SAFETY: fresh leaked blocks, each with one producer and one consumer.
    unsafe {
        let at = &mut ends[from.index()];
        at.send[channel as usize].push(SendConn::new(to, here.as_ptr(), LAYOUT));
        at.proxy.push(ProxyEnd::Send(SendEnd::new(send, near, place(to, true)).unwrap()));
        let at = &mut ends[to.index()];
        at.recv[channel as usize].push(RecvConn::new(from, there.as_ptr(), LAYOUT));
        at.proxy.push(ProxyEnd::Recv(RecvEnd::new(recv, far, place(from, false)).unwrap()));
    }
}

fn tree_links(rank: Rank, n: u32) -> tree::TreeLinks {
    tree::double_binary_tree(rank, n)[0]
}

/// All connections of `n` ranks.
fn connect_all(n: u32, mut wires: Wires) -> Vec<Ends> {
    let mut ends: Vec<Ends> = (0..n).map(|_| Ends::default()).collect();
    let pairs = (0..n).flat_map(|a| (0..n).map(move |b| (a, b))).filter(|(a, b)| a != b);
    for (a, b) in pairs {
        let is_tree =
            tree_links(Rank(a), n).up == Some(Rank(b)) || tree_links(Rank(b), n).up == Some(Rank(a));
        for (channel, wanted) in [(RING, (a + 1) % n == b), (TREE, is_tree), (MESH, true)] {
            for lane in (0..LANES).filter(|_| wanted) {
                connect(&mut ends, channel + lane, Rank(a), Rank(b), &mut wires);
            }
        }
    }
    ends
}

fn parts(rank: Rank, n: u32, ends: Vec<ProxyEnd>, timeout: Option<Duration>) -> ProxyParts {
    let ring = ProxyChannel { ring: (0..n).map(Rank).collect(), ..ProxyChannel::default() };
    let tree = ProxyChannel { tree: tree_links(rank, n), ..ProxyChannel::default() };
    let mesh = ProxyChannel::default();
    let channels = [ring, tree, mesh].into_iter().flat_map(|channel| [channel.clone(), channel]).collect();
    ProxyParts { rank, nranks: n, channels, ends, timeout }
}

fn elems(len_bytes: usize) -> usize {
    len_bytes / ELEM
}

impl Call {
    fn grain_elems(&self) -> usize {
        if self.protocol.is_flagged() { 2 } else { 128 }
    }

    fn slice_elems(&self) -> usize {
        elems(proto::payload_bytes(self.protocol, &LAYOUT))
    }

    fn chunk_elems(&self) -> usize {
        self.slice_elems() * self.slices_per_chunk
    }

    fn tag(&self) -> u32 {
        self.count as u32 * 31 + self.func as u32
    }

    fn channel(&self) -> u32 {
        match (self.func, self.algorithm) {
            (Func::Send, _) => MESH,
            (_, Algorithm::Ring) => RING,
            (_, Algorithm::Tree) => TREE,
            _ => MESH,
        }
    }

    fn channels(&self) -> std::ops::Range<u32> {
        self.channel()..self.channel() + self.nchannels
    }

    /// Of two levels, `rank` is how many ranks a host has.
    fn host_ranks(&self) -> u32 {
        if self.algorithm == Algorithm::TwoLevel { self.rank.0 } else { 0 }
    }

    fn collective_order(&self) -> ProxyOrder {
        ProxyOrder {
            count: self.count as u64,
            chunk_elems: self.chunk_elems() as u64,
            slice_elems: self.slice_elems() as u64,
            grain_elems: self.grain_elems() as u64,
            tag: self.tag(),
            rank: self.rank,
            first_channel: self.channel(),
            nchannels: self.nchannels,
            func: self.func as u8,
            algorithm: self.algorithm as u8,
            protocol: self.protocol as u8,
            elements: 0,
            host_ranks: self.host_ranks(),
        }
    }

    /// A message as a kernel is told of it, by sender or receiver.
    fn kernel_message(&self, is_send: bool, conn: u32, buffer: *mut u8) -> KernelMessage {
        let len_bytes = (self.count * ELEM) as u64;
        let flags = if is_send { MESSAGE_SENDS } else { 0 };
        KernelMessage { buffer, len_bytes, reached: 0, conn, flags, tag: self.tag(), lane: 0 }
    }

    /// What rank `me` of `n` tells its proxy; nothing if a message passes it by.
    fn order(&self, me: Rank, n: u32) -> Option<ProxyOrder> {
        if self.func != Func::Send {
            return Some(self.collective_order());
        }
        let to = Rank((self.rank.0 + 1) % n);
        let is_send = me == self.rank;
        let peer = if is_send { to } else { self.rank };
        let message = self.kernel_message(is_send, 0, std::ptr::null_mut());
        (is_send || me == to).then(|| ProxyOrder::of_message(&message, peer, self.protocol, self.channels()))
    }

    fn input(&self, rank: Rank, n: u32) -> Vec<u32> {
        let blocks = if self.func == Func::ReduceScatter { n as usize } else { 1 };
        (0..(self.count * blocks) as u32).map(|i| (i + 3) * (rank.0 + 1)).collect()
    }

    /// What rank `me` must find in its output; nothing if it is not to be looked at.
    fn expected(&self, me: Rank, n: u32) -> Option<Vec<u32>> {
        let (count, inputs) = (self.count, || (0..n).map(|rank| self.input(Rank(rank), n)));
        let sum = |range: std::ops::Range<usize>| -> Vec<u32> {
            range.map(|i| inputs().map(|input| input[i]).sum()).collect()
        };
        match self.func {
            Func::AllReduce => Some(sum(0..count)),
            Func::ReduceScatter => Some(sum(me.index() * count..(me.index() + 1) * count)),
            Func::AllGather => Some(inputs().flatten().collect()),
            Func::Broadcast => Some(self.input(self.rank, n)),
            Func::Reduce => (me == self.rank).then(|| sum(0..count)),
            Func::Send => (me.0 == (self.rank.0 + 1) % n).then(|| self.input(self.rank, n)),
            _ => None,
        }
    }
}

/// A rank: its kernels' ends and how it drives its proxy.
struct Player<'a> {
    me: Rank,
    n: u32,
    ends: Ends,
    /// Looks at the proxy, and drives it if nobody else does.
    look: &'a dyn Fn(),
    started: Instant,
}

impl Waiter for Player<'_> {
    fn spins(&self) -> u32 {
        1
    }
    fn wait(&self, on: Wait, polls: u32) -> Result<(), Stop> {
        (self.look)();
        // A machine that does ten other things gives those who yield next to nothing.
        if polls.is_multiple_of(64) {
            assert!(self.started.elapsed() < PATIENCE, "rank {}: stuck: {on:?}", self.me);
            std::thread::yield_now();
        }
        Ok(())
    }
    fn refuse(&self, on: Wait, expected: SlotHeader, found: SlotHeader) -> Stop {
        panic!("rank {}: {on:?}: {found:?} instead of {expected:?}", self.me)
    }
}

impl Player<'_> {
    /// The kernels of a call, one channel after the other.
    fn run(&self, call: &Call) {
        let (me, n) = (self.me, self.n);
        let mut input = call.input(me, n);
        let blocks = if call.func == Func::AllGather { n as usize } else { 1 };
        let mut output = vec![0u32; call.count * blocks];
        for lane in 0..call.nchannels {
            if call.func == Func::Send {
                self.message(call, lane, &mut input, &mut output);
            } else {
                let work = self.work(call, lane, &input, &mut output);
                self.collective(call, lane, &work);
            }
        }
        if let Some(expected) = call.expected(me, n) {
            assert!(output == expected, "rank {me}: wrong result of {call:?}");
        }
    }

    fn conns(&self, channel: u32) -> Conns<'_> {
        Conns { send: &self.ends.send[channel as usize], recv: &self.ends.recv[channel as usize] }
    }

    fn collective(&self, call: &Call, lane: u32, work: &CollWork) {
        let (me, n) = (self.me, self.n);
        let operator = resolve(RedOp::Sum, DataType::U32, n, 0);
        let block = CpuBlock::new(self, DataType::U32, &operator);
        let conns = self.conns(call.channel() + lane);
        let tree = self.tree();
        let is_mesh = call.channel() == MESH;
        let from = |peer: Rank| conns.recv.iter().position(|conn| conn.peer() == peer).unwrap() as u16;
        let to = |peer: Rank| conns.send.iter().position(|conn| conn.peer() == peer).unwrap() as u16;
        let mesh_recv: Vec<u16> = (0..n).map(Rank).filter(|peer| is_mesh && *peer != me).map(from).collect();
        let mesh_send: Vec<u16> = mesh::peers(me, n).filter(|_| is_mesh).map(to).collect();
        let order: Vec<Rank> = (0..n).map(Rank).collect();
        let ring = RingEnds { order: &order, position: me.0, recv: [0], send: [0] };
        let ends = Endpoints {
            ring,
            tree: &tree,
            chain: HostEnds::default(),
            star: HostEnds::default(),
            mesh_recv: &mesh_recv,
            mesh_send: &mesh_send,
        };
        // SAFETY: buffers are as long as the work says; indices are those of the channel's connections.
        unsafe { coll::run(&block, conns, &ends, work) }.unwrap();
    }

    fn work(&self, call: &Call, lane: u32, input: &[u32], output: &mut [u32]) -> CollWork {
        CollWork {
            func: call.func,
            algorithm: call.algorithm,
            protocol: call.protocol,
            dtype: DataType::U32,
            src: input.as_ptr().cast(),
            dst: output.as_mut_ptr().cast(),
            count: call.count,
            part: chunk::channel_part(call.count, call.nchannels, lane, call.grain_elems()),
            chunk_elems: call.chunk_elems(),
            slice_elems: call.slice_elems(),
            grain_elems: call.grain_elems(),
            rank: self.me,
            nranks: self.n,
            root: call.rank,
            host_ranks: call.host_ranks(),
            tag: call.tag(),
            stream: false,
            is_direct: false,
        }
    }

    /// One channel's part of a message, as a GPU's block does it.
    fn message(&self, call: &Call, lane: u32, input: &mut [u32], output: &mut [u32]) {
        let to = Rank((call.rank.0 + 1) % self.n);
        let (is_send, buffer) = match self.me {
            me if me == call.rank => (true, input),
            me if me == to => (false, output),
            _ => return,
        };
        let len_bytes = call.count * ELEM;
        let part = chunk::channel_part(len_bytes, call.nchannels, lane, KERNEL_MESSAGE_GRAIN_BYTES);
        if part.is_empty() && (len_bytes > 0 || lane > 0) {
            return;
        }
        let all = self.conns(call.channel() + lane);
        let send = all.send.iter().position(|conn| is_send && conn.peer() == to);
        let recv = all.recv.iter().position(|conn| !is_send && conn.peer() == call.rank);
        let conns = Conns {
            send: send.map_or(&[], |at| &all.send[at..=at]),
            recv: recv.map_or(&[], |at| &all.recv[at..=at]),
        };
        let message = call.kernel_message(is_send, 0, buffer.as_mut_ptr().cast());
        let operator = resolve(RedOp::Sum, DataType::U32, self.n, 0);
        let block = CpuBlock::new(self, DataType::U32, &operator);
        // SAFETY: the buffer is as long as the message says; `conns` holds its connection alone.
        let ran = unsafe {
            match call.protocol {
                Protocol::LL => send_recv::run_part::<_, Ll<1>>(&block, conns, &message, part),
                Protocol::LL128 => send_recv::run_part::<_, Ll128>(&block, conns, &message, part),
                Protocol::Simple => send_recv::run_part::<_, Simple>(&block, conns, &message, part),
            }
        };
        ran.unwrap();
    }

    fn tree(&self) -> TreeEnds {
        let links = tree_links(self.me, self.n);
        let (send, recv) = (&self.ends.send[TREE as usize], &self.ends.recv[TREE as usize]);
        let to = |peer: Rank| send.iter().position(|conn| conn.peer() == peer).unwrap() as u16;
        let from = |peer: Rank| recv.iter().position(|conn| conn.peer() == peer).unwrap() as u16;
        let mut ends = TreeEnds { links, ..TreeEnds::default() };
        for child in links.down.into_iter().flatten() {
            ends.child_recv[ends.children] = from(child);
            ends.child_send[ends.children] = to(child);
            ends.children += 1;
        }
        if let Some(parent) = links.up {
            (ends.parent_recv, ends.parent_send) = ([from(parent)], [to(parent)]);
        }
        ends
    }
}

/// All ranks make all calls. With `idle`, each proxy has a thread; otherwise kernels drive it while they wait.
fn play(n: u32, calls: &[Call], wires: Wires, idle: Option<Idle>) {
    let ends = connect_all(n, wires);
    std::thread::scope(|scope| {
        for (me, mut ends) in (0..n).zip(ends) {
            scope.spawn(move || {
                let proxy_ends = std::mem::take(&mut ends.proxy);
                let (orders, progress) = proxy(parts(Rank(me), n, proxy_ends, None));
                match idle {
                    None => play_driving(Rank(me), n, ends, calls, orders, progress),
                    Some(idle) => play_beside(Rank(me), n, ends, calls, orders, progress, idle),
                }
            });
        }
    });
}

fn give(orders: &mut ProxyOrders, call: &Call, me: Rank, n: u32) {
    if let Some(order) = call.order(me, n) {
        orders.give(order).unwrap();
    }
}

fn play_driving(me: Rank, n: u32, ends: Ends, calls: &[Call], mut orders: ProxyOrders, progress: Progress) {
    let progress = RefCell::new(progress);
    let failure = std::cell::Cell::new(false);
    let look = || {
        progress.borrow_mut().do_work();
    };
    let player = Player { me, n, ends, look: &look, started: Instant::now() };
    for call in calls {
        give(&mut orders, call, me, n);
        player.run(call);
        failure.set(orders.has_failed());
        assert!(!failure.get(), "{:?}", orders.failure());
    }
    while !orders.is_all_done() {
        look();
        assert!(!orders.has_failed(), "{:?}", orders.failure());
        assert!(player.started.elapsed() < PATIENCE, "{}", progress.borrow().post_mortem());
    }
    assert!(progress.borrow().is_quiet());
    assert!(!progress.borrow().has_ended());
    orders.stop();
    assert!(progress.borrow().has_ended());
}

fn play_beside(
    me: Rank,
    n: u32,
    ends: Ends,
    calls: &[Call],
    orders: ProxyOrders,
    progress: Progress,
    idle: Idle,
) {
    let config = ProxyThreadConfig { name: format!("proxy {me}"), idle, cpus: vec![0] };
    let mut thread = ProxyThread::start(orders, progress, &config, ()).unwrap();
    let player = Player { me, n, ends, look: &|| (), started: Instant::now() };
    for call in calls {
        give(thread.orders(), call, me, n);
        player.run(call);
    }
    thread.stop();
}

/// A network that reduces is behind no proxy of connections.
const BETWEEN_RANKS: [Algorithm; 6] = [
    Algorithm::Tree,
    Algorithm::Ring,
    Algorithm::OneShot,
    Algorithm::TwoShot,
    Algorithm::TwoLevel,
    Algorithm::Doubling,
];

fn any_call(n: u32) -> impl Strategy<Value = Call> {
    let ring = [Func::AllGather, Func::ReduceScatter, Func::Broadcast, Func::Reduce, Func::Send];
    let what = prop_oneof![
        3 => (Just(Func::AllReduce), proptest::sample::select(&BETWEEN_RANKS[..])),
        5 => (proptest::sample::select(ring.to_vec()), Just(Algorithm::Ring)),
        2 => (proptest::sample::select(&[Func::ReduceScatter, Func::Reduce][..]), Just(Algorithm::OneShot)),
        1 => (Just(Func::Barrier), proptest::sample::select(&[Algorithm::OneShot, Algorithm::Doubling][..])),
    ];
    let count = prop_oneof![1usize..4, 1usize..600, 1usize..3000];
    let rest = (proptest::sample::select(Protocol::ALL), count, 0..n, 1usize..3, 1..=LANES);
    (what, rest).prop_map(move |((func, algorithm), (protocol, count, rank, slices, nchannels))| {
        let is_barrier = func == Func::Barrier;
        // Two levels need hosts of equally many ranks.
        let divisors: Vec<u32> = (1..=n).filter(|host_ranks| n.is_multiple_of(*host_ranks)).collect();
        let is_even = algorithm == Algorithm::TwoLevel;
        let rank = if is_even { divisors[rank as usize % divisors.len()] } else { rank };
        // A hop to all and from all at once must fit the slots that there are.
        let is_direct = matches!(algorithm, Algorithm::OneShot | Algorithm::TwoShot | Algorithm::TwoLevel);
        let slices_per_chunk = if is_direct { 1 } else { slices };
        let protocol = if algorithm == Algorithm::Doubling { Protocol::Simple } else { protocol };
        let (count, nchannels) = if is_barrier { (0, 1) } else { (count, nchannels) };
        Call { func, algorithm, protocol, count, rank: Rank(rank), slices_per_chunk, nchannels }
    })
}

fn any_game() -> impl Strategy<Value = (u32, Vec<Call>)> {
    (2u32..6).prop_flat_map(|n| (Just(n), proptest::collection::vec(any_call(n), 1..8)))
}

fn any_manners() -> impl Strategy<Value = Manners> {
    (1u64..u64::MAX, 400usize..4000, 0u64..4).prop_map(|(seed, burst_bytes, lazy_eighths)| Manners {
        seed,
        burst_bytes,
        lazy_eighths,
        breaks_after: None,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    #[test]
    fn collectives_over_proxies_are_right((n, calls) in any_game(), manners in any_manners()) {
        play(n, &calls, Wires::Memory(manners), None);
    }
}

proptest! {
    /// What an order puts on which connection does not depend on the orders before it, the same or others.
    #[test]
    fn an_order_means_the_same_after_any_others(
        (n, calls) in any_game(),
        turns in proptest::collection::vec((0usize..8, any::<u32>()), 1..30),
    ) {
        let alone = || {
            let mut ends = connect_all(n, Wires::Memory(Manners::GOOD));
            proxy(parts(Rank(0), n, std::mem::take(&mut ends[0].proxy), None)).1
        };
        let (mut remembering, mut other) = (alone(), alone());
        for (turn, tag) in turns {
            let Some(order) = calls[turn % calls.len()].order(Rank(0), n) else { continue };
            let fresh = other.parts_of(&order, false);
            prop_assert!(fresh.is_some());
            prop_assert_eq!(remembering.parts_of(&ProxyOrder { tag, ..order }, true), fresh);
        }
    }
}

fn some_calls() -> Vec<Call> {
    let call = |func, algorithm, protocol: usize, count| {
        let protocol = Protocol::ALL[protocol];
        Call { func, algorithm, protocol, count, rank: Rank(1), slices_per_chunk: 1, nchannels: 1 }
    };
    vec![
        call(Func::AllReduce, Algorithm::Ring, 2, 5000),
        call(Func::AllReduce, Algorithm::Tree, 0, 100),
        call(Func::Send, Algorithm::Ring, 1, 0),
        call(Func::AllGather, Algorithm::Ring, 1, 700),
        call(Func::Barrier, Algorithm::OneShot, 0, 0),
    ]
}

/// That an operation header has left may be the last thing that a network tells, after all slots have.
#[test]
fn an_operation_ends_whatever_is_told_last() {
    let call = Call { func: Func::Broadcast, protocol: Protocol::Simple, count: 3, ..some_calls()[0] };
    for seed in 1..=32 {
        let manners = Manners { seed, lazy_eighths: 4, ..Manners::GOOD };
        play(2, &[call; 4], Wires::Memory(manners), None);
    }
}

/// Threads that sleep between operations are woken by each.
#[test]
fn proxies_on_threads_that_sleep_and_wake() {
    let asleep = Idle { spins: 1, pauses: 1, yields: 1, sleep: Some(Duration::from_micros(100)) };
    let calls: Vec<Call> = some_calls().into_iter().cycle().take(15).collect();
    play(3, &calls, Wires::Memory(Manners::GOOD), Some(asleep));
    play(2, &some_calls(), Wires::Memory(Manners::GOOD), Some(Idle::BALANCED));
}

/// More orders than the FIFO holds and a proxy opens, given before the first kernel runs: none is lost, and they stay in order.
#[test]
fn orders_given_far_ahead_wait_in_order() {
    let ahead = ORDERS_OPEN_MAX + ORDERS_WAITING_MAX + 300;
    let calls: Vec<Call> =
        some_calls().into_iter().filter(|call| call.count <= 700).cycle().take(ahead).collect();
    let ends = connect_all(2, Wires::Memory(Manners::GOOD));
    std::thread::scope(|scope| {
        for (me, mut ends) in (0..2).zip(ends) {
            let calls = &calls;
            scope.spawn(move || {
                let proxy_ends = std::mem::take(&mut ends.proxy);
                let (mut orders, progress) = proxy(parts(Rank(me), 2, proxy_ends, None));
                let config = ProxyThreadConfig { name: "ahead".into(), idle: Idle::FRUGAL, cpus: Vec::new() };
                // The first orders come before the thread does.
                let (early, late) = calls.split_at(ORDERS_WAITING_MAX + 10);
                let queue = |orders: &mut ProxyOrders, call: &Call| {
                    call.order(Rank(me), 2).map(|order| orders.queue(order).unwrap());
                };
                early.iter().for_each(|call| queue(&mut orders, call));
                let mut thread = ProxyThread::start(orders, progress, &config, ()).unwrap();
                late.iter().for_each(|call| queue(thread.orders(), call));
                let player = Player { me: Rank(me), n: 2, ends, look: &|| (), started: Instant::now() };
                calls.iter().for_each(|call| player.run(call));
                thread.stop();
            });
        }
    });
}

/// Sockets over the loopback interface.
fn sockets(data_sockets: u32) -> Arc<dyn Net> {
    let interfaces = crate::bootstrap::InterfaceFilter::parse("=lo");
    socket::open(&SocketConfig { interfaces, data_sockets, ..SocketConfig::default() }).unwrap()
}

/// What the library has for networks without hardware, honest and with ill luck.
#[test]
fn collectives_over_real_networks_are_right() {
    let late = FaultPlan {
        seed: 5,
        late_per_mille: 300,
        held_per_mille: 100,
        held_max: Duration::from_millis(2),
        ..FaultPlan::default()
    };
    let nets: [(Arc<dyn Net>, Option<Idle>); 4] = [
        (Arc::new(Loopback::new(2)), None),
        (sockets(0), None),
        (sockets(2), Some(Idle::FRUGAL)),
        (Arc::new(FaultNet::new(sockets(1), late)), None),
    ];
    for (net, idle) in nets {
        play(3, &some_calls(), Wires::Net(net), idle);
    }
}

/// A link that is cut in the middle: both of its ranks learn which, from their own proxies.
#[test]
fn both_ends_of_a_link_that_is_cut_name_it() {
    let plan = FaultPlan { cut_at: Some(9), only_connection: Some(0), ..FaultPlan::default() };
    let mut ends = connect_all(2, Wires::Net(Arc::new(FaultNet::new(sockets(0), plan))));
    let mut sides: Vec<_> = (0..2u32)
        .map(|me| {
            let mut mine = std::mem::take(&mut ends[me as usize]);
            let proxy_ends = std::mem::take(&mut mine.proxy);
            (proxy(parts(Rank(me), 2, proxy_ends, None)), mine)
        })
        .collect();
    let call = Call { func: Func::Broadcast, count: 100_000, rank: Rank(0), ..some_calls()[0] };
    for (me, ((orders, _), _)) in (0..2).zip(&mut sides) {
        give(orders, &call, Rank(me), 2);
    }
    let since = Instant::now();
    while !sides.iter().all(|((orders, _), _)| orders.has_failed()) {
        for ((_, progress), ends) in &mut sides {
            progress.do_work();
            // A kernel that sends, and one that receives, without looking.
            let header = SlotHeader { tag: call.tag(), len_bytes: 64 };
            for conn in ends.send[RING as usize].iter().filter(|conn| conn.poll_credit(call.protocol, true)) {
                conn.advance();
                conn.publish(header);
            }
            for conn in ends.recv[RING as usize].iter().filter(|conn| conn.poll().is_some()) {
                conn.advance();
                conn.release();
            }
        }
        assert!(since.elapsed() < Duration::from_secs(30), "nobody noticed");
    }
    for (me, ((orders, progress), _)) in (0..2).zip(&mut sides) {
        let failure = orders.failure().unwrap();
        let error = failure.error.as_ref().unwrap();
        assert!(matches!(error.why, EndFault::Net(_)), "{error}");
        assert_eq!((error.place.peer, error.place.channel), (Rank(1 - me), ChannelId(RING)), "{error}");
        assert!(failure.post_mortem.contains("failed"), "{}", failure.post_mortem);
        assert!(!orders.is_all_done());
        orders.stop();
        assert!(progress.has_ended());
    }
}

/// A rank whose peer's proxy does nothing.
fn lone(timeout: Duration, manners: Manners) -> (ProxyOrders, Progress, Ends) {
    let mut ends = connect_all(2, Wires::Memory(manners));
    let _other = std::mem::take(&mut ends[1]);
    std::mem::forget(_other);
    let mut mine = std::mem::take(&mut ends[0]);
    let proxy_ends = std::mem::take(&mut mine.proxy);
    let (orders, progress) = proxy(parts(Rank(0), 2, proxy_ends, Some(timeout)));
    (orders, progress, mine)
}

#[test]
fn a_peer_that_does_nothing_is_named_with_the_whole_story() {
    let (mut orders, mut progress, ends) = lone(Duration::from_secs(3), Manners::GOOD);
    let call = Call { rank: Rank(0), count: 4, ..some_calls()[2] };
    give(&mut orders, &call, Rank(0), 2);
    assert!(progress.do_work() > 0);
    // The kernel's part: a slot of a message of nothing.
    let flagged = call.protocol;
    let operator = resolve(RedOp::Sum, DataType::U32, 2, 0);
    let player = Player { me: Rank(0), n: 2, ends, look: &|| (), started: Instant::now() };
    let block = CpuBlock::new(&player, DataType::U32, &operator);
    let conns = Conns { send: &player.ends.send[MESH as usize], recv: &[] };
    let mut data = [1u32; 4];
    let buffer = data.as_mut_ptr().cast();
    let work = P2pWork::new(true, 0, flagged, (buffer, 16), call.tag());
    // SAFETY: the buffer is as long as it says, and connection 0 is there.
    unsafe { send_recv::run(&block, conns, &mut [work]) }.unwrap();
    assert_eq!(progress.do_work(), 2, "received and transmitted");
    for tenth in 10..=40 {
        progress.check(Duration::from_millis(tenth * 100));
        assert!(!orders.has_failed(), "{tenth}");
    }
    progress.check(Duration::from_millis(4100));
    assert!(orders.has_failed());
    let failure = orders.failure().unwrap();
    let error = failure.error.as_ref().unwrap();
    assert!(matches!(error.why, EndFault::Timeout { limit } if limit == Duration::from_secs(3)), "{error}");
    assert_eq!(error.place, EndId { peer: Rank(1), channel: ChannelId(MESH), is_send: true });
    for part in
        ["connection to rank 1 on channel 4", "transmitted 1", "order 0 taken", "began 1 steps", "ms after"]
    {
        assert!(failure.post_mortem.contains(part), "{part}: {}", failure.post_mortem);
    }
    assert!(!progress.has_ended());
    orders.stop();
    assert!(progress.has_ended(), "what failed is not waited for");
}

#[test]
fn an_operation_that_has_not_begun_is_not_late() {
    let (mut orders, mut progress, _ends) = lone(Duration::from_secs(3), Manners::GOOD);
    give(&mut orders, &Call { rank: Rank(0), ..some_calls()[2] }, Rank(0), 2);
    give(&mut orders, &Call { rank: Rank(1), ..some_calls()[2] }, Rank(0), 2);
    progress.do_work();
    for second in [1, 100, 200, 300] {
        progress.do_work();
        progress.check(Duration::from_secs(second));
    }
    assert!(!orders.has_failed(), "{:?}", orders.failure());
    orders.stop();
    assert!(!progress.has_ended(), "there is something to do");
    orders.abort();
    assert!(progress.has_ended());
}

#[test]
fn an_order_that_means_nothing_is_refused() {
    let good = some_calls()[0].order(Rank(0), 2).unwrap();
    let bad = [
        ProxyOrder { func: 200, ..good },
        ProxyOrder { algorithm: 7, ..good },
        ProxyOrder { protocol: 3, ..good },
        ProxyOrder { slice_elems: 0, ..good },
        ProxyOrder { nchannels: 0, ..good },
        ProxyOrder { nchannels: u32::MAX, ..good },
        ProxyOrder { first_channel: 6, ..good },
        ProxyOrder { first_channel: TREE, ..good },
        ProxyOrder { elements: 1, ..good },
        ProxyOrder { elements: 0xff, algorithm: Algorithm::CollnetChain as u8, ..good },
        ProxyOrder { func: Func::Scatter as u8, ..good },
        ProxyOrder { func: Func::AllToAll as u8, ..good },
        ProxyOrder { func: Func::Broadcast as u8, rank: Rank(9), ..good },
    ];
    for (order, follows_good) in bad.into_iter().flat_map(|order| [(order, false), (order, true)]) {
        let (mut orders, mut progress, _ends) = lone(Duration::from_secs(3), Manners::GOOD);
        if follows_good {
            orders.give(good).unwrap();
            progress.do_work();
            assert!(!orders.has_failed());
        }
        let ticket = orders.give(order).unwrap();
        progress.do_work();
        assert!(orders.has_failed() && !orders.is_done(ticket), "{order:?}");
        assert!(orders.failure().unwrap().to_string().contains("means nothing"), "{order:?}");
    }
}
