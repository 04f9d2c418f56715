//! Layer: host / transport / p2p.
//! Takes: a bootstrap, this rank's device, the bytes that each rank needs.
//! Gives: [`Arena`]: an address on this device for every rank's memory of the same host; per pair, in GPU or host
//! memory.
//! Never: interprets an arena's content, moves data, waits for another rank without a bound, reads the environment.
//!
//! # Memory kinds, and how others map them
//! ```text
//! kind           allocated by             same process            other process
//! Device         cuMemAlloc               the address, with       64-byte handle (cuIpc)
//!                                         peer access enabled
//! Shareable      cuMemCreate, mapped      the address             file descriptor over a Unix socket, mapped
//! Pinned         cuMemHostAlloc           the address             -
//! HostFile       /dev/shm, registered     the address             the file, mapped and registered
//! ```
//! Two ranks share memory of their GPUs, or host memory if either's driver or user forbids that (`sides`). A rank has
//! memory in each domain that it shares: most have one allocation, ranks of a host with several kinds of pairs have
//! two. All follows from facts that all ranks have gathered, so both ends of a pair agree without further messages.
//! If a method is refused (descriptors in some containers, for example), all ranks try the next one together.
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
