//! Layer: topo / svg.
//! Takes: a machine.
//! Gives: a picture for the wall: CPUs, switches, GPUs and NICs from top to bottom, each link with its type and GB/s, and
//! below each GPU, in its column, the channels that pass through it; of several hosts, how rings lead from one to the next.
//! Never: more than the machine has: what is not there takes no room.

mod pen;
mod layout;
mod devices;
mod panel;
mod lanes;
mod hosts;
mod bare;

use super::machine::Machine;
use super::runs::Runs;
use super::words::{self, headline};
use layout::Layout;
use pen::{Anchor, Font, Ink, Pen};

pub use bare::draw as draw_without_gpus;

/// Draws a machine, and the channels that the library and NCCL's plan have there.
pub fn draw(machine: &Machine, runs: &Runs) -> String {
    let layout = Layout::new(&machine.system);
    let mut pen = Pen::new();
    let (title, facts) = headline(machine).split_once(": ").map_or_else(
        || (machine.name.clone(), String::new()),
        |(title, facts)| (title.to_owned(), facts.to_owned()),
    );
    pen.text([layout.left, 62.0], &title, Font::bold(32.0, Ink::Text, Anchor::Start));
    let facts = match machine.hosts {
        0 | 1 => facts,
        _ => format!("{facts}; {}", words::hosts(machine).trim_end()),
    };
    pen.text([layout.left, 90.0], &facts, Font::plain(15.0, Ink::Quiet, Anchor::Start));
    legend(&mut pen, &layout);
    let mut lanes = Pen::new();
    let top = devices::bottom(&machine.system, &layout) + 46.0;
    let top = hosts::draw(&mut lanes, machine, runs, &layout, top);
    let bottom = lanes::draw(&mut lanes, machine, runs, &layout, top);
    // Guides lie below everything else.
    for x in layout.gpus.iter().map(|spot| spot.x) {
        pen.line([x, layout.leaf_y], [x, bottom - 46.0], Ink::Guide, 1.0);
    }
    devices::draw(&mut pen, &machine.system, &layout);
    pen.append(lanes);
    let note = "GB/s in each direction; lines are as wide as what they carry. Channels: filled, where one begins; dashed, to the network";
    pen.text([layout.left, bottom - 14.0], note, Font::plain(12.0, Ink::Quiet, Anchor::Start));
    pen.page(layout.width, bottom)
}

/// The kinds of links that the machine has.
fn legend(pen: &mut Pen, layout: &Layout) {
    let mut x = layout.right;
    for kind in layout.kinds.iter().rev() {
        let label = match kind.name() {
            "NVL" => "NVLink",
            "C2C" => "chip to chip",
            "SYS" => "between CPUs",
            other => other,
        };
        x -= 7.4 * label.len() as f64;
        pen.text([x, 66.0], label, Font::plain(13.0, Ink::Quiet, Anchor::Start));
        pen.line([x - 34.0, 61.5], [x - 8.0, 61.5], Ink::Link(*kind), 5.0);
        x -= 58.0;
    }
}
