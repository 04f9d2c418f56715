//! Why a kernel stopped, under loom: whoever reads a reason reads one thread's. Run with `cargo xtask loom`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use oxccl_shared::abi::{KernelStop, Rank, StopCause};

/// Two blocks stopped at the same time, each waiting for another peer, and the host read the cause of one beside the peer of the
/// other: the wrong rank was blamed.
#[test]
fn a_cause_stands_beside_its_own_peer() {
    const REASONS: [(StopCause, Rank, u64); 2] =
        [(StopCause::NoData, Rank(1), 1_000), (StopCause::NoCredit, Rank(2), 2_000)];
    loom::model(|| {
        let stop = Arc::new(KernelStop::default());
        let check = |stop: &KernelStop| {
            let Some(found) = stop.read() else { return false };
            let is_one = |&(cause, peer, waited_ns): &(StopCause, Rank, u64)| {
                (found.cause, found.peer) == (cause, peer) && u64::from(found.waited_us) * 1000 == waited_ns
            };
            assert!(REASONS.iter().any(is_one), "{found:?}");
            true
        };
        let threads = REASONS.map(|(cause, peer, waited_ns)| {
            let stop = stop.clone();
            thread::spawn(move || stop.write(cause, peer, waited_ns))
        });
        check(&stop);
        threads.map(|thread| thread.join().expect("no writer fails"));
        assert!(check(&stop));
    });
}
