//! Layer: topo.
//! Takes: a machine and how many of its kind there are.
//! Gives: lines as NCCL logs them with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=GRAPH, to be compared with `diff`.
//! Never: prefixes of time, host or process.

use super::machine::Machine;
use oxccl::Rank;
use oxccl::topology::JoinError;
use oxccl::topology::search::{Lane, TopoGraph};
use oxccl_shared::algo::tree::TreeLinks;
use std::fmt::Write;

pub fn lines(machine: &Machine, hosts: u32) -> Result<String, JoinError> {
    let mut out = String::new();
    for graph in machine.graphs.all().into_iter().filter(|graph| !graph.lanes.is_empty()) {
        write_graph(&mut out, machine, graph);
    }
    let channels = machine.channels(hosts)?;
    let count = channels.rings.len();
    for (channel, ring) in channels.rings.iter().enumerate() {
        let ring: Vec<String> = ring.iter().map(Rank::to_string).collect();
        let _ = writeln!(out, "Channel {channel:02}/{count:02} : {}", ring.join(" "));
    }
    for rank in 0..machine.system.gpus.len() * hosts as usize {
        let trees = channels
            .trees
            .iter()
            .enumerate()
            .map(|(channel, tree)| format!(" [{channel}] {}", tree_of(rank, &tree[rank])));
        let _ = writeln!(out, "Trees{}", trees.collect::<String>());
    }
    Ok(out)
}

/// Children, the rank and its parent; -1 for none.
fn tree_of(rank: usize, links: &TreeLinks) -> String {
    let name =
        |peer: Option<oxccl_shared::abi::Rank>| peer.map_or("-1".to_owned(), |peer| peer.0.to_string());
    let down = links.down.map(name).join("/");
    format!("{down}->{rank}->{}", name(links.up))
}

fn write_graph(out: &mut String, machine: &Machine, graph: &TopoGraph) {
    let _ = writeln!(out, "{graph}");
    for (channel, lane) in graph.lanes.iter().enumerate() {
        let _ = writeln!(out, "{channel:2} :{}", lane_line(machine, lane));
    }
}

/// Hosts and devices of a lane in order, as `NET/0-1 GPU/0-3`.
fn lane_line(machine: &Machine, lane: &Lane) -> String {
    let id = |kind: &str, id: u64| format!(" {kind}/{}-{}", id >> 56, id & (u64::MAX >> 8));
    let gpus = lane.gpus.iter().map(|rank| {
        let dev = machine.system.dev_of_rank(*rank).unwrap_or(u64::from(rank.0));
        id("GPU", dev)
    });
    let net = |end: usize| lane.nets.map(|nets| id("NET", nets[end])).unwrap_or_default();
    format!("{}{}{}", net(0), gpus.collect::<String>(), net(1))
}
