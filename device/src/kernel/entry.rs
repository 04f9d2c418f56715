//! The entry points.

use super::run::{MESH_MAX, along_ring, along_tree, one_shot, over_mesh, run_messages, two_shot};
use super::shared_conns::SHARED_BYTES;
use crate::prims::{Ll, Ll128, Simple};
use core::arch::asm;
use oxccl_shared::abi::{CollArgs, Func, KernelMessage, MessageArgs};
use oxccl_shared::reduce::{F8E4M3, F8E5M2, bf16, f16};

/// `SHARED_BYTES` of the block's shared memory; each use is another.
macro_rules! shared_memory {
    () => {{
        const { assert!(SHARED_BYTES == 2048) };
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

/// Entries `oxccl_<name><suffix>`, each running a function of [`super::run`].
macro_rules! entries {
    ($suffix:literal: $($name:ident = $run:ident::<$($arg:ty),+; $($shape:tt),+>($func:ident);)+) => { $(
        /// # Safety
        /// 1. Launched by the host library, with arguments that it made for this entry.
        #[unsafe(export_name = concat!("oxccl_", stringify!($name), $suffix))]
        pub unsafe extern "ptx-kernel" fn $name(args: CollArgs) {
            launch_bound!();
            let place = shared_memory!();
            // SAFETY: obligation 1; the memory is for this alone.
            unsafe { $run::<$($arg,)+ $($shape),+>(&args, place, Func::$func) }
        }
    )+ };
}

/// The kernels that reduce, a module for each type of elements. `oneshot2` and `oneshot4` are for so many ranks, `oneshot` for others.
macro_rules! reductions {
    ($($name:ident: $type:ty, $suffix:literal;)+) => { $(
        /// For elements of this type.
        pub mod $name {
            use super::*;
            entries! { $suffix:
                all_reduce_ring_ll = along_ring::<$type, Ll<1>; false>(AllReduce);
                all_reduce_ring_ll128 = along_ring::<$type, Ll128; false>(AllReduce);
                all_reduce_ring_simple = along_ring::<$type, Simple; true>(AllReduce);
                all_reduce_tree_ll = along_tree::<$type, Ll<1>; false>(AllReduce);
                all_reduce_tree_ll128 = along_tree::<$type, Ll128; false>(AllReduce);
                all_reduce_tree_simple = along_tree::<$type, Simple; true>(AllReduce);
                all_reduce_oneshot2_ll = one_shot::<$type, Ll<1>; false, 1>(AllReduce);
                all_reduce_oneshot4_ll = one_shot::<$type, Ll<1>; false, 3>(AllReduce);
                all_reduce_oneshot_ll = one_shot::<$type, Ll<1>; false, MESH_MAX>(AllReduce);
                all_reduce_twoshot2_ll = two_shot::<$type, Ll<1>; false, 1>(AllReduce);
                all_reduce_twoshot4_ll = two_shot::<$type, Ll<1>; false, 3>(AllReduce);
                all_reduce_twoshot_ll = two_shot::<$type, Ll<1>; false, MESH_MAX>(AllReduce);
                all_reduce_twoshot2_ll128 = two_shot::<$type, Ll128; false, 1>(AllReduce);
                all_reduce_twoshot4_ll128 = two_shot::<$type, Ll128; false, 3>(AllReduce);
                all_reduce_twoshot_ll128 = two_shot::<$type, Ll128; false, MESH_MAX>(AllReduce);
                all_reduce_oneshot_simple = over_mesh::<$type, Simple; true>(AllReduce);
                reduce_scatter_ring_ll = along_ring::<$type, Ll<1>; false>(ReduceScatter);
                reduce_scatter_ring_ll128 = along_ring::<$type, Ll128; false>(ReduceScatter);
                reduce_scatter_ring_simple = along_ring::<$type, Simple; true>(ReduceScatter);
                reduce_scatter_oneshot2_ll = one_shot::<$type, Ll<1>; false, 1>(ReduceScatter);
                reduce_scatter_oneshot4_ll = one_shot::<$type, Ll<1>; false, 3>(ReduceScatter);
                reduce_scatter_oneshot_ll = one_shot::<$type, Ll<1>; false, MESH_MAX>(ReduceScatter);
                reduce_scatter_oneshot2_ll128 = one_shot::<$type, Ll128; false, 1>(ReduceScatter);
                reduce_scatter_oneshot4_ll128 = one_shot::<$type, Ll128; false, 3>(ReduceScatter);
                reduce_scatter_oneshot_ll128 = one_shot::<$type, Ll128; false, MESH_MAX>(ReduceScatter);
                reduce_ring_ll = along_ring::<$type, Ll<1>; false>(Reduce);
                reduce_ring_ll128 = along_ring::<$type, Ll128; false>(Reduce);
                reduce_ring_simple = along_ring::<$type, Simple; true>(Reduce);
                reduce_oneshot2_ll = one_shot::<$type, Ll<1>; false, 1>(Reduce);
                reduce_oneshot4_ll = one_shot::<$type, Ll<1>; false, 3>(Reduce);
                reduce_oneshot_ll = one_shot::<$type, Ll<1>; false, MESH_MAX>(Reduce);
            }
        }
    )+ };
}

reductions! {
    of_i8: i8, "_i8";
    of_u8: u8, "_u8";
    of_i32: i32, "_i32";
    of_u32: u32, "_u32";
    of_i64: i64, "_i64";
    of_u64: u64, "_u64";
    of_f16: f16, "_f16";
    of_bf16: bf16, "_bf16";
    of_f32: f32, "_f32";
    of_f64: f64, "_f64";
    of_f8e4m3: F8E4M3, "_f8e4m3";
    of_f8e5m2: F8E5M2, "_f8e5m2";
}

entries! { "":
    all_gather_ring_ll = along_ring::<u8, Ll<1>; false>(AllGather);
    all_gather_ring_ll128 = along_ring::<u8, Ll128; false>(AllGather);
    all_gather_ring_simple = along_ring::<u8, Simple; true>(AllGather);
    all_gather_oneshot2_ll = one_shot::<u8, Ll<1>; false, 1>(AllGather);
    all_gather_oneshot4_ll = one_shot::<u8, Ll<1>; false, 3>(AllGather);
    all_gather_oneshot_ll = one_shot::<u8, Ll<1>; false, MESH_MAX>(AllGather);
    all_gather_oneshot2_ll128 = one_shot::<u8, Ll128; false, 1>(AllGather);
    all_gather_oneshot4_ll128 = one_shot::<u8, Ll128; false, 3>(AllGather);
    all_gather_oneshot_ll128 = one_shot::<u8, Ll128; false, MESH_MAX>(AllGather);
    all_to_all_oneshot2_ll = one_shot::<u8, Ll<1>; false, 1>(AllToAll);
    all_to_all_oneshot4_ll = one_shot::<u8, Ll<1>; false, 3>(AllToAll);
    all_to_all_oneshot_ll = one_shot::<u8, Ll<1>; false, MESH_MAX>(AllToAll);
    all_to_all_oneshot2_ll128 = one_shot::<u8, Ll128; false, 1>(AllToAll);
    all_to_all_oneshot4_ll128 = one_shot::<u8, Ll128; false, 3>(AllToAll);
    all_to_all_oneshot_ll128 = one_shot::<u8, Ll128; false, MESH_MAX>(AllToAll);
    broadcast_ring_ll = along_ring::<u8, Ll<1>; false>(Broadcast);
    broadcast_ring_ll128 = along_ring::<u8, Ll128; false>(Broadcast);
    broadcast_ring_simple = along_ring::<u8, Simple; true>(Broadcast);
    broadcast_oneshot2_ll = one_shot::<u8, Ll<1>; false, 1>(Broadcast);
    broadcast_oneshot4_ll = one_shot::<u8, Ll<1>; false, 3>(Broadcast);
    broadcast_oneshot_ll = one_shot::<u8, Ll<1>; false, MESH_MAX>(Broadcast);
    barrier_oneshot2_ll = one_shot::<u8, Ll<1>; false, 1>(Barrier);
    barrier_oneshot4_ll = one_shot::<u8, Ll<1>; false, 3>(Barrier);
    barrier_oneshot_ll = one_shot::<u8, Ll<1>; false, MESH_MAX>(Barrier);
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
