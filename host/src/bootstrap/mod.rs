//! Layer: host / bootstrap: between the operating system's sockets and everything that connects ranks.
//! Takes: a [`UniqueId`], a rank, the number of ranks.
//! Gives: [`Bootstrap`], which has found all ranks, and [`Watch`], which tells when one is lost.
//! Never: reads the environment, waits without a bound, or reads anything from a connection that has not proved to
//! belong to the job.
//!
//! Every rank registers with the root and learns who is next in the ring; the ring then carries all-gathers and
//! membership events. What decides is free of sockets and clocks (`handshake`, `frame`, `rendezvous`, `gather`, `ring`); what
//! has sockets is thin (`sock`, `acceptor`, `root`, `join`, `state`, `ring_repair`, `service`). One thread per communicator and rank
//! serves all of its sockets with poll(2); the root has another, for as long as the rendezvous lasts.
//!
//! From below: `secret`; the state machines; the sockets that drive them; `endpoint`, `watch`, `split` and `agree`.

mod error;
pub(crate) mod iface;
mod config;
#[doc(hidden)]
pub mod secret;
#[doc(hidden)]
pub mod frame;
#[doc(hidden)]
pub mod handshake;
mod id;
#[doc(hidden)]
pub mod rendezvous_wire;
#[doc(hidden)]
pub mod rendezvous;
mod gather;
#[doc(hidden)]
pub mod ring_wire;
#[doc(hidden)]
pub mod ring;
pub(crate) mod sock;
pub(crate) mod acceptor;
mod root;
mod join;
mod state;
mod ring_repair;
mod service;
mod endpoint;
mod agree;
mod watch;
mod split;

pub use agree::Agreement;
pub use config::BootstrapConfig;
pub use endpoint::Bootstrap;
pub use error::{AuthFailure, BootstrapError, RANKS_NAMED_MAX, RankList};
pub use id::{UNIQUE_ID_BYTES, UniqueId, UniqueIdError};
pub use iface::InterfaceFilter;
pub use ring::PeerEvent;
pub use watch::Watch;

#[cfg(test)]
mod tests;
