//! As many ranks as threads and sockets of one host allow.

use std::time::{Duration, Instant};

use super::*;

const RANKS: u32 = 1024;

/// 1,024 ranks rendezvous, gather twice, and leave; each within the bootstrap's own deadline. Every rank has its
/// listener, two ring sockets and a thread of its own that serves them.
#[test]
fn a_thousand_ranks_gather() {
    if !may_open(16_384) {
        return eprintln!("skipped: {RANKS} ranks need 16,384 open files (ulimit -Hn)");
    }
    let config = BootstrapConfig { timeout: Duration::from_secs(120), ..config() };
    let id = UniqueId::create_by(&config).expect("a root on the loopback");
    let start = Instant::now();
    in_parallel(RANKS, |rank| {
        let boot = Bootstrap::connect(&id, Rank(rank), RANKS, &config).expect("all ranks come");
        let joined = start.elapsed();
        for round in 0..2u32 {
            let blocks = boot.all_gather(&(rank + round).to_le_bytes()).expect("all take part");
            assert_eq!(blocks.len(), RANKS as usize);
            let is_right = |(rank, block): (usize, &Vec<u8>)| *block == (rank as u32 + round).to_le_bytes();
            assert!(blocks.iter().enumerate().all(is_right));
        }
        if rank == 0 {
            println!("{RANKS} ranks: joined after {joined:?}, two all-gathers after {:?}", start.elapsed());
        }
        boot.close();
    });
}

/// Raises the limit of open files; whether the system then permits that many.
fn may_open(files: u64) -> bool {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let fits = |limit: Option<u64>| limit.is_none_or(|limit| limit >= files);
    fits(current)
        || fits(maximum) && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok()
}
