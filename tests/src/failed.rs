//! Layer: tests.
//! Takes: an error of a step of `oxccl-rank` or `oxccl-gpu-rank`, or a handle of its communicator.
//! Gives: the lines by which [`crate::process`] reads what a rank has found.
//! Never: decides what is right.

use oxccl::bootstrap::RankList;
use oxccl::{BootstrapError, CommHandle, ConnectError, Error, Fault};
use std::error::Error as StdError;
use std::fmt::Write as _;
use std::time::Duration;

/// Prints, from another thread, each stall that the handle knows of, and when it is over.
pub fn watch_stall(handle: CommHandle) {
    std::thread::spawn(move || {
        let mut known = None;
        loop {
            let stall = handle.stall();
            match (&stall, known) {
                (Some(stall), None) => println!(
                    "stall {:?} {} {} {} {}",
                    stall.class, stall.rank, stall.waiter, stall.during.seq, stall.during.call.func
                ),
                (None, Some(_)) => println!("moves"),
                _ => {}
            }
            known = stall;
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

/// `KIND GUILTY TEXT`: the guilty ranks separated by commas, `-` if the error names none.
pub fn describe(error: &(dyn StdError + 'static)) -> String {
    let text = error.to_string().replace('\n', " / ");
    let Some(error) = error.downcast_ref::<Error>() else { return format!("Test - {text}") };
    let (kind, guilty) = match error {
        Error::Argument(_) => ("Argument", vec![]),
        Error::Config(_) => ("Config", vec![]),
        Error::Launch(_) => ("Launch", vec![]),
        Error::Bootstrap(error) | Error::Connect(ConnectError::Bootstrap(error)) => of_bootstrap(error),
        Error::Connect(error) => of_connect(error),
        Error::Operation(error) => of_fault(&error.fault()),
        _ => ("Other", vec![]),
    };
    let mut names = String::new();
    for rank in &guilty {
        let _ = write!(names, "{}{rank}", if names.is_empty() { "" } else { "," });
    }
    format!("{kind} {} {text}", if names.is_empty() { "-" } else { &names })
}

fn of_bootstrap(error: &BootstrapError) -> (&'static str, Vec<u32>) {
    let named = |ranks: &RankList| ranks.named().iter().map(|rank| rank.0).collect();
    match error {
        BootstrapError::MissingRanks { ranks, .. } => ("MissingRanks", named(ranks)),
        BootstrapError::DuplicateRank { rank, .. } => ("DuplicateRank", vec![rank.0]),
        BootstrapError::RankOutOfRange { rank, .. } => ("RankOutOfRange", vec![rank.0]),
        BootstrapError::WorldSizeMismatch { rank, expected_by, .. } => {
            ("WorldSizeMismatch", vec![rank.0, expected_by.0])
        }
        BootstrapError::PeerLost { rank } => ("PeerDied", vec![rank.0]),
        BootstrapError::PeerAborted { rank, .. } => ("PeerAborted", vec![rank.0]),
        BootstrapError::Unplaced { .. } => ("Unplaced", vec![]),
        BootstrapError::PeerLeft { rank } => ("PeerLeft", vec![rank.0]),
        BootstrapError::PeerWentOn { rank } => ("PeerWentOn", vec![rank.0]),
        BootstrapError::CallsDiffer { rank, .. } => ("CallsDiffer", vec![rank.0]),
        BootstrapError::Timeout { ranks, .. } => ("Timeout", named(ranks)),
        BootstrapError::NoDescriptor { rank, .. } => {
            ("NoDescriptor", rank.iter().map(|rank| rank.0).collect())
        }
        BootstrapError::RootAddrTaken { .. } => ("RootAddrTaken", vec![0]),
        BootstrapError::VersionMismatch { rank, .. } => {
            ("VersionMismatch", rank.iter().map(|rank| rank.0).collect())
        }
        BootstrapError::NoInterface { .. } => ("NoInterface", vec![]),
        BootstrapError::NoAddress { .. } => ("NoAddress", vec![]),
        BootstrapError::OnlyLoopback { rank, .. } => ("OnlyLoopback", vec![rank.0]),
        BootstrapError::LoopbackDown { .. } => ("LoopbackDown", vec![]),
        BootstrapError::RootUnreachable { .. } | BootstrapError::RootLost { .. } => ("RootGone", vec![]),
        _ => ("Bootstrap", vec![]),
    }
}

fn of_connect(error: &ConnectError) -> (&'static str, Vec<u32>) {
    match error {
        ConnectError::NoTransport { rank, peer, .. } => ("NoTransport", vec![rank.0, peer.0]),
        ConnectError::Encryption { peer, .. } => ("Encryption", vec![peer.0]),
        ConnectError::Settings { peer, .. } => ("Settings", vec![peer.0]),
        ConnectError::Memory { rank, .. } => ("Memory", vec![rank.0]),
        ConnectError::Net { rank, .. } => ("Net", vec![rank.0]),
        ConnectError::PeerFailed { peer, .. } => ("PeerFailed", vec![peer.0]),
        _ => ("Connect", vec![]),
    }
}

fn of_fault(fault: &Fault) -> (&'static str, Vec<u32>) {
    match fault {
        Fault::Revoked => ("Revoked", vec![]),
        Fault::Aborted => ("Aborted", vec![]),
        Fault::PeerAborted { rank } => ("PeerAborted", vec![rank.0]),
        Fault::PeerDied { rank } => ("PeerDied", vec![rank.0]),
        Fault::PeerLeft { rank } => ("PeerLeft", vec![rank.0]),
        Fault::PeerFinalized { rank, .. } => ("PeerFinalized", vec![rank.0]),
        Fault::FinalizedEarly { rank } => ("FinalizedEarly", vec![rank.0]),
        Fault::CallsDiffer { rank, .. } => ("CallsDiffer", vec![rank.0]),
        Fault::MessagesDiffer { sender, receiver, .. } => ("MessagesDiffer", vec![sender.0, receiver.0]),
        Fault::Timeout { rank, .. } => ("Timeout", vec![rank.0]),
        Fault::PeerTimeout { rank, .. } => ("PeerTimeout", vec![rank.0]),
        Fault::Mismatch { rank, .. } => ("Mismatch", vec![rank.0]),
        Fault::Placement { rank } => ("Placement", vec![rank.0]),
        Fault::SelfMessages => ("SelfMessages", vec![]),
        Fault::Panicked => ("Panicked", vec![]),
        Fault::Link { .. } => ("Link", vec![]),
        Fault::Gpu { .. } => ("Gpu", vec![]),
    }
}
