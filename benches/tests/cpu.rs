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

#[test]
fn operations_beside_a_computation_have_right_results_and_a_line_each() {
    for collective in ["all-reduce", "all-to-all-v", "send-recv", "reduce-scatter-v"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
        command.args(["perf", collective, "--threads", "2", "--sizes", "24,1M", "--nonblocking=4"]);
        command.args(["--min-time=1", "--engine=oxccl", "--engine=memcpy"]);
        let output = command.output().unwrap();
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{said}");
        let rows: Vec<Vec<&str>> = said
            .lines()
            .filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()))
            .map(|line| line.split_whitespace().collect())
            .collect();
        let measured: Vec<_> = rows.iter().filter(|row| row.last() == Some(&"oxccl")).collect();
        assert_eq!((measured.len(), rows.len()), (2, 4), "{said}");
        for row in measured {
            let overlap: f64 = row[7].parse().unwrap();
            assert!((0.0..=100.0).contains(&overlap) && row[8] == "0", "{said}");
        }
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
    command.args(["perf", "all-reduce", "--threads", "2", "--nonblocking", "--json", "/nowhere"]);
    assert_eq!(command.output().unwrap().status.code(), Some(2));
}
