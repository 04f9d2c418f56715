//! Orders of network devices and GPUs, most promising first, which hold for all searches of a machine.

use crate::topology::{PathKind, Paths, System};
use std::cmp::Reverse;

/// Orders that hold for all searches of a machine.
pub(crate) struct Choices {
    /// Network devices for the start of a lane.
    starts: Ranked,
    /// Network devices for the end of a lane, by GPU.
    exits: Vec<Ranked>,
    /// For each GPU the other reachable GPUs, nearest first. GPUs at the same distance share a number.
    pub neighbours: Vec<Vec<(usize, usize)>>,
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
