//! Which algorithm and protocol for ranks on CPUs: thresholds that were measured, as a voice of `tuning`.

use super::call::Call;
use super::collective::plan;
use super::collnet::Collnet;
use super::tuning::{
    Architecture, Backend, Candidate, Candidates, Choice, Exclusion, Explanation, Forced, Impossible,
    Measured, Scope, TuneTable, choose,
};
use oxccl_shared::abi::{Algorithm, ConnLayout, Func, Protocol};
use oxccl_shared::algo::spec::Processor;

/// What a communicator knows after init; equal on every rank.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Ranks.
    pub nranks: u32,
    /// Slot sizes of ring and tree connections.
    pub ring_layout: ConnLayout,
    /// Slot sizes of mesh connections (one-shot, send and receive).
    pub mesh_layout: ConnLayout,
    /// Channels that rings use.
    pub ring_channels: u32,
    /// Channels that trees use.
    pub tree_channels: u32,
    /// The user's overrides.
    pub forced: Forced,
    /// Thresholds.
    pub tuning: Tuning,
    /// Its network that reduces.
    pub collnet: Collnet,
    /// What was measured here.
    pub table: Option<TuneTable>,
}

/// Thresholds in bytes of a call (its `count` times the element size). See docs/measurements for where they come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// What the model knows the ranks as.
    pub architecture: Architecture,
    /// Up to here, divided by n - 1, all-reduce of more than two ranks is one-shot: its traffic grows with the ranks.
    pub one_shot_max_bytes: u64,
    /// Up to here all-reduce of two ranks is one-shot: its traffic is a ring's, with one wait less and twice the reduction.
    pub pair_one_shot_max_bytes: u64,
    /// Below this LL.
    pub ll_below_bytes: u64,
    /// Below this LL128; Simple from here on.
    pub ll128_below_bytes: u64,
    /// From here on outputs bypass the caches, unless they are inputs too. About the size of a last-level cache.
    pub stream_min_bytes: u64,
    /// Where this was measured.
    pub source: &'static str,
}

impl Tuning {
    /// For ranks on CPUs. Their caches are coherent: a counter and the data it publishes arrive together as fast as a line that
    /// carries its own flag, so the line protocols, made for links without that, win at no size.
    pub const CPU: Tuning = Tuning {
        architecture: Architecture::Cpu,
        one_shot_max_bytes: 128 << 10,
        pair_one_shot_max_bytes: u64::MAX,
        ll_below_bytes: 0,
        ll128_below_bytes: 0,
        stream_min_bytes: 32 << 20,
        source: "docs/measurements/2026-11-21-open-mpi.md, shared memory",
    };

    /// For ranks on CPUs that are connected by streams only. There the operating system's work fills the time that a ring's
    /// waits leave, so that what the ranks do themselves counts: a ring reduces each element once.
    pub const CPU_STREAMS: Tuning = Tuning {
        architecture: Architecture::CpuStreams,
        pair_one_shot_max_bytes: 256 << 10,
        source: "docs/measurements/2026-11-21-open-mpi.md, TCP",
        ..Tuning::CPU
    };

    /// What tuning files call such ranks.
    pub fn backend(&self) -> Backend {
        match self.architecture {
            Architecture::CpuStreams => Backend::CpuStreams,
            _ => Backend::Cpu,
        }
    }
}

/// What needs a network that reduces.
const COLLNET: Candidates = Candidates::along(Algorithm::CollnetChain);

/// What ranks on CPUs have of a function, given everything that it needs.
pub(super) fn offered(func: Func) -> Candidates {
    Candidates::offered(func, Processor::Cpu)
}

impl Facts {
    /// Whether what the user orders can be done by ranks on CPUs, where a network reduces unless `no_collnet` says why not.
    ///
    /// # Errors
    /// The first function for which it cannot.
    pub fn check(forced: &Forced, no_collnet: Option<&str>) -> Result<(), Impossible> {
        let named = no_collnet.filter(|_| forced.names_algorithm(Func::AllReduce, Algorithm::CollnetChain));
        let why = named.map_or(String::new(), |why| format!(" (collnetchain: {why})"));
        let without = if no_collnet.is_some() { COLLNET } else { Candidates::NONE };
        forced.check(|func| offered(func).without(without), &format!(" among ranks on CPUs{why}"))
    }

    /// How a call is carried out, and who decided so.
    pub fn choose(&self, call: &Call) -> Choice {
        self.scoped(call, choose)
    }

    /// Why a call goes as it goes.
    pub fn explain(&self, call: &Call) -> Explanation {
        let there = offered(call.func);
        let absent = |candidate| match there.has(candidate) {
            true => Exclusion::NotConnected(self.collnet.why_not()),
            false => Exclusion::NotThere,
        };
        let explanation = self.scoped(call, |scope| Explanation::new(scope, absent));
        explanation.with_blocks(plan(call, self).channels, None)
    }

    fn scoped<R>(&self, call: &Call, ask: impl Fn(&Scope<'_>) -> R) -> R {
        let channels = [self.ring_channels, self.tree_channels];
        let is_served = self.collnet.serves(call).is_some();
        ask(&Scope {
            call,
            machine: &self.collnet.machine(self.tuning.architecture, self.nranks, channels),
            offered: offered(call.func).without(if is_served { Candidates::NONE } else { COLLNET }),
            risky: Candidates::NONE,
            doubtful: Candidates::NONE,
            forced: &self.forced,
            table: self.table.as_ref(),
            measured: Some(self.measured(call)),
            instead: None,
            unmeasured: COLLNET,
        })
    }

    fn measured(&self, call: &Call) -> Measured {
        let one_shot_max_bytes = match self.nranks {
            0..=2 => self.tuning.pair_one_shot_max_bytes,
            n => self.tuning.one_shot_max_bytes / u64::from(n - 1),
        };
        let bytes = call.bytes();
        let ring_hop_bytes =
            if call.func == Func::AllReduce { bytes / u64::from(self.nranks.max(1)) } else { bytes };
        let one_shot = Candidate::new(Algorithm::OneShot, self.by_size(bytes));
        let ring = Candidate::new(Algorithm::Ring, self.by_size(ring_hop_bytes));
        let tree = Candidate::new(Algorithm::Tree, self.by_size(bytes));
        let best = if bytes <= one_shot_max_bytes { one_shot } else { ring };
        Measured { source: self.tuning.source, order: [best, ring, tree, one_shot] }
    }

    /// Over which line format, for messages of `bytes` between two ranks.
    pub(crate) fn protocol(&self, bytes: u64) -> Protocol {
        self.forced.protocol(Func::Send, self.by_size(bytes))
    }

    fn by_size(&self, bytes: u64) -> Protocol {
        match bytes {
            _ if bytes < self.tuning.ll_below_bytes => Protocol::LL,
            _ if bytes < self.tuning.ll128_below_bytes => Protocol::LL128,
            _ => Protocol::Simple,
        }
    }
}
