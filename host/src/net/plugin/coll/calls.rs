//! The functions of a CollNet plugin, independent of the version of its table.

use super::abi::{
    CollConnect, CollIflush, CollInit11, CollTable, CollTable8, CollTable9, CollTable11, CollTable12,
    Iallgather, Iallreduce, IreduceScatter, ReduceSupport, Sge,
};
use crate::net::NetHandle;
use crate::net::coll::{Window, Windows};
use crate::net::plugin::abi::{Close, Code, Finalize, GetProperties, Init8, Listen8, Listen11, Opaque};
use crate::net::plugin::calls::{AnyCalls, Common, MissingFunction};
use crate::net::plugin::connection::CommCalls;
use crate::net::plugin::log;
use crate::net::plugin::opened::Plugin;
use crate::net::plugin::properties::AnyProperties;
use core::ffi::c_int;

/// The functions of a table, after the check that required ones exist.
pub struct CollCalls {
    pub common: Common,
    init: AnyInit,
    listen: AnyListen,
    pub connect: CollConnect,
    pub reduce_support: ReduceSupport,
    pub comm: CommCalls,
    iallreduce: AnyAllReduce,
    iallgather: Option<AnyAllGather>,
    ireduce_scatter: Option<AnyReduceScatter>,
    pub iflush: Option<CollIflush>,
    pub close_listen: Close,
}

/// An initialised CollNet plugin.
pub(super) type CollPlugin = Plugin<CollCalls>;

/// Defines an enum over a function's types.
macro_rules! any {
    ($($any:ident { $($variant:ident: $type:ty),* })*) => { $(
        #[derive(Clone, Copy)]
        enum $any { $($variant($type)),* }

        $(impl From<$type> for $any {
            fn from(function: $type) -> Self {
                $any::$variant(function)
            }
        })*
    )* };
}

any! {
    AnyInit { Plain: Init8, Context: CollInit11 }
    AnyListen { Plain: Listen8, Context: Listen11 }
    AnyAllReduce { Int: Iallreduce<c_int>, Size: Iallreduce<usize> }
    AnyAllGather { Short: Iallgather<u32>, Long: Iallgather<usize> }
    AnyReduceScatter { Short: IreduceScatter<u32>, Long: IreduceScatter<usize> }
}

/// Memory with the plugin's registration handle.
#[derive(Clone, Copy)]
pub struct PluginBuffer {
    pub start: Opaque,
    pub handle: Opaque,
}

/// Elements and operator in the plugin's numbering.
#[derive(Clone, Copy)]
pub struct Elements {
    pub count: usize,
    pub dtype: c_int,
    pub op: c_int,
}

impl CollCalls {
    /// Reads the table at `table`.
    ///
    /// # Safety
    /// `table` is a table of that version, 8 to 12, and stays one.
    pub unsafe fn read(version: u32, table: Opaque) -> Result<CollCalls, MissingFunction> {
        // SAFETY: the caller's promise.
        unsafe {
            match version {
                8 => from_table(8, &*table.cast::<CollTable8>(), None),
                9 | 10 => from_table(version, &*table.cast::<CollTable9>(), None),
                11 => {
                    let found = &*table.cast::<CollTable11>();
                    from_table(11, &found.table, found.finalize)
                }
                _ => {
                    let found = &*table.cast::<CollTable12>();
                    from_table(12, &found.table, found.finalize)
                }
            }
        }
    }

    /// The operations on windows that the plugin has.
    pub fn windows(&self) -> Windows {
        Windows { gathers: self.iallgather.is_some(), scatters: self.ireduce_scatter.is_some() }
    }

    /// Whether an operation's byte count is an `int`.
    pub fn counts_by_int(&self) -> bool {
        matches!(self.iallreduce, AnyAllReduce::Int(_))
    }

    /// # Safety
    /// `context` is this plugin's, and it has the device.
    pub unsafe fn listen(
        &self,
        context: Opaque,
        device: c_int,
        handle: &mut NetHandle,
        listener: &mut Opaque,
    ) -> Code {
        let at = handle.0.as_mut_ptr().cast();
        // SAFETY: the caller's promise; a handle has the length that the header says.
        unsafe {
            match self.listen {
                AnyListen::Plain(listen) => listen(device, at, listener),
                AnyListen::Context(listen) => listen(context, device, at, listener),
            }
        }
    }

    /// # Safety
    /// `comm` is live, and the buffers are as [`crate::net::coll::CollComm::iallreduce`] requires.
    pub unsafe fn iallreduce(
        &self,
        comm: Opaque,
        [send, recv]: [PluginBuffer; 2],
        what: Elements,
        request: &mut Opaque,
    ) -> Code {
        let Elements { count, dtype, op } = what;
        // SAFETY: the caller's promise. Counts fit an int where one is wanted: `message_max_bytes` says so.
        unsafe {
            match self.iallreduce {
                AnyAllReduce::Int(call) => {
                    let count = count as c_int;
                    call(comm, send.start, recv.start, count, dtype, op, send.handle, recv.handle, request)
                }
                AnyAllReduce::Size(call) => {
                    call(comm, send.start, recv.start, count, dtype, op, send.handle, recv.handle, request)
                }
            }
        }
    }

    /// Gathers a window into one part; `None` where the plugin cannot.
    ///
    /// # Safety
    /// `comm` is live, and the buffers are as [`crate::net::coll::CollComm::iallgather`] requires.
    pub unsafe fn iallgather(
        &self,
        comm: Opaque,
        [send, recv]: [PluginBuffer; 2],
        window: Window,
        request: &mut Opaque,
    ) -> Option<Code> {
        let Window { head_bytes, start, len_bytes } = window;
        macro_rules! gather {
            ($call:ident, $size:expr) => {{
                let mut part = Sge { handle: recv.handle, address: recv.start, size: $size };
                // SAFETY: the caller's promise; a list of one.
                unsafe {
                    $call(comm, send.start, 1, &mut part, head_bytes, start, len_bytes, send.handle, request)
                }
            }};
        }
        Some(match self.iallgather? {
            AnyAllGather::Short(call) => gather!(call, len_bytes as u32),
            AnyAllGather::Long(call) => gather!(call, len_bytes),
        })
    }

    /// Reduces a window, of one part; `None` where the plugin cannot. `element` has the plugin's numbers.
    ///
    /// # Safety
    /// `comm` is live, and the buffers are as [`crate::net::coll::CollComm::ireduce_scatter`] requires.
    pub unsafe fn ireduce_scatter(
        &self,
        comm: Opaque,
        [send, recv]: [PluginBuffer; 2],
        (dtype, op): (c_int, c_int),
        window: Window,
        request: &mut Opaque,
    ) -> Option<Code> {
        let Window { head_bytes, start, len_bytes } = window;
        macro_rules! scatter {
            ($call:ident, $size:expr) => {{
                let mut part = Sge { handle: send.handle, address: send.start, size: $size };
                let (at, mr) = (recv.start, recv.handle);
                // SAFETY: the caller's promise; a list of one.
                unsafe { $call(comm, 1, &mut part, at, head_bytes, start, len_bytes, dtype, op, mr, request) }
            }};
        }
        Some(match self.ireduce_scatter? {
            AnyReduceScatter::Short(call) => scatter!(call, len_bytes as u32),
            AnyReduceScatter::Long(call) => scatter!(call, len_bytes),
        })
    }
}

impl AnyCalls for CollCalls {
    fn common(&self) -> &Common {
        &self.common
    }

    unsafe fn init(&self, communicator: u64) -> Result<Opaque, Code> {
        let (mut context, log): (Opaque, _) = (core::ptr::null_mut(), log::logger());
        // SAFETY: arguments as the header says, alive during the call.
        let code = unsafe {
            match self.init {
                AnyInit::Plain(init) => init(log),
                AnyInit::Context(init) => init(&mut context, communicator, log),
            }
        };
        if code == 0 { Ok(context) } else { Err(code) }
    }
}

/// # Safety
/// The table's name is a string.
unsafe fn from_table<I: Copy, P, L: Copy, N, S>(
    version: u32,
    table: &CollTable<I, P, L, N, S>,
    finalize: Option<Finalize>,
) -> Result<CollCalls, MissingFunction>
where
    AnyInit: From<I>,
    AnyListen: From<L>,
    AnyProperties: From<GetProperties<P>>,
    AnyAllReduce: From<Iallreduce<N>>,
    AnyAllGather: From<Iallgather<S>>,
    AnyReduceScatter: From<IreduceScatter<S>>,
{
    let at = (version, core::ptr::from_ref(table).addr());
    // SAFETY: the caller's promise.
    let common = unsafe { Common::new(at, table.name, table.devices, table.get_properties, finalize) }?;
    Ok(CollCalls {
        common,
        init: table.init.ok_or(MissingFunction("init"))?.into(),
        listen: table.listen.ok_or(MissingFunction("listen"))?.into(),
        connect: table.connect.ok_or(MissingFunction("connect"))?,
        reduce_support: table.reduce_support.ok_or(MissingFunction("reduceSupport"))?,
        comm: CommCalls {
            reg_mr: table.reg_mr.ok_or(MissingFunction("regMr"))?,
            reg_mr_dma_buf: table.reg_mr_dma_buf,
            dereg_mr: table.dereg_mr.ok_or(MissingFunction("deregMr"))?,
            test: table.test.ok_or(MissingFunction("test"))?,
            close: table.close_coll.ok_or(MissingFunction("closeColl"))?,
        },
        iallreduce: table.iallreduce.ok_or(MissingFunction("iallreduce"))?.into(),
        iallgather: table.iallgather.map(Into::into),
        ireduce_scatter: table.ireduce_scatter.map(Into::into),
        iflush: table.iflush,
        close_listen: table.close_listen.ok_or(MissingFunction("closeListen"))?,
    })
}
