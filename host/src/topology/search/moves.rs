//! Layer: host / topology / search.
//! Takes: a [`Walk`] and its position.
//! Gives: the moves that a lane may make from there, in the order in which to try them.
//! Never: makes one.

use super::Pattern;
use super::candidates::{self, Wanted};
use super::walk::{Move, Order, Walk};

impl Walk<'_> {
    /// The step at which a lane leaves to the network, and whether it closes to a ring.
    pub fn ends(&self) -> (Option<usize>, bool) {
        let gpus = self.machine.system.gpus.len();
        if self.machine.system.nets.is_empty() {
            return (None, self.trial.pattern == Pattern::Ring);
        }
        match self.trial.pattern {
            Pattern::Ring => (Some(gpus - 1), false),
            Pattern::SplitTree => (Some(1.min(gpus - 1)), false),
            _ => (Some(0), false),
        }
    }

    /// Adds the possible starts of the next lane.
    pub fn add_starts(&mut self) {
        if !self.trial.along.is_empty() {
            return self.add_start_along();
        }
        if !self.machine.system.nets.is_empty() {
            return self.add_starts_from_nets();
        }
        let begin = |gpu, order| Move::Begin { net: None, gpu, order, is_aside: false };
        if self.trial.pattern.is_heads() {
            self.moves.push(begin(self.done, Order::Free));
            return;
        }
        let last = self.done.checked_sub(1).map(|lane| self.lanes[lane].gpus[0]);
        self.moves.push(match last {
            None => begin(0, Order::Numbered),
            Some(first) => begin(first, Order::Replay),
        });
        if last.is_none() || !self.trial.same_channels {
            self.moves.extend((0..self.used.len()).map(|gpu| begin(gpu, Order::Free)));
        }
    }

    fn add_start_along(&mut self) {
        let Some(lane) = self.trial.along.get(self.done) else { return };
        let nets = &self.machine.system.nets;
        let net = nets.get(lane.nets[0]).map(|net| self.machine.system.net(*net));
        if net.is_none_or(|net| net.coll || !self.trial.collnet) {
            let net = net.map(|_| lane.nets[0]);
            self.moves.push(Move::Begin { net, gpu: lane.gpus[0], order: Order::Along, is_aside: false });
        }
    }

    fn add_starts_from_nets(&mut self) {
        let (system, trial) = (self.machine.system, self.trial);
        let last = self.done.checked_sub(1).map(|lane| &self.lanes[lane]);
        for i in 0..self.nets.len() {
            let net = self.nets[(self.done + i) % self.nets.len()];
            let is_crossing = trial.pattern == Pattern::Ring && trial.cross_nic == 2 && self.done % 2 == 1;
            if (trial.collnet && !system.net(system.nets[net]).coll)
                || (is_crossing && last.is_some_and(|last| last.nets[1] != net))
            {
                continue;
            }
            let begin = |gpu, order, is_aside| Move::Begin { net: Some(net), gpu, order, is_aside };
            let local = self.machine.paths.local_gpu(net);
            if trial.pattern.is_heads() {
                let is_head = |gpu: usize| self.lanes[..self.done].iter().any(|lane| lane.gpus[0] == gpu);
                if let Some(gpu) = local.filter(|gpu| self.done < self.nets.len() && !is_head(*gpu)) {
                    self.moves.push(begin(gpu, Order::Free, false));
                    break;
                }
                continue;
            }
            if let Some(last) = last.filter(|_| trial.same_channels) {
                self.moves.push(begin(last.gpus[0], Order::Replay, false));
                continue;
            }
            if last.is_none() && system.nv_switch.is_none() {
                self.moves.push(begin(0, Order::Numbered, true));
            }
            self.moves.extend(local.map(|gpu| begin(gpu, Order::Free, false)));
            let others = self.machine.choices.near_gpus[net].iter().filter(|gpu| Some(**gpu) != local);
            self.moves.extend(others.map(|gpu| begin(*gpu, Order::Free, false)));
        }
    }

    /// Adds the moves from a GPU.
    pub fn add_moves(
        &mut self,
        gpu: usize,
        step: usize,
        leaves_at: Option<usize>,
        closes: bool,
        order: Order,
    ) {
        let last = self.used.len() - 1;
        if leaves_at == Some(step) {
            return self.add_exits(gpu, step);
        }
        if self.trial.pattern.is_heads() {
            return self.moves.push(Move::Head);
        }
        if step == last {
            return self.moves.push(if closes { Move::Close } else { Move::Finish });
        }
        let start = self.lanes[self.done].nets[0];
        let wanted = match (order, leaves_at) {
            (Order::Numbered, _) => return self.moves.push(Move::Visit(step + 1)),
            (Order::Replay, _) => {
                return self.moves.push(Move::Visit(self.lanes[self.done - 1].gpus[step + 1]));
            }
            (Order::Along, _) => {
                return self.moves.push(Move::Visit(self.trial.along[self.done].gpus[step + 1]));
            }
            (Order::Free, None) => Wanted::Near,
            (Order::Free, Some(at)) if at == step + 1 => Wanted::NearNet(start),
            (Order::Free, Some(_)) => Wanted::NearNetLater(start),
        };
        let (pattern, lane, moves) = (self.trial.pattern, 1 << self.done, &mut self.moves);
        let add = |next| moves.push(Move::Visit(next));
        candidates::next_gpus(self.machine, &self.capacity, pattern, gpu, wanted, &self.used, lane, add);
    }

    /// Adds the network devices by which a lane may leave at a GPU.
    fn add_exits(&mut self, gpu: usize, step: usize) {
        let (choices, trial) = (&self.machine.choices, self.trial);
        let lane = &self.lanes[self.done];
        let alternates = trial.pattern == Pattern::Ring && trial.cross_nic == 2;
        let fits = |net: &usize| match trial.pattern {
            Pattern::Tree if *net != lane.nets[0] => false,
            Pattern::BalancedTree if step > 0 && *net != lane.nets[1] => false,
            // In a pair of lanes, the second uses the NICs of the first in reverse.
            _ if alternates => self.done.is_multiple_of(2) || *net == self.lanes[self.done - 1].nets[0],
            _ => trial.cross_nic != 0 || choices.port[*net] == choices.port[lane.nets[0]],
        };
        let is_balanced = trial.pattern == Pattern::BalancedTree;
        let share = if is_balanced { 0.5 } else { 1.0 };
        let then = (is_balanced && step == 0).then_some(1);
        let exits = choices.exits(gpu, trial.type_inter).filter(fits);
        self.moves.extend(exits.map(|net| Move::LeaveTo { net, then, share }));
    }
}
