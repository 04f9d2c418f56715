//! Random collectives over networks with injected faults, for any duration: `oxccl-soak SECONDS [SEED]`.

use oxccl_tests::counting::{Counting, check_that_it_counts, live_bytes};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::soak::{Soaked, soak};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A call that hangs ends by its timeout of a minute; this is for what has none.
const HANG: Duration = Duration::from_secs(600);
/// How often a line is written.
const TELL_EVERY: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| args.get(at).map(|text| text.parse::<u64>());
    let (seconds, seed) = match (number(0), number(1)) {
        (Some(Ok(seconds)), None) => (seconds, seed_of_the_day()),
        (Some(Ok(seconds)), Some(Ok(seed))) if args.len() == 2 => (seconds, seed),
        _ => {
            eprintln!("usage: oxccl-soak SECONDS [SEED]");
            return ExitCode::from(2);
        }
    };
    check_that_it_counts();
    println!("seed {seed}, {seconds} s");
    let _deadline = Deadline::start("oxccl-soak", Duration::from_secs(seconds) + HANG);
    let mut last_report = Duration::ZERO;
    let tell = |soaked: &Soaked, elapsed: Duration| {
        if elapsed >= last_report + TELL_EVERY || soaked.rounds == 1 {
            last_report = elapsed;
            let usage = soaked.usage.last().map(ToString::to_string).unwrap_or_default();
            println!(
                "{:6.0} s  {} rounds, {} cases: {usage}",
                elapsed.as_secs_f64(),
                soaked.rounds,
                soaked.cases
            );
        }
    };
    let outcome = soak(seed, Duration::from_secs(seconds), tell, live_bytes);
    let outcome = outcome.and_then(|soaked| soaked.check_growth().map(|()| soaked));
    match outcome {
        Ok(Soaked { rounds, cases, .. }) => {
            println!("{rounds} rounds, {cases} cases: every result is right, nothing grew");
            ExitCode::SUCCESS
        }
        Err(what) => {
            println!("FAILED: {what}");
            ExitCode::FAILURE
        }
    }
}

fn seed_of_the_day() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
