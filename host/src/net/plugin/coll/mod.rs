//! Layer: host / net / plugin / coll.
//! Takes: a shared library with a table `ncclCollNetPlugin_v8` to `_v12`.
//! Gives: a [`CollNet`].
//! Never: assumes that a plugin's functions do not block: the one that may has a thread of its own.
//!
//! From below: `abi`, the tables; `calls`, one set of functions for all versions; `join`, joining the heads; `comm`,
//! operations.

#[doc(hidden)]
pub mod abi;
mod calls;
mod join;
mod comm;

use super::abi::Opaque;
use super::calls::MissingFunction;
use super::opened::Plugin;
use super::{load, log};
use crate::net::coll::{CollListener, CollNet, Windows};
use crate::net::{HANDLE_BYTES, NetError, NetHandle, NetProperties};
use calls::{CollCalls, CollPlugin};
use core::ffi::c_int;
use oxccl_shared::abi::{DataType, RedOp};
use std::fmt;
use std::sync::Arc;

/// See [`super::open_coll`].
pub fn open(name: &str) -> Result<Arc<dyn CollNet>, NetError> {
    let (version, table) = load::table(name, "ncclCollNetPlugin_v")?;
    // SAFETY: the symbol's name states the type, and the plugin is never unloaded.
    unsafe { open_table(name, version, table) }
}

/// The network with this table.
///
/// # Errors
/// As [`open`].
///
/// # Safety
/// 1. `table` is a CollNet table of that version, 8 to 12, and stays one.
pub unsafe fn open_table(name: &str, version: u32, table: Opaque) -> Result<Arc<dyn CollNet>, NetError> {
    // SAFETY: obligation 1.
    let calls = unsafe { CollCalls::read(version, table) };
    let calls = calls.map_err(|MissingFunction(what)| {
        load::absent(name, format!("its ncclCollNetPlugin_v{version} has no {what}"))
    })?;
    Ok(Arc::new(Handle(Arc::new(Plugin::open(calls)?))))
}

/// The network as a trait object.
struct Handle(Arc<CollPlugin>);

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "plugin {} (ncclCollNetPlugin_v{})", self.0.name(), self.0.calls.common.version)
    }
}

impl CollNet for Handle {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn devices(&self) -> u32 {
        self.0.devices
    }

    fn properties(&self, device: u32) -> Result<NetProperties, NetError> {
        let facts = self.0.facts(device)?;
        let by_int = if self.0.calls.counts_by_int() { c_int::MAX as usize } else { usize::MAX };
        let max_bytes = facts.max_bytes.map_or(usize::MAX, |(_, collective)| collective).min(by_int);
        // SAFETY: the plugin is initialised.
        unsafe { facts.properties(self.0.name(), device, max_bytes) }
    }

    fn reduces(&self, dtype: DataType, op: RedOp) -> Result<bool, NetError> {
        if !matches!(op, RedOp::Sum | RedOp::Prod | RedOp::Max | RedOp::Min) {
            return Ok(false);
        }
        let mut supported: c_int = 0;
        log::begin();
        // SAFETY: the plugin is initialised; types and operators have NCCL's numbers.
        let code = unsafe { (self.0.calls.reduce_support)(dtype as c_int, op as c_int, &mut supported) };
        self.0.check("reduceSupport", code)?;
        Ok(supported != 0)
    }

    fn windows(&self) -> Windows {
        self.0.calls.windows()
    }

    fn listen(&self, device: u32) -> Result<(NetHandle, Box<dyn CollListener>), NetError> {
        let (number, properties) = (self.0.device(device)?, self.properties(device)?);
        let mut handle = NetHandle([0; HANDLE_BYTES]);
        let mut listener: Opaque = core::ptr::null_mut();
        log::begin();
        let CollPlugin { calls, context, .. } = &*self.0;
        // SAFETY: the context is the plugin's, which has the device.
        let code = unsafe { calls.listen(*context, number, &mut handle, &mut listener) };
        self.0.check("listen", code)?;
        let device = format!("{} {}", self.0.name(), properties.name);
        Ok((handle, Box::new(join::Listening::new(self.0.clone(), listener, device, properties.memory))))
    }
}
