//! Layer: host / topology / paths.
//! Takes: a [`System`] and one of its endpoints.
//! Gives: a tree of the fewest-hop routes of all nodes to it, the widest among those.
//! Never: routes through GPUs, except one NVLink hop to another GPU's neighbour (NVB).

use super::{PathKind, Route};
use crate::topology::system::{LinkId, LinkKind, NodeId, NodeKind, System};

/// Next hop of each node towards the target.
pub(super) struct Tree {
    target: NodeId,
    steps: Vec<Option<Step>>,
}

#[derive(Clone, Copy)]
struct Step {
    /// The link towards the target; unused at the target.
    link: LinkId,
    hops: u32,
    bw: f32,
    kind: PathKind,
}

/// Breadth-first search from `target` outwards. All nodes of one distance are known before any is expanded: a node's
/// route may widen within its distance, never later.
pub(super) fn tree(system: &System, target: NodeId, nvb: bool) -> Tree {
    let mut steps: Vec<Option<Step>> = vec![None; system.nodes.len()];
    steps[usize::from(target.0)] =
        Some(Step { link: LinkId(0), hops: 0, bw: crate::topology::system::LOCAL_BW, kind: PathKind::Loc });
    let mut ring = vec![target];
    while !ring.is_empty() {
        let mut next: Vec<NodeId> = Vec::new();
        for node in ring {
            let Some(here) = steps[usize::from(node.0)] else { continue };
            for link in system.node(node).links.iter().map(|id| system.link(*id)) {
                if !may_pass(system, target, node, here.hops, link.kind, link.to, nvb) {
                    continue;
                }
                let known = steps[usize::from(link.to.0)];
                let bw = here.bw.min(link.bw);
                if known.is_some_and(|known| known.hops <= here.hops || known.bw >= bw) {
                    continue;
                }
                let kind = kind_of(system, node, here, link.kind, link.to).max(here.kind);
                steps[usize::from(link.to.0)] =
                    Some(Step { link: link.reverse, hops: here.hops + 1, bw, kind });
                if known.is_none() {
                    next.push(link.to);
                }
            }
        }
        ring = next;
    }
    Tree { target, steps }
}

/// Data passes through a GPU only from NVLink to NVLink, and only as the one intermediate GPU between two others.
fn may_pass(
    system: &System,
    target: NodeId,
    node: NodeId,
    hops: u32,
    kind: LinkKind,
    to: NodeId,
    nvb: bool,
) -> bool {
    let is_gpu = |id: NodeId| matches!(system.node(id).kind, NodeKind::Gpu(_));
    node == target || !is_gpu(node) || (nvb && kind == LinkKind::NvLink && is_gpu(to) && hops <= 1)
}

fn kind_of(system: &System, node: NodeId, here: Step, link: LinkKind, to: NodeId) -> PathKind {
    let (at, to) = (&system.node(node).kind, &system.node(to).kind);
    match link {
        // The network itself does not count in the path type.
        LinkKind::Loc | LinkKind::Net => PathKind::Loc,
        LinkKind::NvLink if matches!(at, NodeKind::Gpu(_)) && here.kind == PathKind::Nvl && here.hops > 0 => {
            PathKind::Nvb
        }
        LinkKind::NvLink => PathKind::Nvl,
        LinkKind::C2c => PathKind::C2c,
        LinkKind::Pci => match (at, to) {
            (NodeKind::Pci(_), NodeKind::Pci(_)) => PathKind::Pxb,
            (NodeKind::Cpu(_), _) | (_, NodeKind::Cpu(_)) => PathKind::Phb,
            _ => PathKind::Pix,
        },
        LinkKind::Sys => PathKind::Sys,
    }
}

impl Tree {
    /// The route of a node to the target.
    pub fn route(&self, system: &System, from: NodeId) -> Route {
        let Some(first) = self.steps[usize::from(from.0)] else { return Route::none() };
        let mut links = Vec::with_capacity(first.hops as usize);
        let mut at = from;
        while at != self.target {
            let Some(step) = self.steps[usize::from(at.0)] else { return Route::none() };
            links.push(step.link);
            at = system.link(step.link).to;
        }
        Route { kind: first.kind, bw: first.bw, links }
    }
}
