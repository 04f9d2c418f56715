//! `oxccl perf --backend cuda` end to end on a machine without a GPU: its driver and its NCCL are `fake_gpu/lib.rs`, one shared
//! library under two names, compiled here.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::SystemTime;

/// The directory with both libraries.
fn fakes() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fake_gpu");
        std::fs::create_dir_all(&directory).unwrap();
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_gpu");
        let newest = sources.read_dir().unwrap().filter_map(|file| modified(&file.unwrap().path())).max();
        let library = directory.join("libcuda.so.1");
        // Other tests are other processes, and the compiler's own files have the same names in all of them.
        let lock = std::fs::File::create(directory.join("lock")).unwrap();
        lock.lock().unwrap();
        if modified(&library) < newest {
            let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
            let status = Command::new(compiler)
                .args(["--edition=2024", "--crate-type=cdylib", "-Copt-level=1", "-Anon_snake_case", "-o"])
                .args([&library, &sources.join("lib.rs")])
                .status();
            assert!(status.unwrap().success());
        }
        let link = directory.join("libnccl.so.2");
        if !link.exists() {
            std::os::unix::fs::symlink("libcuda.so.1", &link).unwrap();
        }
        directory
    })
}

fn modified(file: &Path) -> Option<SystemTime> {
    file.metadata().ok()?.modified().ok()
}

fn perf(words: &str, fault: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
    command.arg("perf").args(words.split_whitespace());
    command.args(["--backend=cuda", "--engine=nccl", "--min-time=1"]);
    command.env("LD_LIBRARY_PATH", fakes());
    if let Some(fault) = fault {
        command.env(fault, "1");
    }
    command.output().unwrap()
}

/// Lines of the table, by words.
fn rows(output: &Output) -> Vec<Vec<String>> {
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_whitespace().map(String::from).collect()).collect()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Times, both `#wrong` columns zero, and nothing outside the buffers.
fn all_right(output: &Output, lines: usize) {
    assert_eq!(output.status.code(), Some(0), "{}", said(output));
    let rows = rows(output);
    assert_eq!(rows.len(), lines, "{}", said(output));
    for row in rows {
        assert_eq!(row[8], "0", "{row:?}");
        assert!(row[12] == "0" || row[12] == "N/A", "{row:?}");
    }
}

#[test]
fn every_collective_with_threads() {
    for collective in [
        "all-reduce",
        "all-gather",
        "reduce-scatter",
        "broadcast",
        "reduce",
        "send-recv",
        "all-to-all",
        "all_to_all_v",
        "all-gather-v",
        "gather",
        "scatter",
    ] {
        all_right(&perf(&format!("{collective} --threads 3 --sizes 24,1200,1M -r 1"), None), 3);
    }
}

#[test]
fn one_thread_for_all_gpus_and_graphs() {
    all_right(&perf("all-reduce --one-thread 4 --sizes 8,1M", None), 2);
    all_right(&perf("all-to-all -g 2 -t 2 --sizes 64,1M -G 3 -m 2", None), 2);
    all_right(&perf("all-reduce --threads 2 --sizes 8,1M -G 4 --timer host -z 1", None), 2);
    all_right(&perf("all-gather --threads 2 -b 64 -e 4K -f 8 --rotate --misalign 4", None), 3);
    all_right(&perf("reduce-scatter --threads 2 --devices 3,3 --sizes 3M --check-bytes 1M", None), 1);
}

#[test]
fn operations_run_beside_both_computations_and_their_blocks_are_counted() {
    let output = perf("all-reduce --threads 2 --sizes 64,1M --overlap --engine nccl", None);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let rows = rows(&output);
    // Two sizes, two engines, two computations. The fake NCCL has three blocks.
    assert_eq!(rows.len(), 8, "{}", said(&output));
    for (row, computes) in rows.iter().zip(["arithmetic", "memory"].iter().cycle()) {
        assert_eq!((row[4].as_str(), row[10].as_str(), row[11].as_str()), (*computes, "3", "0"), "{row:?}");
    }
    let output = perf("all-gather -g 2 --sizes 64 --overlap=memory -G 4 -m 2", None);
    assert!(said(&output).contains("memory") && !said(&output).contains("arithmetic"), "{}", said(&output));
    let output = perf("all-reduce --threads 2 --sizes 64,1M --blocks", None);
    assert!(said(&output).contains("# Blocks of nccl        : 3 from 64 bytes on"), "{}", said(&output));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("beside.json");
    let line = format!("all-reduce --threads 2 --sizes 64 --overlap --engine nccl --json {}", path.display());
    let output = perf(&line, Some("FAKE_WRONG"));
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let document: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!((&document["schema"], &document["backend"]), (&"oxccl-perf-overlap/1".into(), &"cuda".into()));
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 4, "{document}");
    for (row, computes) in results.iter().zip(["arithmetic", "memory"].iter().cycle()) {
        assert_eq!(
            (row["computation"].as_str(), row["blocks"].as_u64()),
            (Some(*computes), Some(3)),
            "{row}"
        );
        for number in ["alone_us", "beside_us", "computation_us", "computation_beside_us", "lost_us"] {
            assert!(row[number].is_f64(), "{number}: {row}");
        }
        assert!(row["operations"].as_u64() > Some(0) && row["size_bytes"] == 64, "{row}");
    }
    let wrong: u64 = results.iter().filter_map(|row| row["verdict"]["wrong"].as_u64()).sum();
    assert!(wrong > 0, "{document}");
}

#[test]
fn wrong_results_are_counted_and_end_in_status_3() {
    let output = perf("all-reduce --threads 2 --sizes 64", Some("FAKE_WRONG"));
    assert_eq!(output.status.code(), Some(3));
    // One element on each of two ranks.
    assert_eq!(rows(&output)[0][8], "2", "{}", said(&output));
    let output = perf("suite --threads 2 --sizes 64", Some("FAKE_WRONG"));
    assert!(said(&output).contains("SOME RESULTS ARE WRONG"));
}

#[test]
fn a_stream_that_never_ends_is_given_up() {
    let output = perf("all-reduce --threads 2 --sizes 64 --timeout 0.2", Some("FAKE_HANG"));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("did not finish the first all-reduce of nccl within 0.2 s"),
        "{}",
        said(&output)
    );
}

#[test]
fn what_is_missing_is_named() {
    let output = perf("all-reduce --threads 2 --sizes 64", Some("FAKE_GPUS"));
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("there is no GPU 1: this process sees 1"), "{}", said(&output));
    let output = perf("all-reduce --threads 2 --sizes 2G", None);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("are free"), "{}", said(&output));
    let output = perf("all-reduce --threads 2 --devices 1", None);
    assert!(said(&output).contains("--devices names 1 GPUs, and this machine has 2 ranks"));
}

#[test]
fn a_suite_fits_its_budget_and_leaves_its_files() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("suite");
    std::fs::create_dir_all(&directory).unwrap();
    let words =
        format!("suite --threads 2 -e 1M --engine nccl --json {} --time-budget 3", directory.display());
    let start = std::time::Instant::now();
    let output = perf(&words, None);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(start.elapsed().as_secs() < 60);
    let page = std::fs::read_to_string(directory.join("suite.md")).unwrap();
    for collective in ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "sendrecv", "alltoall"] {
        assert!(page.contains(&format!("## {collective}, float")), "{page}");
        let json = std::fs::read_to_string(directory.join(format!("{collective}.json"))).unwrap();
        let document: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&document["backend"], &document["ranks"]), (&"cuda".into(), &2.into()));
        assert_eq!(document["engines"][1]["name"], "nccl-2");
        assert_eq!(document["engines"][0]["start"]["created_bytes"], 3 << 20);
    }
    assert!(page.contains("nccl-2/nccl") && page.contains("| ---: |"), "{page}");
}
