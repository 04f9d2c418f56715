//! Layer: topo.
//! Takes: a machine and how many of its kind there are.
//! Gives: lines as a release of NCCL logs them with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=GRAPH, to be compared with `diff`.
//! Never: prefixes of time, host or process.

use super::args::Release;
use super::machine::Machine;
use oxccl::Rank;
use oxccl::topology::JoinError;
use oxccl::topology::search::{GraphId, Lane, TopoGraph};
use oxccl_shared::algo::tree::TreeLinks;
use std::fmt::Write;

pub fn lines(machine: &Machine, release: Release) -> Result<String, JoinError> {
    let mut out = String::new();
    for graph in machine.graphs.all().into_iter().filter(|graph| !graph.lanes.is_empty()) {
        write_graph(&mut out, machine, graph, release);
    }
    let channels = machine.channels()?;
    let count = channels.rings.len();
    for (channel, ring) in channels.rings.iter().enumerate() {
        let ring: Vec<String> = ring.iter().map(Rank::to_string).collect();
        let _ = writeln!(out, "Channel {channel:02}/{count:02} : {}", ring.join(" "));
    }
    for rank in 0..machine.system.gpus.len() * machine.hosts as usize {
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

fn write_graph(out: &mut String, machine: &Machine, graph: &TopoGraph, release: Release) {
    let head = graph.to_string();
    // Bandwidths were speeds.
    let head = if release == Release::V213 { head.replace(", bw ", ", speed ") } else { head };
    let _ = writeln!(out, "{head}");
    for (channel, lane) in graph.lanes.iter().enumerate() {
        let _ = writeln!(out, "{channel:2} :{}", lane_line(machine, graph.id, lane, release));
    }
}

/// Devices of a lane in order, in NVLS its head: `NET/0-1 GPU/0-1b000` with hosts and hexadecimal numbers; earlier GPUs by rank, and
/// long ago NICs without hosts.
fn lane_line(machine: &Machine, id: GraphId, lane: &Lane, release: Release) -> String {
    let system = &machine.system;
    let gpu = |rank: &Rank| match release {
        Release::Current => {
            let node = system.gpus.iter().find(|gpu| system.gpu(**gpu).rank == *rank);
            let (host, bus) =
                node.map_or((0, 0), |node| (system.node(*node).host, system.gpu(*node).bus_id.0));
            format!(" GPU/{host:x}-{bus:x}")
        }
        Release::V227 | Release::V213 => format!(" GPU/{rank}"),
    };
    let net = |id: u64| match release {
        Release::V213 => format!(" NET/{id}"),
        Release::Current | Release::V227 => format!(" NET/{:x}-{:x}", id >> 56, id & (u64::MAX >> 8)),
    };
    let end = |end: usize| lane.nets.map(|nets| net(nets[end])).unwrap_or_default();
    let count = if id == GraphId::Nvls { 1 } else { lane.gpus.len() };
    format!("{}{}{}", end(0), lane.gpus.iter().take(count).map(gpu).collect::<String>(), end(1))
}
