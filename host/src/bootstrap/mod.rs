//! Layer: host / bootstrap: between the operating system's sockets and everything that connects ranks.
//! Takes: a [`UniqueId`], a rank, the number of ranks.
//! Gives: [`Bootstrap`], which has found all ranks, and [`Watch`], which reports the loss of one.
//! Never: reads the environment, waits without a bound, or reads anything from a connection that has not proved to
//! belong to the job.
//!
//! Every rank registers with the root and learns its successor in the ring and its parent in a tree; both then carry
//! membership events, and the tree all-gathers. The modules with decisions have no sockets or clocks (`credentials`, `handshake`, `session`, `frame`,
//! `side`, `rendezvous`, `gather`, `gather_tree`, `long_waits`, `ring`, `attempts`); the modules with sockets are thin (`sock`, `channel`, `acceptor`, `root`, `root_help`, `root_address`, `join`, `state`, `ring_repair`,
//! `service`). One thread per communicator and rank serves all of its sockets with poll(2); the root has another for
//! the duration of the rendezvous, and some more for the handshakes of many ranks.
//!
//! From below: `secret`; `credentials`; the state machines; the sockets that drive them; `endpoint`, `watch`, `split` and `agree`.

mod rank_list;
mod error;
pub(crate) mod iface;
mod config;
#[doc(hidden)]
pub mod secret;
#[doc(hidden)]
pub mod frame;
#[doc(hidden)]
pub mod session;
mod noise;
#[doc(hidden)]
pub mod credentials;
#[doc(hidden)]
pub mod handshake;
mod id;
mod side;
#[doc(hidden)]
pub mod rendezvous_wire;
#[doc(hidden)]
pub mod rendezvous;
mod gather;
#[doc(hidden)]
pub mod ring_wire;
mod gather_tree;
mod long_waits;
#[doc(hidden)]
pub mod ring;
mod cancel;
pub(crate) mod silence;
pub(crate) mod sock;
pub(crate) mod tcp_info;
pub(crate) mod attempts;
pub(crate) mod channel;
pub(crate) mod acceptor;
mod root_help;
mod root;
mod root_address;
mod join;
mod incidents;
mod links;
mod state;
mod ring_repair;
mod service;
mod reach;
mod endpoint;
mod agree;
mod watch;
mod split;

pub use agree::Agreement;
pub use cancel::Cancel;
pub use config::BootstrapConfig;
pub(crate) use config::PEER_DEAD_AFTER;
pub use endpoint::Bootstrap;
pub(crate) use error::limit_secs;
pub use error::{AuthFailure, BootstrapError, CallsInTimeout, Claimant, Occupant, Strangers};
pub use id::{UNIQUE_ID_BYTES, UniqueId, UniqueIdError};
pub use iface::InterfaceFilter;
pub use incidents::{Counts, Incidents, Searches};
pub use links::{LinkCounts, Links};
pub use rank_list::{RANKS_NAMED_MAX, RankList};
pub use reach::Reach;
pub use ring::PeerEvent;
pub use silence::Neighbour;
pub(crate) use split::by_numbers_here;
pub use state::Place;
pub use watch::Watch;

#[cfg(test)]
mod tests;
