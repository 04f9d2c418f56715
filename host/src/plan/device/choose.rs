//! Which algorithm and protocol for ranks on GPUs: thresholds that were measured, as a voice of `plan::tuning`.

use super::facts::DeviceFacts;
use super::kernel::{KernelId, MESH_PEERS_MAX};
use super::tuning::NET_LL_MAX_BYTES;
use crate::plan::Call;
use crate::plan::tuning::{
    self, Candidate, Candidates, Choice, Forced, Impossible, Machine, Measured, Scope,
};
use crate::topology::PathKind;
use oxccl_shared::abi::{Algorithm, Func, Protocol};
use oxccl_shared::algo::registry::spec_of;

/// To all peers at once.
const HOPS: [Algorithm; 2] = [Algorithm::OneShot, Algorithm::TwoShot];

/// These by all of their protocols.
const BY_HOPS: Candidates = Candidates::along(HOPS[0]).or_also(Candidates::along(HOPS[1]));

/// These by LL128: a function has one of them at most.
const BY_LINES: Candidates = BY_HOPS.and(Candidates::by(Protocol::LL128));

impl DeviceFacts {
    /// Whether what the user orders can be done by so many ranks on GPUs.
    ///
    /// # Errors
    /// The first function for which it cannot.
    pub fn check(forced: &Forced, nranks: u32) -> Result<(), Impossible> {
        let is_mesh = nranks <= MESH_PEERS_MAX + 1;
        let why = match is_mesh {
            _ if forced.names_algorithm(Func::AllReduce, Algorithm::CollnetChain) => {
                " among GPUs (collnetchain is for ranks on CPUs so far)"
            }
            true => " among GPUs",
            false => " among more than 8 GPUs",
        };
        let hops = if is_mesh { Candidates::NONE } else { BY_HOPS };
        forced.check(|func| KernelId::offered(func).without(hops), why)
    }

    /// How a call is carried out, and who decided so.
    pub fn choose(&self, call: &Call) -> Choice {
        tuning::choose(&self.scope(call))
    }

    /// One-shot and two-shot by LL, the better one for an all-reduce of so many bytes first; others have no two-shot.
    fn shots(&self, call: &Call) -> [Candidate; 2] {
        let [one, two] = HOPS.map(|algorithm| Candidate::new(algorithm, Protocol::LL));
        let is_long = call.bytes() >= self.tuning.two_shot_min_bytes;
        let takes_two = call.func == Func::AllReduce && self.nranks > 1 && is_long;
        if takes_two { [two, one] } else { [one, two] }
    }

    pub(super) fn scope<'a>(&'a self, call: &'a Call) -> Scope<'a> {
        Scope {
            call,
            machine: &self.machine,
            offered: self.offered(call),
            risky: self.risky(),
            doubtful: self.doubtful(call),
            forced: &self.forced,
            table: self.table.as_ref(),
            measured: self.measured(call),
            instead: Some(self.shots(call)),
            unmeasured: Candidates::NONE,
        }
    }

    /// What there are kernels of, and connections for.
    pub(super) fn offered(&self, call: &Call) -> Candidates {
        let mut offered = KernelId::offered(call.func);
        if self.tree_channels == 0 {
            offered = offered.without(Candidates::along(Algorithm::Tree));
        }
        // A barrier has no other kernel: without it an all-reduce stands for it.
        if !self.has_mesh_for(call) && call.func != Func::Barrier {
            offered = offered.without(BY_HOPS);
        }
        if self.crosses_network() {
            let simple = BY_HOPS.and(Candidates::by(Protocol::Simple));
            let two_shot = Candidates::along(Algorithm::TwoShot);
            offered = offered.without(Candidates::by(Protocol::LL128)).without(simple).without(two_shot);
        }
        if !self.has_mesh_of_lines() {
            offered = offered.without(BY_LINES);
        }
        offered
    }

    /// LL128 relies on 128 bytes that a warp stores together being seen together: they are where every route is known to be NVLink, by
    /// NCCL's rule too.
    fn risky(&self) -> Candidates {
        let Machine { ring, tree, is_searched, .. } = &self.machine;
        let is_nvlink = ring.intra <= PathKind::Nvb && tree.intra <= PathKind::Nvb && !self.crosses_network();
        if *is_searched && is_nvlink { Candidates::NONE } else { Candidates::by(Protocol::LL128) }
    }

    /// LL over a network doubles what processors copy and sockets carry: beyond short hops it lost to Simple at every size. One-shot and
    /// two-shot LL128 wait for being measured on each generation.
    fn doubtful(&self, call: &Call) -> Candidates {
        let is_long = |candidate: Candidate| self.hop_bytes(call, candidate.algorithm) > NET_LL_MAX_BYTES;
        match self.crosses_network() {
            true => Candidates::by(Protocol::LL).and(Candidates::of(is_long)),
            false if self.tuning.one_shot_ll128_bytes.1 == 0 => BY_LINES,
            false => Candidates::NONE,
        }
    }

    fn measured(&self, call: &Call) -> Option<Measured> {
        if self.crosses_network() {
            return self.measured_over_network(call);
        }
        // What was measured over NVLink says nothing about other machines.
        let is_like_measured = self.machine.ring.intra <= PathKind::Nvb && self.machine.nhosts == 1;
        let source = self.tuning.source.filter(|_| is_like_measured)?;
        let bytes = self.buffer_bytes(call);
        let [by_words, _] = self.shots(call);
        // The hops of a broadcast follow each other through all ranks at once: whole slots start to pay earlier.
        let ring = match call.func {
            Func::Broadcast if bytes > self.tuning.broadcast_ll_max_bytes => Protocol::Simple,
            _ => self.by_size(bytes),
        };
        let ring = Candidate::new(Algorithm::Ring, ring);
        let tree = Candidate::new(Algorithm::Tree, self.by_size(bytes));
        let first = match call.bytes() {
            bytes if self.is_by_lines(call.func, bytes) => {
                KernelId::offered(call.func).and(BY_LINES).only().unwrap_or(ring)
            }
            bytes if bytes <= self.ll_max_bytes(call.func) => by_words,
            _ => ring,
        };
        Some(Measured { source, order: [first, ring, tree, by_words] })
    }

    /// One hop to all and from all, wherever it is possible: a hop over sockets takes some 10 us, another message of it some 3.
    fn measured_over_network(&self, call: &Call) -> Option<Measured> {
        let ring = Candidate::new(Algorithm::Ring, Protocol::LL);
        let order = [Candidate::new(Algorithm::OneShot, Protocol::LL), ring, ring, ring];
        self.has_mesh_for(call).then_some(Measured { source: "4 H200 over sockets, 2026-11-21", order })
    }

    /// Whether LL128 to all peers at once is best for so many bytes, where it is possible.
    pub(super) fn is_by_lines(&self, func: Func, bytes: u64) -> bool {
        let ((beyond, up_to), share_bytes) = match func {
            Func::AllReduce => (self.tuning.two_shot_ll128_bytes, bytes.div_ceil(u64::from(self.nranks))),
            _ => (self.tuning.one_shot_ll128_bytes, bytes),
        };
        // Other numbers of ranks have slower kernels, and were not measured.
        let has_own = spec_of(Algorithm::OneShot).own_ranks(Protocol::LL128, self.nranks).is_some();
        let up_to = if has_own { up_to } else { up_to / 4 };
        bytes > beyond
            && share_bytes <= up_to
            && !KernelId::offered(func).and(BY_LINES).is_empty()
            && self.has_mesh_of_lines()
            && self.machine.is_searched
            && self.forced.allows_protocol(func, Protocol::LL128)
    }

    fn ll_max_bytes(&self, func: Func) -> u64 {
        match func {
            Func::AllReduce => self.tuning.all_reduce_shots_max_bytes,
            Func::AllToAll => self.tuning.all_to_all_one_shot_max_bytes,
            _ => self.tuning.one_shot_max_bytes,
        }
    }

    /// The line format of rings and trees.
    fn by_size(&self, buffer_bytes: u64) -> Protocol {
        match buffer_bytes {
            _ if buffer_bytes <= self.tuning.ring_ll_max_bytes => Protocol::LL,
            _ if buffer_bytes <= self.tuning.ring_ll128_max_bytes => Protocol::LL128,
            _ => Protocol::Simple,
        }
    }
}
