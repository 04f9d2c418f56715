//! Layer: host / topology / search.
//! Takes: a [`Request`] for one algorithm's channels.
//! Gives: the best [`TopoGraph`] within a budget of steps.
//! Never: an empty graph where GPUs can reach each other at all: `settle` has the last word.

use super::machine::Machine;
use super::walk::{Outcome, Trial, Walk};
use super::{GraphId, Lane, Pattern, SearchConfig, TopoGraph};
use crate::topology::PathKind;

/// What to search for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub id: GraphId,
    pub pattern: Pattern,
    pub channels_min: usize,
    pub channels_max: usize,
    /// Lanes of another graph, used if the budget ends without a result.
    pub along: &'a [Lane],
}

/// Steps: of a whole search after which any result is accepted, of one walk, and of one walk with equal channels.
const GLOBAL_STEPS: i64 = 1 << 19;
pub(super) const WALK_STEPS: u32 = 1 << 14;
const SAME_CHANNELS_STEPS: u32 = 1 << 8;
/// Steps that raise the bandwidth of what was found, whatever was spent on finding it.
const TIGHTENING_STEPS: i64 = 1 << 16;
/// Steps after which a search ends without a result. Eight GPUs or fewer, which must not take 100 ms, have
/// `FEW_GPUS_STEPS`.
const HARD_STEPS: i64 = 1 << 20;
const FEW_GPUS: usize = 8;
const FEW_GPUS_STEPS: i64 = 1 << 18;

pub(super) struct Relaxation<'a> {
    pub machine: &'a Machine<'a>,
    pub request: Request<'a>,
    /// Bandwidths to try, highest first.
    pub speeds: &'static [f32],
    speed: usize,
    /// The most that the user allows.
    pub cross_nic: u32,
    pub best: TopoGraph,
    /// Steps left of [`GLOBAL_STEPS`], of [`HARD_STEPS`], and of the fallback.
    global: i64,
    hard: i64,
    patience: i64,
    /// Cost of a step, relative to a machine with few GPUs.
    pub cost: u32,
}

/// Searches one graph.
pub(super) fn search(machine: &Machine<'_>, config: &SearchConfig, request: Request<'_>) -> TopoGraph {
    let mut relaxation = Relaxation::new(machine, config, request);
    let first = relaxation.first_trial();
    let mut trial = first.clone();
    relaxation.loosen(&mut trial);
    let settled = relaxation.settle(&first);
    double(&mut relaxation.best, machine, request.channels_max);
    relaxation.tighten(&settled.unwrap_or(trial));
    relaxation.or_simple_order()
}

impl<'a> Relaxation<'a> {
    fn new(machine: &'a Machine<'a>, config: &SearchConfig, mut request: Request<'a>) -> Relaxation<'a> {
        let gpus = machine.system.gpus.len();
        if gpus == 1 && request.pattern != Pattern::Ring {
            request.pattern = Pattern::Tree;
        }
        // A tree needs two channels to use both directions, and rings must have as many channels as trees.
        if machine.bounds.is_split_nvlink && request.pattern == Pattern::Ring && request.channels_max >= 2 {
            request.channels_min = request.channels_min.max(2);
        }
        let crosses = matches!(request.pattern, Pattern::Ring | Pattern::BalancedTree | Pattern::SplitTree);
        let cross_nic = if crosses && machine.system.nets.len() > 1 { config.cross_nic } else { 0 };
        let speeds = config.tables.speeds(machine.system.sm_min(), !machine.system.nets.is_empty());
        let mut best = TopoGraph::none(request.id, request.pattern);
        best.cross_nic = u32::from(cross_nic == 1);
        best.type_intra = machine.bounds.intra.0;
        best.type_inter = machine.bounds.inter.0;
        // Steps cost more where there are more GPUs to choose from; with NVSwitches there are never more than two.
        let cost = if machine.system.nv_switch.is_some() { 1 } else { gpus.div_ceil(16) as u32 };
        let (global, hard) = (GLOBAL_STEPS / i64::from(cost), HARD_STEPS / i64::from(cost));
        let patience = if gpus <= FEW_GPUS { FEW_GPUS_STEPS } else { hard };
        Relaxation { machine, request, speeds, speed: 0, cross_nic, best, global, hard, patience, cost }
    }

    fn first_trial(&mut self) -> Trial {
        let Request { id, pattern, channels_min, channels_max, .. } = self.request;
        let bounds = &self.machine.bounds;
        let gpus = self.machine.system.gpus.len() as f32;
        // Only a ring uses as many links as it has GPUs.
        let is_ring = pattern == Pattern::Ring || gpus == 1.0;
        let total = if is_ring { bounds.total_bw } else { bounds.total_bw * gpus / (gpus - 1.0) };
        let is_too_fast = |speed: f32| speed > bounds.channel_bw_max || speed * channels_min as f32 > total;
        self.speed = first_not(self.speeds, is_too_fast);
        Trial {
            pattern,
            collnet: id.is_collnet(),
            cross_nic: self.best.cross_nic,
            channels_min,
            channels_max,
            bw_intra: self.speeds[self.speed],
            bw_inter: self.speeds[self.speed],
            type_intra: bounds.intra.0,
            type_inter: bounds.inter.0,
            same_channels: self.may_be_same(),
            along: Vec::new(),
        }
    }

    fn walk(&mut self, trial: &Trial) -> Outcome {
        let steps = if trial.same_channels { SAME_CHANNELS_STEPS } else { WALK_STEPS };
        let outcome = Walk::run(self.machine, trial, &mut self.best, steps);
        let left = match outcome {
            Outcome::Perfect => 0,
            Outcome::Done(left) => left,
        };
        let spent = i64::from(steps - left).max(16);
        self.hard -= spent;
        self.patience -= spent;
        self.global -= i64::from(steps);
        outcome
    }

    fn is_out_of_steps(&self) -> bool {
        self.hard < 0 || (self.patience < 0 && self.best.lanes.is_empty())
    }

    /// Whether the widest GPU's links are all in use.
    fn is_saturated(&self) -> bool {
        self.best.lanes.len() as f32 * self.best.bw_inter >= self.machine.bounds.total_bw
    }

    /// Loosens constraints and lowers the bandwidth, until no better result is possible.
    fn loosen(&mut self, trial: &mut Trial) {
        loop {
            let outcome = self.walk(trial);
            if outcome == Outcome::Perfect || self.is_saturated() || self.is_out_of_steps() {
                return;
            }
            if trial.same_channels && !self.keeps_same_channels(trial) {
                trial.same_channels = false;
                continue;
            }
            trial.same_channels = self.may_be_same();
            if let Outcome::Done(left) = outcome {
                self.global += i64::from(left);
            }
            if (self.global < 0 && !self.best.lanes.is_empty()) || !self.loosen_once(trial) {
                return;
            }
        }
    }

    /// Each channel of NVLS has a head of its own.
    fn may_be_same(&self) -> bool {
        self.request.pattern != Pattern::Nvls
    }

    /// Different channels do not help where all traffic goes through AMD CPUs.
    fn keeps_same_channels(&self, trial: &Trial) -> bool {
        let system = self.machine.system;
        let is_amd = system
            .cpus
            .first()
            .is_some_and(|cpu| system.cpu_model(*cpu) == crate::topology::system::CpuModel::Amd);
        is_amd && trial.type_intra == PathKind::Sys
    }

    /// The next set of constraints. They advance like the digits of a counter: pattern, path types, crossing NICs,
    /// bandwidth.
    fn loosen_once(&mut self, trial: &mut Trial) -> bool {
        let bounds = &self.machine.bounds;
        let has_net = !self.machine.system.nets.is_empty();
        let found = !self.best.lanes.is_empty();
        if self.machine.system.sm_min() >= 90 && trial.pattern == Pattern::BalancedTree {
            trial.pattern = Pattern::Tree;
            return true;
        }
        trial.pattern = self.request.pattern;

        let farthest = if has_net { trial.type_inter } else { bounds.intra.1 };
        let may_help = !found || trial.type_intra < self.best.type_intra;
        if let Some(next) = farther(trial.type_intra, farthest).filter(|_| may_help) {
            trial.type_intra = next;
            return true;
        }
        trial.type_intra = bounds.intra.0;

        let may_help = !found || trial.type_inter < self.best.type_inter || trial.type_inter < PathKind::Pxn;
        if let Some(next) = farther(trial.type_inter, bounds.inter.1).filter(|_| has_net && may_help) {
            trial.type_inter = next;
            return true;
        }
        trial.type_inter = bounds.inter.0;

        let crosses = matches!(self.request.pattern, Pattern::Ring | Pattern::BalancedTree);
        if self.cross_nic == 2 && trial.cross_nic == 0 && crosses {
            trial.cross_nic = 2;
            return true;
        }
        trial.cross_nic = u32::from(self.cross_nic == 1);

        // Half the bandwidth would need twice the channels to be as good.
        let Some(next) = self.speeds.get(self.speed + 1) else { return false };
        if found && next / self.best.bw_inter <= 0.49 {
            return false;
        }
        self.speed += 1;
        (trial.bw_intra, trial.bw_inter) = (*next, *next);
        true
    }

    /// Keeps the channels found and raises their bandwidth step by step while a walk succeeds.
    fn tighten(&mut self, last: &Trial) {
        let Some(mut trial) = self.trial_of_best(last) else { return };
        self.hard = self.hard.max(TIGHTENING_STEPS / i64::from(self.cost));
        while let Some(faster) = self.speed.checked_sub(1) {
            let best = &self.best;
            let speed = self.speeds[faster];
            match self.request.pattern {
                Pattern::Ring => (trial.bw_intra, trial.bw_inter) = (speed, speed),
                Pattern::Nvls if trial.bw_inter == best.bw_inter && trial.bw_inter < trial.bw_intra * 2.0 => {
                    trial.channels_min = best.lanes.len();
                    trial.channels_max = best.lanes.len();
                    trial.bw_inter = speed;
                }
                // With two hosts, a tree's links inside a host carry more than those between hosts.
                _ if trial.bw_intra == best.bw_intra && trial.bw_intra < trial.bw_inter * 2.0 => {
                    trial.bw_intra = speed;
                }
                _ => return,
            }
            self.speed = faster;
            let before = self.best.clone();
            let mut outcome = self.walk(&trial);
            // Where the lanes of another graph do not carry more, others may.
            if self.best == before && !trial.along.is_empty() {
                trial.along.clear();
                outcome = self.walk(&trial);
            }
            if outcome == Outcome::Done(0) || self.hard < 0 {
                return;
            }
        }
    }

    fn trial_of_best(&mut self, last: &Trial) -> Option<Trial> {
        let best = &self.best;
        if best.lanes.is_empty() {
            return None;
        }
        self.speed = first_not(self.speeds, |speed| speed > best.bw_inter);
        Some(Trial {
            pattern: best.pattern,
            cross_nic: best.cross_nic,
            channels_min: best.lanes.len(),
            bw_intra: self.speeds[self.speed],
            bw_inter: self.speeds[self.speed],
            type_intra: best.type_intra,
            type_inter: best.type_inter,
            same_channels: best.same_channels,
            ..last.clone()
        })
    }
}

/// The next path type, up to the farthest one that exists.
fn farther(kind: PathKind, farthest: PathKind) -> Option<PathKind> {
    kind.farther().filter(|next| kind < farthest && *next < PathKind::Dis)
}

/// The index of the first speed that is not too fast, or the last.
fn first_not(speeds: &[f32], is_too_fast: impl Fn(f32) -> bool) -> usize {
    speeds.iter().position(|speed| !is_too_fast(*speed)).unwrap_or(speeds.len() - 1)
}

/// Splits channels: two of half the bandwidth use a GPU better than one, as long as each is fast enough.
fn double(graph: &mut TopoGraph, machine: &Machine<'_>, channels_max: usize) {
    let count = graph.lanes.len();
    let is_enough = machine.system.sm_min() > 80 && graph.bw_intra < 50.0 && count > 4;
    if count == 0 || graph.pattern == Pattern::Nvls || graph.bw_intra < 25.0 || is_enough {
        return;
    }
    let doubled = (2 * count).min(channels_max);
    let share = doubled.div_ceil(count) as f32;
    graph.lanes.extend_from_within(..doubled - count);
    graph.bw_intra /= share;
    graph.bw_inter /= share;
}
