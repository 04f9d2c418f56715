//! Layer: complain.
//! Takes: a tool, and what went wrong.
//! Gives: one whole line on standard error, in one write: ranks complain at the same time, and their words would mix.
//! Never: fails: there is nobody left to tell.

use std::fmt::Display;
use std::io::Write;

/// Says it.
pub fn complain(tool: &str, what: impl Display) {
    let _ = std::io::stderr().write_all(line(tool, what).as_bytes());
}

fn line(tool: &str, what: impl Display) -> String {
    format!("oxccl {tool}: {what}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_a_line() {
        assert_eq!(line("perf", "no"), "oxccl perf: no\n");
    }
}
