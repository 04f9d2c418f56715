//! `oxccl perf` of ranks on CPUs, end to end: results that it checked itself.

use std::process::Command;

#[test]
fn collectives_with_blocks_of_any_length() {
    for collective in ["all-to-all-v", "all-gather-v", "reduce-scatter-v"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
        command.args(["perf", collective, "--threads", "3", "--sizes", "4,24,1200,1M", "--min-time=1"]);
        let output = command.output().unwrap();
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        // A wrong element is status 3.
        assert_eq!(output.status.code(), Some(0), "{said}");
        let rows = said.lines().filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
        assert_eq!(rows.filter(|row| row.split_whitespace().nth(8) == Some("0")).count(), 4, "{said}");
    }
}
