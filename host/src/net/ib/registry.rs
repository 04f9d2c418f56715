//! The registered memory of one connection, by number.

use super::port::Port;
use super::verbs::Region;
use crate::net::{MemoryKinds, NetError, NetMemory, NetMemoryKind, Registration};
use std::io;

/// Registered memory.
pub(super) struct Registered {
    pub region: Region,
    /// Whether this process may read it, so that short messages can be inlined.
    pub is_host: bool,
}

/// Registrations; a number is reused after its memory was deregistered.
#[derive(Default)]
pub(super) struct Registry {
    entries: Vec<Option<Registered>>,
}

impl Registry {
    /// # Errors
    /// [`NetError::Unsupported`] or the driver's error.
    ///
    /// # Safety
    /// 1. The memory stays mapped until it is removed or the registry dropped.
    pub(super) unsafe fn add(
        &mut self,
        port: &Port,
        memory: NetMemory<'_>,
        relaxed: bool,
    ) -> Result<Registration, NetError> {
        let (wanted, what) = match memory.kind {
            NetMemoryKind::Host => (MemoryKinds::HOST, "host memory"),
            NetMemoryKind::Cuda => {
                (MemoryKinds::CUDA, "CUDA memory by address (the module nvidia_peermem is not loaded)")
            }
            NetMemoryKind::DmaBuf { .. } => {
                (MemoryKinds::DMA_BUF, "device memory by dma-buf (driver or libibverbs)")
            }
        };
        if !port.memory.contains(wanted) {
            return Err(NetError::Unsupported { device: port.name(), what: what.to_owned() });
        }
        let (device, start, len) = (&port.device, memory.start, memory.len_bytes);
        let region = match memory.kind {
            // SAFETY: obligation 1.
            NetMemoryKind::Host | NetMemoryKind::Cuda => unsafe {
                Region::of_memory(device, start, len, relaxed)
            },
            NetMemoryKind::DmaBuf { fd, offset_bytes } => {
                // SAFETY: obligation 1.
                unsafe { Region::of_dma_buf(device, fd, offset_bytes, start, len, relaxed) }
            }
        };
        let region = region.map_err(|error| refused(port, &error, len))?;
        let registered = Registered { region, is_host: wanted == MemoryKinds::HOST };
        let free = self.entries.iter().position(Option::is_none).unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.entries[free] = Some(registered);
        Ok(Registration(free as u32))
    }

    pub(super) fn remove(&mut self, port: &Port, registration: Registration) -> Result<(), NetError> {
        let entry = self.entries.get_mut(registration.0 as usize).and_then(Option::take);
        entry.map(drop).ok_or_else(|| unknown(port, registration))
    }

    #[inline]
    pub(super) fn get(&self, registration: Registration) -> Option<&Registered> {
        self.entries.get(registration.0 as usize)?.as_ref()
    }
}

/// The error for an unknown registration number.
#[cold]
pub(super) fn unknown(port: &Port, registration: Registration) -> NetError {
    NetError::of_call(&port.name(), "registration", format!("there is no registration {}", registration.0))
}

fn refused(port: &Port, error: &io::Error, len_bytes: usize) -> NetError {
    let hint = match error.raw_os_error() {
        Some(libc::ENOMEM) => ": is `ulimit -l` (locked memory) large enough?",
        Some(libc::EFAULT) => ": the memory is not mapped, or of a kind that the device does not reach",
        _ => "",
    };
    NetError::of_call(&port.name(), "ibv_reg_mr", format!("{len_bytes} bytes: {error}{hint}"))
}
