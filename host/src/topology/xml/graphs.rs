//! Layer: host / topology / xml.
//! Takes: text with `<graphs>` as its root and the [`System`] that it describes, or graphs.
//! Gives: graphs whose lanes name each GPU of the system once, or such text.
//! Never: a lane that would hang: input is not trusted.

use super::XmlError;
use super::element::Element;
use super::write::Writer;
use crate::topology::search::{CHANNELS_MAX, GraphId, Lane, Pattern, TopoGraph};
use crate::topology::{PathKind, System};

/// Reads the graphs of a file. A graph without channels states that the algorithm has none.
///
/// # Errors
/// The first line that is invalid or that does not fit `system`.
pub fn read_graphs(text: &str, system: &System) -> Result<Vec<TopoGraph>, XmlError> {
    let root = Element::parse(text, "graphs")?;
    root.count("version", 1, "version 1")?;
    root.children.iter().filter(|child| child.name == "graph").map(|child| graph(child, system)).collect()
}

fn graph(element: &Element, system: &System) -> Result<TopoGraph, XmlError> {
    let id = element.count("id", 4, "a graph from 0 to 4")?.ok_or_else(|| element.missing("id"))?;
    let pattern = element.count("pattern", 6, "a pattern from 1 to 6")?;
    let pattern = pattern.ok_or_else(|| element.missing("pattern"))?;
    let lanes = element.children.iter().filter(|child| child.name == "channel");
    let id = GraphId::from_number(id).ok_or_else(|| element.wrong("id", "a graph from 0 to 4"))?;
    let pattern =
        Pattern::from_number(pattern).ok_or_else(|| element.wrong("pattern", "a pattern from 1 to 6"))?;
    let is_heads = pattern.is_heads();
    let lanes = lanes.map(|child| lane(child, system, is_heads)).collect::<Result<Vec<_>, _>>()?;
    if lanes.len() > CHANNELS_MAX {
        return Err(XmlError::Limit { line: element.line, what: "channels", max: CHANNELS_MAX });
    }
    if element.count("nchannels", u32::MAX, "channels")?.is_some_and(|count| count as usize != lanes.len()) {
        return Err(element.wrong("nchannels", "as many as there are <channel> elements"));
    }
    Ok(TopoGraph {
        id,
        pattern,
        cross_nic: element.count("crossnic", 2, "0, 1 or 2")?.unwrap_or(0),
        bw_intra: element.real("speedintra")?.unwrap_or(0.0),
        bw_inter: element.real("speedinter")?.unwrap_or(0.0),
        latency_inter: element.real("latencyinter")?.unwrap_or(0.0),
        type_intra: element.path_kind("typeintra")?.unwrap_or(PathKind::Loc),
        type_inter: element.path_kind("typeinter")?.unwrap_or(PathKind::Loc),
        same_channels: element.flag("samechannels")?.unwrap_or(false),
        hops: 0,
        lanes,
    })
}

/// Where a lane is a head, its first GPU says all. NCCL writes only that one since 2.22 for NVLS; before, and of CollNet direct, it
/// writes rank 0's after it, as often as there are others.
fn lane(element: &Element, system: &System, is_heads: bool) -> Result<Lane, XmlError> {
    let (mut gpus, mut nets) = (Vec::new(), Vec::new());
    for child in &element.children {
        let dev = child.hex_or_decimal("dev")?;
        match child.name.as_str() {
            "gpu" => {
                let rank = system.rank_of_dev(dev);
                gpus.push(rank.ok_or_else(|| child.wrong("dev", "a GPU of this system"))?);
            }
            "net" => {
                let is_known = system.nets.iter().any(|net| system.net(*net).id == dev);
                // On a single host, accept the graphs of a host that has others.
                if !is_known && !system.nets.is_empty() {
                    return Err(child.wrong("dev", "a network device of this system"));
                }
                nets.push(dev);
            }
            _ => {}
        }
    }
    if is_heads {
        gpus.truncate(1);
        let others =
            system.gpus.iter().map(|gpu| system.gpu(*gpu).rank).filter(|rank| gpus.first() != Some(rank));
        gpus = gpus.iter().copied().chain(others.filter(|_| !gpus.is_empty())).collect();
    }
    let mut once = gpus.clone();
    once.sort_unstable();
    once.dedup();
    if once.len() != gpus.len() || gpus.len() != system.gpus.len() {
        return Err(XmlError::Value {
            line: element.line,
            element: element.name.clone(),
            attribute: "gpu",
            value: format!("{:?}", gpus.iter().map(|rank| rank.0).collect::<Vec<_>>()),
            expected: "each GPU of this system once",
        });
    }
    let nets = match nets[..] {
        [] => None,
        [from, to] => Some([from, to]),
        _ => return Err(element.wrong("net", "two network devices or none")),
    };
    Ok(Lane { gpus, nets })
}

/// Writes graphs as NCCL dumps them.
pub fn write_graphs<'a>(graphs: impl IntoIterator<Item = &'a TopoGraph>, system: &System) -> String {
    let mut out = Writer::default();
    out.open("graphs").attribute("version", 1);
    graphs.into_iter().for_each(|graph| write_graph(&mut out, graph, system));
    out.close("graphs");
    out.text
}

fn write_graph(out: &mut Writer, graph: &TopoGraph, system: &System) {
    out.open("graph")
        .attribute("id", graph.id as u32)
        .attribute("pattern", graph.pattern as u32)
        .attribute("crossnic", graph.cross_nic)
        .attribute("nchannels", graph.lanes.len())
        .attribute("speedintra", graph.bw_intra)
        .attribute("speedinter", graph.bw_inter)
        .attribute("latencyinter", graph.latency_inter)
        .attribute("typeintra", graph.type_intra)
        .attribute("typeinter", graph.type_inter)
        .attribute("samechannels", u8::from(graph.same_channels));
    for lane in &graph.lanes {
        out.open("channel");
        lane.nets.iter().for_each(|nets| write_dev(out, "net", nets[0]));
        // As NCCL since 2.22: in NVLS only the head counts.
        let gpus = if graph.id == GraphId::Nvls { 1 } else { lane.gpus.len() };
        for rank in lane.gpus.iter().take(gpus) {
            write_dev(out, "gpu", system.dev_of_rank(*rank).unwrap_or(u64::from(rank.0)));
        }
        lane.nets.iter().for_each(|nets| write_dev(out, "net", nets[1]));
        out.close("channel");
    }
    out.close("graph");
}

fn write_dev(out: &mut Writer, name: &str, dev: u64) {
    let text = if dev == 0 { "0".to_owned() } else { format!("{dev:#x}") };
    out.open(name).attribute("dev", text);
    out.close(name);
}
