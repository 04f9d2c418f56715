//! Layer: host / topology / search.
//! Takes: the state of a lane.
//! Gives: the GPUs and network devices to try next, most promising first: the search has a budget, so the order
//! decides how good its answer is.
//! Never: checks whether the links have the bandwidth.

use super::capacity::Capacity;
use super::{Machine, Pattern};
use crate::topology::{PathKind, Paths, System};
use std::cmp::Reverse;

/// Orders that hold for all searches of a machine.
pub(crate) struct Choices {
    /// Network devices for the start of a lane.
    starts: Ranked,
    /// Network devices for the end of a lane, by GPU.
    exits: Vec<Ranked>,
    /// For each GPU the other reachable GPUs, nearest first. GPUs at the same distance share a number.
    neighbours: Vec<Vec<(usize, usize)>>,
    /// For each network device, the GPUs nearest to it.
    pub near_gpus: Vec<Vec<usize>>,
    /// For each network device, the first one that shares its port.
    pub port: Vec<usize>,
}

/// Network devices by index, nearest first, each with the path type from which on it counts.
type Ranked = Vec<(usize, PathKind)>;

impl Choices {
    pub fn new(system: &System, paths: &Paths) -> Choices {
        let all: Vec<usize> = (0..system.gpus.len()).collect();
        let near = |net| match paths.best_of(net, &system.gpus) {
            gpus if gpus
                .first()
                .is_none_or(|gpu| paths.between(net, system.gpus[*gpu]).kind == PathKind::Dis) =>
            {
                Vec::new()
            }
            gpus => gpus,
        };
        let port = |net| (system.net(net).asic, system.net(net).port);
        let first_of_port = |net| system.nets.iter().position(|other| port(*other) == port(net)).unwrap_or(0);
        Choices {
            starts: ranked(system, paths, &all),
            exits: all.iter().map(|gpu| ranked(system, paths, &[*gpu])).collect(),
            neighbours: all.iter().map(|gpu| neighbours(system, paths, *gpu)).collect(),
            near_gpus: system.nets.iter().map(|net| near(*net)).collect(),
            port: system.nets.iter().map(|net| first_of_port(*net)).collect(),
        }
    }

    /// The network devices, by index, at which a lane may begin.
    pub fn starts(&self, farthest: PathKind) -> Vec<usize> {
        self.starts.iter().take_while(|(_, kind)| *kind <= farthest).map(|(net, _)| *net).collect()
    }

    /// The network devices, by index, by which a lane may leave at a GPU.
    pub fn exits(&self, gpu: usize, farthest: PathKind) -> impl Iterator<Item = usize> {
        self.exits[gpu].iter().take_while(move |(_, kind)| *kind <= farthest).map(|(net, _)| *net)
    }
}

/// First the network devices that one of the GPUs uses as its own, then all others from near to far.
fn ranked(system: &System, paths: &Paths, gpus: &[usize]) -> Ranked {
    let mut found: Ranked = Vec::new();
    let mut add = |net: usize, kind: PathKind| {
        if !found.iter().any(|(other, _)| *other == net) {
            found.push((net, kind));
        }
    };
    for gpu in gpus {
        let first = paths.local_net(system, *gpu, 0);
        let rounds = (1..system.nets.len()).map(|channel| paths.local_net(system, *gpu, channel));
        let own = first.into_iter().chain(rounds.take_while(|net| *net != first).flatten());
        own.for_each(|net| add(net, PathKind::Loc));
    }
    for kind in PathKind::ALL {
        for gpu in gpus {
            let route = |net: &usize| paths.between(system.gpus[*gpu], system.nets[*net]);
            (0..system.nets.len()).filter(|net| route(net).kind == kind).for_each(|net| add(net, kind));
        }
    }
    found
}

/// The order of the next GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// Nearest to this GPU first.
    Near,
    /// Nearest to the lane's NIC first, since the next GPU uses it.
    NearNet(usize),
    /// Nearest to the lane's NIC first, but in reverse among GPUs at the same distance.
    NearNetLater(usize),
}

/// Passes the GPUs that may follow `gpu`, by index, to `add`.
#[expect(clippy::too_many_arguments, reason = "where a lane stands, and what is wanted of it")]
pub(super) fn next_gpus(
    machine: &Machine<'_>,
    capacity: &Capacity<'_>,
    pattern: Pattern,
    gpu: usize,
    wanted: Wanted,
    used: &[u64],
    lane: u64,
    add: impl FnMut(usize),
) {
    let gpus = &machine.system.gpus;
    let near = machine.choices.neighbours[gpu].iter().filter(|(next, _)| used[*next] & lane == 0);
    if machine.system.nv_switch.is_some() {
        let is_free = |next: &usize| near.clone().any(|near| near.0 == *next);
        return next_in_number(pattern, gpu, gpus.len()).filter(is_free).for_each(add);
    }
    let net = match wanted {
        Wanted::Near => return near.map(|near| near.0).for_each(add),
        Wanted::NearNet(net) | Wanted::NearNetLater(net) => machine.system.nets[net],
    };
    let score = |(place, (next, group)): (usize, &(usize, usize))| {
        let route = machine.paths.between(net, gpus[*next]);
        let pci = capacity.pci_left(gpus[*next]);
        ((Reverse(route.bw as i32), Reverse(pci as i32), route.links.len()), place, *group, *next)
    };
    let mut scored: Vec<_> = near.enumerate().map(score).collect();
    let is_equal = scored.first().map(|first| first.2) == scored.last().map(|last| last.2);
    scored.sort_unstable();
    if is_equal && matches!(wanted, Wanted::NearNetLater(_)) {
        scored.reverse();
    }
    scored.into_iter().map(|score| score.3).for_each(add);
}

/// NVSwitches do best where each GPU has few peers: try only neighbours by index.
fn next_in_number(pattern: Pattern, gpu: usize, count: usize) -> impl Iterator<Item = usize> {
    let (after, before) = ((gpu + 1) % count, (gpu + count - 1) % count);
    let (first, second) = match pattern {
        Pattern::Ring => (before, Some(after)),
        Pattern::BalancedTree | Pattern::SplitTree => (after, Some(before)),
        Pattern::Tree | Pattern::Nvls | Pattern::CollnetDirect => (after, None),
    };
    // With two GPUs, the next and the previous one are the same.
    std::iter::once(first).chain(second.filter(|second| *second != first))
}

/// The other GPUs: widest routes first, then fewest links, then by index from this one on.
fn neighbours(system: &System, paths: &Paths, gpu: usize) -> Vec<(usize, usize)> {
    let gpus = &system.gpus;
    let others = (1..gpus.len()).map(|turn| (gpu + turn) % gpus.len());
    let route = |next: usize| paths.between(gpus[gpu], gpus[next]);
    let key = |next: usize| (Reverse(route(next).bw as i32), route(next).links.len());
    let mut sorted: Vec<usize> = others.filter(|next| !route(*next).links.is_empty()).collect();
    sorted.sort_by_key(|next| key(*next));
    let groups = sorted.chunk_by(|a, b| key(*a) == key(*b)).enumerate();
    groups.flat_map(|(group, nexts)| nexts.iter().map(move |next| (*next, group))).collect()
}
