//! What goes between a rank on a GPU and each peer, from the plans of its calls: nothing counts bytes while kernels run.
//!
//! The executor counts how often it has enqueued its present calls, in one word. What they move is worked out when somebody asks, or
//! of collectives when more different ones were called than are kept, from the schedules that kernels walk. So a call that
//! repeats the one before costs an addition, and a call of other lengths a search among those that are kept.

use super::call::RawCall;
use super::collective_order::collective_order;
use super::messages::{self, is_among_messages};
use crate::plan::{Call, CallPlan, Plan, Step, SymmetricPlan, steps};
use crate::proxy::{ProxyChannel, Volume, volumes};
use oxccl_shared::abi::{DataType, Rank};
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::algo::spec::Connections;
use oxccl_shared::algo::symmetric::{Share, Whose};
use oxccl_shared::sync::{Line128, Sys, Word};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Collectives that are kept with how often they were enqueued.
const KEPT: usize = 32;

/// A rank's places, by channel of each kind of connections.
#[derive(Clone, Debug, Default)]
pub struct ChannelPlaces {
    /// In rings.
    pub rings: Box<[ProxyChannel]>,
    /// In trees.
    pub trees: Box<[ProxyChannel]>,
    /// Of a mesh nothing but how many channels there are.
    pub mesh: Box<[ProxyChannel]>,
    /// In chains; the network that reduces is nobody's peer.
    pub chains: Box<[ProxyChannel]>,
    /// In stars; as in chains.
    pub stars: Box<[ProxyChannel]>,
}

impl ChannelPlaces {
    fn of(&self, connections: Connections) -> &[ProxyChannel] {
        match connections {
            Connections::Ring => &self.rings,
            Connections::Tree => &self.trees,
            Connections::Mesh | Connections::Levels => &self.mesh,
            Connections::Chain => &self.chains,
            Connections::Star => &self.stars,
        }
    }
}

/// What has gone to and from a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PeerTraffic {
    /// Operations in which something went either way, be it empty.
    pub operations: u64,
    /// Bytes sent and received.
    pub bytes: [u64; 2],
}

/// The traffic of a rank's enqueued calls.
pub struct PlannedTraffic {
    rank: Rank,
    nranks: u32,
    places: ChannelPlaces,
    /// How often the present calls have been enqueued. Writer: the executor.
    enqueued: Line128<Word<u64, Sys>>,
    kept: Mutex<Kept>,
}

/// The executor locks it when it comes to other calls.
struct Kept {
    settled: Sums,
    /// Collectives by kernels, with their roots, and how often each was enqueued before the present calls.
    collectives: Vec<(Plan, Rank, u64)>,
    /// The present calls: those that are among the collectives,
    present: Vec<usize>,
    /// and what all others move each time.
    others: Sums,
    /// Of a call by copy engines; the capacity is kept.
    steps: Vec<Step>,
}

/// By rank.
#[derive(Clone, Debug)]
struct Sums {
    peers: Box<[PeerTraffic]>,
    /// Whom the present operation has met.
    met: Box<[bool]>,
}

impl Sums {
    fn of(nranks: u32) -> Sums {
        let nranks = nranks as usize;
        Sums { peers: vec![PeerTraffic::default(); nranks].into(), met: vec![false; nranks].into() }
    }

    /// So many bytes go to a peer, or come from it.
    fn add(&mut self, peer: Rank, is_send: bool, bytes: u64) {
        let Some(traffic) = self.peers.get_mut(peer.index()) else { return };
        traffic.bytes[usize::from(!is_send)] += bytes;
        self.met[peer.index()] = true;
    }

    /// What was added since the latest end is one operation, which was enqueued so often.
    fn end(&mut self, times: u64) {
        for (traffic, met) in self.peers.iter_mut().zip(&mut self.met) {
            traffic.operations += u64::from(std::mem::take(met)) * times;
        }
    }

    fn add_times(&mut self, other: &Sums, times: u64) {
        for (traffic, other) in self.peers.iter_mut().zip(&other.peers) {
            traffic.operations += other.operations * times;
            traffic.bytes = [0, 1].map(|way| traffic.bytes[way] + other.bytes[way] * times);
        }
    }
}

impl PlannedTraffic {
    /// Nothing enqueued yet.
    pub fn new(rank: Rank, nranks: u32, places: ChannelPlaces) -> PlannedTraffic {
        let (settled, others) = (Sums::of(nranks), Sums::of(nranks));
        let (collectives, present) = (Vec::with_capacity(KEPT), Vec::with_capacity(KEPT));
        let kept = Mutex::new(Kept { settled, collectives, present, others, steps: Vec::new() });
        PlannedTraffic { rank, nranks, places, enqueued: Line128::default(), kept }
    }

    /// The present calls were enqueued. The executor only.
    #[inline]
    pub(crate) fn count(&self) {
        self.enqueued.store_relaxed(self.enqueued.load_relaxed() + 1);
    }

    /// Other calls follow. Those that `is_known` refuses do what nobody knows. The executor only.
    #[cold]
    pub(crate) fn begin(&self, calls: &[RawCall], plans: &[CallPlan], is_known: impl Fn(&RawCall) -> bool) {
        let mut kept = self.kept();
        let by_kernels = |plan: &&CallPlan| matches!(plan, CallPlan::Collective(_));
        self.settle(&mut kept, plans.iter().filter(by_kernels).count());
        let known = || calls.iter().zip(plans).filter(|(raw, _)| is_known(raw));
        for (raw, plan) in known().filter(|(raw, plan)| !is_among_messages(raw, plan)) {
            match plan {
                CallPlan::Collective(plan) => kept.note(plan, raw.call.root),
                CallPlan::Symmetric(plan) => self.by_symmetric_kernel(plan, &mut kept.others),
                CallPlan::CopyEngines(_) => self.by_copies(&raw.call, &mut kept),
                CallPlan::Messages => self.by_messages(raw, &mut kept.others),
                CallPlan::Local => {}
            }
            kept.others.end(1);
        }
        // All of a group's go at once.
        for (raw, _) in known().filter(|(raw, plan)| is_among_messages(raw, plan)) {
            self.by_messages(raw, &mut kept.others);
        }
        kept.others.end(1);
    }

    /// By rank, the traffic of everything that was enqueued by now.
    pub fn read(&self) -> Vec<PeerTraffic> {
        let (mut sums, collectives) = {
            let kept = self.kept();
            let enqueued = self.enqueued.load_relaxed();
            let mut sums = kept.settled.clone();
            sums.add_times(&kept.others, enqueued);
            let mut collectives = kept.collectives.clone();
            kept.present.iter().for_each(|at| collectives[*at].2 += enqueued);
            (sums, collectives)
        };
        // Not while the executor may wait.
        collectives.iter().for_each(|collective| self.add(collective, &mut sums));
        sums.peers.into()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present calls are over, and so many collectives follow.
    fn settle(&self, kept: &mut Kept, follow: usize) {
        let Kept { settled, collectives, present, others, .. } = kept;
        let enqueued = self.enqueued.load_relaxed();
        self.enqueued.store_relaxed(0);
        present.drain(..).for_each(|at| collectives[at].2 += enqueued);
        settled.add_times(others, enqueued);
        others.peers.fill(PeerTraffic::default());
        if collectives.len() + follow > KEPT {
            collectives.drain(..).for_each(|collective| self.add(&collective, settled));
        }
    }

    /// Adds a collective by kernels.
    fn add(&self, (plan, root, times): &(Plan, Rank, u64), sums: &mut Sums) {
        if *times == 0 || self.nranks < 2 {
            return;
        }
        let elem_bytes = plan.dtype.map_or(1, DataType::size_bytes) as u64;
        let places = self.places.of(spec_of(plan.algorithm).connections);
        let mut each = |Volume { peer, is_send, has_slots, elems }: Volume| {
            if has_slots {
                sums.add(peer, is_send, elems * elem_bytes * times);
            }
        };
        volumes(collective_order(plan, *root), places, (self.rank, self.nranks), &mut each);
        sums.end(*times);
    }

    fn by_messages(&self, raw: &RawCall, sums: &mut Sums) {
        messages::split(raw, self.rank, self.nranks, |message| {
            if message.peer != self.rank {
                sums.add(message.peer, message.is_send, message.len_bytes as u64);
            }
        });
    }

    /// Counts every copy between this rank's memory and another rank's, made by any rank.
    fn by_copies(&self, call: &Call, Kept { steps: program, others, .. }: &mut Kept) {
        for rank in (0..self.nranks).map(Rank) {
            program.clear();
            steps(call, rank, self.nranks, program);
            for step in program.iter() {
                let Step::Copy(copy) = step else { continue };
                self.between(copy.from.rank, copy.to.rank, copy.len_bytes, others);
            }
        }
    }

    /// Counts every load and store between this rank's memory and another rank's, made by any rank.
    fn by_symmetric_kernel(&self, plan: &SymmetricPlan, sums: &mut Sums) {
        let elem_bytes = plan.dtype.map_or(1, DataType::size_bytes);
        let (func, nranks, grain_elems) = (plan.func, self.nranks, plan.grain_elems as usize);
        let ranks = |whose: Whose| match whose {
            Whose::All => 0..nranks,
            Whose::One(Rank(rank)) => rank..rank + 1,
        };
        for rank in (0..nranks).map(Rank) {
            let count = plan.count as usize;
            // All channels' together.
            let share = Share { func, rank, nranks, count, nchannels: 1, channel: 0, grain_elems };
            for stretch in share.stretches() {
                let bytes = (stretch.len * elem_bytes) as u64;
                ranks(stretch.reads).for_each(|from| self.between(Rank(from), rank, bytes, sums));
                ranks(stretch.writes).for_each(|to| self.between(rank, Rank(to), bytes, sums));
            }
        }
    }

    fn between(&self, from: Rank, to: Rank, bytes: u64, sums: &mut Sums) {
        match (from == self.rank, to == self.rank) {
            (true, false) => sums.add(to, true, bytes),
            (false, true) => sums.add(from, false, bytes),
            _ => {}
        }
    }
}

impl Kept {
    /// A collective by kernels is among the present calls.
    fn note(&mut self, plan: &Plan, root: Rank) {
        let is_same = |(known, of, _): &(Plan, Rank, u64)| known == plan && *of == root;
        let at = self.collectives.iter().position(is_same).unwrap_or_else(|| {
            self.collectives.push((*plan, root, 0));
            self.collectives.len() - 1
        });
        self.present.push(at);
    }
}

#[cfg(test)]
mod tests;
