//! The kernels for NVIDIA GPUs. A type that is not here is left to the library.

use crate::Binomial;
use oxccl_shared::reduce::{bf16, f16};

oxccl_device::ptx_kernels! {
    oxccl_all_reduce_binomial_ll_f32 = Binomial[f32, LL](AllReduce),
    oxccl_all_reduce_binomial_simple_f32 = Binomial[f32, Simple](AllReduce),
    oxccl_all_reduce_binomial_ll_f16 = Binomial[f16, LL](AllReduce),
    oxccl_all_reduce_binomial_simple_f16 = Binomial[f16, Simple](AllReduce),
    oxccl_all_reduce_binomial_ll_bf16 = Binomial[bf16, LL](AllReduce),
    oxccl_all_reduce_binomial_simple_bf16 = Binomial[bf16, Simple](AllReduce),
    oxccl_all_reduce_binomial_ll_i32 = Binomial[i32, LL](AllReduce),
    oxccl_all_reduce_binomial_simple_i32 = Binomial[i32, Simple](AllReduce),
    oxccl_broadcast_binomial_ll = Binomial[u8, LL](Broadcast),
    oxccl_broadcast_binomial_simple = Binomial[u8, Simple](Broadcast),
}
