//! `replay TARGET SEEDS SECONDS`: runs a target without libFuzzer, on its seeds, on mutations of them and on random
//! bytes. Finds less than a guided fuzzer; needs only a Rust compiler. On a panic it prints the input in hex.
//! `replay list` prints the targets.

use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Longest input made up here: longer than any message that OxCCL bounds.
const LEN_MAX: u64 = 8192;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if let [_, word] = args.as_slice()
        && word == "list"
    {
        for (known, _) in oxccl_fuzz::TARGETS {
            println!("{known}");
        }
        return ExitCode::SUCCESS;
    }
    let [_, name, folder, seconds] = args.as_slice() else {
        eprintln!("usage: replay TARGET SEEDS SECONDS");
        return ExitCode::FAILURE;
    };
    let Some((_, target)) = oxccl_fuzz::TARGETS.iter().find(|(known, _)| known == name) else {
        eprintln!("replay: no target is called '{name}'");
        return ExitCode::FAILURE;
    };
    let Ok(seconds) = seconds.parse() else {
        eprintln!("replay: '{seconds}' is no number of seconds");
        return ExitCode::FAILURE;
    };
    let seeds = read_seeds(folder);
    let mut runs = 0u64;
    for seed in &seeds {
        run(*target, seed);
        runs += 1;
    }
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    while Instant::now() < end {
        run(*target, &random.input(&seeds));
        runs += 1;
    }
    eprintln!("replay: {name}: {runs} inputs ({} seeds), no finding", seeds.len());
    ExitCode::SUCCESS
}

fn read_seeds(folder: &str) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.filter_map(|entry| std::fs::read(entry.ok()?.path()).ok()).collect()
}

fn run(target: fn(&[u8]), input: &[u8]) {
    /// Prints the input when a panic drops it.
    struct Shown<'a>(&'a [u8]);
    impl Drop for Shown<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
                eprintln!("replay: input: {hex}");
            }
        }
    }
    let shown = Shown(input);
    target(shown.0);
}

/// splitmix64: the same inputs on every run, so that a finding repeats.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A seed with a few bytes changed and perhaps cut, or bytes at random.
    fn input(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        if seeds.is_empty() || self.next().is_multiple_of(4) {
            let len = if self.next().is_multiple_of(8) { self.next() % LEN_MAX } else { self.next() % 256 };
            return (0..len).map(|_| self.next() as u8).collect();
        }
        let mut input = seeds[self.next() as usize % seeds.len()].clone();
        for _ in 0..self.next() % 4 {
            let at = self.next() as usize % input.len().max(1);
            let value = self.next() as u8;
            input.get_mut(at).into_iter().for_each(|byte| *byte = value);
        }
        if self.next().is_multiple_of(4) {
            input.truncate(self.next() as usize % (input.len() + 1));
        }
        input
    }
}
