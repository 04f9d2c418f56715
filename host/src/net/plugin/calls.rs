//! A plugin's functions, whatever the version of its table.

use super::abi::*;
use super::log;
use super::properties::AnyProperties;
use crate::net::NetHandle;
use core::ffi::{CStr, c_char, c_int};

/// Sizes are of the plugin's kind (`int` before version 9), and a message has one tag: there is one connection for each pair and
/// direction, and nothing to tell apart on it.
const TAG: c_int = 0;

/// What the tables of all kinds give.
pub struct Common {
    /// Of the table.
    pub version: u32,
    /// Where the table is, by which plugins are told apart.
    pub table: usize,
    /// What the plugin calls its network.
    pub name: String,
    pub devices: Devices,
    pub properties: AnyProperties,
    finalize: Option<Finalize>,
}

/// The first version whose plugins keep a context for each communicator, and are initialised for each.
const CONTEXT_SINCE: u32 = 11;

impl Common {
    /// From the first fields of the table at `table`, and its last.
    ///
    /// # Safety
    /// `name` is null or a string.
    pub unsafe fn new<P>(
        (version, table): (u32, usize),
        name: *const c_char,
        devices: Option<Devices>,
        properties: Option<GetProperties<P>>,
        finalize: Option<Finalize>,
    ) -> Result<Common, Lacks>
    where
        AnyProperties: From<GetProperties<P>>,
    {
        if name.is_null() {
            return Err(Lacks("name"));
        }
        // SAFETY: the caller's promise.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        Ok(Common {
            version,
            table,
            name,
            devices: devices.ok_or(Lacks("devices"))?,
            properties: properties.ok_or(Lacks("getProperties"))?.into(),
            finalize,
        })
    }

    /// Whether the plugin keeps a context for each communicator, and is initialised for each.
    pub fn has_context(&self) -> bool {
        self.version >= CONTEXT_SINCE
    }

    /// Undoes the initialisation, where the version has that.
    ///
    /// # Safety
    /// `context` is from the plugin's `init`, and nothing of it is in use.
    pub unsafe fn finalize(&self, context: Opaque) {
        if let Some(finalize) = self.finalize {
            // SAFETY: the caller's promise. What it returns changes nothing any more.
            unsafe { finalize(context) };
        }
    }
}

/// The functions of a kind of table.
pub trait AnyCalls {
    fn common(&self) -> &Common;

    /// Initialises the plugin; with a context where it has one, else null.
    ///
    /// # Safety
    /// The plugin is loaded.
    unsafe fn init(&self, communicator: u64) -> Result<Opaque, Code>;
}

/// What a table of networks gives, checked for what OxCCL needs.
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

/// The functions whose types changed.
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

/// The first function that the table lacks.
pub struct Lacks(pub &'static str);

impl Calls {
    /// The functions of the table at `table`.
    ///
    /// # Safety
    /// `table` is a table of that version, 8 to 12, and stays one.
    pub unsafe fn read(version: u32, table: Opaque) -> Result<Calls, Lacks> {
        // SAFETY: that is what the caller says it is.
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

    /// `handle` is where a plugin keeps how far it is from one call to the next: it must stay where it is.
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
) -> Result<Calls, Lacks>
where
    AnyProperties: From<GetProperties<P>>,
{
    let at = (version, core::ptr::from_ref(table).addr());
    // SAFETY: the caller's promise.
    let common = unsafe { Common::new(at, table.name, table.devices, table.get_properties, finalize) }?;
    let changed = Changed {
        init: table.init.ok_or(Lacks("init"))?,
        listen: table.listen.ok_or(Lacks("listen"))?,
        connect: table.connect.ok_or(Lacks("connect"))?,
        isend: table.isend.ok_or(Lacks("isend"))?,
        irecv: table.irecv.ok_or(Lacks("irecv"))?,
    };
    Ok(Calls {
        common,
        variant: variant(changed),
        accept: table.accept.ok_or(Lacks("accept"))?,
        reg_mr: table.reg_mr.ok_or(Lacks("regMr"))?,
        reg_mr_dma_buf: table.reg_mr_dma_buf,
        dereg_mr: table.dereg_mr.ok_or(Lacks("deregMr"))?,
        iflush: table.iflush,
        test: table.test.ok_or(Lacks("test"))?,
        close_send: table.close_send.ok_or(Lacks("closeSend"))?,
        close_recv: table.close_recv.ok_or(Lacks("closeRecv"))?,
        close_listen: table.close_listen.ok_or(Lacks("closeListen"))?,
    })
}
