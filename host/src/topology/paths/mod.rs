//! Layer: host / topology / paths.
//! Takes: a [`System`] and a [`PathPolicy`].
//! Gives: [`Paths`]: for each pair of GPUs, network devices, CPUs and NVSwitches the links between them, the least
//! bandwidth and the path type.
//! Never: reads the environment: the caller passes the policy.

mod kind;
mod route;
mod nearest;
mod policy;

pub use kind::PathKind;
pub use policy::{PathPolicy, PeerAccess};
pub use route::Route;

use super::system::{NodeId, System};

/// The routes between all endpoints.
#[derive(Clone, Debug)]
pub struct Paths {
    /// Index of each node among the endpoints.
    place: Vec<Option<u16>>,
    count: usize,
    /// From each endpoint to each.
    routes: Vec<Route>,
    /// For each network device, the GPU that uses it first.
    local_gpus: Vec<Option<usize>>,
}

impl Paths {
    /// Finds all routes, then diverts those that the policy forbids.
    pub fn new(system: &System, policy: &PathPolicy) -> Paths {
        let mut ends = Vec::new();
        ends.extend(&system.gpus);
        ends.extend(&system.nets);
        ends.extend(&system.cpus);
        ends.extend(system.nv_switch);
        let mut place = vec![None; system.nodes.len()];
        for (i, end) in ends.iter().enumerate() {
            place[usize::from(end.0)] = Some(i as u16);
        }
        let mut routes = vec![Route::none(); ends.len() * ends.len()];
        for (t, target) in ends.iter().enumerate() {
            let tree = nearest::tree(system, *target, policy.nvb);
            for (s, source) in ends.iter().enumerate() {
                routes[s * ends.len() + t] = tree.route(system, *source);
            }
        }
        let mut paths = Paths { place, count: ends.len(), routes, local_gpus: Vec::new() };
        policy.apply(system, &mut paths);
        paths.local_gpus = (0..system.nets.len()).map(|net| paths.first_gpu(system, net)).collect();
        paths
    }

    /// The route between two endpoints.
    ///
    /// # Panics
    /// If one is a switch or an adapter.
    pub fn between(&self, from: NodeId, to: NodeId) -> &Route {
        &self.routes[self.index(from, to)]
    }

    fn set(&mut self, from: NodeId, to: NodeId, route: Route) {
        let index = self.index(from, to);
        self.routes[index] = route;
    }

    fn index(&self, from: NodeId, to: NodeId) -> usize {
        let place =
            |id: NodeId| self.place[usize::from(id.0)].expect("an endpoint: GPU, network device or CPU");
        usize::from(place(from)) * self.count + usize::from(place(to))
    }

    /// The GPU, by index, that uses a network device first, if any does.
    pub fn local_gpu(&self, net: usize) -> Option<usize> {
        self.local_gpus[net]
    }

    /// The CPU with the fewest hops from a node.
    pub fn local_cpu(&self, system: &System, node: NodeId) -> Option<NodeId> {
        let reached = system.cpus.iter().filter(|cpu| !self.between(node, **cpu).links.is_empty());
        reached.copied().min_by_key(|cpu| self.between(node, *cpu).links.len())
    }

    /// Those of `ends` with the most bandwidth from `node`, and among these the nearest path type: by index, in
    /// order.
    pub fn best_of(&self, node: NodeId, ends: &[NodeId]) -> Vec<usize> {
        let route = |end: &NodeId| self.between(node, *end);
        let bw = ends.iter().map(|end| route(end).bw).fold(0.0, f32::max);
        let kind = ends.iter().map(route).filter(|route| route.bw == bw).map(|route| route.kind).min();
        let is_best = |i: &usize| route(&ends[*i]).bw == bw && Some(route(&ends[*i]).kind) == kind;
        (0..ends.len()).filter(is_best).collect()
    }

    /// The network device, by index, that a GPU uses for a channel. GPUs with the same nearest devices share them
    /// out.
    pub fn local_net(&self, system: &System, gpu: usize, channel: usize) -> Option<usize> {
        let nets = self.best_of(system.gpus[gpu], &system.nets);
        let first = *nets.first()?;
        let sharers = self.best_of(system.nets[first], &system.gpus).len().max(1);
        let mut at = system.gpu(system.gpus[gpu]).dev as usize;
        if nets.len().is_power_of_two() {
            at = mirror_bits(at, nets.len());
        }
        at += channel % nets.len().div_ceil(sharers);
        Some(nets[at % nets.len()])
    }

    /// The GPU near a network device that uses it for the earliest channel.
    fn first_gpu(&self, system: &System, net: usize) -> Option<usize> {
        let gpus = self.best_of(system.nets[net], &system.gpus);
        let rounds = system.nets.len().max(1);
        (0..rounds).find_map(|channel| {
            gpus.iter().copied().find(|gpu| self.local_net(system, *gpu, channel) == Some(net))
        })
    }

    /// The nearest and the farthest path type between GPUs and `ends`, except from a GPU to itself.
    pub fn kinds(&self, system: &System, ends: &[NodeId]) -> Option<(PathKind, PathKind)> {
        let pairs = system.gpus.iter().flat_map(|gpu| ends.iter().map(move |end| (*gpu, *end)));
        let kinds = pairs.filter(|(gpu, end)| gpu != end).map(|(gpu, end)| self.between(gpu, end).kind);
        kinds.fold(None, |range, kind| match range {
            None => Some((kind, kind)),
            Some((least, most)) => Some((kind.min(least), kind.max(most))),
        })
    }
}

/// Reverses the bits of a number below `power` of two: neighbours move far apart.
fn mirror_bits(number: usize, power: usize) -> usize {
    let bits = power.trailing_zeros();
    (0..bits).filter(|bit| number >> bit & 1 == 1).map(|bit| 1 << (bits - 1 - bit)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrored_bits() {
        assert_eq!((0..8).map(|i| mirror_bits(i, 8)).collect::<Vec<_>>(), [0, 4, 2, 6, 1, 5, 3, 7]);
        assert_eq!(mirror_bits(5, 1), 0);
    }
}
