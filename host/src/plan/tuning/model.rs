//! The model's time of a candidate: a latency and a bandwidth.
//!
//! Rings and trees follow the published model of NCCL 2.30 (its `src/graph/tuning.cc`; docs/tuning.md has the
//! formulas), with one change: a tree's share of the bandwidth is interpolated between powers of two, so that more
//! bytes never take less time.

use super::candidate::{Candidate, algorithm_index};
use super::machine::Machine;
use crate::plan::Call;
use crate::topology::PathKind;
use oxccl_shared::abi::{Algorithm, Func, Protocol};

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

/// Bytes of a call's larger buffer: what sizes are counted in, here, in tables and by `oxccl perf`.
pub(super) fn buffer_bytes(call: &Call, nranks: u32) -> u64 {
    match call.func {
        Func::AllGather | Func::ReduceScatter | Func::AllToAll | Func::Gather | Func::Scatter => {
            call.bytes().saturating_mul(u64::from(nranks))
        }
        _ => call.bytes(),
    }
}

/// The time of `call` along `candidate`.
pub fn estimate(candidate: Candidate, call: &Call, machine: &Machine) -> Estimate {
    let bytes = buffer_bytes(call, machine.nranks);
    if machine.nranks < 2 {
        return Estimate::new(0.0, machine.rank_bw(), bytes);
    }
    match candidate.algorithm {
        Algorithm::Ring => ring(candidate.protocol, call, machine, bytes),
        Algorithm::Tree => tree(candidate.protocol, machine, bytes),
        Algorithm::Direct => direct(candidate.protocol, call, machine, bytes),
        Algorithm::CollnetChain => collnet_chain(machine, bytes),
    }
}

/// Microseconds of an operation without steps, of a step inside a host and of one between hosts.
fn latencies(candidate: Candidate, machine: &Machine, intra: PathKind) -> (f64, f64, f64) {
    let constants = machine.architecture.constants();
    let (a, p) = (algorithm_index(candidate.algorithm), candidate.protocol as usize);
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

fn ring(protocol: Protocol, call: &Call, machine: &Machine, bytes: u64) -> Estimate {
    let constants = machine.architecture.constants();
    let (n, hosts) = (f64::from(machine.nranks), f64::from(machine.nhosts));
    let passes = if call.func == Func::AllReduce { 2.0 } else { 1.0 };
    let (base, step, inter) =
        latencies(Candidate::new(Algorithm::Ring, protocol), machine, machine.ring.intra);
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
    // How often every byte crosses every link.
    let crossings = match call.func {
        Func::AllReduce => 2.0 * (n - 1.0) / n,
        Func::AllGather | Func::ReduceScatter => (n - 1.0) / n,
        _ => 1.0,
    };
    Estimate::new(latency, bus / crossings, bytes)
}

fn tree(protocol: Protocol, machine: &Machine, bytes: u64) -> Estimate {
    let constants = machine.architecture.constants();
    let (base, step, inter) =
        latencies(Candidate::new(Algorithm::Tree, protocol), machine, machine.tree.intra);
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

fn direct(protocol: Protocol, call: &Call, machine: &Machine, bytes: u64) -> Estimate {
    let constants = machine.architecture.constants();
    let n = f64::from(machine.nranks);
    let (base, step, inter) =
        latencies(Candidate::new(Algorithm::Direct, protocol), machine, machine.pairs.kind);
    let hop = if machine.nhosts > 1 { inter } else { step };
    let at = machine.hosts_index();
    // What a rank sends to each of the others, when it sends to all at once; no pair is faster than alone.
    let pair = |hops: usize| {
        let rank_bw = match protocol {
            Protocol::LL => {
                (0.5 * machine.rank_bw()).min(constants.ll_bw_max[at] * constants.direct_ll_shares[hops - 1])
            }
            Protocol::LL128 => {
                let channels = f64::from(machine.ring.channels);
                (0.92 * machine.rank_bw()).min(channels * constants.ring_ll128_channel_bw[at])
            }
            Protocol::Simple => constants.direct_simple_share * machine.rank_bw(),
        };
        (rank_bw / (n - 1.0)).min(machine.pairs.bw)
    };
    let hops = |hops: usize, share: f64| {
        let count = hops as f64;
        Estimate::new(base + count * hop, pair(hops) / (count * share), bytes)
    };
    match call.func {
        Func::AllReduce => {
            let one = hops(1, 1.0);
            let two = hops(2, 1.0 / n);
            let takes_two = protocol == Protocol::LL128 || two.time_us < one.time_us;
            if constants.has_two_hops && takes_two { two } else { one }
        }
        Func::AllGather | Func::ReduceScatter | Func::AllToAll => hops(1, 1.0 / n),
        _ => hops(1, 1.0),
    }
}

/// Up a host's chain, through the network once, and down again. Every byte leaves a host once and comes back once.
fn collnet_chain(machine: &Machine, bytes: u64) -> Estimate {
    let candidate = Candidate::new(Algorithm::CollnetChain, Protocol::Simple);
    let (base, step, inter) = latencies(candidate, machine, machine.tree.intra);
    let latency = base + 2.0 * f64::from(machine.tree_depth[0]) * step + inter;
    Estimate::new(latency, machine.tree.total_bw(machine.nhosts), bytes)
}

/// Useful channels for so many bytes, of the connected ones, in blocks of so many threads: NCCL's rule, by which
/// every thread has a few bytes of every channel (`NCCL_LL_THREAD_THRESHOLD` and similar constants in its
/// `src/include/comm.h`).
pub fn channels(candidate: Candidate, bytes: u64, machine: &Machine, threads: u32, connected: u32) -> u32 {
    let ranks = match candidate.algorithm {
        Algorithm::Ring => u64::from(machine.nranks),
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
