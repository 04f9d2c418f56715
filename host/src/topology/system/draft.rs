//! A system under construction.

use super::{LinkKind, NODES_MAX, NodeKind, SystemError};
use crate::topology::BusId;
use std::collections::HashMap;

/// A system under construction: each node with its outgoing links.
#[derive(Default)]
pub(super) struct Draft {
    pub nodes: Vec<DraftNode>,
    pub nv_switch: Option<usize>,
    /// PCI devices by host and address.
    pub by_bus_id: HashMap<(u8, BusId), usize>,
    pub hosts: Vec<Option<u64>>,
    pub gpu_class_devices: usize,
}

pub(super) struct DraftNode {
    pub host: u8,
    pub kind: NodeKind,
    /// Target, kind, GB/s.
    pub links: Vec<(usize, LinkKind, f32)>,
    /// The switch's chip and board, to recognise the halves of one switch.
    pub chip: u64,
}

impl Draft {
    pub fn add(&mut self, host: u8, kind: NodeKind) -> Result<usize, SystemError> {
        self.nodes.push(DraftNode { host, kind, links: Vec::new(), chip: 0 });
        check("nodes", self.nodes.len(), NODES_MAX)?;
        Ok(self.nodes.len() - 1)
    }

    /// Adds one direction. A second link of the same kind between the same nodes adds its bandwidth. Links stay
    /// sorted.
    pub fn connect(&mut self, from: usize, to: usize, kind: LinkKind, bw: f32) {
        let links = &mut self.nodes[from].links;
        let mut at = links.iter().position(|(t, k, _)| (*t, *k) == (to, kind)).unwrap_or_else(|| {
            links.push((to, kind, 0.0));
            links.len() - 1
        });
        links[at].2 += bw;
        while at > 0 && links[at - 1].2 < links[at].2 {
            links.swap(at - 1, at);
            at -= 1;
        }
    }

    pub fn connect_both(&mut self, a: usize, b: usize, kind: LinkKind, bw: f32) {
        self.connect(a, b, kind, bw);
        self.connect(b, a, kind, bw);
    }
}

pub(super) fn check(what: &'static str, count: usize, max: usize) -> Result<(), SystemError> {
    if count > max { Err(SystemError::TooMany { what, count, max }) } else { Ok(()) }
}
