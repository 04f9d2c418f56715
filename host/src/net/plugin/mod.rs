//! Layer: host / net / plugin.
//! Takes: shared libraries with a table `ncclNetPlugin_v8` to `_v12`, as users of NCCL have them, or
//! `ncclCollNetPlugin_v8` to `_v12`.
//! Gives: each as a [`Net`] or a [`CollNet`].
//! Never: trusts a plugin's claims further than a process trusts code that it loads; blocks.
//!
//! From below: `abi`, the tables; `properties`, device properties; `log`, log messages; `calls`, one set of functions
//! for all versions; `load`, finding plugins; `opened`, an initialised one; `connection`, memory and requests; `comm`, ends of connections; `coll`,
//! the same for in-network reduction.

#[doc(hidden)]
pub mod abi;
mod properties;
pub(crate) mod log;
mod calls;
pub(crate) mod load;
mod opened;
mod connection;
mod comm;
mod coll;

#[doc(hidden)]
pub use coll::abi as coll_abi;
pub use load::{PluginConfig, PluginName};

use super::coll::CollNet;
use super::{Connector, HANDLE_BYTES, Listener, Net, NetError, NetHandle, NetProperties};
use abi::Opaque;
use calls::Calls;
use opened::Plugin;
use std::fmt;
use std::sync::Arc;

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
