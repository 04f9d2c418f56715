//! A plugin's functions, independent of the version of its table.

use super::abi::*;
use super::log;
use super::properties::AnyProperties;
use crate::net::NetHandle;
use core::ffi::{CStr, c_char, c_int};

/// Tag of all messages: each pair and direction has its own connection, so there is nothing to distinguish. Sizes
/// have the plugin's type (`int` before version 9).
const TAG: c_int = 0;

/// The functions that tables of both kinds have.
pub struct Common {
    /// Version of the table.
    pub version: u32,
    /// Address of the table, which identifies the plugin.
    pub table: usize,
    /// The plugin's name for its network.
    pub name: String,
    pub devices: Devices,
    pub properties: AnyProperties,
    finalize: Option<Finalize>,
}

/// First version whose plugins keep a context for each communicator, and are initialised for each.
const CONTEXT_SINCE: u32 = 11;

impl Common {
    /// Takes the first fields of the table at `table`, and its last.
    ///
    /// # Safety
    /// `name` is null or a string.
    pub unsafe fn new<P>(
        (version, table): (u32, usize),
        name: *const c_char,
        devices: Option<Devices>,
        properties: Option<GetProperties<P>>,
        finalize: Option<Finalize>,
    ) -> Result<Common, MissingFunction>
    where
        AnyProperties: From<GetProperties<P>>,
    {
        if name.is_null() {
            return Err(MissingFunction("name"));
        }
        // SAFETY: the caller's promise.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        Ok(Common {
            version,
            table,
            name,
            devices: devices.ok_or(MissingFunction("devices"))?,
            properties: properties.ok_or(MissingFunction("getProperties"))?.into(),
            finalize,
        })
    }

    /// Whether the plugin keeps a context for each communicator, and is initialised for each.
    pub fn has_context(&self) -> bool {
        self.version >= CONTEXT_SINCE
    }

    /// Finalizes a context, where the version has that.
    ///
    /// # Safety
    /// `context` is from the plugin's `init`, and none of its objects is in use.
    pub unsafe fn finalize(&self, context: Opaque) {
        if let Some(finalize) = self.finalize {
            // SAFETY: the caller's promise. A failure has no consequence.
            unsafe { finalize(context) };
        }
    }
}

/// The functions of either kind of table.
pub trait AnyCalls {
    fn common(&self) -> &Common;

    /// Initialises the plugin; returns its context, or null.
    ///
    /// # Safety
    /// The plugin is loaded.
    unsafe fn init(&self, communicator: u64) -> Result<Opaque, Code>;
}

/// The functions of a net table, after the check that required ones exist.
pub struct Calls {
    pub common: Common,
    variant: Variant,
    pub accept: Accept,
    pub reg_mr: RegMr,
    pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
    pub dereg_mr: DeregMr,
    pub iflush: Option<Iflush>,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
}

/// The functions whose types differ between versions.
enum Variant {
    V8(Changed<Init8, Listen8, Connect8, Isend8, Irecv8>),
    V9(Changed<Init8, Listen8, Connect8, Isend9, Irecv9>),
    V10(Changed<Init10, Listen8, Connect10, Isend10, Irecv10>),
    V11(Changed<Init11, Listen11, Connect11, Isend10, Irecv10>),
    V12(Changed<Init11, Listen11, Connect11, Isend10, Irecv10>),
}

struct Changed<Init, Listen, Connect, Isend, Irecv> {
    init: Init,
    listen: Listen,
    connect: Connect,
    isend: Isend,
    irecv: Irecv,
}

/// The first required function that the table lacks.
pub struct MissingFunction(pub &'static str);

impl Calls {
    /// Reads the table at `table`.
    ///
    /// # Safety
    /// `table` is a table of that version, 8 to 12, and stays one.
    pub unsafe fn read(version: u32, table: Opaque) -> Result<Calls, MissingFunction> {
        // SAFETY: the caller's promise.
        unsafe {
            match version {
                8 => from_table(8, &*table.cast::<Table8>(), Variant::V8, None),
                9 => from_table(9, &*table.cast::<Table9>(), Variant::V9, None),
                10 => from_table(10, &*table.cast::<Table10>(), Variant::V10, None),
                11 => {
                    let TableWithContext { table, finalize, .. } = &*table.cast::<Table11>();
                    from_table(11, table, Variant::V11, *finalize)
                }
                _ => {
                    let TableWithContext { table, finalize, .. } = &*table.cast::<Table12>();
                    from_table(12, table, Variant::V12, *finalize)
                }
            }
        }
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
            match &self.variant {
                Variant::V8(v) => (v.listen)(device, at, listener),
                Variant::V9(v) => (v.listen)(device, at, listener),
                Variant::V10(v) => (v.listen)(device, at, listener),
                Variant::V11(v) => (v.listen)(context, device, at, listener),
                Variant::V12(v) => (v.listen)(context, device, at, listener),
            }
        }
    }

    /// `handle` is where a plugin keeps its progress between calls: it must not move.
    ///
    /// # Safety
    /// `context` is this plugin's, and it has the device.
    pub unsafe fn connect(
        &self,
        context: Opaque,
        device: c_int,
        handle: &mut NetHandle,
        comm: &mut Opaque,
    ) -> Code {
        let (at, config) = (handle.0.as_mut_ptr().cast(), CommConfig { traffic_class: -1 });
        let mut none: Opaque = core::ptr::null_mut();
        // SAFETY: as in `listen`; no device communicator is asked for.
        unsafe {
            match &self.variant {
                Variant::V8(v) => (v.connect)(device, at, comm, &mut none),
                Variant::V9(v) => (v.connect)(device, at, comm, &mut none),
                Variant::V10(v) => (v.connect)(device, &config, at, comm, &mut none),
                Variant::V11(v) => (v.connect)(context, device, at, comm, &mut none),
                Variant::V12(v) => (v.connect)(context, device, at, comm, &mut none),
            }
        }
    }

    /// # Safety
    /// `comm` is a live sender, and the bytes are as [`crate::net::SendComm::isend`] asks, registered as `handle`.
    pub unsafe fn isend(
        &self,
        comm: Opaque,
        data: Opaque,
        len: usize,
        handle: Opaque,
        request: &mut Opaque,
    ) -> Code {
        let none: Opaque = core::ptr::null_mut();
        // SAFETY: the caller's promise. Lengths fit an int where one is wanted: `message_max_bytes` says so.
        unsafe {
            match &self.variant {
                Variant::V8(v) => (v.isend)(comm, data, len as c_int, TAG, handle, request),
                Variant::V9(v) => (v.isend)(comm, data, len, TAG, handle, request),
                Variant::V10(v) => (v.isend)(comm, data, len, TAG, handle, none, request),
                Variant::V11(v) => (v.isend)(comm, data, len, TAG, handle, none, request),
                Variant::V12(v) => (v.isend)(comm, data, len, TAG, handle, none, request),
            }
        }
    }

    /// # Safety
    /// `comm` is a live receiver, and the bytes are as [`crate::net::RecvComm::irecv`] asks, registered as `handle`.
    pub unsafe fn irecv(
        &self,
        comm: Opaque,
        mut data: Opaque,
        max: usize,
        mut handle: Opaque,
        request: &mut Opaque,
    ) -> Code {
        let (mut int, mut size, mut tag) = (max.min(c_int::MAX as usize) as c_int, max, TAG);
        let mut none: Opaque = core::ptr::null_mut();
        macro_rules! irecv10 {
            ($v:ident) => {
                ($v.irecv)(comm, 1, &mut data, &mut size, &mut tag, &mut handle, &mut none, request)
            };
        }
        // SAFETY: the caller's promise; lists of one.
        unsafe {
            match &self.variant {
                Variant::V8(v) => (v.irecv)(comm, 1, &mut data, &mut int, &mut tag, &mut handle, request),
                Variant::V9(v) => (v.irecv)(comm, 1, &mut data, &mut size, &mut tag, &mut handle, request),
                Variant::V10(v) => irecv10!(v),
                Variant::V11(v) => irecv10!(v),
                Variant::V12(v) => irecv10!(v),
            }
        }
    }
}

impl AnyCalls for Calls {
    fn common(&self) -> &Common {
        &self.common
    }

    unsafe fn init(&self, communicator: u64) -> Result<Opaque, Code> {
        let (config, log, profiler) = (CommConfig { traffic_class: -1 }, log::logger(), log::profiler);
        let mut context: Opaque = core::ptr::null_mut();
        // SAFETY: arguments as the header says, alive during the call.
        let code = unsafe {
            match &self.variant {
                Variant::V8(v) => (v.init)(log),
                Variant::V9(v) => (v.init)(log),
                Variant::V10(v) => (v.init)(log, profiler),
                Variant::V11(v) => (v.init)(&mut context, communicator, &config, log, profiler),
                Variant::V12(v) => (v.init)(&mut context, communicator, &config, log, profiler),
            }
        };
        if code == 0 { Ok(context) } else { Err(code) }
    }
}

/// # Safety
/// The table's name is a string.
unsafe fn from_table<I: Copy, P, L: Copy, C: Copy, S: Copy, R: Copy>(
    version: u32,
    table: &Table<I, P, L, C, S, R>,
    variant: impl FnOnce(Changed<I, L, C, S, R>) -> Variant,
    finalize: Option<Finalize>,
) -> Result<Calls, MissingFunction>
where
    AnyProperties: From<GetProperties<P>>,
{
    let at = (version, core::ptr::from_ref(table).addr());
    // SAFETY: the caller's promise.
    let common = unsafe { Common::new(at, table.name, table.devices, table.get_properties, finalize) }?;
    let changed = Changed {
        init: table.init.ok_or(MissingFunction("init"))?,
        listen: table.listen.ok_or(MissingFunction("listen"))?,
        connect: table.connect.ok_or(MissingFunction("connect"))?,
        isend: table.isend.ok_or(MissingFunction("isend"))?,
        irecv: table.irecv.ok_or(MissingFunction("irecv"))?,
    };
    Ok(Calls {
        common,
        variant: variant(changed),
        accept: table.accept.ok_or(MissingFunction("accept"))?,
        reg_mr: table.reg_mr.ok_or(MissingFunction("regMr"))?,
        reg_mr_dma_buf: table.reg_mr_dma_buf,
        dereg_mr: table.dereg_mr.ok_or(MissingFunction("deregMr"))?,
        iflush: table.iflush,
        test: table.test.ok_or(MissingFunction("test"))?,
        close_send: table.close_send.ok_or(MissingFunction("closeSend"))?,
        close_recv: table.close_recv.ok_or(MissingFunction("closeRecv"))?,
        close_listen: table.close_listen.ok_or(MissingFunction("closeListen"))?,
    })
}
