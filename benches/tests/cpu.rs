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
        assert_eq!(rows.filter(|row| row.split_whitespace().nth(8) == Some("0")).count(), 3, "{said}");
        assert!(said.contains("\n# left out: 4 bytes: with 3 ranks, "), "{said}");
    }
}

/// Warming up was no part of the budget: this ran until it was killed.
#[test]
fn warming_up_fits_the_budget_too() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
    command.args(["perf", "all-reduce", "--threads", "2", "-b", "8", "-e", "8", "-w", "4294967295"]);
    let start = std::time::Instant::now();
    let output = command.args(["--time-budget", "3"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(start.elapsed().as_secs() < 60);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.lines().any(|line| line.split_whitespace().next() == Some("8")), "{said}");
}

/// Cells without a number said nothing.
#[test]
fn what_the_budget_leaves_out_is_said() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
    command.args(["perf", "suite", "--threads", "2", "--sizes", "8,1M", "--time-budget", "0.001"]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.contains(" cells were not measured (\"-\"): the time budget was used up"), "{said}");
    assert!(last.ends_with(" do"), "{said}");
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
    command.args(["perf", "all-reduce", "--threads", "2", "--nonblocking", "--plot", "/nowhere"]);
    assert_eq!(command.output().unwrap().status.code(), Some(2));
}

#[test]
fn operations_beside_a_computation_are_written_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("beside.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
    command.args([
        "perf",
        "all-reduce",
        "--threads",
        "2",
        "--sizes",
        "24,1M",
        "--nonblocking=4",
        "--min-time=1",
    ]);
    command.args(["--engine=oxccl", "--engine=memcpy", "--json"]).arg(&path);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let document: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!((&document["schema"], &document["backend"]), (&"oxccl-perf-overlap/1".into(), &"cpu".into()));
    assert_eq!(document["engines"].as_array().unwrap().len(), 2);
    let results = document["results"].as_array().unwrap();
    let which: Vec<_> =
        results.iter().map(|row| (row["engine"].as_str().unwrap(), row["size_bytes"].as_u64())).collect();
    assert_eq!(
        which,
        [("oxccl", Some(24)), ("memcpy", Some(24)), ("oxccl", Some(1 << 20)), ("memcpy", Some(1 << 20))]
    );
    for row in results {
        assert_eq!(
            (&row["dtype"], &row["op"], &row["root"].is_null()),
            (&"float".into(), &"sum".into(), &true),
            "{row}"
        );
        if row["engine"] == "memcpy" {
            assert!(row["refused"].is_string() && row["alone_us"].is_null(), "{row}");
            continue;
        }
        assert_eq!(row["tests"], 4);
        let number = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
        let [alone, computation, together] = ["alone_us", "computation_us", "together_us"].map(number);
        assert!(
            alone > 0.0 && computation >= 0.0 && together > 0.0 && row["iters"].as_u64() > Some(0),
            "{row}"
        );
        let overlap = 100.0 * (alone + computation - together) / alone.min(computation).max(1e-6);
        assert!((overlap.clamp(0.0, 100.0) - number("overlap_percent")).abs() < 0.01, "{row}");
        assert_eq!((&row["verdict"]["wrong"], &row["verdict"]["out_of_bounds"]), (&0.into(), &0.into()));
    }
}

#[test]
fn ranks_that_get_no_thread_say_so_and_do_not_panic() {
    // No address space has room for such a stack.
    let no_thread = ("RUST_MIN_STACK", (1u64 << 47).to_string());
    for arguments in [
        ["perf", "all-reduce", "--ranks=2"],
        ["perf", "all-reduce", "--threads=2"],
        ["tune", "--ranks=2", "--sizes=8"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
        let output = command.args(arguments).env(no_thread.0, &no_thread.1).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("starting the ranks: no thread could be started"), "{said}");
        assert!(!said.contains("panicked") && !said.contains("memory shared"), "{said}");
    }
}

#[test]
fn help_that_nobody_could_read_is_an_error() {
    for arguments in [&["--help"][..], &["perf", "--help"], &["-V"], &["--version"]] {
        let full = std::fs::File::create("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
        let output = command.args(arguments).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("standard output") && said.contains("No space left"), "{arguments:?}: {said}");
        // Somebody who reads it gets all of it.
        let read = Command::new(env!("CARGO_BIN_EXE_oxccl")).args(arguments).output().unwrap();
        assert!(read.status.success() && read.stderr.is_empty() && !read.stdout.is_empty());
    }
}

#[test]
fn a_limit_on_the_length_of_files_is_an_error_that_names_it() {
    let script = "ulimit -f 0; exec \"$0\" perf all-reduce --threads 2 --sizes 24";
    let mut command = Command::new("sh");
    let output = command.args(["-c", script, env!("CARGO_BIN_EXE_oxccl")]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in ["oxccl-perf", "may have 0", "RLIMIT_FSIZE", "ulimit -f"] {
        assert!(said.contains(part), "{said}");
    }
}
