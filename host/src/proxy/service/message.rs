//! What a local rank and a proxy say to each other, as types and as bytes.
//!
//! ```text
//! frame (bootstrap::frame)   kind: which request, or a response
//! payload   version  op (8)  body                                  all numbers little-endian
//! ```
//! `op` is chosen by who asks, greater with each request; the answer repeats it. Answers come in any order.

use crate::bootstrap::frame::{self, Frame};
use crate::bootstrap::wire::{Malformed, Reader};
use std::fmt;

/// The version of these messages.
pub const SERVICE_VERSION: u8 = 1;
/// What a transport may say of a connection, in bytes.
pub const DATA_MAX: usize = 1024;
/// Bytes of the longest reason of a refusal.
const REASON_MAX: usize = 256;
/// The longest payload of a frame.
pub const PAYLOAD_MAX: usize = 64 + DATA_MAX;

/// A request's number, chosen by who asks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId(pub u64);

/// A connection of a proxy, a number that the proxy gave.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u32);

/// What a local rank asks of a proxy. Names and numbers are NCCL's; its `Start` (5) is missing: operations go through
/// [`crate::proxy::progress::ProxyOrders`].
#[derive(Clone, PartialEq, Eq, Debug)]
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionInfo {
    /// The rank at the other end.
    pub peer: u32,
    /// The channel that it is for.
    pub channel: u32,
    /// Whether the asking rank sends.
    pub is_send: bool,
}

/// The answer to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response {
    /// To which.
    pub op: OpId,
    /// What came of it.
    pub result: Result<Reply, Refusal>,
}

/// What came of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
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
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
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

/// How far a connection is. Numbers are NCCL's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
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

const RESPONSE: u8 = 64;

impl Request {
    /// Its number.
    pub fn kind(&self) -> u8 {
        match self {
            Request::Init(_) => 1,
            Request::SharedInit { .. } => 2,
            Request::Setup { .. } => 3,
            Request::Connect { .. } => 4,
            Request::Close { .. } => 6,
            Request::Abort => 7,
            Request::Stop => 8,
            Request::GetFd { .. } => 9,
            Request::QueryFd { .. } => 10,
            Request::Register { .. } => 11,
            Request::Deregister { .. } => 12,
        }
    }

    /// Appends it as a frame.
    pub fn encode(&self, op: OpId, out: &mut Vec<u8>) {
        let mut body = Vec::with_capacity(32);
        let connection = |id: &ConnectionId| id.0.to_le_bytes();
        match self {
            Request::Init(ConnectionInfo { peer, channel, is_send }) => {
                body.extend(peer.to_le_bytes());
                body.extend(channel.to_le_bytes());
                body.push(u8::from(*is_send));
            }
            Request::SharedInit { connection: id, channels } => {
                body.extend(connection(id));
                body.extend(channels.to_le_bytes());
            }
            Request::Setup { connection: id, data } | Request::Connect { connection: id, data } => {
                body.extend(connection(id));
                body.extend(data);
            }
            Request::Close { connection: id } => body.extend(connection(id)),
            Request::Abort | Request::Stop => {}
            Request::GetFd { connection: id, handle, mailbox } => {
                body.extend(connection(id));
                body.extend(handle.to_le_bytes());
                body.extend(mailbox.to_le_bytes());
            }
            Request::QueryFd { connection: id, handle: number }
            | Request::Deregister { connection: id, registration: number } => {
                body.extend(connection(id));
                body.extend(number.to_le_bytes());
            }
            Request::Register { connection: id, start, len_bytes } => {
                body.extend(connection(id));
                body.extend(start.to_le_bytes());
                body.extend(len_bytes.to_le_bytes());
            }
        }
        frame::push(out, self.kind(), &[&[SERVICE_VERSION], &op.0.to_le_bytes(), &body]);
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// It is no request of this version.
    pub fn decode(frame: &Frame) -> Result<(OpId, Request), Malformed> {
        let mut reader = Reader::new(&frame.payload);
        let op = head(&mut reader)?;
        if frame.kind == 1 {
            let (peer, channel) = (reader.u32()?, reader.u32()?);
            let info = ConnectionInfo { peer, channel, is_send: flag(reader.u8()?)? };
            reader.finish()?;
            return Ok((op, Request::Init(info)));
        }
        if let Some(request) =
            [(7, Request::Abort), (8, Request::Stop)].into_iter().find(|r| r.0 == frame.kind)
        {
            reader.finish()?;
            return Ok((op, request.1));
        }
        let connection = ConnectionId(reader.u32()?);
        let request = match frame.kind {
            2 => Request::SharedInit { connection, channels: reader.u32()? },
            3 | 4 => {
                let data = reader.rest();
                if data.len() > DATA_MAX {
                    return Err(Malformed);
                }
                let data = data.to_vec();
                return Ok((
                    op,
                    if frame.kind == 3 {
                        Request::Setup { connection, data }
                    } else {
                        Request::Connect { connection, data }
                    },
                ));
            }
            6 => Request::Close { connection },
            9 => Request::GetFd { connection, handle: reader.u64()?, mailbox: reader.u64()? },
            10 => Request::QueryFd { connection, handle: reader.u64()? },
            11 => Request::Register { connection, start: reader.u64()?, len_bytes: reader.u64()? },
            12 => Request::Deregister { connection, registration: reader.u64()? },
            _ => return Err(Malformed),
        };
        reader.finish()?;
        Ok((op, request))
    }
}

impl Response {
    /// Appends it as a frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut body = Vec::with_capacity(16);
        match &self.result {
            Ok(Reply::Done) => body.push(0),
            Ok(Reply::Connection(id)) => {
                body.push(1);
                body.extend(id.0.to_le_bytes());
            }
            Ok(Reply::Data(data)) => {
                body.push(2);
                body.extend(data);
            }
            Ok(Reply::Number(number)) => {
                body.push(3);
                body.extend(number.to_le_bytes());
            }
            Err(Refusal::NoConnection) => body.push(16),
            Err(Refusal::State { state }) => body.extend([17, *state as u8]),
            Err(Refusal::Busy) => body.push(18),
            Err(Refusal::Full) => body.push(19),
            Err(Refusal::Aborted) => body.push(20),
            Err(Refusal::Failed(reason)) => {
                body.push(21);
                // Not in the middle of a letter.
                let end = (0..=reason.len().min(REASON_MAX)).rev().find(|end| reason.is_char_boundary(*end));
                body.extend(&reason.as_bytes()[..end.unwrap_or(0)]);
            }
        }
        frame::push(out, RESPONSE, &[&[SERVICE_VERSION], &self.op.0.to_le_bytes(), &body]);
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// It is no response of this version.
    pub fn decode(frame: &Frame) -> Result<Response, Malformed> {
        let mut reader = Reader::new(&frame.payload);
        let op = head(&mut reader)?;
        if frame.kind != RESPONSE {
            return Err(Malformed);
        }
        let result = match reader.u8()? {
            0 => Ok(Reply::Done),
            1 => Ok(Reply::Connection(ConnectionId(reader.u32()?))),
            2 => {
                let data = reader.rest();
                let result = if data.len() <= DATA_MAX {
                    Ok(Reply::Data(data.to_vec()))
                } else {
                    return Err(Malformed);
                };
                return Ok(Response { op, result });
            }
            3 => Ok(Reply::Number(reader.u64()?)),
            16 => Err(Refusal::NoConnection),
            17 => Err(Refusal::State { state: state(reader.u8()?)? }),
            18 => Err(Refusal::Busy),
            19 => Err(Refusal::Full),
            20 => Err(Refusal::Aborted),
            21 => {
                let reason = std::str::from_utf8(reader.rest()).map_err(|_| Malformed)?;
                if reason.len() > REASON_MAX {
                    return Err(Malformed);
                }
                return Ok(Response { op, result: Err(Refusal::Failed(reason.to_owned())) });
            }
            _ => return Err(Malformed),
        };
        reader.finish()?;
        Ok(Response { op, result })
    }
}

fn head(reader: &mut Reader<'_>) -> Result<OpId, Malformed> {
    if reader.u8()? != SERVICE_VERSION {
        return Err(Malformed);
    }
    reader.u64().map(OpId)
}

fn flag(byte: u8) -> Result<bool, Malformed> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed),
    }
}

fn state(byte: u8) -> Result<ConnectionState, Malformed> {
    use ConnectionState::{Connected, Initialized, SetupDone, SharedInitialized, Uninitialized};
    let all = [Uninitialized, Initialized, SharedInitialized, SetupDone, Connected];
    all.into_iter().find(|state| *state as u8 == byte).ok_or(Malformed)
}
