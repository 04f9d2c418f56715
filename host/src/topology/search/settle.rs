//! Layer: host / topology / search.
//! Takes: a search of which the budget has ended without a result.
//! Gives: the best of a few brief tries with all constraints loosened; at worst one channel in GPU order, with the speed that its
//! links have.
//! Never: a speed that was not looked up: NCCL writes 0.1 GB/s where it finds nothing.

use super::machine::Machine;
use super::relax::{Relaxation, WALK_STEPS};
use super::walk::{Draft, Trial, Walk};
use super::{Lane, Pattern, TopoGraph};
use crate::topology::PathKind;
use crate::topology::system::{LOCAL_BW, NodeId};
use oxccl_shared::abi::Rank;

/// Steps of each walk.
const SETTLING_STEPS: u32 = 1 << 11;

impl Relaxation<'_> {
    /// Fallback: loosens all constraints at once and tries each bandwidth briefly, highest first: along the other
    /// graph's lanes, then in any order. Returns the trial that succeeded.
    pub fn settle(&mut self, first: &Trial) -> Option<Trial> {
        if !self.best.lanes.is_empty() || self.request.pattern.is_heads() {
            return None;
        }
        let trials = self.settling_trials(first);
        let given: Vec<Draft> = self.request.along.iter().filter_map(|lane| self.draft(lane)).collect();
        let given = Some((given, WALK_STEPS)).filter(|(given, _)| given.len() >= first.channels_min);
        let ways: Vec<(Vec<Draft>, u32)> =
            given.into_iter().chain([(Vec::new(), self.settling_steps())]).collect();
        for speed in self.speeds.iter().skip_while(|speed| **speed > first.bw_intra) {
            for (along, steps) in &ways {
                let led = self.settle_at(*speed, &trials, along, *steps);
                if led.is_some() {
                    self.say_what_lanes_are();
                    return led;
                }
            }
        }
        None
    }

    /// Tries one bandwidth; returns the last trial that has found something better.
    fn settle_at(&mut self, speed: f32, trials: &[Trial], along: &[Draft], steps: u32) -> Option<Trial> {
        let mut led = None;
        for trial in trials {
            let trial = Trial { bw_intra: speed, bw_inter: speed, along: along.to_vec(), ..trial.clone() };
            let before = self.best.clone();
            Walk::run(self.machine, &trial, &mut self.best, steps);
            if self.best != before {
                led = Some(trial);
            }
        }
        led
    }

    /// A small budget, but enough for one set of lanes.
    fn settling_steps(&self) -> u32 {
        (SETTLING_STEPS / self.cost).max(4 * self.machine.system.gpus.len() as u32)
    }

    /// Replaces the constraints of the trial by the actual properties of the lanes found.
    fn say_what_lanes_are(&mut self) {
        let Machine { system, paths, bounds, .. } = self.machine;
        let drafts: Vec<Draft> = self.best.lanes.iter().filter_map(|lane| self.draft(lane)).collect();
        let kind = |from, to| paths.between(from, to).kind.max(paths.between(to, from).kind);
        let (mut intra, mut inter) = (bounds.intra.0, bounds.inter.0);
        for Draft { gpus, nets } in &drafts {
            let lane: Vec<NodeId> = gpus.iter().map(|gpu| system.gpus[*gpu]).collect();
            let (first, last) = (lane[0], lane[lane.len() - 1]);
            intra = lane.windows(2).map(|hop| kind(hop[0], hop[1])).fold(intra, PathKind::max);
            let is_ring = self.best.pattern == Pattern::Ring;
            match nets.map(|net| system.nets.get(net)) {
                [Some(from), Some(to)] => {
                    inter = inter.max(kind(*from, first)).max(kind(*to, if is_ring { last } else { first }));
                }
                _ if is_ring => intra = intra.max(kind(last, first)),
                _ => {}
            }
        }
        self.best.same_channels = drafts.windows(2).all(|pair| pair[0].gpus == pair[1].gpus);
        (self.best.type_intra, self.best.type_inter) = (intra, inter);
    }

    /// GB/s of the first lane by itself: the least of its links, each shared by the hops that cross it. 0, which is unknown, where there
    /// is no route.
    fn carried_by_one_lane(&self) -> f32 {
        let Machine { system, paths, .. } = self.machine;
        let Some(Draft { gpus, nets }) = self.best.lanes.first().and_then(|lane| self.draft(lane)) else {
            return 0.0;
        };
        let mut stops: Vec<NodeId> = gpus.iter().map(|gpu| system.gpus[*gpu]).collect();
        let is_ring = self.best.pattern == Pattern::Ring;
        if let [Some(from), Some(to)] = nets.map(|net| system.nets.get(net).copied()) {
            stops.insert(0, from);
            stops.push(if is_ring { to } else { stops[1] });
        } else if is_ring {
            stops.push(stops[0]);
        }
        let mut uses = vec![0.0; system.links.len()];
        for hop in stops.windows(2).filter(|hop| hop[0] != hop[1]) {
            let route = paths.between(hop[0], hop[1]);
            if route.kind == PathKind::Dis {
                return 0.0;
            }
            route.links.iter().for_each(|link| uses[link.0 as usize] += 1.0);
        }
        let used = system.links.iter().zip(&uses).filter(|(_, uses)| **uses > 0.0);
        let least = used.map(|(link, uses)| link.bw / uses).fold(f32::INFINITY, f32::min);
        if least.is_finite() { least } else { LOCAL_BW }
    }

    /// The first trials of the fallback, with all constraints loosened: each pattern, with equal lanes or not.
    fn settling_trials(&self, first: &Trial) -> Vec<Trial> {
        let bounds = &self.machine.bounds;
        let farthest = |kind: PathKind| kind.min(PathKind::Sys);
        let (type_intra, type_inter) = (farthest(bounds.intra.1), farthest(bounds.inter.1));
        let trial = Trial { type_intra, type_inter, ..first.clone() };
        let mut trials = vec![trial.clone()];
        if trial.pattern.is_tree() && trial.pattern != Pattern::Tree {
            trials.push(Trial { pattern: Pattern::Tree, ..trial });
        } else if trial.pattern == Pattern::Ring && self.cross_nic == 2 {
            trials.push(Trial { cross_nic: 2, ..trial });
        }
        trials
            .into_iter()
            .flat_map(|trial| [true, false].map(|same_channels| Trial { same_channels, ..trial.clone() }))
            .collect()
    }

    /// A lane by indices.
    fn draft(&self, lane: &Lane) -> Option<Draft> {
        let system = self.machine.system;
        let gpu = |rank: &Rank| system.gpus.iter().position(|gpu| system.gpu(*gpu).rank == *rank);
        let net = |id: u64| system.nets.iter().position(|net| system.net(*net).id == id);
        let nets = match lane.nets {
            Some([from, to]) => [net(from)?, net(to)?],
            None => [0; 2],
        };
        Some(Draft { gpus: lane.gpus.iter().map(gpu).collect::<Option<_>>()?, nets })
    }

    /// The result: where there is none, lanes in GPU order, as many as there have to be: a communicator runs the lesser number of
    /// lanes of rings and trees, so a single one here would take the others' too.
    pub fn or_simple_order(mut self) -> TopoGraph {
        let system = self.machine.system;
        if self.best.lanes.is_empty()
            && !self.request.id.is_collnet()
            && self.request.pattern != Pattern::Nvls
        {
            let gpus = system.gpus.iter().map(|gpu| system.gpu(*gpu).rank).collect();
            let nets = system.nets.first().map(|net| [system.net(*net).id; 2]);
            let lanes = self.request.channels_min.max(1);
            self.best.lanes = vec![Lane { gpus, nets }; lanes];
            self.say_what_lanes_are();
            let type_of = |kind: PathKind| kind.min(PathKind::Sys);
            (self.best.type_intra, self.best.type_inter) =
                (type_of(self.best.type_intra), type_of(self.best.type_inter));
            let bw = self.carried_by_one_lane() / lanes as f32;
            (self.best.bw_intra, self.best.bw_inter) = (bw, bw);
        }
        self.best
    }
}
