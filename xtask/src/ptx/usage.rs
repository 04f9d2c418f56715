//! Layer: xtask / ptx.
//! Takes: what `ptxas --verbose` printed.
//! Gives: registers, memory and spills of each entry.
//! Never: guesses: a report whose form changed is an error.

use anyhow::{Context, Result, bail};
use serde::Serialize;

/// What one entry uses, its functions included.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Usage {
    pub name: String,
    /// Of each thread.
    pub registers: u32,
    /// Static shared memory of each block.
    pub shared_bytes: u32,
    /// Of each thread, calls included.
    pub stack_bytes: u32,
    /// Stores to local memory for want of registers, in the entry and what it calls.
    pub spill_store_bytes: u32,
    pub spill_load_bytes: u32,
    /// Named barriers.
    pub barriers: u32,
    /// What the launch may have at most in each block; 0 where the entry does not say.
    pub max_threads: u32,
}

/// The entries of a report, sorted by name.
pub fn parse(report: &str) -> Result<Vec<Usage>> {
    let mut entries: Vec<Usage> = Vec::new();
    for line in report.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let name = rest.split('\'').next().unwrap_or(rest).to_string();
            entries.push(Usage { name, ..Usage::default() });
            continue;
        }
        // Lines of the module come before the first entry; those of functions after the entry that calls them.
        let Some(entry) = entries.last_mut() else { continue };
        if line.contains("bytes stack frame") {
            entry.stack_bytes = entry.stack_bytes.max(before(line, " bytes stack frame")?);
            entry.spill_store_bytes += before(line, " bytes spill stores")?;
            entry.spill_load_bytes += before(line, " bytes spill loads")?;
        } else if let Some((_, used)) = line.split_once(": Used ") {
            entry.registers = before(used, " registers")?;
            entry.shared_bytes = optional(used, " bytes smem")?;
            entry.barriers = optional(used, " barriers")?;
            entry.stack_bytes = entry.stack_bytes.max(optional(used, " bytes cumulative stack size")?);
        }
    }
    if let Some(silent) = entries.iter().find(|entry| entry.registers == 0) {
        bail!("ptxas reported no registers for `{}`", silent.name);
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

fn optional(line: &str, what: &str) -> Result<u32> {
    if line.contains(what) { before(line, what) } else { Ok(0) }
}

/// The number that stands before `what`.
fn before(line: &str, what: &str) -> Result<u32> {
    let end = line.find(what).with_context(|| format!("no `{what}` in `{line}`"))?;
    let start = line[..end].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    line[start..end].parse().with_context(|| format!("no number before `{what}` in `{line}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "\
ptxas info    : 403 bytes gmem
ptxas info    : Compiling entry function 'b' for 'sm_90'
ptxas info    : Function properties for b
    56 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, used 1 barriers, 88 bytes cumulative stack size, 1024 bytes smem, 360 bytes cmem[0]
ptxas info    : Compile time = 7.633 ms
ptxas info    : Function properties for helper
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Compiling entry function 'a' for 'sm_90'
ptxas info    : Function properties for a
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers
";

    #[test]
    fn a_report_of_two_entries() {
        let entries = parse(REPORT).unwrap();
        assert_eq!(entries[0], Usage { name: "a".into(), registers: 10, ..Usage::default() });
        let b = Usage {
            name: "b".into(),
            registers: 24,
            shared_bytes: 1024,
            stack_bytes: 88,
            spill_store_bytes: 4,
            spill_load_bytes: 12,
            barriers: 1,
            max_threads: 0,
        };
        assert_eq!(entries[1], b);
    }

    #[test]
    fn a_changed_report_is_refused() {
        assert!(
            parse("x: Compiling entry function 'a' for 'sm_90'\n").unwrap_err().to_string().contains("`a`")
        );
        let text =
            "x: Compiling entry function 'a' for 'sm_90'\n 0 bytes stack frame, many bytes spill stores";
        assert!(parse(text).unwrap_err().to_string().contains("spill stores"));
    }
}
