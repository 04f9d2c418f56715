//! The interface of every network: the shape of NCCL's net plugin table (`ncclNet_v12_t`), with ownership in the
//! types.
//!
//! ```text
//! receiver                               sender
//! listen -> NetHandle ~~ bootstrap ~~>   connect
//! poll_accept -> RecvComm   <~~ wire ~~  poll_connect -> SendComm
//! register, irecv, test, flush           register, isend, test
//! ```
//! Nothing here blocks: a call that cannot proceed returns `None`, and the caller repeats it. Once a communicator of
//! either side exists, `isend`, `irecv`, `flush` and `test` neither allocate nor lock.

use super::error::NetError;
use core::ffi::c_void;
use core::fmt;
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Bytes of a [`NetHandle`] (`NCCL_NET_HANDLE_MAXSIZE`).
pub const HANDLE_BYTES: usize = 128;
/// Most sends, or receives, in flight on one communicator; beyond that `isend` and `irecv` return `None`
/// (`NCCL_NET_MAX_REQUESTS`).
pub const REQUESTS_MAX: usize = 32;

/// A listener's address and the secret that authenticates the connecting side. It travels over the authenticated
/// bootstrap; only the network that created it interprets its bytes.
#[derive(Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NetHandle(#[serde(with = "crate::wire::bytes")] pub [u8; HANDLE_BYTES]);

impl fmt::Debug for NetHandle {
    /// Omits the bytes: they may hold a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NetHandle(..)")
    }
}

/// One device of a network: a NIC, a port, an interface, or several merged into one.
#[derive(Clone, PartialEq, Debug)]
pub struct NetProperties {
    /// The operating system's name: `mlx5_0`, `eth0`.
    pub name: String,
    /// Its directory in sysfs, which gives its position in the topology; none for virtual devices.
    pub pci_path: Option<String>,
    /// Equal for all ports of one adapter.
    pub guid: u64,
    /// Kinds of memory that it can access.
    pub memory: MemoryKinds,
    /// Whether a registration is valid for every communicator of the device.
    pub registers_globally: bool,
    /// Speed in Mbit/s.
    pub speed_mbps: u32,
    /// Port number, from 1; 0 where there are none.
    pub port: u32,
    /// Latency of one message in microseconds; 0 where unknown.
    pub latency_us: f32,
    /// Most communicators open at a time.
    pub comms_max: u32,
    /// Most bytes of one message.
    pub message_max_bytes: usize,
}

bitflags::bitflags! {
    /// Kinds of memory; the bits are NCCL's (`NCCL_PTR_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct MemoryKinds: u32 {
        /// Memory of this process.
        const HOST = 1;
        /// Memory of a CUDA device, by address.
        const CUDA = 2;
        /// Memory of a device, by a dma-buf descriptor.
        const DMA_BUF = 4;
    }
}

/// Memory to register.
#[derive(Clone, Copy, Debug)]
pub struct NetMemory<'a> {
    /// Its first byte, in the address space of the kind.
    pub start: *mut c_void,
    /// Its length.
    pub len_bytes: usize,
    /// Its kind.
    pub kind: NetMemoryKind<'a>,
}

/// The kind of registered memory.
#[derive(Clone, Copy, Debug)]
pub enum NetMemoryKind<'a> {
    /// Memory of this process.
    Host,
    /// Memory of a CUDA device, known to the driver by its address.
    Cuda,
    /// Memory of a device behind a descriptor.
    DmaBuf {
        /// From `cuMemGetHandleForAddressRange` or an equivalent.
        fd: BorrowedFd<'a>,
        /// Offset of the memory in the dma-buf.
        offset_bytes: u64,
    },
}

/// Registered memory: a number assigned by its communicator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Registration(pub u32);

/// A send, receive or flush in flight: a number assigned by its communicator. Valid until `test` reports completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use = "a request that nobody tests never ends"]
pub struct Request(pub u32);

/// A network.
pub trait Net: Send + Sync + fmt::Debug {
    /// The name by which `NCCL_NET` selects it: `Socket`, `IB`, or a plugin's own.
    fn name(&self) -> &str;

    /// Number of its devices, numbered from 0. Zero is not an error: the network is then not used.
    fn devices(&self) -> u32;

    /// Whether the driving CPU thread moves the bytes, as over sockets, instead of the device. Several threads then
    /// move more than one, each with its own communicators.
    fn is_moved_by_processors(&self) -> bool {
        false
    }

    /// Whether all that connections carry is encrypted and authenticated.
    fn encrypts(&self) -> bool {
        false
    }

    /// The properties of `device`.
    ///
    /// # Errors
    /// [`NetError::NoDevice`].
    fn properties(&self, device: u32) -> Result<NetProperties, NetError>;

    /// Listens on `device` for one connection.
    ///
    /// # Errors
    /// [`NetError::NoDevice`], or the device's error.
    fn listen(&self, device: u32) -> Result<(NetHandle, Box<dyn Listener>), NetError>;

    /// The device to connect from to the listener of `handle`. It is `preferred`, which is best for this rank, unless
    /// that device has no route there.
    fn device_towards(&self, _handle: &NetHandle, preferred: u32) -> u32 {
        preferred
    }

    /// Starts a connection from `device` to the listener of `handle`.
    ///
    /// # Errors
    /// [`NetError::BadHandle`], or the device's error.
    fn connect(&self, device: u32, handle: &NetHandle) -> Result<Box<dyn Connector>, NetError>;
}

/// A listener; closed when dropped.
pub trait Listener: Send {
    /// The communicator of the peer that connected with this listener's handle, once one has. Unauthenticated
    /// connections are refused and logged; they do not delay the peer.
    ///
    /// # Errors
    /// This end is broken. A misbehaving stranger is no error.
    fn poll_accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError>;
}

/// A connection being set up; dropping it cancels that.
pub trait Connector: Send {
    /// The communicator, once the other end has answered.
    ///
    /// # Errors
    /// The other end is unreachable or refused. No later call succeeds.
    fn poll_connect(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError>;
}

/// Methods of both ends of a connection.
pub trait Comm: Send {
    /// Registers memory with the device.
    ///
    /// # Errors
    /// [`NetError::Unsupported`] for a kind of memory that the device cannot access; the device's error.
    ///
    /// # Safety
    /// The memory stays mapped until it is deregistered or the communicator dropped.
    unsafe fn register(&mut self, memory: NetMemory<'_>) -> Result<Registration, NetError>;

    /// Whether requests may use any memory of this process, registered or not; their registration is ignored then. Such a network
    /// reads and writes memory in calls of the driving thread only, so that sends can be [moved](SendComm::relocate).
    fn reaches_all_memory(&self) -> bool {
        false
    }

    /// Says of which operation the messages are that begin from now on; 0 at first. The receiving end refuses a message of another
    /// operation than its receive's. No, if this network carries no tags, at either end: the caller then has to send them itself.
    fn set_tag(&mut self, _tag: u32) -> bool {
        false
    }

    /// Undoes [`Self::register`]. No request may use it afterwards.
    ///
    /// # Errors
    /// The device's error.
    fn deregister(&mut self, registration: Registration) -> Result<(), NetError>;

    /// Makes progress. Returns the bytes that the request moved if it is complete; for a receive, the length of the
    /// message.
    ///
    /// # Errors
    /// The connection is broken; it stays so, with the same error. Requests that completed before may still be
    /// reported first. A request that is not in flight is an error too.
    fn test(&mut self, request: Request) -> Result<Option<usize>, NetError>;
}

/// The sending end. Dropping it ends the connection without waiting for the peer: sends that `test` has reported
/// complete still arrive, the others are cancelled.
pub trait SendComm: Comm {
    /// Starts to send `len_bytes` at `start`. Messages arrive in the order of their sends. `None`: not now, for
    /// example because the other end has posted no receive or [`REQUESTS_MAX`] are in flight. A network may batch
    /// sends until the next [`Comm::test`], so callers test soon. A send is complete when the network no longer needs
    /// the bytes, which may be before the peer has them.
    ///
    /// # Errors
    /// The connection is broken, or the message is longer than [`NetProperties::message_max_bytes`].
    ///
    /// # Safety
    /// The bytes lie in the memory of `registration`, and nobody writes them until the request is complete or the
    /// communicator dropped.
    unsafe fn isend(
        &mut self,
        start: *const u8,
        len_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError>;

    /// Moves a send that is under way: what has not left yet is read at `start` from now on, and the old bytes may change. No, if this
    /// network does not [reach all memory](Comm::reaches_all_memory): then nothing happens.
    ///
    /// # Safety
    /// As [`Self::isend`] of the same bytes at `start`.
    unsafe fn relocate(&mut self, _request: Request, _start: *const u8) -> bool {
        false
    }

    /// The TCP streams that carry what is sent, for who counts what passes; none, if it goes another way.
    fn streams(&self) -> Vec<Arc<TcpStream>> {
        Vec::new()
    }
}

/// The receiving end. Dropping it ends the connection.
pub trait RecvComm: Comm {
    /// Low-latency hint: a thread of its own polls this end, and another thread waits for the data. The network may
    /// peek at a message before consuming it, which defers the ACK, even at the price of more work. Call it before
    /// the first receive, if at all.
    fn be_prompt(&mut self) {}

    /// Starts to receive a message of at most `max_bytes` at `start`. A longer message breaks the connection. `None`:
    /// not now.
    ///
    /// # Errors
    /// The connection is broken.
    ///
    /// # Safety
    /// The bytes lie in the memory of `registration`, and nobody reads or writes them until the request is complete
    /// or the communicator dropped.
    unsafe fn irecv(
        &mut self,
        start: *mut u8,
        max_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError>;

    /// Makes data received into device memory visible to the device. `Ok(None)`: no flush is needed.
    ///
    /// # Errors
    /// The connection is broken.
    ///
    /// # Safety
    /// As [`Self::irecv`], and the receive is complete.
    unsafe fn flush(
        &mut self,
        start: *mut u8,
        len_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError>;
}
