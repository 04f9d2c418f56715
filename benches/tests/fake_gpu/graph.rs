//! The driver's captures and graphs.

use super::*;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamIsCapturing(on: Handle, status: *mut c_uint) -> c_int {
    unsafe { *status = capture_of(on as usize).is_some().into() };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    on: Handle,
    status: *mut c_uint,
    id: *mut u64,
    graph: *mut Handle,
    dependencies: *mut Handle,
    count: *mut usize,
) -> c_int {
    let captured = capture_of(on as usize).map_or(0, |captured| Arc::as_ptr(&captured) as usize);
    unsafe { *status = (captured != 0).into() };
    if captured != 0 {
        unsafe { set(id, captured as u64) };
        unsafe { set(graph, captured as Handle) };
        unsafe { set(dependencies, std::ptr::null_mut()) };
        unsafe { set(count, 0) };
    }
    0
}
unsafe fn set<T>(to: *mut T, value: T) {
    if !to.is_null() {
        unsafe { *to = value };
    }
}
#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(handle: Handle, mode: c_int) -> c_int {
    if mode != 1 {
        return INVALID;
    }
    let captured = Captured { items: Mutex::default(), is_open: AtomicBool::new(true) };
    *lock(&unsafe { stream(handle as usize) }.capture) = Some(Arc::new(captured));
    CAPTURES.fetch_add(1, Ordering::SeqCst);
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamEndCapture(handle: Handle, graph: *mut Handle) -> c_int {
    let Some(captured) = lock(&unsafe { stream(handle as usize) }.capture).take() else { return INVALID };
    captured.is_open.store(false, Ordering::SeqCst);
    CAPTURES.fetch_sub(1, Ordering::SeqCst);
    let items = std::mem::take(&mut *lock(&captured.items));
    unsafe { *graph = Box::into_raw(Box::new(items)).cast() };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphInstantiateWithFlags(executable: *mut Handle, graph: Handle, _: u64) -> c_int {
    let items = unsafe { &*graph.cast::<Vec<Item>>() };
    unsafe { *executable = Box::into_raw(Box::new(items.clone())).cast() };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphDestroy(graph: Handle) -> c_int {
    drop(unsafe { Box::from_raw(graph.cast::<Vec<Item>>()) });
    0
}
/// Nodes are the items' addresses.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize) -> c_int {
    let items = unsafe { &*graph.cast::<Vec<Item>>() };
    if !nodes.is_null() {
        assert!(unsafe { *count } >= items.len());
        let nodes = unsafe { std::slice::from_raw_parts_mut(nodes, items.len()) };
        nodes
            .iter_mut()
            .zip(items)
            .for_each(|(node, item)| *node = std::ptr::from_ref(item).cast_mut().cast());
    }
    unsafe { *count = items.len() };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphNodeGetType(node: Handle, kind: *mut c_uint) -> c_int {
    unsafe { *kind = if matches!(*node.cast::<Item>(), Item::Nccl(_)) { 0 } else { 1 } };
    0
}
/// `CUDA_KERNEL_NODE_PARAMS`. Every operation of NCCL has three blocks.
#[repr(C)]
struct KernelNode {
    function: Handle,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    _rest: [u64; 3],
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphKernelNodeGetParams(_: Handle, params: *mut KernelNode) -> c_int {
    unsafe { ((*params).grid, (*params).block) = ([3, 1, 1], [32, 1, 1]) };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphExecDestroy(executable: Handle) -> c_int {
    unsafe { cuGraphDestroy(executable) }
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphLaunch(executable: Handle, on: Handle) -> c_int {
    for item in unsafe { &*executable.cast::<Vec<Item>>() } {
        match item {
            Item::Nccl(op) => put(*op),
            Item::Driver(work) => submit(on as usize, work.clone()),
        }
    }
    0
}
