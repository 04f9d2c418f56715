//! Another rank's memory on the same host, read by the rank that receives.

/// The memory of a rank, which may be another process's.
pub trait RemoteMemory: Send + Sync {
    /// Copies `len_bytes` from `address` of that rank to `dst`.
    ///
    /// # Errors
    /// [`Unreadable`]; some of `dst` may have been written.
    ///
    /// # Safety
    /// 1. `dst` is writable for `len_bytes`.
    /// 2. That rank has offered so many bytes at `address`, and keeps them readable until it hears the answer or withdraws.
    unsafe fn read(&self, dst: *mut u8, address: u64, len_bytes: usize) -> Result<(), Unreadable>;
}

/// Memory could not be read: it is of another kind (a device's, say), the operating system refuses, or the process has ended. Of an end the
/// bootstrap tells all that wait for that rank. A process whose first thread has ended cannot be read either, and may go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unreadable;
