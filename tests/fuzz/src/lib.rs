//! Layer: beside the tests.
//! Takes: untrusted bytes.
//! Gives: one function per input that OxCCL reads from outside; each panics if the library breaks a promise on it.
//! Never: depends on libFuzzer: the same functions run under it (`bin/libfuzzer.rs`) and without it (`bin/replay.rs`).

mod aggregator;
mod bundle;
mod environment;
mod frames;
mod handshake;
mod input;
mod messages;
mod net_message;
mod rendezvous;
mod ring;
mod slots;
mod status;
mod topology_xml;
mod tune_file;
mod unique_id;

pub use aggregator::aggregator;
pub use bundle::bundle;
pub use environment::environment;
pub use frames::frames;
pub use handshake::handshake;
pub use messages::messages;
pub use net_message::net_message;
pub use rendezvous::rendezvous;
pub use ring::ring;
pub use slots::slots;
pub use status::status;
pub use topology_xml::topology_xml;
pub use tune_file::tune_file;
pub use unique_id::unique_id;

/// A target's name and what it runs.
pub type Target = (&'static str, fn(&[u8]));

/// Every target, by its name; `cargo xtask fuzz` runs what stands here.
pub const TARGETS: &[Target] = &[
    ("aggregator", aggregator),
    ("bundle", bundle),
    ("environment", environment),
    ("frames", frames),
    ("handshake", handshake),
    ("messages", messages),
    ("net_message", net_message),
    ("rendezvous", rendezvous),
    ("ring", ring),
    ("slots", slots),
    ("status", status),
    ("topology_xml", topology_xml),
    ("tune_file", tune_file),
    ("unique_id", unique_id),
];
