//! The driver's memory, which is the host's, and what streams do with it.

use super::*;

/// Zeros that begin where a page does, as the driver's memory does. Never freed.
fn pages(bytes: usize) -> Handle {
    let layout =
        std::alloc::Layout::from_size_align(bytes.max(1), 4096).expect("a size that memory can have");
    unsafe { std::alloc::alloc_zeroed(layout) }.cast()
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int {
    unsafe { (*free, *total) = (MEMORY_BYTES - lock(&USED)[device()], MEMORY_BYTES) };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_int {
    if lock(&USED)[device()] + bytes > MEMORY_BYTES {
        return 2;
    }
    let memory = pages(bytes) as usize;
    lock(&USED)[device()] += bytes;
    lock(&ALLOCATIONS).get_or_insert_default().insert(memory, (bytes, device()));
    unsafe { *address = memory as u64 };
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    let Some((bytes, device)) = lock(&ALLOCATIONS).get_or_insert_default().remove(&(address as usize)) else {
        return INVALID;
    };
    lock(&USED)[device] -= bytes;
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocAsync(address: *mut u64, bytes: usize, on: Handle) -> c_int {
    let code = unsafe { cuMemAlloc_v2(address, bytes) };
    if code == 0 {
        log("alloc", on, unsafe { *address });
    }
    code
}
#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(address: u64, on: Handle) -> c_int {
    log("free", on, address);
    cuMemFree_v2(address)
}
#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(address: u64, value: u8, bytes: usize, on: Handle) -> c_int {
    log("write", on, address);
    submit(on as usize, Work::Fill { to: address as usize, value, bytes });
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, on: Handle) -> c_int {
    log("write", on, to);
    // Pageable memory is read before the call returns.
    let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) }.to_vec();
    submit(on as usize, Work::Upload { to: to as usize, bytes });
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, on: Handle) -> c_int {
    log("read", on, from);
    submit(on as usize, Work::Copy { to: to as usize, from: from as usize, bytes });
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, on: Handle) -> c_int {
    log("read", on, from);
    log("write", on, to);
    submit(on as usize, Work::Copy { to: to as usize, from: from as usize, bytes });
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(memory: *mut Handle, bytes: usize, _: c_uint) -> c_int {
    unsafe { *memory = pages(bytes) };
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(_: Handle) -> c_int {
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(_: Handle, _: usize, _: c_uint) -> c_int {
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(_: Handle) -> c_int {
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAddressRange_v2(base: *mut u64, len: *mut usize, address: u64) -> c_int {
    let allocations = lock(&ALLOCATIONS);
    let mut all = allocations.iter().flatten();
    let around = all.find(|(start, (bytes, _))| (**start..**start + bytes).contains(&(address as usize)));
    let Some((start, (bytes, _))) = around else { return INVALID };
    unsafe { (*base, *len) = (*start as u64, *bytes) };
    0
}
/// None of its memory is of `cuMemCreate`.
#[unsafe(no_mangle)]
extern "C" fn cuMemRetainAllocationHandle(_: *mut u64, _: Handle) -> c_int {
    INVALID
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostGetDevicePointer_v2(address: *mut u64, memory: Handle, _: c_uint) -> c_int {
    unsafe { *address = memory as u64 };
    0
}
