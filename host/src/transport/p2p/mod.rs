//! Layer: host / transport / p2p.
//! Takes: a bootstrap, this rank's device, how many bytes each rank wants.
//! Gives: [`Arena`]: an address on this device for every rank's memory of the same host.
//! Never: knows what lies in an arena, moves data, waits for another rank without a bound, reads the environment.
//!
//! # Where memory lies, and how others reach it
//! ```text
//! owner's home   made by                  same process            other process
//! Device         cuMemAlloc               the address, with       64-byte handle (cuIpc)
//!                                         peer access enabled
//! Shareable      cuMemCreate, mapped      the address             file descriptor over a Unix socket, mapped
//! Pinned         cuMemHostAlloc           the address             -
//! HostFile       /dev/shm, registered     the address             the file, mapped and registered
//! ```
//! The home follows from facts that all ranks have gathered (`home`), so both ends of a pair agree without asking. What
//! turns out to be refused (descriptors in some containers, say) is tried again in the next way, by all ranks at once.
//!
//! From below: `home` and `card`, pure; `descriptors`, the socket; `meeting`; `own` and `reach`; `arena`.

mod card;
mod home;
mod error;
mod descriptors;
mod meeting;
mod own;
mod reach;
mod arena;

pub use arena::Arena;
pub use descriptors::PassError;
pub(crate) use descriptors::{Mailbox, Party};
pub use error::P2pError;
pub use home::{Home, P2pSettings};
