//! Layer: host / net / aggregate, in-network reduction by a program.
//! Takes: the addresses of aggregators (`OXCCL_AGGREGATOR`) and the secret that they share with the ranks.
//! Gives: [`Server`], which `oxccl aggregate` runs, and [`open`], the network that reduces through such servers.
//! Never: trusts a connection that has not proved the secret, keeps more than a stated memory for a job, or lets one
//! job wait for another.
//!
//! ```text
//! head, for each server                            server
//!   handshake over the secret            <->
//!   JOIN     job, head, number of heads   ->       all have come: a thread of the job's own
//!                                         <-  WELCOME
//!   REDUCE   number type operator data    ->       combined as far as the heads before it have come
//!                                         <-  RESULT   number data, in one part or several
//!   GATHER   number place [data]          ->       put where it belongs; the result is all heads' data
//!   SCATTER  number place type operator data  ->   combined; the result is this head's part, if it has one
//!                                         <-  FAILED   why; the job is over
//! ```
//! Heads cut an operation into fragments. Up to [`frame::WINDOW`] fragments of a head are in flight, so a job takes at
//! most that many buffers per head. Inputs are combined in the order of the heads, not of their arrival: the same
//! inputs give the same bits. What has come of all heads goes back at once, while they send the rest: the way up and the way down are one
//! pipeline, however short an operation is. Fragments of gathers and scatters are cut from the whole of all heads' blocks: of some, a
//! head sends or gets nothing. The fragments of all operations take turns among the servers.

#[doc(hidden)]
pub mod frame;
#[doc(hidden)]
pub mod table;
mod messages;
mod meeting;
mod wire;
mod seat;
mod job;
mod joining;
mod gathering;
mod server;
mod input;
mod link;
mod arriving;
mod comm;
mod client;

pub use client::{AggregatorConfig, Carriage, open};
pub use server::{Server, ServerConfig};

/// The name of the network and of the server in messages.
const NAME: &str = "aggregator";
