//! An initialised plugin, with a table of either kind.

use super::abi::{Code, Opaque};
use super::calls::{AnyCalls, Calls};
use super::log;
use super::properties::Facts;
use crate::net::NetError;
use core::ffi::c_int;
use std::sync::{Mutex, PoisonError};

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
pub(super) struct Plugin<T: AnyCalls = Calls> {
    pub calls: T,
    /// This user's context; null before version 11.
    pub context: Opaque,
    pub devices: u32,
}

// SAFETY: NCCL calls plugins from an application's threads and from its own, so plugins support both; one thread at a
// time uses the objects of one connection, here as there.
unsafe impl<T: AnyCalls + Send> Send for Plugin<T> {}
// SAFETY: as above.
unsafe impl<T: AnyCalls + Sync> Sync for Plugin<T> {}

impl<T: AnyCalls> Plugin<T> {
    pub fn open(calls: T) -> Result<Plugin<T>, NetError> {
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

    pub fn name(&self) -> &str {
        &self.calls.common().name
    }

    /// The device's number in the plugin's type.
    pub fn device(&self, device: u32) -> Result<c_int, NetError> {
        if device < self.devices {
            return Ok(device as c_int);
        }
        Err(NetError::NoDevice { net: self.name().to_owned(), device, devices: self.devices })
    }

    /// The plugin's facts about a device.
    pub fn facts(&self, device: u32) -> Result<Facts, NetError> {
        let number = self.device(device)?;
        log::begin();
        // SAFETY: the plugin is initialised and has the device.
        let facts = unsafe { self.calls.common().properties.of(number) };
        facts.map_err(|code| failed(self.name(), "getProperties", code))
    }

    pub fn check(&self, call: &'static str, code: Code) -> Result<(), NetError> {
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
