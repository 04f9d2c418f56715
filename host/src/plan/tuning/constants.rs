//! The model's numbers, one table for each kind of machine, with their source.
//!
//! Indices are those of an algorithm's terms ([`Terms::index`]: trees, rings, hops to all peers, chains to a network that reduces), then a
//! protocol's (LL, LL128, Simple). Times are microseconds, speeds GB/s
//! (10^9 bytes per second), and lists of three are for one host, two hosts, more.

use core::fmt;
use oxccl_shared::algo::spec::{Processor, Terms};

/// Machines with different model constants.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Architecture {
    /// CPU threads that share memory.
    Cpu,
    /// CPU threads connected by streams only.
    CpuStreams,
    /// GPUs up to compute capability 7.x.
    Volta,
    /// 8.x.
    Ampere,
    /// 9.x.
    Hopper,
    /// 10 and later.
    Blackwell,
}

/// One machine's numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Constants {
    /// Where they come from.
    pub source: &'static str,
    /// What an operation takes that has nothing to do.
    pub base_us: [[f64; 3]; Terms::KINDS],
    /// What a step takes between ranks that memory or NVLink connects.
    pub near_us: [[f64; 3]; Terms::KINDS],
    /// What a step takes over PCI.
    pub pci_us: [[f64; 3]; Terms::KINDS],
    /// What a step takes over the network.
    pub net_us: [[f64; 3]; Terms::KINDS],
    /// The maximal bandwidth of LL, all channels together.
    pub ll_bw_max: [f64; 3],
    /// The maximal bandwidth of a ring channel with LL128.
    pub ring_ll128_channel_bw: [f64; 3],
    /// The maximal bandwidth of a tree channel with LL128.
    pub tree_ll128_channel_bw: [f64; 3],
    /// The maximal bandwidth of a tree channel with Simple.
    pub tree_channel_bw: [f64; 3],
    /// A tree's share of the bandwidth, by protocol, at 64 bytes, 128 bytes and so on; the last holds beyond.
    pub tree_shares: [&'static [f64]; 3],
    /// Of `ll_bw_max`, what a one-shot or two-shot LL kernel sends to all others together, in one hop and in each of two.
    pub hops_ll_shares: [f64; 2],
    /// Of the rings' bandwidth, what a one-shot Simple kernel sends to all others together.
    pub hops_simple_share: f64,
    /// By how much a Simple ring over several hosts is slower to start once each rank has 64 bytes of every channel.
    pub net_plateau: f64,
    /// Ring channels, GB/s of each, without a graph.
    pub nominal: (u32, f64),
    /// Multiprocessors of a full-size part; 0 where ranks are no GPUs.
    pub multiprocessors: u32,
}

/// CollNet chains, with NCCL's numbers inside a host and through the network; Simple only.
const CHAIN_US: [f64; 3] = [2.8; 3];
const CHAIN_NET_US: [f64; 3] = [30.0; 3];

/// Of steps, as NCCL has them over NVLink; those of hops to all peers are ours.
const NVLINK_US: [[f64; 3]; Terms::KINDS] = [[0.6, 1.25, 4.0], [0.6, 1.9, 3.4], [1.3, 1.3, 4.0], CHAIN_US];
const PCI_US: [[f64; 3]; Terms::KINDS] = [[1.0, 1.9, 4.0], [1.0, 2.5, 5.7], [2.2, 2.2, 4.0], CHAIN_US];
const NET_US: [[f64; 3]; Terms::KINDS] = [[5.0, 8.5, 14.0], [2.7, 4.0, 14.0], [5.0, 8.5, 14.0], CHAIN_NET_US];

const TREE_SHARES: [&[f64]; 3] = [
    &[1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0],
    &[
        1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9,
        0.9, 1.0,
    ],
    &[
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7,
        0.8, 0.9, 0.9, 0.9,
    ],
];

const VOLTA: Constants = Constants {
    source: "NCCL 2.30's published model; one-shot and two-shot as on Hopper, not measured",
    // Hops: OxCCL on 4 H200, 2026-11-21, commit 808786a, with the kernels that any number of ranks but two and four still has: 6.6 us for
    // 8 bytes, of which a flag takes 1.3 on its way.
    base_us: [[6.8, 14.0, 8.4], [6.6, 14.0, 8.4], [5.3, 5.3, 5.3], [0.0; 3]],
    near_us: NVLINK_US,
    pci_us: PCI_US,
    net_us: NET_US,
    ll_bw_max: [39.0, 39.0, 20.4],
    ring_ll128_channel_bw: [20.0, 20.0, 20.0],
    tree_ll128_channel_bw: [20.0, 20.0, 20.0],
    tree_channel_bw: [26.5, 18.5, 10.0],
    tree_shares: TREE_SHARES,
    // The same run: 64 KiB take 2 us more than 8 bytes, and 256 KiB in two hops 10 us more than two hops of nothing.
    hops_ll_shares: [0.71, 0.28],
    // Stores to all others from 32 blocks on each of 8 H200: 254 GB/s, to one other 365.
    hops_simple_share: 0.7,
    net_plateau: 1.9,
    nominal: (6, 20.0),
    multiprocessors: 80,
};

const AMPERE: Constants = Constants {
    ll_bw_max: [87.7, 22.5, 19.0],
    tree_channel_bw: [24.0, 23.6, 17.8],
    net_plateau: 1.4,
    nominal: (12, 20.0),
    multiprocessors: 108,
    ..VOLTA
};

const HOPPER: Constants = Constants {
    source: "NCCL 2.30's published model; one-shot and two-shot from OxCCL on 4 H200 (docs/measurements/2026-11-21-h200x4.md)",
    ll_bw_max: [141.0, 45.0, 35.0],
    ring_ll128_channel_bw: [36.7, 36.7, 36.7],
    tree_ll128_channel_bw: [36.7, 36.7, 29.0],
    tree_channel_bw: [38.7, 41.4, 36.0],
    nominal: (12, 30.0),
    multiprocessors: 132,
    ..AMPERE
};

const BLACKWELL: Constants = Constants {
    source: "NCCL 2.30's published model; one-shot and two-shot as on Hopper, not measured",
    ll_bw_max: [282.0, 90.0, 70.0],
    ring_ll128_channel_bw: [40.0, 40.0, 40.0],
    tree_ll128_channel_bw: [55.6, 31.67, 20.0],
    tree_channel_bw: [70.0, 42.8, 24.0],
    nominal: (16, 45.0),
    multiprocessors: 148,
    ..HOPPER
};

/// A tree loses no bandwidth where a rank is a thread that does one thing at a time.
const NO_SHARES: [&[f64]; 3] = [&[1.0]; 3];

const CPU: Constants = Constants {
    source: "measured: two ranks on a two-core virtual machine, shared memory, 2026-11-21 (docs/tuning.md)",
    base_us: [[0.10, 0.10, 0.10]; 4],
    // A chain's step is a tree's.
    near_us: [[0.06, 0.06, 0.06], [0.06, 0.06, 0.06], [0.05, 0.05, 0.05], [0.06; 3]],
    pci_us: [[0.06, 0.06, 0.06], [0.06, 0.06, 0.06], [0.05, 0.05, 0.05], [0.06; 3]],
    // In-network reduction, not measured: to the network and back, two steps of a ring.
    net_us: [[12.0, 12.0, 12.0], [7.0, 7.0, 7.0], [14.0, 14.0, 14.0], [14.0; 3]],
    ll_bw_max: [0.6, 0.6, 0.6],
    ring_ll128_channel_bw: [2.0, 2.0, 2.0],
    tree_ll128_channel_bw: [2.0, 2.0, 2.0],
    tree_channel_bw: [7.0, 2.0, 2.0],
    tree_shares: NO_SHARES,
    hops_ll_shares: [1.0, 1.0],
    hops_simple_share: 1.0,
    net_plateau: 1.0,
    nominal: (1, 6.5),
    multiprocessors: 0,
};

const CPU_STREAMS: Constants = Constants {
    source: "measured: two ranks on a two-core virtual machine, TCP over loopback, 2026-11-21 (docs/tuning.md)",
    base_us: [[1.0, 1.0, 1.0]; 4],
    near_us: CPU.net_us,
    pci_us: CPU.net_us,
    nominal: (1, 2.0),
    ..CPU
};

impl Architecture {
    /// That of a GPU with this compute capability (90 is 9.0).
    pub fn of_sm(sm: u32) -> Architecture {
        match sm {
            0..=79 => Architecture::Volta,
            80..=89 => Architecture::Ampere,
            90..=99 => Architecture::Hopper,
            _ => Architecture::Blackwell,
        }
    }

    /// Its numbers.
    pub fn constants(self) -> &'static Constants {
        match self {
            Architecture::Cpu => &CPU,
            Architecture::CpuStreams => &CPU_STREAMS,
            Architecture::Volta => &VOLTA,
            Architecture::Ampere => &AMPERE,
            Architecture::Hopper => &HOPPER,
            Architecture::Blackwell => &BLACKWELL,
        }
    }

    /// What the ranks run on, as far as algorithms differ.
    pub fn processor(self) -> Processor {
        match self {
            Architecture::Cpu | Architecture::CpuStreams => Processor::Cpu,
            _ => Processor::Gpu,
        }
    }

    /// Whether ranks are GPUs.
    pub fn is_gpu(self) -> bool {
        self.processor() == Processor::Gpu
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Architecture::Cpu => "CPUs, shared memory",
            Architecture::CpuStreams => "CPUs, streams",
            Architecture::Volta => "GPUs, Volta",
            Architecture::Ampere => "GPUs, Ampere",
            Architecture::Hopper => "GPUs, Hopper",
            Architecture::Blackwell => "GPUs, Blackwell",
        })
    }
}
