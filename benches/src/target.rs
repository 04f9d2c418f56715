//! Layer: perf / target.
//! Takes: the first word of the command line.
//! Gives: the collectives of a run, and the sizes of a whole comparison.
//! Never: knows a backend.

use crate::collective::Collective;
use clap::ValueEnum;
use clap::builder::PossibleValue;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// One collective: nccl-tests' table.
    One(Collective),
    /// [`SUITE`]: a compact table for each.
    Suite,
}

/// The collectives of a whole comparison, the most used first: where the time runs out, the last suffer.
const SUITE: [Collective; 6] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::SendRecv,
    Collective::AllToAll,
];

/// The collectives as the command line has them.
fn names() -> impl Iterator<Item = PossibleValue> {
    Collective::value_variants().iter().filter_map(ValueEnum::to_possible_value)
}

/// 8 B, 64 B, then 256 B to 1 GiB by factors of 4, then 2 GiB.
pub fn suite_sizes() -> impl Iterator<Item = usize> {
    [8, 64].into_iter().chain((0..12).map(|k| 256 << (2 * k))).chain([2 << 30])
}

impl Target {
    /// Reads `suite` or a collective's name.
    pub fn parse(text: &str) -> Result<Target, String> {
        if text == "suite" {
            return Ok(Target::Suite);
        }
        Collective::from_str(text, false).map(Target::One).map_err(|_| {
            let names: Vec<String> = names().map(|name| name.get_name().into()).collect();
            format!("expected suite, {}", names.join(", "))
        })
    }

    /// What the command line's help says: each collective, and its pattern where the name does not say it.
    pub fn help() -> String {
        let describe = |name: PossibleValue| match name.get_help() {
            Some(pattern) => format!("{} ({pattern})", name.get_name()),
            None => name.get_name().into(),
        };
        let names: Vec<String> = names().map(describe).collect();
        let suite = "suite: the six most used, over 8 B to 2 GiB, in a table each";
        format!("What to measure: a collective, or {suite}. Collectives: {}.", names.join(", "))
    }

    /// What to go through.
    pub fn collectives(&self) -> &[Collective] {
        match self {
            Target::One(collective) => std::slice::from_ref(collective),
            Target::Suite => &SUITE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(Target::parse("all_reduce"), Ok(Target::One(Collective::AllReduce)));
        assert_eq!(Target::parse("send-recv").unwrap().collectives(), [Collective::SendRecv]);
        assert_eq!(Target::parse("suite").unwrap().collectives().len(), 6);
        assert!(Target::parse("nothing").unwrap_err().contains("reduce-scatter"));
        let help = Target::help();
        assert!(
            help.contains("all-gather, ") && help.contains("send-recv (Each rank sends to the next"),
            "{help}"
        );
    }

    #[test]
    fn the_suite_ends_at_two_gibibytes_and_has_one() {
        let sizes: Vec<usize> = suite_sizes().collect();
        assert!(sizes.is_sorted());
        assert_eq!((sizes[0], sizes[sizes.len() - 1], sizes[sizes.len() - 2]), (8, 2 << 30, 1 << 30));
    }
}
