//! What every network offers: the shape of NCCL's net plugin table (`ncclNet_v12_t`), with ownership in the types.
//!
//! ```text
//! receiver                               sender
//! listen -> NetHandle ~~ bootstrap ~~>   connect
//! poll_accept -> RecvComm   <~~ wire ~~  poll_connect -> SendComm
//! register, irecv, test, flush           register, isend, test
//! ```
//! Nothing here waits: what cannot be done now answers `None` and is asked again. After a communicator of either side exists,
//! `isend`, `irecv`, `flush` and `test` neither allocate nor lock.

use super::error::NetError;
use core::ffi::c_void;
use core::fmt;
use std::os::fd::BorrowedFd;

/// Bytes of a [`NetHandle`] (`NCCL_NET_HANDLE_MAXSIZE`).
pub const HANDLE_BYTES: usize = 128;
/// Sends, or receives, that one communicator has under way at most; `isend` and `irecv` answer `None` beyond
/// (`NCCL_NET_MAX_REQUESTS`).
pub const REQUESTS_MAX: usize = 32;

/// Where a listener is reached and what proves that one was told: travels over the bootstrap, which is authenticated; its
/// bytes mean something to the network that made it only.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NetHandle(pub [u8; HANDLE_BYTES]);

impl fmt::Debug for NetHandle {
    /// Without the bytes: they may hold a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NetHandle(..)")
    }
}

/// One device of a network: a NIC, a port, an interface, or several merged into one.
#[derive(Clone, PartialEq, Debug)]
pub struct NetProperties {
    /// As the operating system calls it: `mlx5_0`, `eth0`.
    pub name: String,
    /// Its directory in sysfs, for its place in the topology; none for virtual devices.
    pub pci_path: Option<String>,
    /// Equal for ports of one card.
    pub guid: u64,
    /// Which memory it reads and writes.
    pub memory: MemoryKinds,
    /// Whether a registration serves every communicator of the device.
    pub registers_globally: bool,
    /// Mbit/s.
    pub speed_mbps: u32,
    /// Port number, from 1; 0 where there are none.
    pub port: u32,
    /// Microseconds of one message beside its bytes; 0 where unknown.
    pub latency_us: f32,
    /// Communicators that it can have open.
    pub comms_max: u32,
    /// Bytes of one message at most.
    pub message_max_bytes: usize,
}

bitflags::bitflags! {
    /// Kinds of memory; the bits are NCCL's (`NCCL_PTR_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct MemoryKinds: u32 {
        /// Of this process.
        const HOST = 1;
        /// Of a CUDA device, by address.
        const CUDA = 2;
        /// Of a device, by a dma-buf descriptor.
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
    /// What it is.
    pub kind: NetMemoryKind<'a>,
}

/// What registered memory is.
#[derive(Clone, Copy, Debug)]
pub enum NetMemoryKind<'a> {
    /// Memory of this process.
    Host,
    /// Memory of a CUDA device, known to the driver by its address.
    Cuda,
    /// Memory of a device behind a descriptor.
    DmaBuf {
        /// From `cuMemGetHandleForAddressRange` or its like.
        fd: BorrowedFd<'a>,
        /// Where in the buffer the memory begins.
        offset_bytes: u64,
    },
}

/// Registered memory, a number that its communicator gave.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Registration(pub u32);

/// A send, receive or flush under way, a number that its communicator gave. Valid until `test` says that it is done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use = "a request that nobody tests never ends"]
pub struct Request(pub u32);

/// A network.
pub trait Net: Send + Sync + fmt::Debug {
    /// As `NCCL_NET` selects it: `Socket`, `IB`, or a plugin's own name.
    fn name(&self) -> &str;

    /// How many devices it found; they are numbered from 0. None is not an error: the network is then not used.
    fn devices(&self) -> u32;

    /// Whether bytes are moved by the processor that drives a communicator, as over sockets, and not by the device: then several
    /// threads move more than one, each its own communicators.
    fn is_moved_by_processors(&self) -> bool {
        false
    }

    /// What `device` is.
    ///
    /// # Errors
    /// [`NetError::NoDevice`].
    fn properties(&self, device: u32) -> Result<NetProperties, NetError>;

    /// Somewhere to connect to on `device`, for one connection.
    ///
    /// # Errors
    /// [`NetError::NoDevice`], or what the device said.
    fn listen(&self, device: u32) -> Result<(NetHandle, Box<dyn Listener>), NetError>;

    /// The device from which to connect to the listener that `handle` names, where `preferred` would be best for this rank:
    /// another, where that one does not lead there.
    fn device_towards(&self, _handle: &NetHandle, preferred: u32) -> u32 {
        preferred
    }

    /// Begins a connection from `device` to the listener that `handle` names.
    ///
    /// # Errors
    /// [`NetError::BadHandle`], or what the device said.
    fn connect(&self, device: u32, handle: &NetHandle) -> Result<Box<dyn Connector>, NetError>;
}

/// A listener; closed when dropped.
pub trait Listener: Send {
    /// The communicator of whoever connected with this listener's handle, once somebody has. Strangers are refused, logged
    /// and forgotten; they delay nobody.
    ///
    /// # Errors
    /// That this end is broken, never that a stranger misbehaved.
    fn poll_accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError>;
}

/// A connection being made; given up when dropped.
pub trait Connector: Send {
    /// The communicator, once the other end has answered.
    ///
    /// # Errors
    /// The other end cannot be reached or refused. No later call succeeds.
    fn poll_connect(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError>;
}

/// What both ends of a connection do.
pub trait Comm: Send {
    /// Makes memory known to the device.
    ///
    /// # Errors
    /// [`NetError::Unsupported`] for a kind that the device does not reach; what the device said.
    ///
    /// # Safety
    /// The memory stays mapped until it is deregistered or the communicator dropped.
    unsafe fn register(&mut self, memory: NetMemory<'_>) -> Result<Registration, NetError>;

    /// Whether requests may lie in any memory of this process, registered or not; what they say of a registration is ignored then.
    fn reaches_all_memory(&self) -> bool {
        false
    }

    /// Undoes [`Self::register`]. No request may use it any more.
    ///
    /// # Errors
    /// What the device said.
    fn deregister(&mut self, registration: Registration) -> Result<(), NetError>;

    /// Moves what can be moved, and says how many bytes the request moved if it is done; of a receive, the length that came.
    ///
    /// # Errors
    /// The connection is broken; it stays so, and the error stays the same. Requests that were done before it broke may still
    /// be heard of first. A request that is not under way is an error too.
    fn test(&mut self, request: Request) -> Result<Option<usize>, NetError>;
}

/// The sending end. Dropping it ends the connection without waiting for the peer: sends that `test` has called done still
/// arrive, the others are given up.
pub trait SendComm: Comm {
    /// Begins to send `len_bytes` at `start`. Messages arrive in the order of their sends. `None`: not now, for example because
    /// the other end has no receive posted or [`REQUESTS_MAX`] are under way. A network may gather sends until it is asked for one
    /// ([`Comm::test`]): whoever sends asks soon. It is done when the network needs the bytes no
    /// longer, which may be before the peer has them.
    ///
    /// # Errors
    /// The connection is broken, or the message is longer than [`NetProperties::message_max_bytes`].
    ///
    /// # Safety
    /// The bytes lie in memory that `registration` stands for, and nobody writes them until the request is done or the
    /// communicator dropped.
    unsafe fn isend(
        &mut self,
        start: *const u8,
        len_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError>;
}

/// The receiving end. Dropping it ends the connection.
pub trait RecvComm: Comm {
    /// Whoever drives this end has a thread for it, and somebody else waits for what comes: a network may put off until a message has been
    /// seen what it would do before, even if it is more work then. To be called before the first receive, if at all.
    fn be_prompt(&mut self) {}

    /// Begins to receive a message of at most `max_bytes` at `start`. A longer one breaks the connection. `None`: not now.
    ///
    /// # Errors
    /// The connection is broken.
    ///
    /// # Safety
    /// The bytes lie in memory that `registration` stands for, and nobody reads or writes them until the request is done or
    /// the communicator dropped.
    unsafe fn irecv(
        &mut self,
        start: *mut u8,
        max_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError>;

    /// Makes what was received into device memory visible to the device. `Ok(None)`: nothing need be done.
    ///
    /// # Errors
    /// The connection is broken.
    ///
    /// # Safety
    /// As [`Self::irecv`], and the receive is done.
    unsafe fn flush(
        &mut self,
        start: *mut u8,
        len_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError>;
}
