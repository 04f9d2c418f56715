//! Layer: host / transport / p2p.
//! Takes: a bootstrap or a `Circle`, this rank's device, the bytes that each rank needs.
//! Gives: [`Arena`]: an address on this device for every rank's memory of the same host; per pair, in GPU or host
//! memory. The same for memory of callers, [`Window`].
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
//! Two ranks share memory of their GPUs, or host memory if either's driver or user forbids that (`domains`). A rank has
//! memory in each domain that it shares: most have one allocation, ranks of a host with several kinds of pairs have
//! two. All follows from facts that all ranks have gathered, so both ends of a pair agree without further messages.
//! If a method is refused (descriptors in some containers, for example), all ranks try the next one together.
//!
//! One-sided operations have two things more: a [`Window`], which is memory of callers that the ranks of a host have mapped, and a
//! [`SignalTable`], the words in host memory that say how often a rank has signalled another.
//!
//! A communicator has one arena at init, with all ranks, and further ones for connections that are made later, with the ranks that these
//! concern. `circle` is how either vote.
//!
//! From below: `domains`, `allocation` and `info`, pure; `descriptors`, the socket; `circle`; `wanted`; `setup`; `own` and `reach`; `arena`; `signals` and
//! `window`.

mod domains;
mod allocation;
mod info;
mod error;
mod descriptors;
mod circle;
mod wanted;
mod setup;
mod own;
mod reach;
mod arena;
mod signals;
mod window;

pub use allocation::{AllocationKind, P2pSettings};
pub use arena::Arena;
pub(crate) use circle::Circle;
pub use descriptors::PassError;
pub use domains::{Domain, Domains};
pub use error::P2pError;
pub use signals::{SignalTable, SignalsWanted};
pub use wanted::{Agreed, ArenaWanted, FurtherWanted};
pub use window::{Mapping, Reach, Window, WindowWanted};
