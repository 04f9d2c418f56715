//! Layer: host / transport / p2p.
//! Takes: a bootstrap, this rank's device, how many bytes each rank wants.
//! Gives: [`Arena`]: an address on this device for every rank's memory of the same host; per pair, on GPUs or on the host.
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
//! Two ranks meet in memory of their GPUs, or on the host if either's driver or user forbids it (`sides`). A rank has memory where it
//! meets others: most have one piece, ranks of a host with several kinds of pairs have two. All follows from facts that all ranks
//! have gathered, so both ends of a pair agree without asking. What
//! turns out to be refused (descriptors in some containers, say) is tried again in the next way, by all ranks at once.
//!
//! From below: `sides`, `home` and `card`, pure; `descriptors`, the socket; `meeting`; `own` and `reach`; `arena`.

mod sides;
mod card;
mod home;
mod error;
mod descriptors;
mod meeting;
mod own;
mod reach;
mod arena;

pub use arena::{Arena, ArenaWanted};
pub use descriptors::PassError;
pub(crate) use descriptors::{Mailbox, Party};
pub use error::P2pError;
pub use home::{Home, P2pSettings};
pub use sides::{Side, Sides};
