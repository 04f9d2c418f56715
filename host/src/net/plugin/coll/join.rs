//! Joining the heads.
//!
//! NCCL lets the `connect` of a CollNet table, unlike that of a net table, wait for the other heads, and known
//! plugins do. So a thread of its own calls it, and the joining rank keeps its own timeout. A `connect` that never
//! returns costs that thread.

use super::calls::CollPlugin;
use super::comm::PluginComm;
use crate::net::coll::{CollComm, CollConnector, CollListener, Head};
use crate::net::plugin::abi::Opaque;
use crate::net::plugin::log;
use crate::net::{MemoryKinds, NetError, NetHandle};
use core::ffi::c_int;
use core::ptr::null_mut;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::Duration;

/// Pause between two calls of an incomplete `connect`.
const REST: Duration = Duration::from_micros(200);

/// A listener of the plugin, with its device.
pub struct Listening {
    plugin: Arc<CollPlugin>,
    listener: Opaque,
    device: String,
    memory: MemoryKinds,
}

// SAFETY: see `CollPlugin`; one thread at a time uses it.
unsafe impl Send for Listening {}

impl Listening {
    /// Takes ownership of the plugin's `listener`. `device` names the device for errors; `memory` is what it can
    /// access.
    pub fn new(plugin: Arc<CollPlugin>, listener: Opaque, device: String, memory: MemoryKinds) -> Listening {
        Listening { plugin, listener, device, memory }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // SAFETY: it is ours, and this is its last use.
        unsafe { (self.plugin.calls.close_listen)(self.listener) };
    }
}

impl CollListener for Listening {
    fn join(self: Box<Self>, handles: &[NetHandle], index: u32) -> Result<Box<dyn CollConnector>, NetError> {
        let head = Head { index, count: handles.len() as u32 };
        let device = format!("{} ({head})", self.device);
        if index as usize >= handles.len() {
            return Err(NetError::of_call(&device, "OxCCL", "there is no handle of it".to_owned()));
        }
        let (made, answer) = channel();
        let (wanted, gone) = channel();
        let joining =
            Joining { listening: *self, handles: handles.into(), head, device: device.clone(), gone };
        let thread = std::thread::Builder::new().name("oxccl-collnet".to_owned());
        let started = thread.spawn(move || {
            // If the connector was dropped, there is no receiver: the communicator is closed here.
            let _ = made.send(joining.run());
        });
        started.map_err(|error| NetError::of_io(&device, None, "connect", &error))?;
        Ok(Box::new(Connecting { answer, _wanted: wanted, device, failed: None }))
    }
}

/// State of the thread.
struct Joining {
    listening: Listening,
    /// The plugin may keep its progress in them: they must not move.
    handles: Box<[NetHandle]>,
    head: Head,
    device: String,
    /// Disconnected when the connector was dropped.
    gone: Receiver<()>,
}

impl Joining {
    fn run(mut self) -> Result<PluginComm, NetError> {
        let mut at: Vec<Opaque> =
            self.handles.iter_mut().map(|handle| handle.0.as_mut_ptr().cast()).collect();
        let Head { index, count } = self.head;
        let Listening { plugin, listener, .. } = &self.listening;
        loop {
            let mut comm = null_mut();
            log::begin();
            // SAFETY: the count is that of the handles, and the listener is live.
            let code = unsafe {
                let connect = plugin.calls.connect;
                connect(at.as_mut_ptr(), count as c_int, index as c_int, *listener, &mut comm)
            };
            if code != 0 {
                return Err(NetError::of_call(&self.device, "connect", log::describe(code)));
            }
            if !comm.is_null() {
                let Joining { listening, head, device, .. } = self;
                return Ok(PluginComm::new(listening.plugin.clone(), comm, device, listening.memory, head));
            }
            if self.gone.recv_timeout(REST) == Err(RecvTimeoutError::Disconnected) {
                return Err(NetError::of_call(&self.device, "connect", "given up".to_owned()));
            }
        }
    }
}

/// A communicator that a thread is creating.
struct Connecting {
    answer: Receiver<Result<PluginComm, NetError>>,
    _wanted: Sender<()>,
    device: String,
    failed: Option<NetError>,
}

impl CollConnector for Connecting {
    fn poll_join(&mut self) -> Result<Option<Box<dyn CollComm>>, NetError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let error = match self.answer.try_recv() {
            Ok(Ok(comm)) => return Ok(Some(Box::new(comm))),
            Err(TryRecvError::Empty) => return Ok(None),
            Ok(Err(error)) => error,
            Err(TryRecvError::Disconnected) => {
                NetError::of_call(&self.device, "connect", "its thread is gone".to_owned())
            }
        };
        Err(self.failed.insert(error).clone())
    }
}
