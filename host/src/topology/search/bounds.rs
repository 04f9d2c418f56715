//! Layer: host / topology / search.
//! Takes: a [`System`] and its [`Paths`].
//! Gives: [`Bounds`]: the path types and bandwidths between which a search makes sense.
//! Never: examines more than each pair once.

use crate::topology::system::{LOCAL_BW, LinkKind};
use crate::topology::{PathKind, Paths, System};

/// Where a search starts and ends.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    /// Nearest and farthest path type between GPUs.
    pub intra: (PathKind, PathKind),
    /// Nearest and farthest path type to the network.
    pub inter: (PathKind, PathKind),
    /// GB/s that one channel can have.
    pub channel_bw_max: f32,
    /// GB/s out of the GPU with the widest links.
    pub total_bw: f32,
    /// Two groups of GPUs with NVLink inside and something slower between.
    pub is_split_nvlink: bool,
}

impl Bounds {
    pub fn new(system: &System, paths: &Paths) -> Bounds {
        let mut intra = match paths.kinds(system, &system.gpus) {
            Some((least, most)) => (least.min(PathKind::Sys), most),
            None => (PathKind::Loc, PathKind::Sys),
        };
        let mut inter = (PathKind::Pix, PathKind::Sys);
        if let Some((least, most)) = paths.kinds(system, &system.nets) {
            inter = (least.min(PathKind::Sys), if system.sm_min() < 90 { PathKind::Sys } else { most });
            intra.1 = inter.1;
        }
        let (channel_bw_max, total_bw) = widest(system, paths);
        Bounds { intra, inter, channel_bw_max, total_bw, is_split_nvlink: is_split(system, paths) }
    }
}

fn widest(system: &System, paths: &Paths) -> (f32, f32) {
    if system.nets.is_empty() && system.gpus.len() == 1 {
        return (LOCAL_BW, LOCAL_BW);
    }
    let ends = if system.nets.is_empty() { &system.gpus } else { &system.nets };
    let routes = system.gpus.iter().flat_map(|gpu| ends.iter().map(|end| paths.between(*gpu, *end)));
    let channel = routes.filter(|route| !route.links.is_empty()).map(|route| route.bw).fold(0.0, f32::max);
    let total = system.gpus.iter().map(|gpu| {
        let links = system.node(*gpu).links.iter().map(|id| system.link(*id));
        let of = |kind| links.clone().filter(move |link| link.kind == kind).map(|link| link.bw);
        of(LinkKind::NvLink).sum::<f32>().max(of(LinkKind::Pci).next_back().unwrap_or(0.0))
    });
    (channel, total.fold(0.0, f32::max))
}

fn is_split(system: &System, paths: &Paths) -> bool {
    let gpus = &system.gpus;
    let mut domain: Vec<usize> = (0..gpus.len()).collect();
    for a in 0..gpus.len() {
        for b in a + 1..gpus.len() {
            if paths.between(gpus[a], gpus[b]).kind == PathKind::Nvl {
                domain[b] = domain[a];
            }
        }
    }
    let size = |of: usize| domain.iter().filter(|domain| **domain == of).count();
    (0..gpus.len()).filter(|of| size(*of) > 1).count() == 2
}
