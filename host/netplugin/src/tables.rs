//! The symbols that NCCL looks for, newest first.

use crate::{coll, net};
use oxccl::net::plugin::abi::*;
use oxccl::net::plugin::coll_abi::*;
use std::ffi::c_char;

/// A table as NCCL reads it, with `makeVDevice` of versions 9 and 10 at its end, which is not there.
#[repr(C)]
pub struct Exported<T> {
    table: T,
    make_v_device: Unused,
}

// SAFETY: functions, and names that never change.
unsafe impl<T> Sync for Exported<T> {}

/// The name in NCCL's log and in `NCCL_NET`.
const NAME: *const c_char = c"OxCCL".as_ptr();

macro_rules! net_table {
    ($init:ident, $listen:ident, $connect:ident, $isend:ident, $irecv:ident) => {
        Table {
            name: NAME,
            init: Some(net::$init),
            devices: Some(net::devices),
            get_properties: Some(net::get_properties),
            listen: Some(net::$listen),
            connect: Some(net::$connect),
            accept: Some(net::accept),
            reg_mr: Some(net::reg_mr),
            reg_mr_dma_buf: None,
            dereg_mr: Some(net::dereg_mr),
            isend: Some(net::$isend),
            irecv: Some(net::$irecv),
            iflush: Some(net::iflush),
            test: Some(net::test),
            close_send: Some(net::close),
            close_recv: Some(net::close),
            close_listen: Some(net::close),
            get_device_mr: None,
            irecv_consumed: None,
        }
    };
}

macro_rules! net_table_with_context {
    () => {
        TableWithContext {
            table: net_table!(init11, listen11, connect11, isend10, irecv10),
            make_v_device: None,
            finalize: Some(net::finalize),
            set_net_attr: Some(net::set_net_attr),
        }
    };
}

macro_rules! coll_table {
    ($init:ident, $listen:ident, $iallreduce:ident) => {
        CollTable {
            name: NAME,
            init: Some(coll::$init),
            devices: Some(coll::devices),
            get_properties: Some(coll::get_properties),
            listen: Some(coll::$listen),
            connect: Some(coll::connect),
            reduce_support: Some(coll::reduce_support),
            reg_mr: Some(net::reg_mr),
            reg_mr_dma_buf: None,
            dereg_mr: Some(net::dereg_mr),
            iallreduce: Some(coll::$iallreduce),
            iallgather: Some(coll::iallgather),
            ireduce_scatter: Some(coll::ireduce_scatter),
            iflush: Some(coll::iflush),
            test: Some(net::test),
            close_coll: Some(net::close),
            close_listen: Some(net::close),
        }
    };
}

macro_rules! export {
    ($($name:ident: $type:ty = $table:expr;)*) => { $(
        /// The table of this name in NCCL's headers.
        // SAFETY: no other library exports it: it is how NCCL finds a plugin.
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals, reason = "NCCL's names")]
        pub static $name: Exported<$type> = Exported { table: $table, make_v_device: None };
    )* };
}

export! {
    ncclNetPlugin_v12: Table12 = net_table_with_context!();
    ncclNetPlugin_v11: Table11 = net_table_with_context!();
    ncclNetPlugin_v10: Table10 = net_table!(init10, listen8, connect10, isend10, irecv10);
    ncclNetPlugin_v9: Table9 = net_table!(init8, listen8, connect8, isend9, irecv9);
    ncclNetPlugin_v8: Table8 = net_table!(init8, listen8, connect8, isend8, irecv8);
    ncclCollNetPlugin_v12: CollTable12 = CollTableWithContext {
        table: coll_table!(init11, listen11, iallreduce_size),
        make_v_device: None,
        finalize: Some(net::finalize),
    };
    ncclCollNetPlugin_v11: CollTable11 = CollTableWithContext {
        table: coll_table!(init11, listen11, iallreduce_size),
        make_v_device: None,
        finalize: Some(net::finalize),
    };
    ncclCollNetPlugin_v10: CollTable9 = coll_table!(init8, listen8, iallreduce_size);
    ncclCollNetPlugin_v9: CollTable9 = coll_table!(init8, listen8, iallreduce_size);
    ncclCollNetPlugin_v8: CollTable8 = coll_table!(init8, listen8, iallreduce_int);
}
