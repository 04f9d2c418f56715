//! The functions of libnccl.so.2, each looked up once, with the types that nccl.h gives them; those that early releases lack are
//! optional.

use libloading::os::unix::Library;
use std::ffi::{c_char, c_int, c_void};

/// ncclComm_t: opaque.
pub type Comm = *mut c_void;
/// cudaStream_t is the driver's CUstream.
pub type CudaStream = *mut c_void;
/// ncclResult_t.
pub type Code = c_int;
/// ncclDataType_t and ncclRedOp_t: C enums.
pub type DataTypeCode = c_int;
pub type OpCode = c_int;

/// ncclSuccess.
pub const SUCCESS: Code = 0;
/// ncclInProgress: no error, of a communicator that does not block.
pub const IN_PROGRESS: Code = 7;
/// NCCL_WIN_COLL_SYMMETRIC.
pub const SYMMETRIC: c_int = 1;
/// ncclScalarHostImmediate: the scalar is read during the call.
pub const HOST_IMMEDIATE: c_int = 1;

/// ncclUniqueId: 128 opaque bytes, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId {
    pub internal: [c_char; 128],
}

const _: () = assert!(size_of::<UniqueId>() == 128 && align_of::<UniqueId>() == 1);

type In = *const c_void;
type Out = *mut c_void;

macro_rules! symbols {
    (
        required { $($need:ident = $nname:literal: fn($($narg:ty),*) $(-> $nret:ty)?;)+ }
        optional { $($may:ident = $mname:literal: fn($($marg:ty),*) $(-> $mret:ty)?;)+ }
    ) => {
        /// Addresses inside the library; good for as long as it is open.
        pub struct Symbols {
            $(pub $need: unsafe extern "C" fn($($narg),*) $(-> $nret)?,)+
            $(pub $may: Option<unsafe extern "C" fn($($marg),*) $(-> $mret)?>,)+
        }

        impl Symbols {
            /// Looks all of them up.
            ///
            /// # Errors
            /// The name of the first that is missing and needed.
            pub fn find(library: &Library) -> Result<Symbols, &'static str> {
                Ok(Symbols {
                    $($need: {
                        // SAFETY: the type is that of the function of this name in nccl.h.
                        let symbol = unsafe { library.get::<unsafe extern "C" fn($($narg),*) $(-> $nret)?>($nname.as_bytes()) };
                        *symbol.map_err(|_| $nname)?
                    },)+
                    $($may: {
                        // SAFETY: as above.
                        let symbol = unsafe { library.get::<unsafe extern "C" fn($($marg),*) $(-> $mret)?>($mname.as_bytes()) };
                        symbol.ok().map(|symbol| *symbol)
                    },)+
                })
            }
        }
    };
}

symbols! {
    required {
        get_version = "ncclGetVersion": fn(*mut c_int) -> Code;
        get_unique_id = "ncclGetUniqueId": fn(*mut UniqueId) -> Code;
        comm_init_rank = "ncclCommInitRank": fn(*mut Comm, c_int, UniqueId, c_int) -> Code;
        comm_destroy = "ncclCommDestroy": fn(Comm) -> Code;
        comm_abort = "ncclCommAbort": fn(Comm) -> Code;
        comm_get_async_error = "ncclCommGetAsyncError": fn(Comm, *mut Code) -> Code;
        get_error_string = "ncclGetErrorString": fn(Code) -> *const c_char;
        group_start = "ncclGroupStart": fn() -> Code;
        group_end = "ncclGroupEnd": fn() -> Code;
        all_reduce = "ncclAllReduce": fn(In, Out, usize, DataTypeCode, OpCode, Comm, CudaStream) -> Code;
        reduce_scatter = "ncclReduceScatter": fn(In, Out, usize, DataTypeCode, OpCode, Comm, CudaStream) -> Code;
        reduce = "ncclReduce": fn(In, Out, usize, DataTypeCode, OpCode, c_int, Comm, CudaStream) -> Code;
        broadcast = "ncclBroadcast": fn(In, Out, usize, DataTypeCode, c_int, Comm, CudaStream) -> Code;
        all_gather = "ncclAllGather": fn(In, Out, usize, DataTypeCode, Comm, CudaStream) -> Code;
        send = "ncclSend": fn(In, usize, DataTypeCode, c_int, Comm, CudaStream) -> Code;
        recv = "ncclRecv": fn(Out, usize, DataTypeCode, c_int, Comm, CudaStream) -> Code;
    }
    optional {
        get_last_error = "ncclGetLastError": fn(Comm) -> *const c_char;
        red_op_create_pre_mul_sum = "ncclRedOpCreatePreMulSum": fn(*mut OpCode, In, DataTypeCode, c_int, Comm) -> Code;
        all_to_all = "ncclAlltoAll": fn(In, Out, usize, DataTypeCode, Comm, CudaStream) -> Code;
        gather = "ncclGather": fn(In, Out, usize, DataTypeCode, c_int, Comm, CudaStream) -> Code;
        scatter = "ncclScatter": fn(In, Out, usize, DataTypeCode, c_int, Comm, CudaStream) -> Code;
        comm_register = "ncclCommRegister": fn(Comm, Out, usize, *mut Out) -> Code;
        comm_deregister = "ncclCommDeregister": fn(Comm, Out) -> Code;
        window_register = "ncclCommWindowRegister": fn(Comm, Out, usize, *mut Out, c_int) -> Code;
        window_deregister = "ncclCommWindowDeregister": fn(Comm, Out) -> Code;
        red_op_destroy = "ncclRedOpDestroy": fn(OpCode, Comm) -> Code;
    }
}
