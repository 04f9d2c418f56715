//! Many ranks as processes of one host: how long they take to have a communicator, and how much memory.

use oxccl_tests::process::{Launch, SOON};
use std::time::Instant;

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-rank");

/// Figures, for docs/measurements: `cargo nextest run -p oxccl-tests --run-ignored only how_long_many_ranks --no-capture`.
#[test]
#[ignore = "measures"]
fn how_long_many_ranks_take_to_join() {
    for (transport, sizes) in [("shm", &[2, 16, 64][..]), ("tcp", &[2, 16, 64, 256])] {
        for &nranks in sizes {
            for _ in 0..3 {
                let launch = Launch::new(RANK, nranks).env("OXCCL_TRANSPORT", transport);
                let begun = Instant::now();
                let mut job = launch.start("join idle");
                job.ranks.iter_mut().for_each(|rank| drop(rank.line("step join", 6 * SOON)));
                let started = begun.elapsed();
                job.ranks.iter_mut().for_each(|rank| drop(rank.line("step idle", 6 * SOON)));
                let joined = begun.elapsed();
                let kib: u64 = job.ranks.iter().map(|rank| own_kib(rank.pid())).sum();
                println!(
                    "{nranks} ranks over {transport}: all processes joining after {started:?}, all joined after {joined:?}, {} KiB of memory each",
                    kib / u64::from(nranks)
                );
            }
        }
    }
}

/// Memory of a process, pages that it shares divided among those that have them.
fn own_kib(pid: u32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("a process of ours");
    let pss = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).expect("its share");
    pss.trim().trim_end_matches(" kB").parse().expect("a number")
}
