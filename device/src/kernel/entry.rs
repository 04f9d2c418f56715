//! The entry points.

use super::run::{along_ring, along_tree, in_lines, in_one_hop, over_mesh, run_messages};
use crate::prims::{Ll, Ll128, Simple};
use core::arch::asm;
use oxccl_shared::abi::{CollArgs, Func, KernelMessage, MessageArgs};
use oxccl_shared::reduce::{F8E4M3, F8E5M2, bf16, f16};

/// `SHARED_BYTES` of the block's shared memory; each use is another.
macro_rules! shared_memory {
    () => {{
        const { assert!(super::shared_conns::SHARED_BYTES == 2048) };
        let place: *mut u8;
        // SAFETY: the address of a variable of this block.
        unsafe {
            asm!(
                "{{ .shared .align 16 .b8 conns[2048]; .reg .b64 at; mov.b64 at, conns; cvta.shared.u64 {0}, at; }}",
                out(reg64) place, options(pure, nomem, nostack)
            )
        };
        place
    }};
}

/// The most threads of a block, so that the assembler knows how many registers it may use: 65,536 divided by them. A comment that
/// `cargo xtask build-ptx` moves to the entry's head, where Rust cannot put it.
macro_rules! launch_bound {
    () => {
        // SAFETY: a comment.
        unsafe { asm!("// oxccl: .maxntid 384, 1, 1", "// oxccl: .minnctapersm 1", options(nomem, nostack)) }
    };
}

macro_rules! entries {
    ($($(#[$meta:meta])* $name:ident = $run:ident::<$($arg:ty),+; $poster:tt>($func:ident);)+) => { $(
        /// # Safety
        /// 1. Launched by the host library, with arguments that it made for this entry.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(args: CollArgs) {
            launch_bound!();
            let place = shared_memory!();
            // SAFETY: obligation 1; the memory is for this alone.
            unsafe { $run::<$($arg,)+ $poster>(&args, place, Func::$func) }
        }
    )+ };
}

macro_rules! reductions {
    ($($type:ty: $all_ring_ll:ident $all_ring_ll128:ident $all_ring_simple:ident $all_tree_ll:ident $all_tree_ll128:ident $all_tree_simple:ident $all_direct_ll:ident $all_direct_ll128:ident $all_direct_simple:ident
       $scatter_ll:ident $scatter_ll128:ident $scatter_simple:ident $scatter_direct_ll:ident $scatter_direct_ll128:ident $reduce_ll:ident $reduce_ll128:ident $reduce_simple:ident $reduce_direct_ll:ident;)+) => { $(
        entries! {
            $all_ring_ll = along_ring::<$type, Ll<1>; false>(AllReduce);
            $all_ring_ll128 = along_ring::<$type, Ll128; false>(AllReduce);
            $all_ring_simple = along_ring::<$type, Simple; true>(AllReduce);
            $all_tree_ll = along_tree::<$type, Ll<1>; false>(AllReduce);
            $all_tree_ll128 = along_tree::<$type, Ll128; false>(AllReduce);
            $all_tree_simple = along_tree::<$type, Simple; true>(AllReduce);
            $all_direct_ll = in_one_hop::<$type, Ll<1>; false>(AllReduce);
            $all_direct_ll128 = in_lines::<$type, Ll128; false>(AllReduce);
            $all_direct_simple = over_mesh::<$type, Simple; true>(AllReduce);
            $scatter_ll = along_ring::<$type, Ll<1>; false>(ReduceScatter);
            $scatter_ll128 = along_ring::<$type, Ll128; false>(ReduceScatter);
            $scatter_simple = along_ring::<$type, Simple; true>(ReduceScatter);
            $scatter_direct_ll = in_one_hop::<$type, Ll<1>; false>(ReduceScatter);
            $scatter_direct_ll128 = in_lines::<$type, Ll128; false>(ReduceScatter);
            $reduce_ll = along_ring::<$type, Ll<1>; false>(Reduce);
            $reduce_direct_ll = in_one_hop::<$type, Ll<1>; false>(Reduce);
            $reduce_ll128 = along_ring::<$type, Ll128; false>(Reduce);
            $reduce_simple = along_ring::<$type, Simple; true>(Reduce);
        }
    )+ };
}

reductions! {
    i8: oxccl_all_reduce_ring_ll_i8 oxccl_all_reduce_ring_ll128_i8 oxccl_all_reduce_ring_simple_i8
        oxccl_all_reduce_tree_ll_i8 oxccl_all_reduce_tree_ll128_i8 oxccl_all_reduce_tree_simple_i8
        oxccl_all_reduce_direct_ll_i8 oxccl_all_reduce_direct_ll128_i8 oxccl_all_reduce_direct_simple_i8
        oxccl_reduce_scatter_ring_ll_i8 oxccl_reduce_scatter_ring_ll128_i8 oxccl_reduce_scatter_ring_simple_i8 oxccl_reduce_scatter_direct_ll_i8 oxccl_reduce_scatter_direct_ll128_i8
        oxccl_reduce_ring_ll_i8 oxccl_reduce_ring_ll128_i8 oxccl_reduce_ring_simple_i8 oxccl_reduce_direct_ll_i8;
    u8: oxccl_all_reduce_ring_ll_u8 oxccl_all_reduce_ring_ll128_u8 oxccl_all_reduce_ring_simple_u8
        oxccl_all_reduce_tree_ll_u8 oxccl_all_reduce_tree_ll128_u8 oxccl_all_reduce_tree_simple_u8
        oxccl_all_reduce_direct_ll_u8 oxccl_all_reduce_direct_ll128_u8 oxccl_all_reduce_direct_simple_u8
        oxccl_reduce_scatter_ring_ll_u8 oxccl_reduce_scatter_ring_ll128_u8 oxccl_reduce_scatter_ring_simple_u8 oxccl_reduce_scatter_direct_ll_u8 oxccl_reduce_scatter_direct_ll128_u8
        oxccl_reduce_ring_ll_u8 oxccl_reduce_ring_ll128_u8 oxccl_reduce_ring_simple_u8 oxccl_reduce_direct_ll_u8;
    i32: oxccl_all_reduce_ring_ll_i32 oxccl_all_reduce_ring_ll128_i32 oxccl_all_reduce_ring_simple_i32
        oxccl_all_reduce_tree_ll_i32 oxccl_all_reduce_tree_ll128_i32 oxccl_all_reduce_tree_simple_i32
        oxccl_all_reduce_direct_ll_i32 oxccl_all_reduce_direct_ll128_i32 oxccl_all_reduce_direct_simple_i32
        oxccl_reduce_scatter_ring_ll_i32 oxccl_reduce_scatter_ring_ll128_i32 oxccl_reduce_scatter_ring_simple_i32 oxccl_reduce_scatter_direct_ll_i32 oxccl_reduce_scatter_direct_ll128_i32
        oxccl_reduce_ring_ll_i32 oxccl_reduce_ring_ll128_i32 oxccl_reduce_ring_simple_i32 oxccl_reduce_direct_ll_i32;
    u32: oxccl_all_reduce_ring_ll_u32 oxccl_all_reduce_ring_ll128_u32 oxccl_all_reduce_ring_simple_u32
        oxccl_all_reduce_tree_ll_u32 oxccl_all_reduce_tree_ll128_u32 oxccl_all_reduce_tree_simple_u32
        oxccl_all_reduce_direct_ll_u32 oxccl_all_reduce_direct_ll128_u32 oxccl_all_reduce_direct_simple_u32
        oxccl_reduce_scatter_ring_ll_u32 oxccl_reduce_scatter_ring_ll128_u32 oxccl_reduce_scatter_ring_simple_u32 oxccl_reduce_scatter_direct_ll_u32 oxccl_reduce_scatter_direct_ll128_u32
        oxccl_reduce_ring_ll_u32 oxccl_reduce_ring_ll128_u32 oxccl_reduce_ring_simple_u32 oxccl_reduce_direct_ll_u32;
    i64: oxccl_all_reduce_ring_ll_i64 oxccl_all_reduce_ring_ll128_i64 oxccl_all_reduce_ring_simple_i64
        oxccl_all_reduce_tree_ll_i64 oxccl_all_reduce_tree_ll128_i64 oxccl_all_reduce_tree_simple_i64
        oxccl_all_reduce_direct_ll_i64 oxccl_all_reduce_direct_ll128_i64 oxccl_all_reduce_direct_simple_i64
        oxccl_reduce_scatter_ring_ll_i64 oxccl_reduce_scatter_ring_ll128_i64 oxccl_reduce_scatter_ring_simple_i64 oxccl_reduce_scatter_direct_ll_i64 oxccl_reduce_scatter_direct_ll128_i64
        oxccl_reduce_ring_ll_i64 oxccl_reduce_ring_ll128_i64 oxccl_reduce_ring_simple_i64 oxccl_reduce_direct_ll_i64;
    u64: oxccl_all_reduce_ring_ll_u64 oxccl_all_reduce_ring_ll128_u64 oxccl_all_reduce_ring_simple_u64
        oxccl_all_reduce_tree_ll_u64 oxccl_all_reduce_tree_ll128_u64 oxccl_all_reduce_tree_simple_u64
        oxccl_all_reduce_direct_ll_u64 oxccl_all_reduce_direct_ll128_u64 oxccl_all_reduce_direct_simple_u64
        oxccl_reduce_scatter_ring_ll_u64 oxccl_reduce_scatter_ring_ll128_u64 oxccl_reduce_scatter_ring_simple_u64 oxccl_reduce_scatter_direct_ll_u64 oxccl_reduce_scatter_direct_ll128_u64
        oxccl_reduce_ring_ll_u64 oxccl_reduce_ring_ll128_u64 oxccl_reduce_ring_simple_u64 oxccl_reduce_direct_ll_u64;
    f16: oxccl_all_reduce_ring_ll_f16 oxccl_all_reduce_ring_ll128_f16 oxccl_all_reduce_ring_simple_f16
        oxccl_all_reduce_tree_ll_f16 oxccl_all_reduce_tree_ll128_f16 oxccl_all_reduce_tree_simple_f16
        oxccl_all_reduce_direct_ll_f16 oxccl_all_reduce_direct_ll128_f16 oxccl_all_reduce_direct_simple_f16
        oxccl_reduce_scatter_ring_ll_f16 oxccl_reduce_scatter_ring_ll128_f16 oxccl_reduce_scatter_ring_simple_f16 oxccl_reduce_scatter_direct_ll_f16 oxccl_reduce_scatter_direct_ll128_f16
        oxccl_reduce_ring_ll_f16 oxccl_reduce_ring_ll128_f16 oxccl_reduce_ring_simple_f16 oxccl_reduce_direct_ll_f16;
    bf16: oxccl_all_reduce_ring_ll_bf16 oxccl_all_reduce_ring_ll128_bf16 oxccl_all_reduce_ring_simple_bf16
        oxccl_all_reduce_tree_ll_bf16 oxccl_all_reduce_tree_ll128_bf16 oxccl_all_reduce_tree_simple_bf16
        oxccl_all_reduce_direct_ll_bf16 oxccl_all_reduce_direct_ll128_bf16 oxccl_all_reduce_direct_simple_bf16
        oxccl_reduce_scatter_ring_ll_bf16 oxccl_reduce_scatter_ring_ll128_bf16 oxccl_reduce_scatter_ring_simple_bf16 oxccl_reduce_scatter_direct_ll_bf16 oxccl_reduce_scatter_direct_ll128_bf16
        oxccl_reduce_ring_ll_bf16 oxccl_reduce_ring_ll128_bf16 oxccl_reduce_ring_simple_bf16 oxccl_reduce_direct_ll_bf16;
    f32: oxccl_all_reduce_ring_ll_f32 oxccl_all_reduce_ring_ll128_f32 oxccl_all_reduce_ring_simple_f32
        oxccl_all_reduce_tree_ll_f32 oxccl_all_reduce_tree_ll128_f32 oxccl_all_reduce_tree_simple_f32
        oxccl_all_reduce_direct_ll_f32 oxccl_all_reduce_direct_ll128_f32 oxccl_all_reduce_direct_simple_f32
        oxccl_reduce_scatter_ring_ll_f32 oxccl_reduce_scatter_ring_ll128_f32 oxccl_reduce_scatter_ring_simple_f32 oxccl_reduce_scatter_direct_ll_f32 oxccl_reduce_scatter_direct_ll128_f32
        oxccl_reduce_ring_ll_f32 oxccl_reduce_ring_ll128_f32 oxccl_reduce_ring_simple_f32 oxccl_reduce_direct_ll_f32;
    f64: oxccl_all_reduce_ring_ll_f64 oxccl_all_reduce_ring_ll128_f64 oxccl_all_reduce_ring_simple_f64
        oxccl_all_reduce_tree_ll_f64 oxccl_all_reduce_tree_ll128_f64 oxccl_all_reduce_tree_simple_f64
        oxccl_all_reduce_direct_ll_f64 oxccl_all_reduce_direct_ll128_f64 oxccl_all_reduce_direct_simple_f64
        oxccl_reduce_scatter_ring_ll_f64 oxccl_reduce_scatter_ring_ll128_f64 oxccl_reduce_scatter_ring_simple_f64 oxccl_reduce_scatter_direct_ll_f64 oxccl_reduce_scatter_direct_ll128_f64
        oxccl_reduce_ring_ll_f64 oxccl_reduce_ring_ll128_f64 oxccl_reduce_ring_simple_f64 oxccl_reduce_direct_ll_f64;
    F8E4M3: oxccl_all_reduce_ring_ll_f8e4m3 oxccl_all_reduce_ring_ll128_f8e4m3 oxccl_all_reduce_ring_simple_f8e4m3
        oxccl_all_reduce_tree_ll_f8e4m3 oxccl_all_reduce_tree_ll128_f8e4m3 oxccl_all_reduce_tree_simple_f8e4m3
        oxccl_all_reduce_direct_ll_f8e4m3 oxccl_all_reduce_direct_ll128_f8e4m3 oxccl_all_reduce_direct_simple_f8e4m3
        oxccl_reduce_scatter_ring_ll_f8e4m3 oxccl_reduce_scatter_ring_ll128_f8e4m3 oxccl_reduce_scatter_ring_simple_f8e4m3 oxccl_reduce_scatter_direct_ll_f8e4m3 oxccl_reduce_scatter_direct_ll128_f8e4m3
        oxccl_reduce_ring_ll_f8e4m3 oxccl_reduce_ring_ll128_f8e4m3 oxccl_reduce_ring_simple_f8e4m3 oxccl_reduce_direct_ll_f8e4m3;
    F8E5M2: oxccl_all_reduce_ring_ll_f8e5m2 oxccl_all_reduce_ring_ll128_f8e5m2 oxccl_all_reduce_ring_simple_f8e5m2
        oxccl_all_reduce_tree_ll_f8e5m2 oxccl_all_reduce_tree_ll128_f8e5m2 oxccl_all_reduce_tree_simple_f8e5m2
        oxccl_all_reduce_direct_ll_f8e5m2 oxccl_all_reduce_direct_ll128_f8e5m2 oxccl_all_reduce_direct_simple_f8e5m2
        oxccl_reduce_scatter_ring_ll_f8e5m2 oxccl_reduce_scatter_ring_ll128_f8e5m2 oxccl_reduce_scatter_ring_simple_f8e5m2 oxccl_reduce_scatter_direct_ll_f8e5m2 oxccl_reduce_scatter_direct_ll128_f8e5m2
        oxccl_reduce_ring_ll_f8e5m2 oxccl_reduce_ring_ll128_f8e5m2 oxccl_reduce_ring_simple_f8e5m2 oxccl_reduce_direct_ll_f8e5m2;
}

entries! {
    oxccl_all_gather_ring_ll = along_ring::<u8, Ll<1>; false>(AllGather);
    oxccl_all_gather_ring_ll128 = along_ring::<u8, Ll128; false>(AllGather);
    oxccl_all_gather_ring_simple = along_ring::<u8, Simple; true>(AllGather);
    oxccl_broadcast_ring_ll = along_ring::<u8, Ll<1>; false>(Broadcast);
    oxccl_broadcast_ring_ll128 = along_ring::<u8, Ll128; false>(Broadcast);
    oxccl_broadcast_ring_simple = along_ring::<u8, Simple; true>(Broadcast);
    oxccl_all_gather_direct_ll = in_one_hop::<u8, Ll<1>; false>(AllGather);
    oxccl_all_to_all_direct_ll = in_one_hop::<u8, Ll<1>; false>(AllToAll);
    oxccl_all_gather_direct_ll128 = in_lines::<u8, Ll128; false>(AllGather);
    oxccl_all_to_all_direct_ll128 = in_lines::<u8, Ll128; false>(AllToAll);
    oxccl_broadcast_direct_ll = in_one_hop::<u8, Ll<1>; false>(Broadcast);
    oxccl_barrier_direct_ll = in_one_hop::<u8, Ll<1>; false>(Barrier);
}

macro_rules! message_entries {
    ($($name:ident = $proto:ty; $poster:tt;)+) => { $(
        /// # Safety
        /// 1. Launched by the host library, with arguments that it made for this entry.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(args: MessageArgs) {
            let messages: *const KernelMessage;
            // SAFETY: the address of this entry's own parameter, which stays where it is. By value the compiler would copy the
            // whole list to every thread's stack before it could be indexed.
            unsafe {
                asm!(
                    concat!("{{ .reg .b64 at; mov.b64 at, ", stringify!($name), "_param_0; cvta.param.u64 {0}, at; }}"),
                    out(reg64) messages, options(pure, nomem, nostack)
                )
            };
            let messages = messages.wrapping_byte_add(core::mem::offset_of!(MessageArgs, messages));
            launch_bound!();
            let place = shared_memory!();
            // SAFETY: obligation 1; the memory is for this alone.
            unsafe { run_messages::<$proto, $poster>(&args.launch, messages, place) }
        }
    )+ };
}

message_entries! {
    oxccl_send_recv_ll = Ll<1>; false;
    oxccl_send_recv_ll128 = Ll128; false;
    oxccl_send_recv_simple = Simple; true;
}
