//! Random faults of ranks that are processes on GPUs: the report names the rank, the operation and what is wrong with it, in time.
//!
//! `OXCCL_TEST_FAULTS=N` makes it N faults, `OXCCL_TEST_SEED=S` begins with that seed. It ends in a table: of each class how many there
//! were, how many were named as they are, and how long after the warn time (a fault that is an error: after it happened) the last rank knew.

mod fault;
mod what;

use fault::Fault;
use oxccl_tests::devices::ranks_max;
use oxccl_tests::hosts::Hosts;
use oxccl_tests::random::Random;
use std::panic::catch_unwind;
use std::time::{Duration, Instant};
use what::What;

const FAULTS: u64 = 20;

/// What can be brought about here.
fn classes() -> Vec<What> {
    let has_hosts = Hosts::new("try", 1).and_then(|host| host.slow_down(0, 50));
    if let Err(why) = &has_hosts {
        println!("no slow links: {why}");
    }
    What::ALL.into_iter().filter(|what| *what != What::LinkSlow || has_hosts.is_ok()).collect()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// `class injected right: seconds least, median, most`.
fn print_table(results: &[(What, Option<Duration>)]) {
    println!("{:<14} injected  right  s after the warn time, or the fault: least median most", "class");
    for what in What::ALL {
        let of_class: Vec<Option<Duration>> =
            results.iter().filter(|(found, _)| *found == what).map(|(_, time)| *time).collect();
        let mut times: Vec<f64> = of_class.iter().flatten().map(Duration::as_secs_f64).collect();
        times.sort_by(f64::total_cmp);
        let at = |share: usize| {
            times.get((times.len().saturating_sub(1)) * share / 2).copied().unwrap_or(f64::NAN)
        };
        println!(
            "{:<14} {:>8} {:>6}  {:.2} {:.2} {:.2}",
            format!("{what:?}"),
            of_class.len(),
            times.len(),
            at(0),
            at(1),
            at(2),
        );
    }
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_random_faults_are_named() {
    if ranks_max() < 2 {
        return println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    let first = number("OXCCL_TEST_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let faults = number("OXCCL_TEST_FAULTS").unwrap_or(FAULTS);
    println!("OXCCL_TEST_SEED={first}");
    let classes = classes();
    let (began, mut results) = (Instant::now(), Vec::new());
    for seed in first..first + faults {
        let fault = Fault::new(&mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)), &classes);
        // What does not come in time is a panic, which has said what.
        let result = catch_unwind(|| fault.run()).unwrap_or_else(|_| Err("not in time".to_owned()));
        match &result {
            Ok(after) => println!("seed {seed}: {fault}: named, {:.2} s", after.as_secs_f64()),
            Err(error) => println!("OXCCL_TEST_SEED={seed}: {fault}: WRONG: {error}"),
        }
        results.push((fault.what, result.ok()));
    }
    println!("{faults} faults in {:.1} s", began.elapsed().as_secs_f64());
    print_table(&results);
    let wrong = results.iter().filter(|(_, time)| time.is_none()).count();
    assert_eq!(wrong, 0, "of {faults} were not named as they are");
}

/// Kernels wait in other places, and by other threads, in each of them. In one-shot and two-shot kernels by LL128 those that wait never said so:
/// nobody was named before the timeout.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_a_missing_call_is_named_by_every_algorithm_and_protocol() {
    if ranks_max() < 2 {
        return println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    // What an all-reduce of two GPUs of a host can be.
    let all: &[(&str, &[&str])] = &[
        ("ring", &["LL", "LL128", "Simple"]),
        ("tree", &["LL", "LL128", "Simple"]),
        ("oneshot", &["LL", "Simple"]),
        ("twoshot", &["LL", "LL128"]),
    ];
    for (algorithm, protocols) in all {
        for protocol in *protocols {
            let fault = Fault::missing_call(algorithm, protocol);
            let after = fault.run().unwrap_or_else(|error| panic!("{fault}: {error}"));
            println!("{fault}: named, {:.2} s", after.as_secs_f64());
        }
    }
}
