//! Layer: topo / svg.
//! Takes: the library's rings over several hosts.
//! Gives: a panel with a box for each host and a dot for each of its ranks, and the steps of rings that lead from host to host: to the
//! right above the dots, back below them.
//! Never: steps within a host, which the rows of channels have; more hosts than a picture holds: the first two and the last then.

use super::layout::Layout;
use super::panel::{LEFT, Panel, TITLE_HEIGHT};
use super::pen::{Anchor, Font, Ink, Pen};
use crate::topo::machine::Machine;
use crate::topo::runs::Runs;
use crate::topo::words::{ranges, rate};
use oxccl::Rank;
use std::ops::Range;

const BOX_HEIGHT: f64 = 62.0;
const GAP: f64 = 56.0;
/// Room for arcs on either side of the boxes.
const ROOM: f64 = 58.0;
const DOT_MAX: f64 = 11.0;
/// Dots smaller than this have no room for a number.
const NUMBERED_MIN: f64 = 7.5;
/// Hosts that a picture holds.
const HOSTS_MAX: u32 = 4;
/// Different rings that are drawn.
const RINGS_MAX: usize = 8;

/// Draws the panel from `top` on; returns where it ends. Nothing for one host.
pub fn draw(pen: &mut Pen, machine: &Machine, runs: &Runs, layout: &Layout, top: f64) -> f64 {
    let Some(row) = HostRow::new(machine, layout, top + TITLE_HEIGHT + ROOM) else { return top };
    let height = TITLE_HEIGHT + 2.0 * ROOM + BOX_HEIGHT;
    let orders = runs.orders();
    let hidden = orders.len().saturating_sub(RINGS_MAX);
    let more = if hidden > 0 { format!("; {hidden} more ways not shown") } else { String::new() };
    let graph = &machine.graphs.ring;
    let facts = format!("{} GB/s {} to the network{more}", rate(graph.bw_inter), graph.type_inter);
    let panel = Panel { top, height };
    panel.draw(pen, layout, "Between hosts: OxCCL's rings", &facts);
    row.draw_boxes(pen);
    for (number, (ring, channels)) in orders.iter().take(RINGS_MAX).enumerate() {
        row.draw_steps(pen, ring, Ink::Lane(number), number);
        let label = format!("channels {}", ranges(channels));
        pen.text(
            [LEFT + 130.0 * number as f64, top + height - 12.0],
            &label,
            Font::plain(12.0, Ink::Lane(number), Anchor::Start),
        );
    }
    row.draw_dots(pen);
    row.draw_names(pen);
    panel.next()
}

/// The hosts that are shown, side by side.
struct HostRow {
    hosts: Vec<u32>,
    /// Ranks of each.
    each: u32,
    box_width: f64,
    y: f64,
}

impl HostRow {
    fn new(machine: &Machine, layout: &Layout, y: f64) -> Option<HostRow> {
        let each = machine.system.gpus.len() as u32;
        let hosts = match machine.hosts {
            0 | 1 => return None,
            few @ 2..=HOSTS_MAX => (0..few).collect(),
            many => vec![0, 1, many - 1],
        };
        let room = layout.width - 2.0 * LEFT - GAP * (hosts.len() - 1) as f64;
        let box_width = room / hosts.len() as f64;
        Some(HostRow { hosts, each, box_width, y })
    }

    fn ranks(&self, host: u32) -> Range<u32> {
        host * self.each..(host + 1) * self.each
    }

    fn left_of(&self, place: usize) -> f64 {
        LEFT + place as f64 * (self.box_width + GAP)
    }

    fn radius(&self) -> f64 {
        (self.box_width / f64::from(self.each) * 0.36).min(DOT_MAX)
    }

    /// The middle of a rank's dot, if its host is shown.
    fn dot(&self, rank: u32) -> Option<[f64; 2]> {
        let place = self.hosts.iter().position(|host| *host == rank / self.each)?;
        let step = self.box_width / f64::from(self.each);
        let x = self.left_of(place) + step * (f64::from(rank % self.each) + 0.5);
        Some([x, self.y + BOX_HEIGHT - 22.0])
    }

    fn draw_boxes(&self, pen: &mut Pen) {
        for (place, host) in self.hosts.iter().enumerate() {
            let left = self.left_of(place);
            pen.bar(left + self.box_width / 2.0, self.y, [self.box_width, BOX_HEIGHT], 10.0, Ink::Switch);
            let is_gap = place > 0 && self.hosts[place - 1] + 1 != *host;
            if is_gap {
                let middle = [left - GAP / 2.0, self.y + BOX_HEIGHT / 2.0];
                pen.text(middle, "...", Font::bold(17.0, Ink::Quiet, Anchor::Middle));
            }
        }
    }

    /// Over the arcs, so that they can be read.
    fn draw_names(&self, pen: &mut Pen) {
        for (place, host) in self.hosts.iter().enumerate() {
            let ranks = self.ranks(*host);
            let label = format!("host {host}: ranks {} to {}", ranks.start, ranks.end - 1);
            pen.tag(self.left_of(place) + self.box_width / 2.0, self.y + 16.0, &label, Ink::Text);
        }
    }

    fn draw_dots(&self, pen: &mut Pen) {
        let radius = self.radius();
        for rank in self.hosts.iter().flat_map(|host| self.ranks(*host)) {
            let Some([x, y]) = self.dot(rank) else { continue };
            pen.dot([x, y], radius, Ink::Panel, Ink::Quiet);
            if radius >= NUMBERED_MIN {
                pen.text([x, y + 3.4], &rank.to_string(), Font::bold(9.5, Ink::Text, Anchor::Middle));
            }
        }
    }

    /// The steps of a ring between hosts that are shown; each ring's a little higher than the one before.
    fn draw_steps(&self, pen: &mut Pen, ring: &[Rank], ink: Ink, number: usize) {
        let next = ring.iter().cycle().skip(1);
        for (from, to) in ring.iter().zip(next).filter(|(from, to)| from.0 / self.each != to.0 / self.each) {
            let (Some([from, y]), Some([to, _])) = (self.dot(from.0), self.dot(to.0)) else { continue };
            let side = if to > from { 1.0 } else { -1.0 };
            let edge = y - side * self.radius();
            // Forward steps pass above the boxes' names.
            let clear = if to > from { BOX_HEIGHT - 22.0 } else { 22.0 - self.radius() };
            let rise = side * (clear + 8.0 + 5.0 * number as f64);
            pen.arc([from, edge], [to, edge], rise, ink, 2.6, true);
            pen.arrow([(from + to) / 2.0, edge - rise], side, ink);
        }
    }
}
