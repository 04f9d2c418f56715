//! Words as NCCL writes them.

use core::ffi::CStr;
use oxccl_shared::abi::{Algorithm, DataType, Func, Protocol};

/// No kernel's: a rank alone, messages, copy engines.
pub const NONE: &CStr = c"NONE";

pub fn func(func: Func) -> &'static CStr {
    match func {
        Func::Broadcast => c"Broadcast",
        Func::Reduce => c"Reduce",
        Func::AllGather => c"AllGather",
        Func::ReduceScatter => c"ReduceScatter",
        Func::AllReduce => c"AllReduce",
        Func::Send => c"Send",
        Func::Recv => c"Recv",
        Func::AllToAll => c"AlltoAll",
        Func::Scatter => c"Scatter",
        Func::Gather => c"Gather",
        Func::Barrier => c"Barrier",
    }
}

pub fn datatype(dtype: DataType) -> &'static CStr {
    match dtype {
        DataType::I8 => c"ncclInt8",
        DataType::U8 => c"ncclUint8",
        DataType::I32 => c"ncclInt32",
        DataType::U32 => c"ncclUint32",
        DataType::I64 => c"ncclInt64",
        DataType::U64 => c"ncclUint64",
        DataType::F16 => c"ncclFloat16",
        DataType::F32 => c"ncclFloat32",
        DataType::F64 => c"ncclFloat64",
        DataType::BF16 => c"ncclBfloat16",
        DataType::F8E4M3 => c"ncclFloat8e4m3",
        DataType::F8E5M2 => c"ncclFloat8e5m2",
    }
}

pub fn algorithm(algorithm: Algorithm) -> &'static CStr {
    match algorithm {
        Algorithm::Tree => c"TREE",
        Algorithm::Ring => c"RING",
        Algorithm::CollnetDirect => c"COLLNET_DIRECT",
        Algorithm::CollnetChain => c"COLLNET_CHAIN",
        Algorithm::OneShot => c"ONESHOT",
        Algorithm::TwoShot => c"TWOSHOT",
        Algorithm::TwoLevel => c"TWOLEVEL",
        Algorithm::Doubling => c"DOUBLING",
    }
}

pub fn protocol(protocol: Protocol) -> &'static CStr {
    match protocol {
        Protocol::LL => c"LL",
        Protocol::LL128 => c"LL128",
        Protocol::Simple => c"SIMPLE",
    }
}
