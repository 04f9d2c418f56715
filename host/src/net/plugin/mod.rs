//! Layer: host / net / plugin.
//! Takes: shared libraries with a table `ncclNetPlugin_v8` to `_v12`, as users of NCCL have them, or
//! `ncclCollNetPlugin_v8` to `_v12`.
//! Gives: each as a [`Net`] or a [`CollNet`].
//! Never: trusts a plugin's claims further than a process trusts code that it loads; blocks.
//!
//! From below: `abi`, the tables; `properties`, device properties; `log`, log messages; `calls`, one set of functions
//! for all versions; `load`, finding plugins; `connection`, memory and requests; `comm`, ends of connections; `coll`,
//! the same for in-network reduction.

#[doc(hidden)]
pub mod abi;
mod properties;
pub(crate) mod log;
mod calls;
pub(crate) mod load;
mod connection;
mod comm;
mod coll;

#[doc(hidden)]
pub use coll::abi as coll_abi;
pub use load::{PluginConfig, PluginName};

use super::coll::CollNet;
use super::{Connector, HANDLE_BYTES, Listener, Net, NetError, NetHandle, NetProperties};
use abi::{Code, Opaque};
use calls::{AnyCalls, Calls};
use core::ffi::c_int;
use properties::Facts;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A plugin that is loaded but not initialised.
pub struct Found(Calls);

/// Finds the plugin of that name.
///
/// # Errors
/// [`NetError::Absent`].
pub fn find(name: &str) -> Result<Found, NetError> {
    load::load(name).map(Found)
}

/// Opens the CollNet network of a plugin.
///
/// # Errors
/// [`NetError::Absent`] if it has no supported one, [`NetError::Call`] if its initialisation fails.
pub fn open_coll(name: &str) -> Result<Arc<dyn CollNet>, NetError> {
    coll::open(name)
}

/// The network of a table, and the one that reduces, each of this version, 8 to 12: for tests of a plugin's every version.
///
/// # Errors
/// As [`find`] and [`Found::open`].
///
/// # Safety
/// 1. Both are tables of that version, and stay so.
#[doc(hidden)]
pub unsafe fn open_tables(version: u32, net: Opaque, coll: Opaque) -> Result<Networks, NetError> {
    // SAFETY: obligation 1.
    unsafe {
        let net = Found(load::read("a table", version, net)?).open()?;
        Ok((net, coll::open_table("a table", version, coll)?))
    }
}

/// A network, and one that reduces.
pub type Networks = (Arc<dyn Net>, Arc<dyn CollNet>);

impl Found {
    /// The plugin's name for its network.
    pub fn name(&self) -> &str {
        &self.0.common.name
    }

    /// Initialises it.
    ///
    /// # Errors
    /// [`NetError::Call`] if the initialisation fails.
    pub fn open(self) -> Result<Arc<dyn Net>, NetError> {
        let Found(calls) = self;
        Ok(Arc::new(Handle(Arc::new(Plugin::open(calls)?))))
    }
}

/// Initialises a plugin, and returns its context. A plugin without contexts is initialised once for the process;
/// after a failure the next user tries again.
fn init(calls: &impl AnyCalls) -> Result<Opaque, NetError> {
    static INITIALISED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let mut initialised = INITIALISED.lock().unwrap_or_else(PoisonError::into_inner);
    let common = calls.common();
    if !common.has_context() && initialised.contains(&common.table) {
        return Ok(core::ptr::null_mut());
    }
    log::begin();
    // SAFETY: it has just been loaded. The number only has to differ from those of other communicators.
    let context = unsafe { calls.init(getrandom::u64().unwrap_or(1)) };
    let context = context.map_err(|code| failed(&common.name, "init", code))?;
    if !common.has_context() {
        initialised.push(common.table);
    }
    Ok(context)
}

/// An initialised plugin, with one kind of table.
struct Plugin<T: AnyCalls = Calls> {
    calls: T,
    /// This user's context; null before version 11.
    context: Opaque,
    devices: u32,
}

// SAFETY: NCCL calls plugins from an application's threads and from its own, so plugins support both; one thread at a
// time uses the objects of one connection, here as there.
unsafe impl<T: AnyCalls + Send> Send for Plugin<T> {}
// SAFETY: as above.
unsafe impl<T: AnyCalls + Sync> Sync for Plugin<T> {}

impl<T: AnyCalls> Plugin<T> {
    fn open(calls: T) -> Result<Plugin<T>, NetError> {
        let context = init(&calls)?;
        let mut plugin = Plugin { calls, context, devices: 0 };
        let mut devices: c_int = 0;
        log::begin();
        // SAFETY: it is initialised.
        let code = unsafe { (plugin.calls.common().devices)(&mut devices) };
        plugin.check("devices", code)?;
        plugin.devices = devices.max(0) as u32;
        Ok(plugin)
    }

    fn name(&self) -> &str {
        &self.calls.common().name
    }

    /// The device's number in the plugin's type.
    fn device(&self, device: u32) -> Result<c_int, NetError> {
        if device < self.devices {
            return Ok(device as c_int);
        }
        Err(NetError::NoDevice { net: self.name().to_owned(), device, devices: self.devices })
    }

    /// The plugin's facts about a device.
    fn facts(&self, device: u32) -> Result<Facts, NetError> {
        let number = self.device(device)?;
        log::begin();
        // SAFETY: the plugin is initialised and has the device.
        let facts = unsafe { self.calls.common().properties.of(number) };
        facts.map_err(|code| failed(self.name(), "getProperties", code))
    }

    fn check(&self, call: &'static str, code: Code) -> Result<(), NetError> {
        if code == 0 { Ok(()) } else { Err(failed(self.name(), call, code)) }
    }
}

fn failed(plugin: &str, call: &'static str, code: Code) -> NetError {
    NetError::Call { device: plugin.to_owned(), peer: None, call, reason: log::describe(code) }
}

impl<T: AnyCalls> Drop for Plugin<T> {
    fn drop(&mut self) {
        // SAFETY: connections and communicators hold an `Arc` of the plugin, so none are left.
        unsafe { self.calls.common().finalize(self.context) };
    }
}

/// The network as a trait object.
struct Handle(Arc<Plugin>);

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "plugin {} (ncclNetPlugin_v{})", self.0.name(), self.0.calls.common.version)
    }
}

impl Net for Handle {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn devices(&self) -> u32 {
        self.0.devices
    }

    fn properties(&self, device: u32) -> Result<NetProperties, NetError> {
        let facts = self.0.facts(device)?;
        let max_bytes =
            facts.max_bytes.map_or(usize::MAX, |(message, _)| message).min(comm::MESSAGE_MAX_BYTES);
        // SAFETY: the plugin is initialised.
        unsafe { facts.properties(self.0.name(), device, max_bytes) }
    }

    fn listen(&self, device: u32) -> Result<(NetHandle, Box<dyn Listener>), NetError> {
        let (number, memory) = (self.0.device(device)?, self.properties(device)?.memory);
        let mut handle = NetHandle([0; HANDLE_BYTES]);
        let mut listener: Opaque = core::ptr::null_mut();
        log::begin();
        // SAFETY: the context is the plugin's, which has the device.
        let code = unsafe { self.0.calls.listen(self.0.context, number, &mut handle, &mut listener) };
        self.0.check("listen", code)?;
        Ok((handle, Box::new(comm::PluginListener::new(self.0.clone(), memory, listener))))
    }

    fn connect(&self, device: u32, handle: &NetHandle) -> Result<Box<dyn Connector>, NetError> {
        let (number, memory) = (self.0.device(device)?, self.properties(device)?.memory);
        Ok(Box::new(comm::PluginConnector::new(self.0.clone(), number, memory, *handle)))
    }
}
