//! Another rank's memory on the same host, read by the rank that receives.

/// The memory of a rank, which may be another process's.
pub trait RemoteMemory: Send + Sync {
    /// Copies `len_bytes` from `address` of that rank to `dst`.
    ///
    /// # Errors
    /// [`RemoteError`]; some of `dst` may have been written.
    ///
    /// # Safety
    /// 1. `dst` is writable for `len_bytes`.
    /// 2. That rank has offered so many bytes at `address`, and keeps them readable until it hears the answer or withdraws.
    unsafe fn read(&self, dst: *mut u8, address: u64, len_bytes: usize) -> Result<(), RemoteError>;
}

/// Why memory could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoteError {
    /// The rank's process has ended.
    Gone,
    /// It is memory of another kind (of a device, say), or the operating system refuses.
    Unreadable,
}
