//! Layer: tests.
//! Takes: a number of ranks.
//! Gives: ranks of one id that wait for each other for longer than a test lasts, built or to be built.
//! Never: waits itself, but for all of them.

use crate::harness::Settings;
use oxccl::bootstrap::BootstrapConfig;
use oxccl::{Communicator, CommunicatorBuilder, Config, UniqueId};
use std::time::Duration;

/// Longer than any deadline of a test: silence ends none of its waits.
const SILENCE: Duration = Duration::from_secs(500);

/// Settings of a rank.
pub fn config() -> Config {
    let config = Settings::default().config();
    let bootstrap = BootstrapConfig { timeout: SILENCE, ..config.bootstrap.clone() };
    Config { bootstrap, ..config }
}

/// An id of its own.
///
/// # Panics
/// If the loopback interface has no port.
pub fn new_id() -> UniqueId {
    UniqueId::create_by(&config().bootstrap).expect("a root on the loopback")
}

/// Ranks of one id, not yet built.
pub fn builders(nranks: u32) -> impl Iterator<Item = CommunicatorBuilder> {
    let id = new_id();
    (0..nranks)
        .map(move |rank| Communicator::builder().unique_id(id).rank(rank).ranks(nranks).config(config()))
}

/// All ranks of a communicator, of this thread.
///
/// # Panics
/// If they cannot be built.
pub fn world_of(nranks: u32) -> Vec<Communicator> {
    CommunicatorBuilder::build_all(builders(nranks)).expect("all ranks")
}
