//! Thousands of ranks: the ring's and the root's own code over a simulated network and clock.
//!
//! Every rank is a [`Ring`]. Its thread does one thing at a time: it takes a message, which costs it time for waking, for opening and sealing,
//! and what it sends arrives a latency later. Messages, bytes and depth do not depend on these times.

use super::super::ring::{Ring, Side};
use super::super::side::{branches, far_parent};
use super::*;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// What things take, in ns.
#[derive(Clone, Copy)]
struct Times {
    /// From a rank's write to the wake-up of the other rank's thread, on another host.
    latency: u64,
    /// System calls and wake-up of one message, at each end.
    message: u64,
    /// Sealing and opening of 1,000 bytes, their way through the kernel, and the tables' work on the blocks in them, at each end.
    kilobyte: u64,
}

/// A kernel's TCP over a data centre's Ethernet; ChaCha20-Poly1305 at 1 GB/s; and 60 ns for a block of a vote, which has 6 bytes
/// ([`what_a_block_costs`]), here divided between the two ends.
const ETHERNET: Times = Times { latency: 25_000, message: 10_000, kilobyte: 6_200 };

/// A message on its way: when it comes, its number, the receiver, its side, how many messages came before it one after the other.
type Flight = Reverse<(u64, u64, usize, usize, u32)>;

#[derive(Default)]
struct Counts {
    messages: u64,
    bytes: u64,
    messages_max: u64,
    depth: u32,
    took_ns: u64,
}

struct Simulation {
    rings: Vec<Ring>,
    /// The other end of each connection.
    ends: Vec<[Option<(usize, Side)>; Side::COUNT]>,
    times: Times,
    busy_until: Vec<u64>,
    depth: Vec<u32>,
    sent: Vec<u64>,
    flights: BinaryHeap<Flight>,
    contents: std::collections::HashMap<u64, Vec<u8>>,
    counts: Counts,
    number: u64,
}

impl Simulation {
    fn new(nranks: usize, times: Times) -> Simulation {
        let mut this = Simulation {
            rings: (0..nranks).map(|rank| Ring::new(Rank(rank as u32), nranks as u32)).collect(),
            ends: vec![[None; Side::COUNT]; nranks],
            times,
            busy_until: vec![0; nranks],
            depth: vec![0; nranks],
            sent: vec![0; nranks],
            flights: BinaryHeap::new(),
            contents: std::collections::HashMap::new(),
            counts: Counts::default(),
            number: 0,
        };
        for rank in 0..nranks {
            this.connect((rank, Side::Next), ((rank + 1) % nranks, Side::Prev));
            if let Some(parent) = far_parent(Rank(rank as u32), nranks as u32) {
                let side = this.rings[parent.index()].side_of_child(Rank(rank as u32)).expect("a child");
                this.connect((rank, Side::Up), (parent.index(), side));
            }
        }
        // Greetings.
        (0..nranks).for_each(|rank| this.write(rank, 0));
        this.run(|_, _| ());
        this
    }

    fn connect(&mut self, near: (usize, Side), far: (usize, Side)) {
        for ((me, side), (peer, back)) in [(near, far), (far, near)] {
            self.rings[me].attach(side, Rank(peer as u32));
            self.ends[me][side as usize] = Some((peer, back));
        }
    }

    fn start(&mut self) {
        self.counts = Counts::default();
        self.busy_until.fill(0);
        self.depth.fill(0);
        self.sent.fill(0);
    }

    /// Sends what a rank has to say, from `now` on.
    fn write(&mut self, rank: usize, mut now: u64) {
        for side in Side::ALL {
            let out = self.rings[rank].take_output(side);
            let Some((peer, back)) = self.ends[rank][side as usize].filter(|_| !out.is_empty()) else {
                continue;
            };
            now += self.cost(out.len());
            self.sent[rank] += 1;
            self.counts.messages += 1;
            self.counts.bytes += out.len() as u64;
            let flight = (now + self.times.latency, self.number, peer, back as usize, self.depth[rank] + 1);
            self.contents.insert(self.number, out);
            self.flights.push(Reverse(flight));
            self.number += 1;
        }
        self.busy_until[rank] = now;
    }

    fn cost(&self, len_bytes: usize) -> u64 {
        self.times.message + self.times.kilobyte * len_bytes as u64 / 1000
    }

    /// Until nothing is on its way; `after` sees each rank that a message has come to, with its time.
    fn run(&mut self, mut after: impl FnMut(&mut Ring, usize)) {
        while let Some(Reverse((at, number, rank, side, depth))) = self.flights.pop() {
            let bytes = self.contents.remove(&number).expect("a message on its way");
            let now = at.max(self.busy_until[rank]) + self.cost(bytes.len());
            self.depth[rank] = self.depth[rank].max(depth);
            self.rings[rank].receive(Side::ALL[side], &bytes);
            self.write(rank, now);
            self.counts.depth = self.counts.depth.max(depth);
            self.counts.took_ns = self.counts.took_ns.max(self.busy_until[rank]);
            after(&mut self.rings[rank], rank);
        }
        self.counts.messages_max = self.sent.iter().copied().max().unwrap_or(0);
    }

    /// All ranks gather blocks of this length; every rank must get every block.
    fn gather(&mut self, block_bytes: usize) {
        self.start();
        let nranks = self.rings.len();
        for rank in 0..nranks {
            let block = vec![rank as u8; block_bytes];
            self.rings[rank].submit(&block).expect("a healthy ring");
            self.write(rank, 0);
        }
        let mut complete = 0;
        self.run(|ring, _| {
            if let Some(table) = ring.take_gathered() {
                let table = table.expect("all take part");
                assert_eq!(table.len(), nranks);
                let is_right = |(rank, block): (usize, &Vec<u8>)| {
                    block.len() == block_bytes && block.iter().all(|byte| *byte == rank as u8)
                };
                assert!(table.iter().enumerate().all(is_right));
                complete += 1;
            }
        });
        assert_eq!(complete, nranks, "every rank has the table");
    }

    /// A rank dies; every other must hear of it once.
    fn death(&mut self, dead: usize) {
        self.start();
        let nranks = self.rings.len();
        for (peer, back) in self.ends[dead].into_iter().flatten() {
            self.ends[peer][back as usize] = None;
            self.rings[peer].ended(back);
            self.write(peer, 0);
        }
        let mut heard = vec![0; nranks];
        self.run(|ring, rank| {
            while let Some(event) = ring.next_event() {
                assert_eq!(event, super::super::PeerEvent::PeerDied { rank: Rank(dead as u32) });
                heard[rank] += 1;
            }
        });
        // Those who saw the end may have got no message of it.
        for (ring, heard) in self.rings.iter_mut().zip(&mut heard) {
            while let Some(event) = ring.next_event() {
                assert_eq!(event, super::super::PeerEvent::PeerDied { rank: Rank(dead as u32) });
                *heard += 1;
            }
        }
        heard.remove(dead);
        assert!(heard.iter().all(|times| *times == 1), "every survivor hears of it once");
    }

    fn print(&self, what: &str) {
        let Counts { messages, bytes, messages_max, depth, took_ns } = self.counts;
        let nranks = self.rings.len() as u64;
        println!(
            "{nranks} ranks, {what}: {messages} messages, at most {messages_max} of a rank, {} bytes per rank, depth {depth}, {:.2} ms",
            bytes / nranks,
            took_ns as f64 / 1e6
        );
    }
}

/// Twice the depth of the tree.
fn depth_max(nranks: usize) -> u32 {
    2 * oxccl_shared::algo::tree::depth(nranks as u32)
}

/// A gather of short blocks is a message each way for each edge of the tree, and as deep as the tree is, twice; a death is heard of as soon.
fn holds_at(nranks: usize) {
    let mut simulation = Simulation::new(nranks, ETHERNET);
    let begun = Instant::now();
    simulation.gather(2);
    simulation.print("a vote");
    let (depth, counts) = (depth_max(nranks), &simulation.counts);
    // Each block crosses each edge once; its head takes some bytes, and each piece its own.
    let pieces = 1 + 9 * nranks / super::super::gather_tree::PIECE_BYTES;
    assert!(counts.messages <= 2 * (nranks as u64 - 1) * pieces as u64, "{}", counts.messages);
    assert!(counts.messages_max <= 3 * pieces as u64, "{}", counts.messages_max);
    assert!(counts.bytes <= (nranks * nranks * 8 + 32 * 2 * nranks * pieces) as u64, "{}", counts.bytes);
    assert!(counts.depth <= depth, "{} hops of {depth}", counts.depth);
    simulation.death(nranks / 3);
    simulation.print("a death");
    // Around the dead one, who may have been the parent of half of the others: through the ring, and up again.
    assert!(simulation.counts.depth <= 2 * depth, "{} hops", simulation.counts.depth);
    println!("simulated in {:?}", begun.elapsed());
}

#[test]
fn gathers_and_deaths_among_a_thousand_simulated_ranks() {
    [2, 3, 64, 1000, 1024].into_iter().for_each(holds_at);
}

/// Figures, for docs/measurements; some GiB of memory.
#[test]
#[ignore = "measures"]
fn gathers_and_deaths_among_16384_simulated_ranks() {
    [4096, 16_384].into_iter().for_each(holds_at);
    for (nranks, block_bytes) in [(64, 64), (1024, 64), (4096, 64)] {
        let mut simulation = Simulation::new(nranks, ETHERNET);
        simulation.gather(block_bytes);
        simulation.print("blocks of 64 bytes");
    }
}

/// A rank's connections: two of the ring, up to three of the tree.
#[test]
fn a_rank_has_at_most_five_connections_whatever_the_number_of_ranks() {
    for nranks in [1024, 16_384u32] {
        let far = |rank: &u32| {
            let is_far = |side| matches!(side, Side::Up | Side::Left | Side::Right);
            branches(Rank(*rank), nranks).iter().filter(|branch| is_far(branch.side)).count()
        };
        let all: Vec<usize> = (0..nranks).map(|rank| far(&rank)).collect();
        assert!(all.iter().all(|far| *far <= 3));
        // A connection has two ends: less than half a connection more for each rank.
        assert!(all.iter().sum::<usize>() < nranks as usize);
    }
}

/// Figures, for docs/measurements: what a leaf does with a part of short blocks of all others.
#[test]
#[ignore = "measures"]
fn what_a_block_costs() {
    for nranks in [1024u32, 16_384] {
        // Its parent in the tree is rank 2.
        let mut ring = Ring::new(Rank(1), nranks);
        ring.attach(Side::Next, Rank(2));
        ring.submit(&[1, 0]).expect("a healthy ring");
        let from_above = other_blocks(nranks);
        let begun = Instant::now();
        ring.receive(Side::Next, &from_above);
        let came = begun.elapsed();
        let table = ring.take_gathered().expect("complete").expect("all take part");
        println!("{nranks} blocks: {came:?} to take them, {:?} with the table", begun.elapsed());
        assert_eq!(table.len(), nranks as usize);
    }
}

/// A part with a block of every rank but rank 1, and all that comes before it on a connection.
fn other_blocks(nranks: u32) -> Vec<u8> {
    use super::super::frame;
    use super::super::ring_wire::{BlockHead, KIND_PART, PartHead};
    use crate::wire::Message;
    let head = PartHead { gather: 0, is_last: true, is_hurried: false };
    let mut blocks = Vec::new();
    for origin in (0..nranks).filter(|rank| *rank != 1).map(Rank) {
        blocks.extend(BlockHead { origin, len_bytes: 2 }.to_bytes());
        blocks.extend([1, 0]);
    }
    let mut bytes = Vec::new();
    frame::push(&mut bytes, KIND_PART, &[&head.to_bytes(), &blocks]);
    bytes
}

/// Figures, for docs/measurements: one handshake, both sides, without sockets.
#[test]
#[ignore = "measures"]
fn what_a_handshake_costs() {
    use super::super::handshake::{Handshake, Hello, Purpose, ROOT};
    use super::super::secret::Ephemeral;
    let secret = Secret::from_seed(b"");
    let (mut dials, mut accepts) = (Duration::ZERO, Duration::ZERO);
    const TIMES: u32 = 2000;
    for rank in (0..TIMES).map(Rank) {
        let hello = Hello { purpose: Purpose::Register, from: rank, to: ROOT, tag: 0 };
        let begun = Instant::now();
        let mut dialer = Handshake::initiator(secret, hello, Ephemeral::random().expect("random bytes"));
        dials += begun.elapsed();
        let begun = Instant::now();
        let mut acceptor = Handshake::acceptor(secret, ROOT, Ephemeral::random().expect("random bytes"));
        accepts += begun.elapsed();
        while dialer.outcome().is_none() || acceptor.outcome().is_none() {
            let begun = Instant::now();
            let bytes = dialer.output().to_vec();
            dialer.sent(bytes.len());
            dials += begun.elapsed();
            let begun = Instant::now();
            acceptor.feed(&bytes);
            let bytes = acceptor.output().to_vec();
            acceptor.sent(bytes.len());
            accepts += begun.elapsed();
            let begun = Instant::now();
            dialer.feed(&bytes);
            dials += begun.elapsed();
        }
    }
    println!("a handshake: {:?} for who connects, {:?} for who accepts", dials / TIMES, accepts / TIMES);
}

/// Figures, for docs/measurements: registrations as fast as four threads make them, each with a connection that stays.
#[test]
#[ignore = "measures"]
fn how_long_the_root_takes() {
    use super::super::cancel::Cancel;
    use super::super::credentials::Credentials;
    use super::super::frame;
    use super::super::join::reach_root;
    use super::super::rendezvous_wire::{KIND_REGISTER, ROOT_PAYLOAD_MAX, Register};
    use super::super::sock::Deadline;
    use crate::wire::Message;
    for nranks in [256u32, 1024, 4096, 8192] {
        let config = BootstrapConfig { timeout: Duration::from_secs(120), ..config() };
        let id = UniqueId::create_by(&config).expect("a root on the loopback");
        let begun = Instant::now();
        let deadline = Deadline::after(Duration::from_secs(120));
        let registered = in_parallel(4, |thread| {
            let mut mine = Vec::new();
            for rank in (thread..nranks).step_by(4) {
                let by = (&id, &Credentials::Believed);
                let (mut root, _) =
                    reach_root(by, Rank(rank), &config, &Cancel::default()).expect("it answers");
                let mut message = Vec::new();
                let register = Register::of_this_process(nranks, id.root_addr(), config.timeout);
                frame::push(&mut message, KIND_REGISTER, &[&register.to_bytes()]);
                root.write_all(&message, &deadline).expect("written");
                mine.push(root);
            }
            mine
        });
        let came = begun.elapsed();
        for mut root in registered.into_iter().flatten() {
            root.read_frame(ROOT_PAYLOAD_MAX, &deadline).expect("an answer");
        }
        println!("{nranks} ranks: registered after {came:?}, all answered after {:?}", begun.elapsed());
    }
}
