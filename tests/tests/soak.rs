//! A few seconds of what `cargo xtask soak` does for an hour.

use oxccl_tests::deadline::Deadline;
use oxccl_tests::soak::soak;
use std::time::Duration;

#[test]
fn random_collectives_over_networks_with_ill_luck() {
    let _deadline =
        Deadline::start("random_collectives_over_networks_with_ill_luck", Duration::from_secs(240));
    for seed in 1..=3 {
        soak(seed, Duration::ZERO, |_, _| {}, || 0).unwrap();
    }
}
