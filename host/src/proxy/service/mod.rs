//! Layer: host / proxy / service.
//! Takes: the ranks of a host that use one rank's proxy, the communicator's secret, a transport that carries requests out.
//! Gives: [`Service`], the protocol as a state machine; [`ProxyServer`], which runs it for the ranks of a host, and
//! [`ProxyClient`], with which a rank asks.
//! Never: moves data (that is [`super::progress`]), believes a byte of a rank that has not proved to belong to the job.
//!
//! From below: `message`, what is said; `state`, which has no sockets and no clock; the sockets around it.

mod message;
mod state;
mod memory;
mod transport;
mod server;
mod client;

#[cfg(test)]
mod tests;

pub use client::{ClientError, ProxyClient};
pub use memory::{BlockError, SharedBlock};
pub use message::{
    ConnectionId, ConnectionInfo, ConnectionState, DATA_MAX, OpId, PAYLOAD_MAX, Refusal, Reply, Request,
    Response, SERVICE_VERSION,
};
pub use server::{ProxyServer, ProxyServerConfig};
pub use state::{
    CONNECTIONS_MAX, ClientId, Event, JoinError, REQUESTS_UNDER_WAY_MAX, Service, Task, TaskId, Violation,
};
pub use transport::{BLOCK_HANDLE, MadeEnds, NetTransport, ProxyTransport};
