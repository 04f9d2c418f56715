//! GPU errors, with advice for the user.

use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// A GPU as messages name it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct DeviceId {
    /// Its CUDA ordinal in this process (`CUDA_VISIBLE_DEVICES`).
    pub ordinal: u32,
    /// Its PCI address, the same in every process.
    pub bus: PciBus,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {} ({})", self.ordinal, self.bus)
    }
}

/// A PCI address. Parts of one GPU (MIG) share it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct PciBus {
    /// PCI domain.
    pub domain: u32,
    /// Bus within the domain.
    pub bus: u8,
    /// Device on the bus.
    pub device: u8,
}

impl fmt::Display for PciBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.0", self.domain, self.bus, self.device)
    }
}

/// A driver's result code, with its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CuResult {
    /// The number, of the driver's `CUresult`.
    pub code: u32,
    /// The name; "unknown result" if the driver has none.
    pub name: &'static str,
}

impl CuResult {
    /// Whether a context is broken by it.
    pub(crate) fn is_fault(self) -> bool {
        is_fault(self.code)
    }
}

impl fmt::Display for CuResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.code)
    }
}

/// A version of CUDA in the driver's encoding: 1000 times the major number plus 10 times the minor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DriverVersion(pub u32);

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// Why an operation on a GPU failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver's library is not there.
    #[error(
        "no NVIDIA driver: none of {tried} could be loaded ({why}); install the driver, or give the container the GPUs \
         (docker run --gpus all)"
    )]
    NoDriver {
        /// File names, in the order tried.
        tried: String,
        /// The loader's error for the first.
        why: String,
    },
    /// The driver lacks a function that this library needs.
    #[error("the NVIDIA driver speaks CUDA {found}, {needed} or newer is needed{}; update the driver", lacks(.missing))]
    DriverTooOld {
        /// The driver's version of CUDA.
        found: DriverVersion,
        /// The oldest supported version.
        needed: DriverVersion,
        /// The first missing function, if one is missing.
        missing: Option<&'static str>,
    },
    /// The driver could not start.
    #[error("the NVIDIA driver did not start: {result}; {}", hint(.result.code))]
    Start {
        /// Result of `cuInit`.
        result: CuResult,
    },
    /// There is a driver but no GPU.
    #[error(
        "the NVIDIA driver sees no GPU; compare nvidia-smi -L with CUDA_VISIBLE_DEVICES, and whether the container was \
         given GPUs"
    )]
    NoDevice,
    /// A device number that does not exist.
    #[error("there is no GPU {ordinal}: this process sees {count} (CUDA_VISIBLE_DEVICES hides others)")]
    NoSuchDevice {
        /// Number of devices.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// An allocation failed.
    #[error("{device}: no {wanted_bytes} bytes of {kind}: {free_bytes} of {total_bytes} bytes are free; {}", memory_hint(.kind))]
    OutOfMemory {
        /// The device.
        device: DeviceId,
        /// Kind of memory.
        kind: MemoryKind,
        /// Bytes requested.
        wanted_bytes: usize,
        /// Bytes the device has free.
        free_bytes: usize,
        /// Bytes the device has.
        total_bytes: usize,
    },
    /// The driver refused an image.
    #[error("{device} (sm_{sm}) cannot run a module: {result}; {}{}", hint(.result.code), said(.log))]
    Module {
        /// The device.
        device: DeviceId,
        /// Its compute capability, major times ten plus minor.
        sm: u32,
        /// The driver's result.
        result: CuResult,
        /// The log of the driver's compiler.
        log: String,
    },
    /// A module has no such kernel.
    #[error("{device}: the module has no kernel {name:?}; is it of another version than this library?")]
    NoFunction {
        /// The device.
        device: DeviceId,
        /// The kernel asked for.
        name: String,
    },
    /// A kernel broke the device's context: this process cannot use the device any more.
    #[error(
        "{device}: {} faulted: {result}, found by {operation}; {}", kernel_name(.kernel), hint(.result.code)
    )]
    Fault {
        /// The device.
        device: DeviceId,
        /// The kernel, if known: the driver reports only that one faulted.
        kernel: Option<String>,
        /// The call that reported it.
        operation: &'static str,
        /// The driver's result.
        result: CuResult,
    },
    /// Any other failed call.
    #[error("{device}: {operation} failed: {result}; {}", hint(.result.code))]
    Call {
        /// The device.
        device: DeviceId,
        /// The driver's function.
        operation: &'static str,
        /// The driver's result.
        result: CuResult,
    },
}

/// Kinds of memory that a device's error can be about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryKind {
    /// On the device.
    Device,
    /// On the host, pinned.
    PinnedHost,
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            MemoryKind::Device => "device memory",
            MemoryKind::PinnedHost => "pinned host memory",
        })
    }
}

/// Result codes that this library handles.
pub(crate) mod code {
    pub const INVALID_VALUE: u32 = 1;
    pub const OUT_OF_MEMORY: u32 = 2;
    pub const DEINITIALIZED: u32 = 4;
    pub const NO_DEVICE: u32 = 100;
    pub const NOT_FOUND: u32 = 500;
    pub const NOT_READY: u32 = 600;
    pub const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;
    pub const NOT_SUPPORTED: u32 = 801;
    pub const INVALID_CLUSTER_SIZE: u32 = 912;
    pub const STREAM_CAPTURE_INVALIDATED: u32 = 901;
}

impl CudaError {
    /// The same error, with the kernel that is known to have run when a [`CudaError::Fault`] was found.
    pub fn in_kernel(mut self, name: &str) -> CudaError {
        if let CudaError::Fault { kernel: kernel @ None, .. } = &mut self {
            *kernel = Some(name.to_owned());
        }
        self
    }

    /// Classifies an error that concerns no particular object.
    pub(crate) fn of_call(device: DeviceId, operation: &'static str, result: CuResult) -> CudaError {
        if is_fault(result.code) {
            CudaError::Fault { device, kernel: None, operation, result }
        } else {
            CudaError::Call { device, operation, result }
        }
    }

    /// The driver's result, if there is one.
    pub fn result(&self) -> Option<CuResult> {
        match self {
            CudaError::Start { result }
            | CudaError::Module { result, .. }
            | CudaError::Fault { result, .. }
            | CudaError::Call { result, .. } => Some(*result),
            _ => None,
        }
    }
}

/// Whether a code means that the context is lost.
fn is_fault(code: u32) -> bool {
    // ECC, NVLink, illegal address, launch timeout, assert, the hardware's traps, launch failed, contained errors.
    matches!(code, 214 | 220 | 226 | 700 | 702 | 710 | 714..=719 | 721)
}

/// Advice for a result code.
fn hint(code: u32) -> &'static str {
    match code {
        1 => "an argument is out of the driver's range; this is a fault of the library or of its caller",
        2 => "memory ran out",
        3 | 4 => "the driver is shutting down: do not use GPUs from destructors that run at exit",
        34 => "a stub library was loaded; take the toolkit's stubs folder out of LD_LIBRARY_PATH",
        46 => "the GPU is in use or in a mode that refuses this process (nvidia-smi -q -d COMPUTE)",
        100 => "no GPU is visible (nvidia-smi -L, CUDA_VISIBLE_DEVICES)",
        101 => "there is no such GPU in this process",
        200 | 209 => {
            "the module was built for another kind of GPU; build it for this one (cargo xtask build-ptx --sm)"
        }
        201 => "the thread has no usable CUDA context; was the device reset?",
        214 => "an uncorrectable memory error: the GPU needs a reset or repair (nvidia-smi -q -d ECC)",
        217 => {
            "these GPUs cannot reach each other's memory; NCCL_P2P_DISABLE=1 takes the way through the host"
        }
        218 => "the PTX does not assemble; the driver's log follows",
        220 => "an NVLink failed (nvidia-smi nvlink -s)",
        222 => "the PTX is newer than the driver; update the driver or build older PTX",
        304 | 999 => "the operating system refused it; see dmesg (NVRM, Xid)",
        700 => "a kernel touched memory that it may not; run under compute-sanitizer",
        702 => "a kernel ran longer than the display watchdog allows",
        719 => "a kernel trapped; run under compute-sanitizer",
        712 | 713 => "memory was registered twice or never",
        800 => "the driver does not permit it here (container, MPS or MIG settings)",
        801 => "this GPU, driver or platform cannot do it",
        802 => "the system is not ready: is nvidia-fabricmanager running?",
        803 => "the driver's library and kernel module differ in version; reboot or reinstall the driver",
        804 => "the CUDA compat library does not support this GPU; take it out of LD_LIBRARY_PATH",
        900..=908 => "the stream is capturing a graph, which does not allow this",
        _ => "see the CUDA driver's manual under CUresult",
    }
}

fn memory_hint(kind: &MemoryKind) -> &'static str {
    match kind {
        MemoryKind::Device => {
            "free memory of other processes (nvidia-smi) or make buffers smaller (NCCL_BUFFSIZE)"
        }
        MemoryKind::PinnedHost => {
            "check ulimit -l, the container's memory limit and free memory, or make buffers smaller (NCCL_BUFFSIZE)"
        }
    }
}

fn lacks(missing: &Option<&'static str>) -> String {
    missing.map_or_else(String::new, |name| format!(" ({name} is missing)"))
}

fn said(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("; its compiler said: {log}") }
}

fn kernel_name(kernel: &Option<String>) -> String {
    kernel.as_ref().map_or_else(|| "a kernel".to_owned(), |name| format!("kernel {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceId = DeviceId { ordinal: 3, bus: PciBus { domain: 0, bus: 0x4e, device: 0 } };

    #[test]
    fn errors_name_device_operation_number_and_remedy() {
        let result = CuResult { code: 801, name: "CUDA_ERROR_NOT_SUPPORTED" };
        let said = CudaError::of_call(DEVICE, "cuMemCreate", result).to_string();
        for part in ["GPU 3 (0000:4e:00.0)", "cuMemCreate", "CUDA_ERROR_NOT_SUPPORTED (801)", "cannot do it"]
        {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn a_broken_context_is_a_fault_that_takes_the_kernels_name_once() {
        let result = CuResult { code: 700, name: "CUDA_ERROR_ILLEGAL_ADDRESS" };
        let fault = CudaError::of_call(DEVICE, "cuStreamSynchronize", result);
        assert!(fault.to_string().contains("a kernel faulted"));
        let named = fault.in_kernel("all_reduce").in_kernel("another");
        assert!(named.to_string().contains("GPU 3 (0000:4e:00.0): kernel all_reduce faulted"), "{named}");
        let refused = CudaError::of_call(DEVICE, "f", CuResult { code: 1, name: "x" });
        assert_eq!(refused.clone().in_kernel("k"), refused);
    }

    #[test]
    fn memory_errors_say_how_much() {
        let error = CudaError::OutOfMemory {
            device: DEVICE,
            kind: MemoryKind::Device,
            wanted_bytes: 4096,
            free_bytes: 17,
            total_bytes: 99,
        };
        let said = error.to_string();
        assert!(said.contains("no 4096 bytes of device memory: 17 of 99 bytes are free"), "{said}");
        assert!(said.contains("NCCL_BUFFSIZE"), "{said}");
    }
}
