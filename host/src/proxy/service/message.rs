//! What a local rank and a proxy say to each other, as types and as bytes.
//!
//! ```text
//! frame (bootstrap::frame)   kind: a request, or a response
//! payload (wire)             version, op, which request or result, its fields
//! ```
//! `op` is chosen by who asks, greater with each request; the answer repeats it. Answers come in any order.

use crate::bootstrap::frame::{self, Frame};
use crate::wire::{self, Message, WireError};
use oxccl_shared::abi::{ChannelId, Rank};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The version of these messages.
pub const SERVICE_VERSION: u8 = 2;
/// What a transport may say of a connection, in bytes.
pub const DATA_MAX: usize = 1024;
/// Bytes of the longest reason of a refusal.
const REASON_MAX: usize = 256;
/// The longest payload of a frame.
pub const PAYLOAD_MAX: usize = 64 + DATA_MAX;

/// A request's number, chosen by who asks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct OpId(pub u64);

/// A connection of a proxy, a number that the proxy gave.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ConnectionId(pub u32);

/// What a local rank asks of a proxy. Names are NCCL's; its `Start` is missing: operations go through
/// [`crate::proxy::progress::ProxyOrders`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// A new connection. Answer: [`Reply::Connection`].
    Init(ConnectionInfo),
    /// Memory that all connections of so many channels share.
    SharedInit {
        /// Which.
        connection: ConnectionId,
        /// How many.
        channels: u32,
    },
    /// The first half of connecting. Answer: [`Reply::Data`], for the other end.
    Setup {
        /// Which.
        connection: ConnectionId,
        /// What the transport wants to know.
        data: Vec<u8>,
    },
    /// The second half. Answer: [`Reply::Data`].
    Connect {
        /// Which.
        connection: ConnectionId,
        /// What the other end's [`Request::Setup`] was answered.
        data: Vec<u8>,
    },
    /// The end of a connection.
    Close {
        /// Which.
        connection: ConnectionId,
    },
    /// Everything shall end now.
    Abort,
    /// This rank asks nothing any more.
    Stop,
    /// A descriptor of memory, to the mailbox of that token. Answer: [`Reply::Number`], the token of the mailbox that it comes from.
    GetFd {
        /// Which.
        connection: ConnectionId,
        /// The memory.
        handle: u64,
        /// Where the descriptor shall go.
        mailbox: u64,
    },
    /// How long memory is. Answer: [`Reply::Number`].
    QueryFd {
        /// Which.
        connection: ConnectionId,
        /// The memory.
        handle: u64,
    },
    /// Makes memory known to the network. Answer: [`Reply::Number`], for [`Request::Deregister`].
    Register {
        /// Which.
        connection: ConnectionId,
        /// Its first byte, in the address space of the proxy.
        start: u64,
        /// Its length.
        len_bytes: u64,
    },
    /// Undoes it.
    Deregister {
        /// Which.
        connection: ConnectionId,
        /// What was answered.
        registration: u64,
    },
}

/// Which connection is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectionInfo {
    /// The rank at the other end.
    pub peer: Rank,
    /// The channel that it is for.
    pub channel: ChannelId,
    /// Whether the asking rank sends.
    pub is_send: bool,
}

/// The answer to a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Response {
    /// To which.
    pub op: OpId,
    /// What came of it.
    pub result: Result<Reply, Refusal>,
}

/// What came of a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// It is done.
    Done,
    /// A connection was made.
    Connection(ConnectionId),
    /// What the transport says.
    Data(Vec<u8>),
    /// A number.
    Number(u64),
}

/// Why a request was not carried out. The connection is as it was before.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    /// There is no such connection, or it is another rank's.
    #[error("this rank has no such connection")]
    NoConnection,
    /// The connection is not ready for it, or beyond it.
    #[error("the connection is {state}: too early or too late for this")]
    State {
        /// What it is.
        state: ConnectionState,
    },
    /// The connection is still busy with an earlier request.
    #[error("the connection is busy with an earlier request")]
    Busy,
    /// There are as many connections or requests under way as the proxy has room for.
    #[error("the proxy has no room for more")]
    Full,
    /// The communicator has been aborted.
    #[error("the communicator was aborted")]
    Aborted,
    /// The transport could not do it.
    #[error("{0}")]
    Failed(String),
}

/// How far a connection is. Numbers and order are NCCL's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum ConnectionState {
    /// Being made.
    Uninitialized = 0,
    /// [`Request::Init`] is done.
    Initialized = 1,
    /// [`Request::SharedInit`] is done.
    SharedInitialized = 2,
    /// [`Request::Setup`] is done.
    SetupDone = 3,
    /// [`Request::Connect`] is done.
    Connected = 4,
}

impl fmt::Display for ConnectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConnectionState::Uninitialized => "being made",
            ConnectionState::Initialized => "initialized",
            ConnectionState::SharedInitialized => "initialized with its shared memory",
            ConnectionState::SetupDone => "set up",
            ConnectionState::Connected => "connected",
        })
    }
}

/// Frame kind: a [`Request`] and its number.
const KIND_REQUEST: u8 = 1;
/// Frame kind: a [`Response`].
const KIND_RESPONSE: u8 = 2;

/// A request with its number, as it travels.
#[derive(Serialize, Deserialize)]
struct NumberedRequest {
    op: OpId,
    request: Request,
}

impl Message for NumberedRequest {
    const VERSION: u8 = SERVICE_VERSION;
    const BYTES_MAX: usize = PAYLOAD_MAX;

    fn is_sound(&self) -> bool {
        match &self.request {
            Request::Setup { data, .. } | Request::Connect { data, .. } => data.len() <= DATA_MAX,
            _ => true,
        }
    }
}

impl Message for Response {
    const VERSION: u8 = SERVICE_VERSION;
    const BYTES_MAX: usize = PAYLOAD_MAX;

    fn is_sound(&self) -> bool {
        match &self.result {
            Ok(Reply::Data(data)) => data.len() <= DATA_MAX,
            Err(Refusal::Failed(reason)) => reason.len() <= REASON_MAX,
            _ => true,
        }
    }
}

impl Request {
    /// Appends it as a frame.
    pub fn encode(&self, op: OpId, out: &mut Vec<u8>) {
        let payload = NumberedRequest { op, request: self.clone() }.to_bytes();
        frame::push(out, KIND_REQUEST, &[&payload]);
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// It is no request of this version.
    pub fn decode(frame: &Frame) -> Result<(OpId, Request), WireError> {
        if frame.kind != KIND_REQUEST {
            return Err(WireError::Form);
        }
        let NumberedRequest { op, request } = NumberedRequest::from_bytes(&frame.payload)?;
        Ok((op, request))
    }
}

impl Response {
    /// Appends it as a frame. Of a long reason only its beginning travels.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let payload = match &self.result {
            Err(Refusal::Failed(reason)) => {
                let reason = wire::cut(reason, REASON_MAX).to_owned();
                Response { op: self.op, result: Err(Refusal::Failed(reason)) }.to_bytes()
            }
            _ => self.to_bytes(),
        };
        frame::push(out, KIND_RESPONSE, &[&payload]);
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// It is no response of this version.
    pub fn decode(frame: &Frame) -> Result<Response, WireError> {
        if frame.kind != KIND_RESPONSE {
            return Err(WireError::Form);
        }
        Response::from_bytes(&frame.payload)
    }
}
