//! Layer: host / net / socket.
//! Takes: the host's interfaces, filtered by `NCCL_SOCKET_IFNAME` and `NCCL_SOCKET_FAMILY`.
//! Gives: the network that every host has. A connection is a control socket and, if the user wants them, data sockets
//! for striping long messages; each authenticates with the listener's token before anything else is read. A
//! connection's sockets have its devices' addresses at both ends, so that they use the chosen interfaces.
//! Never: blocks, starts a thread, allocates or locks once a connection is up.
//!
//! [`super::message`] defines the wire format; this module provides the sockets.

mod config;
mod devices;
mod purpose;
mod prompt;
mod listener;
mod connector;
mod over;
#[cfg(test)]
mod tests;

pub use config::{DATA_SOCKETS_MAX, SocketConfig};
pub(crate) use over::{receiver_over, sender_over};

use super::invitation::Invitation;
use super::{Connector, Listener, MemoryKinds, Net, NetError, NetHandle, NetProperties};
use crate::bootstrap::secret::Secret;
use config::NAME;
use devices::Device;
use std::sync::{Arc, Once};

/// The first bytes of its listen handles, in the clear and encrypted.
const MAGIC: [u8; 4] = *b"OxSk";
const SEALED_MAGIC: [u8; 4] = *b"OxSe";
/// Most open connections of a device: the limit of file descriptors, in order of magnitude.
const COMMS_MAX: u32 = 65_536;

/// TCP over the host's interfaces.
#[derive(Debug)]
pub struct Socket {
    config: SocketConfig,
    devices: Vec<Device>,
}

/// The network over the interfaces that `config` admits, perhaps none.
///
/// # Errors
/// [`NetError::Call`] if the kernel does not list its interfaces.
pub fn open(config: &SocketConfig) -> Result<Arc<dyn Net>, NetError> {
    static TOLD: Once = Once::new();
    if config.data_sockets > 0 {
        TOLD.call_once(|| tracing::warn!("{}", no_threads(config.data_sockets)));
    }
    Ok(Arc::new(Socket { config: config.clone(), devices: devices::list(config)? }))
}

/// The warning for users who ask for threads.
fn no_threads(data_sockets: u32) -> String {
    format!(
        "NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD: every connection has {data_sockets} data sockets, and no threads are started \
         for them: the one that drives the communicator drives its sockets"
    )
}

impl Socket {
    fn magic(&self) -> [u8; 4] {
        if self.config.encrypt { SEALED_MAGIC } else { MAGIC }
    }

    /// What a handle says, if its listener encrypts as this rank does.
    fn invitation(&self, handle: &NetHandle) -> Result<Invitation, NetError> {
        let other = if self.config.encrypt { MAGIC } else { SEALED_MAGIC };
        Invitation::from_handle(handle, self.magic()).map_err(|reason| {
            match Invitation::from_handle(handle, other) {
                Ok(_) => NetError::Encryption { net: NAME.to_owned(), here: self.config.encrypt },
                Err(_) => NetError::BadHandle { net: NAME.to_owned(), reason: reason.to_owned() },
            }
        })
    }

    fn device(&self, device: u32) -> Result<&Device, NetError> {
        self.devices.get(device as usize).ok_or_else(|| NetError::NoDevice {
            net: NAME.to_owned(),
            device,
            devices: self.devices.len() as u32,
        })
    }
}

impl Net for Socket {
    fn name(&self) -> &str {
        NAME
    }

    fn devices(&self) -> u32 {
        self.devices.len() as u32
    }

    fn is_moved_by_processors(&self) -> bool {
        true
    }

    fn encrypts(&self) -> bool {
        self.config.encrypt
    }

    fn properties(&self, device: u32) -> Result<NetProperties, NetError> {
        let found = self.device(device)?;
        Ok(NetProperties {
            name: found.interface.name.clone(),
            pci_path: found.pci_path.clone(),
            guid: u64::from(device),
            memory: MemoryKinds::HOST,
            registers_globally: true,
            speed_mbps: found.speed_mbps,
            port: 0,
            latency_us: 0.0,
            comms_max: COMMS_MAX,
            message_max_bytes: super::message::MESSAGE_MAX_BYTES,
        })
    }

    fn listen(&self, device: u32) -> Result<(NetHandle, Box<dyn Listener>), NetError> {
        let device = self.device(device)?;
        let token = Secret::random()
            .map_err(|error| NetError::of_call(&device.interface.name, "getrandom", error.to_string()))?;
        let (addr, listener) = listener::SocketListener::new(device, token, &self.config)?;
        Ok((Invitation { addr, token }.to_handle(self.magic()), Box::new(listener)))
    }

    fn device_towards(&self, handle: &NetHandle, preferred: u32) -> u32 {
        // `connect` reports the error of a bad handle.
        let Ok(Invitation { addr, .. }) = self.invitation(handle) else { return preferred };
        devices::towards(&self.devices, addr, preferred as usize) as u32
    }

    fn connect(&self, device: u32, handle: &NetHandle) -> Result<Box<dyn Connector>, NetError> {
        let device = self.device(device)?;
        let invitation = self.invitation(handle)?;
        Ok(Box::new(connector::SocketConnector::new(device, &invitation, &self.config)?))
    }
}
