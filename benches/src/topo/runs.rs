//! Layer: topo.
//! Takes: a machine with GPUs.
//! Gives: [`Runs`]: the channels that communicators of this library connect there.
//! Never: NCCL's plan, which the search finds: it is shown beside this, and called that.

use super::explain::{ExplainError, facts};
use super::machine::Machine;
use super::words::ranges;
use oxccl::Rank;
use oxccl::plan::tuning::Forced;
use oxccl::topology::Channels;
use std::fmt::Write;

/// Ranks of a ring that are printed.
const RANKS_MAX: usize = 32;

/// Channels over all hosts.
pub struct Runs {
    /// Orders of ranks, and which channels take which.
    pub channels: Channels,
    /// Of rings.
    pub rings: u32,
    /// Between each two GPUs of a host, and of several.
    pub pairs: [u32; 2],
    /// Of trees, where the user names them.
    pub trees: u32,
    /// Whether there are none else.
    pub only_named: bool,
}

impl Runs {
    /// Without a user's restrictions.
    pub fn new(machine: &Machine) -> Result<Runs, ExplainError> {
        let (plain, channels) = facts(machine, Forced::default(), None)?;
        let named = Forced::default().with_algorithms("tree");
        let named =
            named.map_or(plain, |named| facts(machine, named, None).map_or(plain, |(facts, _)| facts));
        Ok(Runs {
            channels,
            rings: plain.ring_channels,
            pairs: [plain.mesh_channels, plain.far_channels],
            trees: named.tree_channels,
            only_named: plain.tree_channels == 0,
        })
    }

    /// For a page.
    pub fn text(&self) -> String {
        let mut out = String::from("Channels of OxCCL\n");
        let Runs { channels, rings, pairs: [near, far], trees, only_named } = self;
        let _ = writeln!(out, "  ring: {rings}");
        for (ring, of) in self.orders() {
            let mut ranks: Vec<String> = ring.iter().take(RANKS_MAX).map(Rank::to_string).collect();
            if ring.len() > RANKS_MAX {
                ranks.push(format!("... {} in all", ring.len()));
            }
            let _ = writeln!(out, "    {:>7} : {}", ranges(&of), ranks.join(" "));
        }
        let between = match near == far {
            true => "between each two GPUs".to_owned(),
            false => format!("between each two GPUs of a host, {far} between hosts"),
        };
        let _ = writeln!(out, "  pairs: {near}, {between}: one-shot, two-shot, messages");
        let depth = if channels.trees.is_empty() { 0 } else { *trees };
        let when = if *only_named { " where NCCL_ALGO or a tuning file names it, else none" } else { "" };
        let _ = writeln!(out, "  tree: {depth}{when}");
        out
    }

    /// Each different ring with its channels.
    pub fn orders(&self) -> Vec<(&[Rank], Vec<usize>)> {
        let mut found: Vec<(&[Rank], Vec<usize>)> = Vec::new();
        for channel in 0..self.rings as usize {
            let ring = self.channels.ring(channel);
            match found.iter_mut().find(|(other, _)| *other == ring) {
                Some((_, of)) => of.push(channel),
                None => found.push((ring, vec![channel])),
            }
        }
        found
    }
}
