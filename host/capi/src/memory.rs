//! Memory for callers, and the registration of theirs.

use crate::comm::COMMS;
use crate::pointer::Out;
use crate::registry::{Handle, Registry};
use crate::result::{Failure, Outcome};
use oxccl::cuda::{Allocation, Device, DeviceMemory, Mapping};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

/// What `ncclMemAlloc` gave out, by address.
static GIVEN: Mutex<BTreeMap<u64, (Device, Memory)>> = Mutex::new(BTreeMap::new());

enum Memory {
    /// Which other processes and GPUs can map.
    Shareable(Mapping),
    /// Where the driver or the container forbids that.
    Private(DeviceMemory),
}

impl Memory {
    fn new(device: &Device, len: usize) -> Outcome<Memory> {
        // Every GPU of this process that may use the memory does, as with memory of CUDA's runtime.
        let others = (0..device.driver().device_count()).filter(|other| *other != device.ordinal());
        let others: Vec<u32> =
            others.filter(|other| device.can_access_ordinal(*other).unwrap_or(false)).collect();
        let shareable = || Allocation::new(device, len)?.map(&others);
        if device.exports_fds().unwrap_or(false) {
            match shareable() {
                Ok(mapping) => return Ok(Memory::Shareable(mapping)),
                Err(error) => tracing::info!(%error, "memory that others cannot map"),
            }
        }
        Ok(Memory::Private(DeviceMemory::uninitialised(device, len)?))
    }

    fn address(&self) -> u64 {
        match self {
            Memory::Shareable(mapping) => mapping.address(),
            Memory::Private(memory) => memory.address(),
        }
    }
}

/// `ncclMemAlloc`. Zero bytes are at null.
pub fn allocate(out: Out<*mut c_void>, len: usize) -> Outcome {
    out.write(std::ptr::null_mut(), "ptr")?;
    if len == 0 {
        return Ok(());
    }
    if len > isize::MAX as usize {
        return Err(Failure::invalid_argument(format!("size is {len}, more than memory can hold")));
    }
    let device = Device::open(Device::current()?)?;
    let memory = Memory::new(&device, len)?;
    let address = memory.address();
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(address, (device, memory));
    out.write(std::ptr::with_exposed_provenance_mut(address as usize), "ptr")
}

/// `ncclMemFree`. Null is nothing to free. Waits for the work that the GPU has, as CUDA's own does.
pub fn free(pointer: *mut c_void) -> Outcome {
    if pointer.is_null() {
        return Ok(());
    }
    let address = pointer.addr() as u64;
    let memory = GIVEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
    let Some((device, memory)) = memory else {
        return Err(Failure::invalid_argument(format!(
            "ptr ({address:#x}) is not from ncclMemAlloc, or was freed before; what cudaMalloc gave is cudaFree's"
        )));
    };
    // A broken context has no work; its memory goes with it.
    let _ = device.synchronize();
    drop(memory);
    Ok(())
}

/// A buffer that its user has announced.
pub struct Registration {
    comm: Handle,
}

static REGISTRATIONS: Registry<Registration> = Registry::new("registration", 2);

/// `ncclCommRegister`. A hint: the library's kernels use callers' buffers as they are, announced or not.
pub fn register(comm: Handle, buffer: *mut c_void, len: usize, out: Out<Handle>) -> Outcome {
    COMMS.get(comm, "comm")?.seat()?;
    out.check("handle")?;
    if buffer.is_null() {
        return Err(Failure::null("buff"));
    }
    if len == 0 || buffer.addr().checked_add(len).is_none() {
        return Err(Failure::invalid_argument(format!("size is {len}: no such buffer can exist")));
    }
    let (handle, _) = REGISTRATIONS.add(|_| Registration { comm });
    out.write(handle, "handle")
}

/// `ncclCommDeregister`. Null is what a registration that brought nothing gave.
pub fn deregister(comm: Handle, handle: Handle) -> Outcome {
    COMMS.get(comm, "comm")?;
    if handle == Handle::NULL {
        return Ok(());
    }
    if REGISTRATIONS.get(handle, "handle")?.comm != comm {
        return Err(Failure::invalid_argument("handle is of another communicator"));
    }
    REGISTRATIONS.remove(handle, "handle").map(drop)
}
