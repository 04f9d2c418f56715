//! Which algorithm and protocol: what the registry has and is connected, and thresholds that were measured, as a policy of `tuning`.

use super::call::Call;
use super::collnet::Collnet;
use super::copy_engines::{CtaPolicy, WindowRow, touched_buffer};
use super::facts::Facts;
use super::numbers::{NET_LL_MAX_BYTES, ORDERED_TWO_SHOT_MIN_BYTES};
use super::tuning::{self, Candidate, Candidates, Choice, Exclusion, Forced, Machine, Measured, Scope};
use crate::topology::PathKind;
use oxccl_shared::abi::{Algorithm, Func, Protocol};
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::algo::spec::Connections;
use oxccl_shared::reduce::is_associative;

/// To all peers at once. Which of them is better is for measured thresholds to say.
pub(super) const HOPS: [Algorithm; 2] = [Algorithm::OneShot, Algorithm::TwoShot];

/// These by LL128: a function has one of them at most.
const BY_LINES: Candidates = Candidates::over(Connections::Mesh).and(Candidates::by(Protocol::LL128));

/// By chains, and by stars.
const BY_CHAINS: Candidates = Candidates::over(Connections::Chain);
const BY_STARS: Candidates = Candidates::over(Connections::Star);

/// What needs a network that reduces.
const IN_NETWORK: Candidates = BY_CHAINS.or_also(BY_STARS);
/// Measured between ranks on CPUs of one host alone.
const BY_DOUBLING: Candidates = Candidates::along(Algorithm::Doubling);

/// Of hosts with many GPUs.
const NO_ROOM_FOR_STARS: &str =
    "a host has more than 8 GPUs that share memory: collnetchain has no such limit";

/// What needs hosts of equally many ranks.
const IN_LEVELS: Candidates = Candidates::over(Connections::Levels);

/// From so many bytes for each rank on copy engines are faster than at most so many blocks, which do not fill NVLink
/// (docs/measurements/2026-11-28-answers.md).
const FEW_BLOCKS: [(u32, u64); 2] = [(12, 8 << 20), (16, 64 << 20)];

/// Up to so many bytes of a message LL128 to both peers is faster than a ring, among three H200 (docs/measurements/2026-11-29-four-gpus.md).
const TRIO_LINES_MAX_BYTES: u64 = 896 << 10;

impl Facts {
    /// What a call could be carried out with.
    pub fn possible(&self, call: &Call) -> Candidates {
        self.offered(call)
    }

    /// How a call is carried out, and who decided so.
    pub fn choose(&self, call: &Call) -> Choice {
        tuning::choose(&self.scope(call))
    }

    /// What a rank that is alone plans with, to apply an operator to its own input: the one-shot kernel, which then only copies.
    pub(super) fn alone(&self, call: &Call) -> (Call, Facts) {
        let forced = Forced::only(Some(HOPS[0]), Some(Protocol::Simple));
        (Call { func: Func::AllReduce, ..*call }, Facts { forced, ..*self })
    }

    /// What a call could be carried out with, and the microseconds that the model gives each.
    pub fn allowed_times(&self, call: &Call) -> Vec<(Candidate, f64)> {
        let time = |candidate| tuning::estimate(candidate, call, &self.machine).time_us;
        self.scope(call).allowed().iter().map(|candidate| (candidate, time(candidate))).collect()
    }

    pub(super) fn scope<'a>(&'a self, call: &'a Call) -> Scope<'a> {
        Scope {
            call,
            machine: &self.machine,
            offered: self.offered(call),
            risky: self.risky(),
            doubtful: self.doubtful(call),
            forced: &self.forced,
            advice: self.advice,
            table: self.table.as_ref(),
            measured: self.measured(call),
            instead: Some(self.hops(call)),
            unmeasured: IN_NETWORK,
        }
    }

    /// One-shot and two-shot, the better one for an all-reduce of so many bytes first; others have no two-shot.
    fn hops(&self, call: &Call) -> [Candidate; 2] {
        let [one, two] = HOPS.map(|algorithm| Candidate::new(algorithm, self.tuning.hops_protocol));
        let least = self.tuning.two_shot_min_bytes;
        let is_ordered = !self.has_gpus() && self.reduces_by_rank(call);
        let least = if is_ordered { ORDERED_TWO_SHOT_MIN_BYTES } else { least };
        let is_long = call.bytes() >= least;
        let takes_two = call.func == Func::AllReduce && self.nranks > 1 && is_long;
        if takes_two { [two, one] } else { [one, two] }
    }

    /// What the registry has of a function on such processors.
    pub(super) fn known(&self, func: Func) -> Candidates {
        Candidates::offered(func, self.processor())
    }

    /// Whether the call's result must have the bits of a reduction by rank, which most algorithms do not give.
    fn reduces_by_rank(&self, call: &Call) -> bool {
        self.forced.is_deterministic()
            && call.func.is_reduction()
            && self.nranks > 2
            && !is_associative(call.op, call.dtype)
    }

    /// Whether a candidate gives the bits that were asked for.
    fn has_bits(&self, call: &Call, candidate: Candidate) -> bool {
        let order = spec_of(candidate.algorithm).order;
        !self.forced.is_deterministic()
            || !call.func.is_reduction()
            || order.is_as_by_rank(self.nranks, is_associative(call.op, call.dtype))
    }

    /// Of what there are connections for, what gives the bits that were asked for.
    pub(super) fn offered(&self, call: &Call) -> Candidates {
        let connected = self.connected(call);
        match self.forced.is_deterministic() {
            true => connected.that(|candidate| self.has_bits(call, candidate)),
            false => connected,
        }
    }

    /// Of what the registry has, what there are connections for.
    pub(super) fn connected(&self, call: &Call) -> Candidates {
        let mut offered = self.known(call.func);
        if self.collnet.serves(call).is_none() {
            offered = offered.without(IN_NETWORK);
        }
        for (channels, by) in [(self.chain_channels, BY_CHAINS), (self.star_channels, BY_STARS)] {
            if channels == 0 {
                offered = offered.without(by);
            }
        }
        if self.tree_channels == 0 {
            offered = offered.without(Candidates::over(Connections::Tree));
        }
        if self.hosts.ranks_each() == 0 {
            offered = offered.without(IN_LEVELS);
        }
        if !self.has_gpus() {
            return offered;
        }
        // A barrier has no other kernel: without it an all-reduce stands for it.
        let has_others = call.func.has_buffers();
        if has_others && !self.has_room() {
            offered = offered.without(Candidates::over(Connections::Mesh)).without(IN_LEVELS);
        }
        if self.crosses_network() && has_others {
            offered = offered.that(|candidate| self.is_carried(call, candidate));
        }
        if !self.has_mesh_of_lines() {
            offered = offered.without(BY_LINES);
        }
        offered
    }

    /// LL128 relies on 128 bytes that a warp stores together being seen together: they are where every route is known to be NVLink, by
    /// NCCL's rule too. Ranks on CPUs move a line word by word.
    fn risky(&self) -> Candidates {
        let Machine { ring, tree, is_searched, .. } = &self.machine;
        let is_nvlink = ring.intra <= PathKind::Nvb && tree.intra <= PathKind::Nvb && !self.crosses_network();
        if !self.has_gpus() || *is_searched && is_nvlink {
            Candidates::NONE
        } else {
            Candidates::by(Protocol::LL128)
        }
    }

    /// Ranks on CPUs that are many and far from each other have connections to neighbours in rings and trees alone. The model decides
    /// between these: nobody has measured so many.
    ///
    /// LL over a network doubles what processors copy and sockets carry: beyond short hops it lost to Simple at every size, and lines to
    /// whole slots wherever ranks are on CPUs. Two-shot, in which all send to all over one device of each host, waits for being measured
    /// there; one-shot and two-shot LL128 on each generation of GPUs.
    ///
    /// Through a network that reduces, all-reduces by chains alone were measured.
    fn doubtful(&self, call: &Call) -> Candidates {
        let slow = self.slow_or_unmeasured(call).or_also(BY_STARS);
        let doubles =
            self.tuning.doubling_max_bytes > 0 || self.forced.names_algorithm(call.func, Algorithm::Doubling);
        let slow = if doubles { slow } else { slow.or_also(BY_DOUBLING) };
        if call.func == Func::AllReduce { slow } else { slow.or_also(IN_NETWORK) }
    }

    fn slow_or_unmeasured(&self, call: &Call) -> Candidates {
        let is_long = |candidate: Candidate| self.hop_bytes(call, candidate.algorithm) > NET_LL_MAX_BYTES;
        let lines = Candidates::by(Protocol::LL).or_also(Candidates::by(Protocol::LL128));
        if self.is_sparse() {
            return Candidates::over(Connections::Mesh).or_also(IN_LEVELS).or_also(lines);
        }
        if self.has_unmeasured_hosts() {
            let is_ordered = self.reduces_by_rank(call) || self.forced.names_algorithm(call.func, HOPS[1]);
            return if is_ordered { lines } else { Candidates::along(HOPS[1]).or_also(lines) };
        }
        match self.crosses_network() {
            // Chains of GPUs have been measured over the loopback alone, where rings are faster (docs/measurements/2026-11-25-aggregator-gpus.md).
            true => Candidates::by(Protocol::LL).that(is_long).or_also(IN_NETWORK),
            false if self.has_gpus() && self.tuning.one_shot_ll128_bytes.1 == 0 => {
                if self.is_slow_by_words(call) {
                    BY_LINES.or_also(Candidates::by(Protocol::LL))
                } else {
                    BY_LINES
                }
            }
            false => Candidates::NONE,
        }
    }

    /// Whether words, which double what crosses PCI, are slower than whole slots through memory of the host. A broadcast passes it once for each hop:
    /// the more ranks, the earlier slots pay. Four H200 broadcast 64 KiB in 15.7 us by words and 13.7 by slots, 256 KiB in 52.7 and 19.0. Two gather
    /// blocks of 256 KiB in 34 us by words, and of 384 in 28 by slots; four blocks of 128 KiB in 43 and 34. All-reduces of 512 KiB take 111 and 48 us
    /// of three, 136 and 60 of four (docs/measurements/2026-11-29-four-gpus.md).
    fn is_slow_by_words(&self, call: &Call) -> bool {
        let (is_pair, hops) = (self.nranks == 2, u64::from(self.nranks.saturating_sub(1)));
        let is_by_host = self.tuning.source.is_some() && self.machine.pairs.kind > PathKind::Nvl;
        let longest = self.tuning.broadcast_protocols.last().map_or(u64::MAX, |(bytes, _)| *bytes);
        let is_long = match call.func {
            Func::Broadcast => call.bytes() * hops > longest,
            Func::AllGather | Func::ReduceScatter => {
                call.bytes() > if is_pair { 192 << 10 } else { 96 << 10 }
            }
            // In rank order there is no ring.
            Func::AllReduce if is_pair || self.reduces_by_rank(call) => false,
            Func::AllReduce => call.bytes() > if self.nranks == 3 { 144 << 10 } else { 224 << 10 },
            _ => false,
        };
        is_by_host && is_long
    }

    fn measured(&self, call: &Call) -> Option<Measured> {
        if self.crosses_network() {
            return self.measured_over_network(call);
        }
        if self.is_sparse() || self.has_unmeasured_hosts() {
            return None;
        }
        // What was measured over NVLink says nothing about other machines.
        let is_like_measured =
            !self.has_gpus() || self.machine.ring.intra <= PathKind::Nvb && self.machine.nhosts == 1;
        let source = self.tuning.source.filter(|_| is_like_measured)?;
        let bytes = self.buffer_bytes(call);
        let in_hops = self.longest_hops(call);
        let ring = match call.func {
            Func::Broadcast => self.tuning.broadcast_protocols,
            _ => self.tuning.ring_protocols,
        };
        let ring = Candidate::new(Algorithm::Ring, by_size(ring, bytes));
        let tree = Candidate::new(Algorithm::Tree, by_size(self.tuning.ring_protocols, bytes));
        let longest = self.tuning.doubling_max_bytes;
        if matches!(call.func, Func::AllReduce | Func::Barrier) && longest > 0 && call.bytes() <= longest {
            let doubling = Candidate::new(Algorithm::Doubling, Protocol::Simple);
            return Some(Measured { source, order: [doubling, in_hops, ring, tree] });
        }
        let first = match call.bytes() {
            bytes if self.is_by_lines(call.func, bytes) => {
                self.known(call.func).and(BY_LINES).only().unwrap_or(ring)
            }
            bytes if bytes <= self.hops_max_bytes(call.func) => in_hops,
            _ => ring,
        };
        Some(Measured { source, order: [first, ring, tree, in_hops] })
    }

    /// What to do to all peers at once, at sizes where a ring would be faster if it may be taken. Whole lines then move more than words.
    fn longest_hops(&self, call: &Call) -> Candidate {
        let [in_hops, _] = self.hops(call);
        let has_lines = self.has_gpus()
            && self.reduces_by_rank(call)
            && call.bytes() > self.tuning.two_shot_min_bytes
            && self.has_mesh_of_lines()
            && self.machine.is_searched;
        let lines = has_lines.then(|| self.known(call.func).and(BY_LINES).only()).flatten();
        lines.unwrap_or(in_hops)
    }

    /// One hop to all and from all, wherever it is possible: a hop over sockets takes some 10 us, another message of it some 3. Nothing
    /// else was compared there.
    fn measured_over_network(&self, call: &Call) -> Option<Measured> {
        let hop = Candidate::new(HOPS[0], Protocol::LL);
        let is_allowed = self.forced.narrow(call.func, self.offered(call)).has(hop);
        let is_possible = is_allowed && self.has_room() && self.is_carried(call, hop);
        is_possible.then_some(Measured { source: "4 H200 over sockets, 2026-11-21", order: [hop; 4] })
    }

    /// Whether kernels that go to all peers at once have room for them.
    pub(super) fn has_room(&self) -> bool {
        !self.has_gpus() || spec_of(HOPS[0]).has_room(self.nranks)
    }

    /// Whether an all-to-all is one kernel instead of messages. The same on every rank.
    pub fn is_one_hop_all_to_all(&self, call: &Call) -> bool {
        call.func == Func::AllToAll
            && self.has_gpus()
            && self.nranks > 1
            && self.has_mesh()
            && call.count > 0
            && (call.bytes() <= self.tuning.all_to_all_one_shot_max_bytes
                && self.forced.allows_protocol(call.func, self.tuning.hops_protocol)
                || self.is_by_lines(call.func, call.bytes())
                || self.has_mesh_of_lines() && self.forced.names_protocol(call.func, Protocol::LL128))
    }

    /// Whether LL128 to all peers at once is best for so many bytes, where it is possible.
    pub(super) fn is_by_lines(&self, func: Func, bytes: u64) -> bool {
        let ((beyond, up_to), share_bytes) = match func {
            Func::AllReduce => (self.tuning.two_shot_ll128_bytes, bytes.div_ceil(u64::from(self.nranks))),
            _ if self.nranks == 2 => {
                let (beyond, _) = self.tuning.one_shot_ll128_bytes;
                ((beyond, self.tuning.pair_one_shot_ll128_max_bytes), bytes)
            }
            _ => (self.tuning.one_shot_ll128_bytes, bytes),
        };
        let of_pair = self.tuning.pair_ll_max_bytes.iter().find(|(of, _)| self.nranks == 2 && *of == func);
        let beyond = of_pair.map_or(beyond, |(_, bytes)| beyond.max(*bytes));
        // Other numbers of ranks have slower kernels; three alone were measured (docs/measurements/2026-11-29-four-gpus.md).
        let up_to = match spec_of(HOPS[0]).own_ranks(Protocol::LL128, self.nranks) {
            Some(_) => up_to,
            None if self.nranks == 3 => up_to.min(TRIO_LINES_MAX_BYTES),
            None => up_to / 4,
        };
        bytes > beyond
            && share_bytes <= up_to
            && !self.known(func).and(BY_LINES).is_empty()
            && self.has_mesh_of_lines()
            && self.machine.is_searched
            && self.forced.allows_protocol(func, Protocol::LL128)
    }

    fn hops_max_bytes(&self, func: Func) -> u64 {
        match func {
            Func::AllReduce => self.tuning.all_reduce_hops_max_bytes.of(self.nranks),
            Func::AllToAll => self.tuning.all_to_all_one_shot_max_bytes,
            Func::Reduce => self.tuning.one_shot_max_bytes.min(self.tuning.reduce_one_shot_max_bytes),
            Func::ReduceScatter => {
                self.tuning.one_shot_max_bytes.min(self.tuning.reduce_scatter_one_shot_max_bytes)
            }
            _ => self.tuning.one_shot_max_bytes,
        }
    }

    /// Whether a call goes by copy engines if its buffers are placed for that. The same on every rank.
    pub fn takes_copy_engines(&self, call: &Call, forced: Option<Forced>) -> bool {
        let is_possible = self.nranks > 1 && call.count > 0 && touched_buffer(call, self.nranks).is_some();
        if !is_possible || forced.is_some() || !self.has_gpus() || self.crosses_network() {
            return false;
        }
        self.cta_policy == CtaPolicy::Zero || self.copy_engines_are_faster(call)
    }

    fn copy_engines_are_faster(&self, call: &Call) -> bool {
        let is_like_measured = self.machine.ring.intra <= PathKind::Nvb && self.machine.nhosts == 1;
        let bytes = call.buffer_bytes(self.nranks);
        let row = WindowRow::of(self.tuning.copy_engines, call.func, self.nranks);
        let has_few = || self.has_too_few_blocks(bytes / u64::from(self.nranks));
        let is_beaten = row.is_some_and(|row| row.holds(bytes) || has_few());
        is_like_measured && self.forced == Forced::default() && is_beaten
    }

    /// Whether the user allows fewer blocks than so many bytes for each rank want.
    fn has_too_few_blocks(&self, bytes: u64) -> bool {
        let is_few = |most: u32| FEW_BLOCKS.iter().any(|(blocks, from)| most <= *blocks && bytes >= *from);
        self.limits.max.is_some_and(is_few)
    }

    /// Why GPUs have no stars to a network that reduces, though it may be there.
    fn why_no_stars(&self) -> &'static str {
        match self.is_asked_for(Algorithm::CollnetDirect) {
            _ if !matches!(self.collnet, Collnet::There(_)) => self.collnet.why_none(),
            true => NO_ROOM_FOR_STARS,
            false => "not connected: neither NCCL_ALGO nor a tuning file names collnetdirect",
        }
    }

    /// Why GPUs lack the stars that the user or a table names, if a network reduces.
    pub fn lack_of_stars(&self) -> Option<&'static str> {
        (self.star_channels == 0 && self.is_asked_for(Algorithm::CollnetDirect)).then_some(NO_ROOM_FOR_STARS)
    }

    /// Why a candidate is not among those that are [offered](Self::offered).
    pub(super) fn absent(&self, call: &Call, candidate: Candidate) -> Exclusion {
        Exclusion::NotConnected(match spec_of(candidate.algorithm).connections {
            _ if !self.known(call.func).has(candidate) => return Exclusion::NotThere,
            _ if !self.has_bits(call, candidate) => return Exclusion::Order,
            Connections::Chain if self.chain_channels == 0 => {
                "not connected: NCCL_ALGO or a tuning file names collnetdirect alone"
            }
            Connections::Star if self.star_channels == 0 => self.why_no_stars(),
            Connections::Chain | Connections::Star => self.collnet.why_not(call.func),
            Connections::Levels => self.hosts.why_not(),
            Connections::Tree if self.tree_channels == 0 => {
                "not connected: trees of GPUs are between hosts, and where NCCL_ALGO or a tuning file names them"
            }
            Connections::Mesh if candidate.protocol.needs_whole_lines() && self.has_mesh() => {
                "not where some pair has no NVLink of its own"
            }
            _ if candidate.protocol.needs_whole_lines() => {
                "not over a network: lines of 128 bytes would not arrive whole"
            }
            _ if self.crosses_network() => {
                "not over a network, but with 7 peers and one word for each thread at most"
            }
            _ => "not connected: a kernel has room for 7 peers on its host",
        })
    }
}

/// The protocol for so many bytes.
fn by_size(rows: &[(u64, Protocol)], bytes: u64) -> Protocol {
    rows.iter().find(|(max_bytes, _)| bytes <= *max_bytes).map_or(Protocol::Simple, |(_, protocol)| *protocol)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{ChannelLimits, plan};
    use oxccl_shared::abi::{DataType, Rank, RedOp};

    #[test]
    fn words_reach_further_between_two_gpus() {
        let of = |nranks, func, bytes| {
            let mut facts =
                Facts::of_gpus(nranks, (90, 132), Forced::default(), ChannelLimits::default(), None);
            facts.machine.is_searched = true;
            let call = Call { func, dtype: DataType::U8, op: RedOp::Sum, root: Rank(0), count: bytes };
            facts.is_by_lines(func, call.bytes())
        };
        for (func, longest) in [(Func::AllReduce, (192 << 10) - 1), (Func::AllGather, 128 << 10)] {
            assert!(!of(2, func, longest), "{func}");
            assert_eq!(of(2, func, longest + 1), of(4, func, longest + 1), "{func}");
            assert_eq!(of(2, func, longest), !of(4, func, longest), "{func}: four have lines there");
        }
        assert_eq!(of(2, Func::ReduceScatter, 100 << 10), of(4, Func::ReduceScatter, 100 << 10));
        for func in [Func::AllGather, Func::ReduceScatter, Func::AllToAll] {
            let has_lines = |nranks| [1 << 20, 2 << 20, (2 << 20) + 8].map(|bytes| of(nranks, func, bytes));
            assert_eq!(
                [2, 4].map(has_lines),
                [[true, true, false], [true, false, false]],
                "{func}: and so do lines"
            );
        }
    }

    /// docs/measurements/2026-11-27-h200x4.md
    #[test]
    fn through_memory_of_the_host_more_ranks_want_slots_earlier_and_fewer_channels() {
        let planned = |nranks, forced, func, bytes| {
            let free = Facts::of_gpus(nranks, (90, 132), forced, ChannelLimits::default(), None);
            let facts = free.through_host([true; 3]);
            let call = Call { func, dtype: DataType::U8, op: RedOp::Sum, root: Rank(0), count: bytes };
            let plan = plan(&call, &facts);
            (plan.protocol, plan.channels)
        };
        let broadcast = |bytes| planned(4, Forced::default(), Func::Broadcast, bytes).0;
        let expected = [Protocol::LL, Protocol::Simple, Protocol::Simple];
        assert_eq!([16 << 10, 64 << 10, 256 << 10].map(broadcast), expected);
        for func in [Func::AllGather, Func::ReduceScatter] {
            let of_pair = |bytes| planned(2, Forced::default(), func, bytes).0;
            assert_eq!([192 << 10, 256 << 10].map(of_pair), [Protocol::LL, Protocol::Simple], "{func}");
        }
        let ring = Forced::only(Some(Algorithm::Ring), Some(Protocol::Simple));
        let channels = |nranks| {
            [1 << 20, 4 << 20, 64 << 20].map(|bytes| planned(nranks, ring, Func::AllReduce, bytes).1)
        };
        assert_eq!([channels(2), channels(4)], [[16, 16, 16], [16, 8, 4]]);
    }

    #[test]
    fn who_takes_copy_engines() {
        let call =
            |func, root, count| Call { func, dtype: DataType::U8, op: RedOp::Sum, root: Rank(root), count };
        let facts = |forced| Facts::of_gpus(2, (90, 132), forced, ChannelLimits::default(), None);
        let zero = |facts| Facts { cta_policy: CtaPolicy::Zero, ..facts };
        let free = facts(Forced::default());
        let long = call(Func::AllGather, 0, 1 << 30);
        assert!(zero(free).takes_copy_engines(&call(Func::AllGather, 0, 1), None));
        assert!(!zero(free).takes_copy_engines(&call(Func::AllReduce, 0, 1 << 30), None));
        assert!(!zero(free).takes_copy_engines(&call(Func::AllGather, 0, 0), None));
        assert!(!free.takes_copy_engines(&call(Func::AllGather, 0, 1), None), "kernels are faster");
        assert!(free.takes_copy_engines(&call(Func::AllGather, 0, 32 << 20), None), "of 64 MiB in all");
        assert!(!free.takes_copy_engines(&call(Func::AllGather, 0, (32 << 20) - 1), None));
        let four = Facts::of_gpus(4, (90, 132), Forced::default(), ChannelLimits::default(), None);
        assert!(!four.takes_copy_engines(&call(Func::AllGather, 0, 32 << 20), None), "messages are as fast");
        assert!(!free.takes_copy_engines(&call(Func::Gather, 0, 1 << 30), None), "only if it is asked for");
        // Who names an algorithm gets it, unless no multiprocessor is to be used; of one call in any case.
        let ring = Forced::only(Some(Algorithm::Ring), Some(Protocol::Simple));
        assert!(!facts(ring).takes_copy_engines(&long, None));
        assert!(zero(facts(ring)).takes_copy_engines(&long, None));
        assert!(!zero(free).takes_copy_engines(&long, Some(ring)));
        let few =
            |most| Facts { limits: ChannelLimits { max: Some(most), ..ChannelLimits::default() }, ..free };
        let of_16_mib = call(Func::AllToAll, 0, 8 << 20);
        let takes = |call| [8, 16, 17].map(|most| few(most).takes_copy_engines(call, None));
        assert_eq!(takes(&of_16_mib), [true, false, false]);
        assert!(!few(8).takes_copy_engines(&call(Func::AllToAll, 0, 4 << 20), None));
        assert!(!few(8).takes_copy_engines(&call(Func::Gather, 0, 1 << 30), None), "only if it is asked for");
        let alone = Facts { nranks: 1, ..zero(free) };
        assert!(!alone.takes_copy_engines(&long, None));
        assert_eq!(touched_buffer(&long, 2), Some((false, 2 << 30)));
        assert_eq!(touched_buffer(&call(Func::Gather, 0, 5), 3), Some((true, 5)));
    }
}
