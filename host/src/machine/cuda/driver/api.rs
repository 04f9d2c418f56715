//! The functions of the driver's library in use, found by name once.

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUhostFn,
    CUipcMemHandle, CUmodule, CUstream, CUuserObject, CUuuid,
};
use libloading::Library;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

/// The place of an allocation, or a device with access to it (`CUmemLocation`). Declared here: bindings of CUDA 13.2
/// and later have a union in it, older ones have not, and both mean these bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MemLocation {
    pub kind: c_uint,
    pub id: c_int,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub(super) const LOCATION_DEVICE: c_uint = 1;

/// Properties of an allocation (`CUmemAllocationProp`).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MemAllocationProp {
    pub kind: c_uint,
    pub handle_kinds: c_uint,
    pub location: MemLocation,
    pub win32_metadata: *mut c_void,
    pub compression: u8,
    pub gpu_direct_rdma: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

/// Access of a device to a mapping (`CUmemAccessDesc`).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MemAccessDesc {
    pub location: MemLocation,
    pub flags: c_uint,
}

/// A graph's host node (`CUDA_HOST_NODE_PARAMS`), for `cuGraphAddHostNode`.
#[repr(C)]
pub(super) struct HostNodeParams {
    pub function: CUhostFn,
    pub data: *mut c_void,
}

/// A graph's kernel (`CUDA_KERNEL_NODE_PARAMS_v1`), from `cuGraphKernelNodeGetParams`.
#[repr(C)]
pub(super) struct KernelNodeParams {
    pub function: CUfunction,
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub params: *mut *mut c_void,
    pub extra: *mut *mut c_void,
}

/// A wait for a word, or a write to one (`CUstreamBatchMemOpParams`), for `cuStreamBatchMemOp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct BatchMemOp {
    pub operation: c_uint,
    pub address: CUdeviceptr,
    pub value: u64,
    pub flags: c_uint,
    pub alias: CUdeviceptr,
    pub reserved: u64,
}

/// How a kernel is launched (`CUlaunchConfig`), for `cuLaunchKernelEx`.
#[repr(C)]
pub(super) struct LaunchConfig {
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub stream: CUstream,
    pub attributes: *mut LaunchAttribute,
    pub attribute_count: c_uint,
}

/// One attribute of a launch (`CUlaunchAttribute`), of those whose value is a number.
#[repr(C)]
pub(super) struct LaunchAttribute {
    pub id: c_uint,
    pub padding: [u8; 4],
    pub value: c_int,
    pub rest: [u8; 60],
}

/// The driver's handle of an allocation (`CUmemGenericAllocationHandle`).
pub(super) type AllocationHandle = c_ulonglong;

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<MemLocation>() == 8);
    assert!(size_of::<MemAllocationProp>() == 32);
    assert!(offset_of!(MemAllocationProp, location) == 8);
    assert!(offset_of!(MemAllocationProp, win32_metadata) == 16);
    assert!(offset_of!(MemAllocationProp, gpu_direct_rdma) == 25);
    assert!(size_of::<MemAccessDesc>() == 12);
    assert!(offset_of!(MemAccessDesc, flags) == 8);
    assert!(size_of::<HostNodeParams>() == 16);
    assert!(offset_of!(HostNodeParams, data) == 8);
    assert!(size_of::<LaunchConfig>() == 56);
    assert!(offset_of!(LaunchConfig, stream) == 32);
    assert!(offset_of!(LaunchConfig, attribute_count) == 48);
    assert!(size_of::<LaunchAttribute>() == 72);
    assert!(offset_of!(LaunchAttribute, value) == 8);
    assert!(size_of::<BatchMemOp>() == 48);
    assert!(offset_of!(BatchMemOp, address) == 8);
    assert!(offset_of!(BatchMemOp, value) == 16);
    assert!(offset_of!(BatchMemOp, flags) == 24);
    assert!(offset_of!(BatchMemOp, alias) == 32);
};

/// Declares the table: a field per function, filled by name.
macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        /// Pointers to the driver's functions. Result codes are plain numbers, so that an unknown one is still a
        /// valid value.
        #[allow(non_snake_case, reason = "the driver's names, to be found in its manual")]
        pub(super) struct Api {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> u32,)*
            /// Keeps the functions loaded.
            _library: Library,
        }

        impl Api {
            /// Finds every function.
            ///
            /// # Errors
            /// The name of the first missing one.
            ///
            /// # Safety
            /// 1. `library` is NVIDIA's driver or has its interface.
            #[allow(non_snake_case, reason = "as above")]
            pub unsafe fn find(library: Library) -> Result<Api, &'static str> {
                $(
                    // SAFETY: (1) the driver exports this name with the type of its manual, which is the field's.
                    let $name = *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .map_err(|_| stringify!($name))?;
                )*
                Ok(Api { $($name,)* _library: library })
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuGetErrorName(u32, *mut *const c_char);

    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
    cuDeviceTotalMem_v2(*mut usize, CUdevice);
    cuDeviceGetAttribute(*mut c_int, c_uint, CUdevice);
    cuDeviceCanAccessPeer(*mut c_int, CUdevice, CUdevice);
    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxRelease_v2(CUdevice);
    cuCtxGetCurrent(*mut CUcontext);
    cuCtxGetDevice(*mut CUdevice);
    cuCtxPushCurrent_v2(CUcontext);
    cuCtxPopCurrent_v2(*mut CUcontext);
    cuCtxSynchronize();
    cuCtxEnablePeerAccess(CUcontext, c_uint);

    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut CUdeviceptr, usize);
    cuMemFree_v2(CUdeviceptr);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    cuMemHostUnregister(*mut c_void);
    cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);
    cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
    cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);
    cuMemGetAddressRange_v2(*mut CUdeviceptr, *mut usize, CUdeviceptr);
    cuMemGetHandleForAddressRange(*mut c_void, CUdeviceptr, usize, c_uint, c_ulonglong);
    cuPointerSetAttribute(*const c_void, c_uint, CUdeviceptr);

    cuMemCreate(*mut AllocationHandle, usize, *const MemAllocationProp, c_ulonglong);
    cuMemRelease(AllocationHandle);
    cuMemGetAllocationGranularity(*mut usize, *const MemAllocationProp, c_uint);
    cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
    cuMemAddressFree(CUdeviceptr, usize);
    cuMemMap(CUdeviceptr, usize, usize, AllocationHandle, c_ulonglong);
    cuMemUnmap(CUdeviceptr, usize);
    cuMemSetAccess(CUdeviceptr, usize, *const MemAccessDesc, usize);
    cuMemRetainAllocationHandle(*mut AllocationHandle, *mut c_void);
    cuMemExportToShareableHandle(*mut c_void, AllocationHandle, c_uint, c_ulonglong);
    cuMemImportFromShareableHandle(*mut AllocationHandle, *mut c_void, c_uint);
    cuIpcGetMemHandle(*mut CUipcMemHandle, CUdeviceptr);
    cuIpcOpenMemHandle_v2(*mut CUdeviceptr, CUipcMemHandle, c_uint);
    cuIpcCloseMemHandle(CUdeviceptr);

    cuStreamCreate(*mut CUstream, c_uint);
    cuStreamDestroy_v2(CUstream);
    cuStreamSynchronize(CUstream);
    cuStreamQuery(CUstream);
    cuStreamWaitEvent(CUstream, CUevent, c_uint);
    cuStreamWriteValue64_v2(CUstream, CUdeviceptr, u64, c_uint);
    cuStreamWaitValue64_v2(CUstream, CUdeviceptr, u64, c_uint);
    cuStreamBatchMemOp_v2(CUstream, c_uint, *mut BatchMemOp, c_uint);
    cuStreamIsCapturing(CUstream, *mut c_uint);
    cuStreamGetCaptureInfo_v2(CUstream, *mut c_uint, *mut u64, *mut CUgraph, *mut *const CUgraphNode, *mut usize);
    cuStreamUpdateCaptureDependencies(CUstream, *mut CUgraphNode, usize, c_uint);
    cuStreamBeginCapture_v2(CUstream, c_uint);
    cuStreamEndCapture(CUstream, *mut CUgraph);
    cuThreadExchangeStreamCaptureMode(*mut c_uint);
    cuEventCreate(*mut CUevent, c_uint);
    cuEventDestroy_v2(CUevent);
    cuEventRecord(CUevent, CUstream);
    cuEventQuery(CUevent);
    cuEventSynchronize(CUevent);
    cuEventElapsedTime(*mut f32, CUevent, CUevent);

    cuModuleLoadDataEx(*mut CUmodule, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
    cuModuleUnload(CUmodule);
    cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    cuFuncGetAttribute(*mut c_int, c_uint, CUfunction);
    cuFuncSetAttribute(CUfunction, c_uint, c_int);
    cuLaunchKernel(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void
    );
    cuLaunchKernelEx(*const LaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void);
    cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong);
    cuGraphLaunch(CUgraphExec, CUstream);
    cuGraphExecDestroy(CUgraphExec);
    cuGraphDestroy(CUgraph);
    cuGraphGetNodes(CUgraph, *mut CUgraphNode, *mut usize);
    cuGraphNodeGetType(CUgraphNode, *mut c_uint);
    cuGraphKernelNodeGetParams(CUgraphNode, *mut KernelNodeParams);
    cuGraphAddHostNode(*mut CUgraphNode, CUgraph, *const CUgraphNode, usize, *const HostNodeParams);
    cuLaunchHostFunc(CUstream, CUhostFn, *mut c_void);
    cuUserObjectCreate(*mut CUuserObject, *mut c_void, CUhostFn, c_uint, c_uint);
    cuUserObjectRelease(CUuserObject, c_uint);
    cuGraphRetainUserObject(CUgraph, CUuserObject, c_uint, c_uint);
}
