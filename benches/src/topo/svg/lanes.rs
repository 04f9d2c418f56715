//! Layer: topo / svg.
//! Takes: a machine's graphs and the columns of its GPUs.
//! Gives: for each algorithm a panel with one row for each different lane: arcs from GPU to GPU, to the right above the
//! row, to the left below it.
//! Never: the same lane twice: its channels are named beside it.

use super::layout::Layout;
use super::panel::{LEFT, Panel, TITLE_HEIGHT};
use super::pen::{Anchor, Font, Ink, Pen};
use crate::topo::machine::Machine;
use crate::topo::runs::Runs;
use crate::topo::text::distinct;
use crate::topo::words::{ranges, rate};
use oxccl::Rank;
use oxccl::topology::search::{GraphId, Lane, Pattern, TopoGraph};

const DOT: f64 = 11.0;
/// Rows of a panel; a machine with more different lanes shows the first ones.
const ROWS_MAX: usize = 16;
/// Characters of a NIC's name.
const NAME_MAX: usize = 10;

/// Draws the panels from `top` on; returns where the picture ends.
pub fn draw(pen: &mut Pen, machine: &Machine, runs: &Runs, layout: &Layout, top: f64) -> f64 {
    let mut y = top;
    for graph in machine.graphs.all().into_iter().filter(|graph| !graph.lanes.is_empty()) {
        y = panel(pen, machine, (layout, runs), graph, y);
    }
    y + 30.0
}

fn panel(
    pen: &mut Pen,
    machine: &Machine,
    (layout, runs): (&Layout, &Runs),
    graph: &TopoGraph,
    top: f64,
) -> f64 {
    let (rows, channels) = rows(machine, layout, graph);
    let height = TITLE_HEIGHT + rows.iter().map(Row::height).sum::<f64>() + 10.0;
    let title = format!("{}: {}", capitalized(graph.id.name()), what_runs(graph.id, runs));
    let hidden = channels.len() - rows.len();
    let more = if hidden > 0 { format!("; {hidden} more ways not shown") } else { String::new() };
    let plan = format!("NCCL's plan: {}{more}", facts(graph));
    let panel = Panel { top, height };
    panel.draw(pen, layout, &title, &plan);
    let mut y = top + TITLE_HEIGHT;
    for (number, (row, channels)) in rows.iter().zip(&channels).enumerate() {
        let base = y + row.above + DOT + 5.0;
        let count = if channels.len() == 1 { "channel" } else { "channels" };
        pen.text(
            [LEFT, base + 4.0],
            &format!("{count} {}", ranges(channels)),
            Font::plain(12.0, Ink::Quiet, Anchor::Start),
        );
        row.draw(pen, base, Ink::Lane(number));
        if machine.hosts > 1 {
            row.name_hosts(pen, base, Ink::Lane(number), machine.hosts, graph.pattern);
        }
        y += row.height();
    }
    panel.next()
}

/// One row for each path through the machine, and the channels of each path.
fn rows(machine: &Machine, layout: &Layout, graph: &TopoGraph) -> (Vec<Row>, Vec<Vec<usize>>) {
    let lanes = if is_heads(graph) { heads(graph) } else { distinct(graph) };
    let flatness = if lanes.len() > 8 { 0.6 } else { 1.0 };
    let (mut rows, mut channels): (Vec<Row>, Vec<Vec<usize>>) = (Vec::new(), Vec::new());
    for (lane, of_lane) in lanes {
        let row = Row::new(machine, layout, graph, &lane, flatness);
        match rows.iter().position(|other| other.stops == row.stops) {
            Some(at) => channels[at].extend(of_lane),
            None => {
                rows.push(row);
                channels.push(of_lane);
            }
        }
    }
    channels.iter_mut().for_each(|channels| channels.sort_unstable());
    rows.truncate(ROWS_MAX);
    (rows, channels)
}

/// What the library makes of a graph.
fn what_runs(id: GraphId, runs: &Runs) -> String {
    match id {
        GraphId::Ring => format!("OxCCL has {} channels", runs.rings),
        GraphId::Tree if runs.only_named => format!("OxCCL has {}, if named", runs.trees),
        GraphId::Tree => format!("OxCCL has {} channels", runs.trees),
        GraphId::CollnetChain | GraphId::CollnetDirect | GraphId::Nvls => "not run by OxCCL".to_owned(),
    }
}

fn facts(graph: &TopoGraph) -> String {
    let (count, bw) = (graph.lanes.len(), rate(graph.bw_intra));
    let channels = if count == 1 { "1 channel of".to_owned() } else { format!("{count} channels of") };
    let inter = if graph.lanes.iter().any(|lane| lane.nets.is_some()) {
        format!(", {} GB/s {} to the network", rate(graph.bw_inter), graph.type_inter)
    } else {
        String::new()
    };
    format!("{channels} {bw} GB/s {}{inter}", graph.type_intra)
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn is_heads(graph: &TopoGraph) -> bool {
    matches!(graph.pattern, Pattern::Nvls | Pattern::CollnetDirect)
}

/// All heads in one row.
fn heads(graph: &TopoGraph) -> Vec<(Lane, Vec<usize>)> {
    let gpus = graph.lanes.iter().map(|lane| lane.gpus[0]).collect();
    vec![(Lane { gpus, nets: None }, (0..graph.lanes.len()).collect())]
}

/// A lane's stops in order: where, what is written there, and whether it is a NIC.
struct Row {
    stops: Vec<(f64, String, bool)>,
    /// Stops are joined by arcs.
    is_joined: bool,
    above: f64,
    below: f64,
    /// Of arcs: 1, or less where there are many rows.
    flatness: f64,
}

impl Row {
    fn new(machine: &Machine, layout: &Layout, graph: &TopoGraph, lane: &Lane, flatness: f64) -> Row {
        let system = &machine.system;
        let gpu = |rank: &Rank| {
            let at = system.gpus.iter().position(|gpu| system.gpu(*gpu).rank == *rank);
            at.map(|at| (layout.gpus[at].x, rank.to_string(), false))
        };
        let net = |end: usize| {
            let id = lane.nets?[end];
            let net = system.nets.iter().find(|net| system.net(**net).id == id)?;
            let nic = system.node(*net).links.iter().map(|link| system.link(*link).to).next()?;
            let name: String = system.net(*net).name.chars().take(NAME_MAX).collect();
            Some((layout.spot(nic)?.x, name, true))
        };
        let mut stops: Vec<(f64, String, bool)> = Vec::new();
        stops.extend(net(0));
        stops.extend(lane.gpus.iter().filter_map(gpu));
        if graph.pattern == Pattern::Ring {
            match net(1) {
                Some(last) => stops.push(last),
                // A ring comes back to where it began.
                None => stops.extend(stops.first().cloned()),
            }
        }
        let mut row = Row { stops, is_joined: !is_heads(graph), above: 0.0, below: 0.0, flatness };
        for (from, to) in row.arcs() {
            let side = if to > from { &mut row.above } else { &mut row.below };
            *side = side.max(flatness * rise(from, to));
        }
        row
    }

    fn arcs(&self) -> Vec<(f64, f64)> {
        let pairs = self.stops.windows(2).map(|pair| (pair[0].0, pair[1].0));
        pairs.filter(|(from, to)| self.is_joined && from != to).collect()
    }

    fn height(&self) -> f64 {
        self.above + self.below + 2.0 * DOT + 18.0
    }

    fn draw(&self, pen: &mut Pen, y: f64, ink: Ink) {
        for pair in self.stops.windows(2).filter(|_| self.is_joined) {
            let ((from, _, from_net), (to, _, to_net)) = (&pair[0], &pair[1]);
            if from == to {
                continue;
            }
            let side = if to > from { 1.0 } else { -1.0 };
            let edge = y - side * (DOT - 1.0);
            let rise = side * self.flatness * rise(*from, *to);
            pen.arc([*from, edge], [*to, edge], rise, ink, 2.6, *from_net || *to_net);
            pen.arrow([(from + to) / 2.0, edge - rise], side, ink);
        }
        for (i, (x, label, is_net)) in self.stops.iter().enumerate() {
            let is_first = i == 0 || (i == 1 && self.stops[0].2);
            let fill = if is_first || !self.is_joined { ink } else { Ink::Panel };
            if *is_net {
                pen.bar(*x, y - 8.0, [8.0 + 6.0 * label.chars().count() as f64, 16.0], 5.0, Ink::Nic);
                pen.text([*x, y + 3.5], label, Font::bold(9.5, Ink::Text, Anchor::Middle));
            } else if !is_last_of_ring(&self.stops, i) {
                let text = if fill == Ink::Panel { ink } else { Ink::Light };
                pen.dot([*x, y], DOT, fill, ink);
                pen.text([*x, y + 4.2], label, Font::bold(12.0, text, Anchor::Middle));
            }
        }
    }

    /// Writes on each line to a NIC where it goes on: above the NIC if it leaves there, else below.
    fn name_hosts(&self, pen: &mut Pen, y: f64, ink: Ink, hosts: u32, pattern: Pattern) {
        for pair in self.stops.windows(2).filter(|_| self.is_joined) {
            let ((from, _, is_entry), (to, _, is_exit)) = (&pair[0], &pair[1]);
            if !is_entry && !is_exit {
                continue;
            }
            let (x, up) = (if *is_entry { from } else { to }, if to > from { -1.0 } else { 1.0 });
            pen.tag(*x, y + up * 22.0, &beyond(*is_entry, hosts, pattern), ink);
        }
    }
}

/// What lies behind a NIC of the first of so many hosts. A ring enters and leaves by it, a tree does both on one line.
fn beyond(is_entry: bool, hosts: u32, pattern: Pattern) -> String {
    match pattern {
        Pattern::Ring if is_entry => format!("from host {}", hosts - 1),
        Pattern::Ring => "to host 1".to_owned(),
        _ => "other hosts".to_owned(),
    }
}

/// The stop at which a ring closes is its first one.
fn is_last_of_ring(stops: &[(f64, String, bool)], at: usize) -> bool {
    at > 0 && at + 1 == stops.len() && stops[at] == stops[0]
}

/// Arcs to neighbours are flat, those across the machine are high, but not by as much.
fn rise(from: f64, to: f64) -> f64 {
    (7.0 + 0.075 * (from - to).abs()).min(64.0)
}
