//! The model's time of a candidate: a latency and a bandwidth.
//!
//! Rings and trees follow the published model of NCCL 2.30 (its `src/graph/tuning.cc`; docs/tuning.md has the
//! formulas), with one change: a tree's share of the bandwidth is interpolated between powers of two, so that more
//! bytes never take less time.

use super::candidate::Candidate;
use super::machine::Machine;
use crate::plan::Call;
use crate::topology::PathKind;
use oxccl_shared::abi::Protocol;
use oxccl_shared::algo::doubling;
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::algo::spec::Terms;

/// A candidate's time for one call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// Microseconds before the first and after the last byte.
    pub latency_us: f64,
    /// Bytes of the call's larger buffer per second, in GB/s.
    pub bandwidth: f64,
    /// Microseconds.
    pub time_us: f64,
}

impl Estimate {
    fn new(latency_us: f64, bandwidth: f64, bytes: u64) -> Estimate {
        Estimate { latency_us, bandwidth, time_us: latency_us + bytes as f64 / (1e3 * bandwidth) }
    }

    /// The part of the time that grows with the bytes.
    pub fn bytes_us(&self) -> f64 {
        self.time_us - self.latency_us
    }
}

/// The time of `call` along `candidate`.
pub fn estimate(candidate: Candidate, call: &Call, machine: &Machine) -> Estimate {
    let bytes = call.buffer_bytes(machine.nranks);
    if machine.nranks < 2 {
        return Estimate::new(0.0, machine.rank_bw(), bytes);
    }
    match spec_of(candidate.algorithm).terms {
        Terms::Ring => ring(candidate, call, machine, bytes),
        Terms::Tree => tree(candidate, machine, bytes),
        Terms::Hops(count) => hops(candidate, u32::from(count), call, machine, bytes),
        Terms::Chain => chain(candidate, machine, bytes),
        Terms::Star => star(candidate, machine, bytes),
        Terms::Levels => levels(candidate, machine, bytes),
        Terms::Doubling => doubling(candidate, machine, bytes),
    }
}

/// Microseconds of an operation without steps, of a step inside a host and of one between hosts.
fn latencies(candidate: Candidate, machine: &Machine, intra: PathKind) -> (f64, f64, f64) {
    let constants = machine.architecture.constants();
    let (a, p) = (spec_of(candidate.algorithm).terms.index(), candidate.protocol as usize);
    let steps = if intra <= PathKind::Nvb { &constants.near_us } else { &constants.pci_us };
    let mut step = steps[a][p];
    let mut inter = constants.net_us[a][p];
    if machine.nhosts > 1 {
        // With Simple a step over the network is two trips and three polls of the CPU's words.
        let is_simple = candidate.protocol == Protocol::Simple;
        let (trips, looks) = if is_simple { (2.0, 3.0) } else { (1.0, 1.0) };
        step = step.max(looks * machine.net_overhead_us);
        inter += trips * machine.ring.inter_latency_us;
    }
    (constants.base_us[a][p], step, inter)
}

fn ring(candidate: Candidate, call: &Call, machine: &Machine, bytes: u64) -> Estimate {
    let constants = machine.architecture.constants();
    let (n, hosts) = (f64::from(machine.nranks), f64::from(machine.nhosts));
    let passes = f64::from(call.func.rounds());
    let protocol = candidate.protocol;
    let (base, step, inter) = latencies(candidate, machine, machine.ring.intra);
    let (steps, inter_steps) = (passes * (n - 1.0), passes * (hosts - 1.0));
    let mut latency = base + (steps - inter_steps) * step + inter_steps * inter;
    let channels = f64::from(machine.ring.channels);
    if protocol == Protocol::Simple && machine.nhosts > 1 && bytes as f64 / (channels * n) >= 64.0 {
        latency *= constants.net_plateau;
    }
    let total = machine.ring.total_bw(machine.nhosts);
    let at = machine.hosts_index();
    let bus = match protocol {
        Protocol::LL => (0.5 * total).min(constants.ll_bw_max[at]),
        Protocol::LL128 => (0.92 * total).min(channels * constants.ring_ll128_channel_bw[at]),
        Protocol::Simple => total,
    };
    // How often every byte crosses every link: the blocks of all ranks go round at once, a root's buffer goes whole.
    let crossings = if call.func.is_rooted() { 1.0 } else { passes * (n - 1.0) / n };
    Estimate::new(latency, bus / crossings, bytes)
}

fn tree(candidate: Candidate, machine: &Machine, bytes: u64) -> Estimate {
    let constants = machine.architecture.constants();
    let protocol = candidate.protocol;
    let (base, step, inter) = latencies(candidate, machine, machine.tree.intra);
    let [inside, between] = machine.tree_depth.map(f64::from);
    let latency = base + 2.0 * (inside * step + between * inter);
    let total = machine.tree.total_bw(machine.nhosts);
    let channels = f64::from(machine.tree.channels);
    let at = machine.hosts_index();
    let bus = (0.92 * total).min(channels * constants.tree_channel_bw[at]);
    let bus = match protocol {
        Protocol::LL => (bus / 3.8).min(constants.ll_bw_max[at]),
        Protocol::LL128 => {
            let share = if machine.nhosts <= 1 { 7.0 / 9.0 } else { 120.0 / 128.0 };
            (bus * share).min(channels * constants.tree_ll128_channel_bw[at])
        }
        Protocol::Simple => bus,
    };
    // Up and down: every byte crosses every link twice.
    let bandwidth = 0.5 * bus * share_at(constants.tree_shares[protocol as usize], bytes);
    Estimate::new(latency, bandwidth, bytes)
}

/// The share for so many bytes, between those of the powers of two around it. As long as no share is twice the one before, what is
/// divided by it grows with the bytes.
fn share_at(shares: &[f64], bytes: u64) -> f64 {
    let last = shares.len() - 1;
    let Some(power) = (bytes >> 6).checked_ilog2().map(|power| power as usize) else { return shares[0] };
    if power >= last {
        return shares[last];
    }
    let floor = (64u64 << power) as f64;
    let part = (bytes as f64 - floor) / floor;
    shares[power] + part * (shares[power + 1] - shares[power])
}

/// `count` hops to all peers at once.
fn hops(candidate: Candidate, count: u32, call: &Call, machine: &Machine, bytes: u64) -> Estimate {
    let constants = machine.architecture.constants();
    let n = f64::from(machine.nranks);
    let (base, step, inter) = latencies(candidate, machine, machine.pairs.kind);
    let hop = if machine.nhosts > 1 { inter } else { step };
    let at = machine.hosts_index();
    // What a rank sends to each of the others, when it sends to all at once; no pair is faster than alone.
    let rank_bw = match candidate.protocol {
        Protocol::LL => {
            let share = constants.hops_ll_shares[count as usize - 1];
            (0.5 * machine.hops_bw()).min(constants.ll_bw_max[at] * share)
        }
        Protocol::LL128 => {
            let channels = f64::from(machine.ring.channels);
            (0.92 * machine.hops_bw()).min(channels * constants.ring_ll128_channel_bw[at])
        }
        Protocol::Simple => constants.hops_simple_share * machine.hops_bw(),
    };
    let pair = (rank_bw / (n - 1.0)).min(machine.pairs.bw);
    // Of the larger buffer, what goes to each of the others in a hop.
    let share = if call.func.has_blocks() || count > 1 { 1.0 / n } else { 1.0 };
    let count = f64::from(count);
    Estimate::new(base + count * hop, pair / (count * share), bytes)
}

/// Up a host's chain, through the network once, and down again. Every byte leaves a host once and comes back once.
fn chain(candidate: Candidate, machine: &Machine, bytes: u64) -> Estimate {
    let (base, step, inter) = latencies(candidate, machine, machine.tree.intra);
    let inside = machine.nranks.div_ceil(machine.nhosts.max(1)).saturating_sub(1);
    let latency = base + 2.0 * f64::from(inside) * step + inter;
    Estimate::new(latency, machine.tree.total_bw(machine.nhosts), bytes)
}

/// To a host's head, through the network once, and back. The head receives what all others have, and sends it to all.
fn star(candidate: Candidate, machine: &Machine, bytes: u64) -> Estimate {
    let (base, step, inter) = latencies(candidate, machine, machine.pairs.kind);
    let others = f64::from(machine.nranks.div_ceil(machine.nhosts.max(1)).saturating_sub(1));
    let latency = base + 2.0 * others.min(1.0) * step + inter;
    let inside = machine.hops_bw() / others.max(1.0);
    Estimate::new(latency, machine.tree.total_bw(machine.nhosts).min(inside), bytes)
}

/// A reduce-scatter inside each host, an all-reduce between the ranks of each number, an all-gather inside: two hops of each kind, to
/// all peers of the level at once. Every rank sends a block of each of the others in each hop, and its own to other hosts alone.
fn levels(candidate: Candidate, machine: &Machine, bytes: u64) -> Estimate {
    let constants = machine.architecture.constants();
    let (base, step, inter) = latencies(candidate, machine, machine.pairs.kind);
    let n = f64::from(machine.nranks);
    let each = match machine.host_ranks {
        0 => n / f64::from(machine.nhosts),
        ranks => f64::from(ranks),
    };
    let hosts = n / each;
    let latency = base + 2.0 * (step + inter);
    let share = match candidate.protocol {
        Protocol::LL => 0.5,
        Protocol::LL128 => 0.92,
        Protocol::Simple => 1.0,
    };
    let [near_bw, far_bw] = machine.level_bw;
    let (inside, between) = (share * constants.hops_simple_share * near_bw, share * far_bw);
    // Of the buffer, in one direction: what a rank sends inside its host, and what a host's ranks send to others together.
    let (near, far) = (2.0 * (each - 1.0) / each, 2.0 * (hosts - 1.0) / hosts);
    Estimate::new(latency, 1.0 / (near / inside + far / between), bytes)
}

/// Exchanges of the whole buffer, between hosts as soon as there are several.
fn doubling(candidate: Candidate, machine: &Machine, bytes: u64) -> Estimate {
    let (base, step, inter) = latencies(candidate, machine, machine.pairs.kind);
    let exchanges = f64::from(doubling::depth(machine.nranks));
    let latency = base + exchanges * if machine.nhosts > 1 { inter } else { step };
    let pair = machine.hops_bw().min(machine.pairs.bw);
    Estimate::new(latency, pair / exchanges, bytes)
}

/// Useful channels for so many bytes, of the connected ones, in blocks of so many threads: NCCL's rule, by which
/// every thread has a few bytes of every channel (`NCCL_LL_THREAD_THRESHOLD` and similar constants in its
/// `src/include/comm.h`).
pub fn channels(candidate: Candidate, bytes: u64, machine: &Machine, threads: u32, connected: u32) -> u32 {
    let ranks = match spec_of(candidate.algorithm).terms {
        Terms::Ring => u64::from(machine.nranks),
        _ => 1,
    };
    let thread_bytes = match candidate.protocol {
        Protocol::LL => 8 * ranks,
        Protocol::LL128 => 8,
        Protocol::Simple => 64,
    };
    let worth = bytes / (thread_bytes * u64::from(threads.max(1)));
    worth.clamp(1, u64::from(connected.max(1))) as u32
}
