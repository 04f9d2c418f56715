//! `oxccl tune` end to end: what it measures, communicators follow.

use oxccl::api::tune_file;
use oxccl::bootstrap::BootstrapConfig;
use oxccl::plan::tuning::{Backend, Reason, TuneFile};
use oxccl::{Communicator, Config, DataType, Func, UniqueId};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn tune(words: &str, out: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
    command.arg("tune").args(words.split_whitespace()).arg("--out").arg(out).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A path where nothing is.
fn path(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&path);
    path
}

const QUICK: &str = "--rounds 1 --min-time 1 --sizes 8,4K,64K";

fn measured(words: &str, out: &Path) -> TuneFile {
    let output = tune(words, out);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("OXCCL_TUNE_FILE="), "{}", said(&output));
    // Without a terminal there was no word until the end.
    assert!(String::from_utf8_lossy(&output.stderr).contains(" 8 B, 1 of "), "{}", said(&output));
    tune_file::read(out).unwrap()
}

#[test]
fn communicators_choose_what_was_measured() {
    let out = path("two.toml");
    let file = measured(&format!("--ranks 2 {QUICK}"), &out);
    let table = file.table(Backend::Cpu, 2).expect("a table for two ranks on processors");
    let text = std::fs::read_to_string(&out).unwrap();
    assert!(text.contains("# all_reduce 4096 bytes, us: "), "{text}");

    let config = Config {
        bootstrap: BootstrapConfig {
            bind_addr: Some(Ipv4Addr::LOCALHOST.into()),
            ..BootstrapConfig::default()
        },
        tune_file: Some(out),
        ..Config::default()
    };
    let id = UniqueId::create_by(&config.bootstrap).unwrap();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let config = config.clone();
            scope.spawn(move || {
                let builder = Communicator::builder().unique_id(id).rank(rank).ranks(2);
                let communicator = builder.config(config).build().unwrap();
                for func in
                    [Func::AllReduce, Func::AllGather, Func::ReduceScatter, Func::Broadcast, Func::Reduce]
                {
                    for bytes in [8u64, 100, 4 << 10, 20_000, 64 << 10, 1 << 30] {
                        let (row, expected) = table.row(func, bytes).expect("the last row has no end");
                        let has_blocks = matches!(func, Func::AllGather | Func::ReduceScatter);
                        let count = if has_blocks { bytes / 2 } else { bytes };
                        let explained = communicator.explain(func, DataType::U8, count).unwrap().unwrap();
                        assert_eq!(explained.choice.candidate, expected.candidate, "{explained}");
                        assert_eq!(explained.choice.reason, Reason::Tuned { row }, "{explained}");
                    }
                }
            });
        }
    });
}

#[test]
fn other_tables_of_the_file_stay() {
    let out = path("both.toml");
    let some = format!("--collectives broadcast {QUICK}");
    measured(&format!("--ranks 2 --transport tcp {some}"), &out);
    let file = measured(&format!("--ranks 3 {some}"), &out);
    assert!(file.table(Backend::CpuStreams, 2).is_some() && file.table(Backend::Cpu, 3).is_some());
    assert_eq!(file.sections.len(), 2);
}

/// The file became an empty table, and the run counted as a success.
#[test]
fn a_run_that_measured_nothing_leaves_the_file_as_it_was() {
    let out = path("kept.toml");
    let file = measured("--ranks 2 --rounds 1 --min-time 1 --sizes 8 --collectives broadcast,reduce", &out);
    let before = std::fs::read_to_string(&out).unwrap();
    let output = tune("--ranks 2 --time-budget 0.000001 --sizes 8", &out);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("before anything was measured"), "{}", said(&output));
    assert_eq!(std::fs::read_to_string(&out).unwrap(), before);
    // Of a run of one collective the others' rows stay.
    let again = measured("--ranks 2 --rounds 1 --min-time 1 --sizes 8 --collectives reduce", &out);
    let rows = |file: &TuneFile| {
        let records = &file.sections[0].records;
        records.iter().filter(|record| record.func == Func::Broadcast).cloned().collect::<Vec<_>>()
    };
    assert_eq!(rows(&again), rows(&file));
    assert!(!rows(&file).is_empty());
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_is_started() {
    let out = path("none.toml");
    for (words, expected) in [
        ("--ranks 1", "a whole number from 2 to 1024 was expected"),
        ("--ranks 2 --collectives all-to-all", "have choices, alltoall has none"),
        ("--ranks 2 --sizes 64,8", "--sizes: 1 to 16 ascending sizes"),
    ] {
        let output = tune(words, &out);
        assert!(!output.status.success() && said(&output).contains(expected), "{words}: {}", said(&output));
    }
    std::fs::write(&out, "version = 1\nmine = true\n").unwrap();
    let output = tune(&format!("--ranks 2 {QUICK}"), &out);
    assert!(said(&output).contains("line 2, mine: unknown field"), "{}", said(&output));
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "version = 1\nmine = true\n");
}

/// The same run, whose words nobody reads to the end.
#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let out = path("unread.toml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
    let words = "tune --ranks 2 --rounds 1 --min-time 1 --sizes 8 --collectives all-reduce";
    let command = command.args(words.split_whitespace()).arg("--out").arg(&out);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(tune_file::read(&out).unwrap().table(Backend::Cpu, 2).is_some());
}

/// It was a panic.
#[test]
fn a_mistake_that_nobody_reads_is_a_failure_and_no_panic() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
    let status = command.args(["tune", "--ranks", "2", "--sizes", "64,8"]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

/// Known before anything is measured; and what is there already is not lost.
#[test]
fn a_place_where_nothing_can_be_written_is_refused_at_once() {
    let nowhere = tune("--ranks 2", Path::new("/no/such/directory/tune.toml"));
    assert!(!nowhere.status.success());
    assert!(
        said(&nowhere).contains("--out /no/such/directory/tune.toml: there is no folder /no/such/directory"),
        "{}",
        said(&nowhere)
    );
    let channels = tune("--ranks 2 --channels 4", &path("channels.toml"));
    assert!(said(&channels).contains("--channels") && !channels.status.success(), "{}", said(&channels));
}
