//! Layer: host / topology / paths.
//! Takes: the shortest routes.
//! Gives: the routes that data takes, given the permitted accesses.
//! Never: uses a forbidden route because it is short.

use super::{PathKind, Paths, Route};
use crate::topology::system::{CpuModel, GpuNode, NodeId, System};
use oxccl_shared::abi::Rank;

/// The accesses that user and driver permit. The default is that of an empty environment.
#[derive(Clone, PartialEq, Debug)]
pub struct PathPolicy {
    /// Farthest path type for peer-to-peer access between GPUs (`NCCL_P2P_LEVEL`; `NCCL_P2P_DISABLE` is
    /// [`PathKind::Loc`]). `None`: PXB, and unlimited on AMD CPUs with one or two GPUs.
    pub p2p_level: Option<PathKind>,
    /// Farthest path type for GPUDirect RDMA (`NCCL_NET_GDR_LEVEL`). `None`: P2C.
    pub gdr_level: Option<PathKind>,
    /// Data may go by NVLink to the GPU next to a NIC (`NCCL_PXN_DISABLE`).
    pub pxn: bool,
    /// The same where that GPU reaches the NIC through its CPU's chip-to-chip link (`NCCL_PXN_C2C`).
    pub pxn_c2c: bool,
    /// Data may go by NVLink through one other GPU (`NCCL_NVB_DISABLE`).
    pub nvb: bool,
    /// The driver's answer about peer access between GPUs.
    pub peer_access: PeerAccess,
}

/// Which GPUs may access each other's memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum PeerAccess {
    /// Unknown, for files of other machines: all GPUs may, but GeForce boards not over PCI.
    #[default]
    ByBoard,
    /// All may, except these pairs of ranks.
    Except(Vec<(Rank, Rank)>),
}

impl Default for PathPolicy {
    fn default() -> Self {
        PathPolicy {
            p2p_level: None,
            gdr_level: None,
            pxn: true,
            pxn_c2c: true,
            nvb: true,
            peer_access: PeerAccess::default(),
        }
    }
}

impl PathPolicy {
    /// Diverts routes. The order matters: each step builds on the earlier ones.
    pub(super) fn apply(&self, system: &System, paths: &mut Paths) {
        self.divert_gpus(system, paths);
        shorten_c2c(system, paths);
        for (n, net) in system.nets.iter().enumerate() {
            let relay = paths.first_gpu(system, n).map(|gpu| system.gpus[gpu]);
            for gpu in &system.gpus {
                self.relay(system, paths, relay, *gpu, *net);
                self.divert_net(system, paths, *gpu, *net);
            }
        }
    }

    /// Whether one GPU may access the other's memory over the route between them.
    pub fn allows_p2p(&self, system: &System, paths: &Paths, a: NodeId, b: NodeId) -> bool {
        let amd_pair = system.gpus.len() <= 2
            && system.cpus.first().is_some_and(|cpu| system.cpu_model(*cpu) == CpuModel::Amd);
        let level = self.p2p_level.unwrap_or(if amd_pair { PathKind::Sys } else { PathKind::Pxb });
        let kind = paths.between(a, b).kind;
        kind <= level && (a == b || self.may_access(system.gpu(a), system.gpu(b), kind))
    }

    fn may_access(&self, a: &GpuNode, b: &GpuNode, kind: PathKind) -> bool {
        match &self.peer_access {
            PeerAccess::ByBoard => kind < PathKind::Pix || !(a.is_consumer || b.is_consumer),
            PeerAccess::Except(pairs) => {
                !pairs.contains(&(a.rank, b.rank)) && !pairs.contains(&(b.rank, a.rank))
            }
        }
    }

    /// Routes GPUs without peer access through the receiver's CPU.
    fn divert_gpus(&self, system: &System, paths: &mut Paths) {
        for to in &system.gpus {
            for from in &system.gpus {
                if self.allows_p2p(system, paths, *from, *to) {
                    continue;
                }
                if let Some(cpu) = paths.local_cpu(system, *to) {
                    divert(paths, *from, cpu, *to);
                }
            }
        }
    }

    /// Whether a NIC may read or write a GPU's memory over the route between them.
    pub fn allows_gdr(&self, system: &System, paths: &Paths, gpu: NodeId, net: NodeId) -> bool {
        let level = self.gdr_level.unwrap_or(PathKind::P2c);
        system.gpu(gpu).gdr && system.net(net).gdr && paths.between(gpu, net).kind <= level
    }

    /// PXN: a GPU sends by NVLink to the GPU next to the NIC, if that is wider or avoids the CPU.
    fn relay(&self, system: &System, paths: &mut Paths, relay: Option<NodeId>, gpu: NodeId, net: NodeId) {
        let Some(relay) = relay.filter(|relay| *relay != gpu && self.pxn) else { return };
        let near = if self.pxn_c2c { PathKind::P2c } else { PathKind::Pxb };
        let (last, own) = (paths.between(relay, net), paths.between(gpu, net));
        let is_near = last.kind <= near && self.allows_gdr(system, paths, relay, net);
        let is_joined = paths.between(relay, gpu).kind <= PathKind::Nvl
            && system.node(relay).host == system.node(gpu).host;
        if is_near && is_joined && (last.bw > own.bw || own.kind > PathKind::Pxn) {
            divert(paths, gpu, relay, net);
            let mut route = paths.between(gpu, net).clone();
            route.kind = PathKind::Pxn;
            paths.set(gpu, net, route);
        }
    }

    /// Routes a NIC without GPUDirect RDMA through the GPU's CPU, in both directions.
    fn divert_net(&self, system: &System, paths: &mut Paths, gpu: NodeId, net: NodeId) {
        let is_direct = paths.between(gpu, net).kind < PathKind::Phb;
        // With PXN the NIC accesses the relaying GPU; choosing the relay has checked that access.
        let is_relayed = paths.between(gpu, net).kind == PathKind::Pxn;
        if !is_direct || is_relayed || self.allows_gdr(system, paths, gpu, net) {
            return;
        }
        if let Some(cpu) = paths.local_cpu(system, gpu) {
            divert(paths, net, cpu, gpu);
            divert(paths, gpu, cpu, net);
        }
    }
}

/// For a GPU with chip-to-chip links, the CPU is no detour to its nearest NICs.
fn shorten_c2c(system: &System, paths: &mut Paths) {
    for gpu in &system.gpus {
        let Some(cpu) = paths.local_cpu(system, *gpu) else { continue };
        for n in paths.best_of(*gpu, &system.nets) {
            let net = system.nets[n];
            if joined(paths.between(*gpu, cpu).kind, paths.between(net, cpu).kind) != PathKind::P2c {
                continue;
            }
            for (a, b) in [(*gpu, net), (net, *gpu)] {
                let mut route = paths.between(a, b).clone();
                route.kind = route.kind.min(PathKind::P2c);
                paths.set(a, b, route);
            }
        }
    }
}

/// Replaces a route by one through `via`.
fn divert(paths: &mut Paths, from: NodeId, via: NodeId, to: NodeId) {
    let (first, second) = (paths.between(from, via), paths.between(via, to));
    let route = Route {
        kind: joined(first.kind, second.kind),
        bw: first.bw.min(second.bw),
        links: first.links.iter().chain(&second.links).copied().collect(),
    };
    paths.set(from, to, route);
}

fn joined(a: PathKind, b: PathKind) -> PathKind {
    match (a.min(b), a.max(b)) {
        (PathKind::C2c, PathKind::Phb) => PathKind::P2c,
        (_, far) => far,
    }
}
