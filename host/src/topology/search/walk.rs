//! Layer: host / topology / search.
//! Takes: one bandwidth and one set of constraints: a [`Trial`].
//! Gives: the best channels found within the trial's budget, if they beat the best so far.
//! Never: recursion: the depth is channels times GPUs, more than a thread's stack may hold.

use super::capacity::Capacity;
use super::machine::Machine;
use super::{Lane, Pattern, TopoGraph};
use crate::topology::PathKind;
use crate::topology::system::{NodeId, NodeKind};

/// The constraints of one walk.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    pub pattern: Pattern,
    pub collnet: bool,
    pub cross_nic: u32,
    pub channels_min: usize,
    pub channels_max: usize,
    pub bw_intra: f32,
    pub bw_inter: f32,
    pub type_intra: PathKind,
    pub type_inter: PathKind,
    pub same_channels: bool,
    /// If not empty, the only lanes to try: from the first network device of each through its GPUs.
    pub along: Vec<Draft>,
}

/// How a walk ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// As many channels as are useful: nothing can be better at this bandwidth.
    Perfect,
    /// All was tried, with this much of the budget left. 0: not all was tried.
    Done(u32),
}

/// The order in which a lane visits GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// By index.
    Numbered,
    /// That of the previous lane.
    Replay,
    /// That of [`Trial::along`].
    Along,
    /// Any.
    Free,
}

/// A lane under construction; GPUs and network devices by index.
#[derive(Clone, Default, Debug)]
pub(super) struct Draft {
    pub gpus: Vec<usize>,
    pub nets: [usize; 2],
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Move {
    Begin { net: Option<usize>, gpu: usize, order: Order, is_aside: bool },
    Visit(usize),
    LeaveTo { net: usize, then: Option<usize>, share: f32 },
    Close,
    Head,
    Finish,
}

/// Position of a walk.
#[derive(Clone, Copy, Debug)]
enum Position {
    /// Before a lane.
    Between,
    /// At a lane's GPU number `step`, which leaves to the network at step `leaves_at`.
    At { gpu: usize, step: usize, leaves_at: Option<usize>, closes: bool, order: Order },
}

/// One level of the walk: the moves still to try, and what to undo on leaving.
struct Level {
    position: Position,
    /// Length of `Walk::moves` before this level. Later moves are this level's, in reverse.
    moves: usize,
    undo: Undo,
    /// Length of `Walk::taken` before this level.
    taken: usize,
    /// The outer budget, if this level has its own.
    budget_outside: Option<u32>,
}

#[derive(Clone, Copy)]
enum Undo {
    Nothing,
    Begin { net: Option<usize> },
    Visit(usize),
    Finish,
}

/// Steps of the first try in GPU order, which gives a baseline for comparison, not the best answer.
const ASIDE_STEPS: u32 = 1 << 10;

pub(super) struct Walk<'a> {
    pub machine: &'a Machine<'a>,
    pub trial: &'a Trial,
    best: &'a mut TopoGraph,
    pub capacity: Capacity<'a>,
    /// Finished lanes, and the one under construction.
    pub lanes: Vec<Draft>,
    pub done: usize,
    /// For each GPU, a bit for each lane that has visited it.
    pub used: Vec<u64>,
    /// Routes in use, with the bandwidth taken.
    taken: Vec<(NodeId, NodeId, f32)>,
    hops: u32,
    budget: u32,
    latency: f32,
    is_perfect: bool,
    /// Moves still to try, of all levels.
    pub moves: Vec<Move>,
    /// Network devices to try for the start of a lane.
    pub nets: Vec<usize>,
}

impl<'a> Walk<'a> {
    pub fn run(machine: &'a Machine<'a>, trial: &'a Trial, best: &'a mut TopoGraph, budget: u32) -> Outcome {
        let system = machine.system;
        let mut walk = Walk {
            machine,
            trial,
            best,
            capacity: Capacity::new(system),
            lanes: vec![Draft::default()],
            done: 0,
            used: vec![0; system.gpus.len()],
            taken: Vec::new(),
            hops: 0,
            budget,
            latency: 0.0,
            is_perfect: false,
            moves: Vec::new(),
            nets: machine.choices.starts(trial.type_inter),
        };
        walk.search();
        if walk.is_perfect { Outcome::Perfect } else { Outcome::Done(walk.budget) }
    }

    fn search(&mut self) {
        let mut levels = Vec::new();
        self.enter(&mut levels, Position::Between, Undo::Nothing, 0, None);
        while !self.is_perfect {
            let Some(level) = levels.last_mut() else { break };
            let (position, is_left) = (level.position, self.budget > 0 && self.moves.len() > level.moves);
            match is_left.then(|| self.moves.pop()).flatten() {
                Some(next) => self.try_move(&mut levels, position, next),
                None => levels.pop().into_iter().for_each(|level| self.leave(&level)),
            }
        }
    }

    /// Makes a move if the links have the bandwidth, and enters the next level.
    fn try_move(&mut self, levels: &mut Vec<Level>, position: Position, next: Move) {
        let taken = self.taken.len();
        let (gpus, nets) = (&self.machine.system.gpus, &self.machine.system.nets);
        let here = match position {
            Position::At { gpu, .. } => Some((gpu, gpus[gpu])),
            Position::Between => None,
        };
        let (undo, then) = match (next, position) {
            (Move::Begin { net, gpu, order, .. }, _) => {
                if !self.begin(net, gpu) {
                    return;
                }
                let (leaves_at, closes) = self.ends();
                (Undo::Begin { net }, Position::At { gpu, step: 0, leaves_at, closes, order })
            }
            (Move::Visit(to), Position::At { gpu, step, leaves_at, closes, order }) => {
                if !self.follow(gpus[gpu], gpus[to], 1.0) {
                    return;
                }
                self.mark(to);
                (Undo::Visit(to), Position::At { gpu: to, step: step + 1, leaves_at, closes, order })
            }
            (Move::LeaveTo { net, then, share }, Position::At { gpu, step, closes, order, .. }) => {
                if !self.follow(gpus[gpu], nets[net], share) {
                    return;
                }
                self.lanes[self.done].nets[1] = net;
                (Undo::Nothing, Position::At { gpu, step, leaves_at: then, closes, order })
            }
            (Move::Close, _) => {
                let first = gpus[self.lanes[self.done].gpus[0]];
                if !here.is_some_and(|(_, gpu)| self.follow(gpu, first, 1.0)) {
                    return;
                }
                (Undo::Finish, Position::Between)
            }
            (Move::Head, _) => {
                if !here.is_some_and(|(gpu, _)| self.follow_head(gpu)) {
                    self.give_back(taken);
                    return;
                }
                (Undo::Finish, Position::Between)
            }
            (Move::Finish, _) => (Undo::Finish, Position::Between),
            (Move::Visit(_) | Move::LeaveTo { .. }, Position::Between) => return,
        };
        let mut outside = None;
        if matches!(next, Move::Begin { is_aside: true, .. }) {
            outside = Some(std::mem::replace(&mut self.budget, ASIDE_STEPS));
        }
        self.enter(levels, then, undo, taken, outside);
    }

    fn enter(
        &mut self,
        levels: &mut Vec<Level>,
        position: Position,
        undo: Undo,
        taken: usize,
        budget_outside: Option<u32>,
    ) {
        if !levels.is_empty() {
            self.budget -= 1;
        }
        if let Position::At { gpu, step, .. } = position {
            let lane = &mut self.lanes[self.done];
            lane.gpus.truncate(step);
            lane.gpus.push(gpu);
        }
        if matches!(undo, Undo::Finish) {
            self.finish();
        }
        let moves = self.moves.len();
        match position {
            Position::Between if self.done < self.trial.channels_max && !self.is_perfect => self.add_starts(),
            Position::Between => {}
            Position::At { gpu, step, leaves_at, closes, order } => {
                self.add_moves(gpu, step, leaves_at, closes, order);
            }
        }
        self.moves[moves..].reverse();
        levels.push(Level { position, moves, undo, taken, budget_outside });
    }

    fn leave(&mut self, level: &Level) {
        self.moves.truncate(level.moves);
        self.give_back(level.taken);
        match level.undo {
            Undo::Nothing => {}
            Undo::Begin { net } => {
                if let Position::At { gpu, .. } = level.position {
                    self.mark(gpu);
                }
                if let Some(net) = net {
                    self.capacity.give_net(net, &self.machine.choices.port, self.net_speed());
                }
            }
            Undo::Visit(gpu) => self.mark(gpu),
            Undo::Finish => {
                self.done -= 1;
                self.lanes.truncate(self.done + 1);
            }
        }
        if let Some(budget) = level.budget_outside {
            self.budget = budget;
        }
    }

    fn begin(&mut self, net: Option<usize>, gpu: usize) -> bool {
        if let Some(net) = net {
            let system = self.machine.system;
            if !self.capacity.take_net(net, &self.machine.choices.port, self.net_speed()) {
                return false;
            }
            if !self.follow(system.nets[net], system.gpus[gpu], 1.0) {
                self.capacity.give_net(net, &self.machine.choices.port, self.net_speed());
                return false;
            }
            self.latency = system.net(system.nets[net]).latency_us;
            self.lanes[self.done].nets = [net; 2];
        }
        self.mark(gpu);
        true
    }

    /// NCCL counts whole GB/s of network devices, but exact bandwidths of links.
    fn net_speed(&self) -> f32 {
        self.trial.bw_inter.trunc()
    }

    fn mark(&mut self, gpu: usize) {
        self.used[gpu] ^= 1 << self.done;
    }

    /// Takes `share` of the trial's bandwidth along a route, if its path type is allowed and its links have it.
    fn follow(&mut self, from: NodeId, to: NodeId, share: f32) -> bool {
        let machine = self.machine;
        let is_net = |id: NodeId| matches!(machine.system.node(id).kind, NodeKind::Net(_));
        let (bw, farthest) = if is_net(from) || is_net(to) {
            (self.trial.bw_inter * share, self.trial.type_inter)
        } else {
            (self.trial.bw_intra * share, self.trial.type_intra)
        };
        let route = machine.paths.between(from, to);
        // A tree carries as much in the other direction.
        let back = self.trial.pattern.is_tree().then(|| machine.paths.between(to, from).kind);
        if route.kind > farthest || route.kind == PathKind::Dis || back.is_some_and(|back| back > farthest) {
            return false;
        }
        if !self.capacity.take(from, route, bw) {
            return false;
        }
        self.hops += route.links.len() as u32;
        self.taken.push((from, to, bw));
        true
    }

    /// Takes the bandwidth that a head needs: all GPUs' data passes through it.
    fn follow_head(&mut self, head: usize) -> bool {
        let gpus = &self.machine.system.gpus;
        if self.trial.pattern == Pattern::Nvls {
            let Some(switch) = self.machine.system.nv_switch else { return false };
            let share = |gpu: usize| if gpu == head { 2.0 } else { 1.0 };
            return (0..gpus.len()).all(|gpu| self.follow(switch, gpus[gpu], share(gpu)))
                && (0..gpus.len()).all(|gpu| self.follow(gpus[gpu], switch, share(gpu)));
        }
        let share = 1.0 / (gpus.len() as f32 - 1.0).max(1.0);
        gpus.iter().all(|gpu| self.follow(gpus[head], *gpu, share))
            && gpus.iter().all(|gpu| self.follow(*gpu, gpus[head], share))
    }

    fn give_back(&mut self, down_to: usize) {
        for (from, to, bw) in self.taken.drain(down_to..).rev() {
            let route = self.machine.paths.between(from, to);
            self.capacity.give(from, route, bw);
            self.hops -= route.links.len() as u32;
        }
    }

    /// Completes a lane, and keeps all lanes if they beat the best so far.
    fn finish(&mut self) {
        if self.trial.pattern.is_heads() {
            let head = self.lanes[self.done].gpus[0];
            self.lanes[self.done].gpus.extend((0..self.used.len()).filter(|gpu| *gpu != head));
        }
        self.done += 1;
        if self.is_better() {
            self.save();
            self.is_perfect = self.done == self.trial.channels_max;
        }
        self.lanes.truncate(self.done);
        self.lanes.push(Draft::default());
    }

    fn is_better(&self) -> bool {
        let (trial, best) = (self.trial, &self.best);
        let (count, best_count) = (self.done as f32, best.lanes.len() as f32);
        if self.done < trial.channels_min {
            return false;
        }
        if trial.pattern == Pattern::Nvls {
            return self.done > best.lanes.len() || count * trial.bw_inter > best_count * best.bw_inter;
        }
        let (bw, best_bw) = (count * trial.bw_intra, best_count * best.bw_intra);
        let is_alike = best.pattern == trial.pattern && best.cross_nic == trial.cross_nic;
        bw > best_bw || (bw == best_bw && is_alike && self.hops < best.hops)
    }

    fn save(&mut self) {
        let (system, trial) = (self.machine.system, self.trial);
        let rank = |gpu: &usize| system.gpu(system.gpus[*gpu]).rank;
        let id = |net: usize| system.net(system.nets[net]).id;
        let lane = |draft: &Draft| Lane {
            gpus: draft.gpus.iter().map(rank).collect(),
            nets: (!system.nets.is_empty()).then(|| draft.nets.map(id)),
        };
        *self.best = TopoGraph {
            id: self.best.id,
            pattern: trial.pattern,
            cross_nic: trial.cross_nic,
            bw_intra: trial.bw_intra,
            bw_inter: trial.bw_inter,
            latency_inter: self.latency,
            type_intra: trial.type_intra,
            type_inter: trial.type_inter,
            same_channels: trial.same_channels,
            hops: self.hops,
            lanes: self.lanes[..self.done].iter().map(lane).collect(),
        };
    }
}
