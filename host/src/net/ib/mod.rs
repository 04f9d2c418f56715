//! Layer: host / net / ib.
//! Takes: libibverbs, if this host has it, and the ports that `NCCL_IB_*` admit.
//! Gives: the network over InfiniBand and RoCE: reliable connections of one or several queue pairs. The receiver
//! sends a clear-to-send (CTS) entry with each message's address, and the sender writes the message there by RDMA.
//! Never: copies a message, sends before the receive is posted, allocates or locks once a connection is up.
//!
//! From below: `verbs` (libibverbs), `port` and `gid` (devices and addresses), `cts` (clear-to-send entries), `link`
//! (queue pairs and their errors), `send`, `recv` and `flush`, `connector` and `listener` (connection setup).
//! `docs/infiniband.md` explains settings and errors.

mod address;
mod hca;
mod config;
mod gid;
mod verbs;
mod missing;
mod port;
mod cts;
mod metadata;
mod watch;
mod registry;
mod link;
mod flush;
mod send;
mod recv;
mod metadata_exchange;
mod setup;
mod connector;
mod listener;

pub use address::AddressRange;
pub use config::IbConfig;
pub use hca::HcaFilter;

use super::invitation::Invitation;
use super::socket::SocketConfig;
use super::{Connector, Listener, Net, NetError, NetHandle, NetProperties};
use crate::bootstrap::iface;
use crate::bootstrap::secret::Secret;
use connector::IbConnector;
use listener::IbListener;
use port::{MESSAGE_MAX_BYTES, Port};
use setup::Settings;
use std::path::Path;
use std::sync::Arc;
use verbs::{OpenDevice, Verbs};

/// The network's name.
const NAME: &str = "IB";
/// The first bytes of its listen handles.
const MAGIC: [u8; 4] = *b"OxIB";
/// Latency of one message, in order of magnitude.
const LATENCY_US: f32 = 1.0;

/// InfiniBand and RoCE by libibverbs.
#[derive(Debug)]
pub struct Ib {
    settings: Settings,
    ports: Vec<Arc<Port>>,
}

/// Opens the network over the ports that `config` admits. `socket` configures the sockets for connection setup.
///
/// # Errors
/// [`NetError::Absent`] if it is disabled, or if this host has no libibverbs, no device, or no usable one;
/// [`NetError::Call`] if there is no interface for the setup sockets.
pub fn open(config: &IbConfig, socket: &SocketConfig) -> Result<Arc<dyn Net>, NetError> {
    let absent = |reason: String| NetError::Absent { net: NAME.to_owned(), reason };
    if config.disabled {
        return Err(absent("NCCL_IB_DISABLE is 1".to_owned()));
    }
    let verbs = Verbs::get().map_err(|reason| absent(reason.to_owned()))?;
    let (sys, dev) = (Path::new("/sys"), Path::new("/dev"));
    let devices = OpenDevice::all(verbs).map_err(|error| absent(missing::why(sys, dev, Some(&error))))?;
    let ports = Port::all(&devices, config, sys);
    if ports.is_empty() {
        let reason = match devices.len() {
            0 => missing::why(sys, dev, None),
            count => format!("of {count} RDMA devices no port is active and admitted by NCCL_IB_HCA"),
        };
        return Err(absent(reason));
    }
    let addr = iface::list()
        .and_then(|interfaces| iface::choose(&interfaces, socket.interfaces.as_ref(), socket.ipv6))
        .map_err(|error| NetError::of_call(NAME, "set-up address", error.to_string()))?;
    let settings = Settings { ib: config.clone(), socket: socket.clone(), addr };
    Ok(Arc::new(Ib { settings, ports }))
}

impl Ib {
    fn port(&self, device: u32) -> Result<&Arc<Port>, NetError> {
        self.ports.get(device as usize).ok_or_else(|| NetError::NoDevice {
            net: NAME.to_owned(),
            device,
            devices: self.ports.len() as u32,
        })
    }
}

impl Net for Ib {
    fn name(&self) -> &str {
        NAME
    }

    fn devices(&self) -> u32 {
        self.ports.len() as u32
    }

    fn properties(&self, device: u32) -> Result<NetProperties, NetError> {
        let port = self.port(device)?;
        Ok(NetProperties {
            name: port.device.name().to_owned(),
            pci_path: port.pci_path.clone(),
            guid: port.card_guid,
            memory: port.memory,
            registers_globally: false,
            speed_mbps: port.speed_mbps,
            port: port.number.into(),
            latency_us: LATENCY_US,
            comms_max: port.queue_pairs_max / self.settings.ib.queue_pairs,
            message_max_bytes: MESSAGE_MAX_BYTES as usize,
        })
    }

    fn listen(&self, device: u32) -> Result<(NetHandle, Box<dyn Listener>), NetError> {
        let port = self.port(device)?;
        let token = Secret::random()
            .map_err(|error| NetError::of_call(&port.name(), "getrandom", error.to_string()))?;
        let (addr, listener) = IbListener::new(port, &self.settings, token)?;
        Ok((Invitation { addr, token }.to_handle(MAGIC), Box::new(listener)))
    }

    fn connect(&self, device: u32, handle: &NetHandle) -> Result<Box<dyn Connector>, NetError> {
        let port = self.port(device)?;
        let invitation = Invitation::from_handle(handle, MAGIC)
            .map_err(|reason| NetError::BadHandle { net: NAME.to_owned(), reason: reason.to_owned() })?;
        Ok(Box::new(IbConnector::new(port, &self.settings, &invitation)?))
    }
}

#[cfg(test)]
mod tests;
