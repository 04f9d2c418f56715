//! Ranks that go on without one that was killed.

use super::launch::launch;
use oxccl_tests::deadline::Deadline;
use oxccl_tests::devices::ranks_max;
use oxccl_tests::process::SOON;
use std::time::Duration;

/// In the middle of its operations, whichever rank it is and however ranks reach each other.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_survivors_of_a_death_go_on() {
    let _deadline = Deadline::start("needs_gpu_survivors_of_a_death_go_on", Duration::from_secs(120));
    let nranks = ranks_max().min(4);
    if nranks < 3 {
        return println!("skipped: this machine has places for {nranks} ranks");
    }
    for (dead, is_net) in (0..nranks).map(|rank| (rank, false)).chain([(0, true), (nranks - 1, true)]) {
        let launch = launch(nranks).env("OXCCL_TIMEOUT", "20");
        let launch =
            if is_net { launch.env("NCCL_P2P_DISABLE", "1").env("NCCL_SHM_DISABLE", "1") } else { launch };
        let mut job =
            launch.start("check forever=all-reduce:300000 after shrink check all-reduce=4000000 drop");
        job.all_print("looping");
        let killed = job.ranks[dead as usize].kill();
        let (mut heard, mut shrunk, mut on) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        for rank in job.without(&[dead]) {
            let failure = rank.failure(SOON);
            let is_right = ["PeerDied", "Link"].contains(&failure.kind.as_str()) && failure.guilty == [dead];
            assert!(is_right, "rank {}: {failure:?}", rank.rank);
            heard = heard.max(failure.at - killed);
        }
        for (place, rank) in (0..).zip(job.without(&[dead])) {
            let line = rank.line("shrunk", SOON).text;
            let words: Vec<u64> =
                line.split(' ').skip(1).map(|word| word.parse().expect("a number")).collect();
            assert_eq!(words[..2], [place, u64::from(nranks) - 1], "rank {}: {line}", rank.rank);
            shrunk = shrunk.max(Duration::from_micros(words[2]));
            on = on.max(rank.line("checked", SOON).at - killed);
        }
        for rank in job.without(&[dead]) {
            let status = rank.end(SOON);
            assert!(status.success(), "{}", rank.transcript());
        }
        job.assert_no_files_left();
        println!(
            "rank {dead} of {nranks}, {}: errors after {heard:.1?}, shrunk in {shrunk:.1?}, the first right results after {on:.1?}",
            if is_net { "sockets" } else { "memory" }
        );
    }
}
