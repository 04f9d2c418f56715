//! The two connections of a head and a server over a network, while they are made.

use super::messages::Messages;
use crate::net::{Connector, Listener, Net, NetError, NetHandle, RecvComm, SendComm};
use std::fmt;
use std::sync::Arc;

/// One end's part: it listens for one connection, and connects to the other end's listener for the other.
pub struct Meeting {
    net: Arc<dyn Net>,
    device: u32,
    listener: Box<dyn Listener>,
    connector: Option<Box<dyn Connector>>,
    receives: Option<Box<dyn RecvComm>>,
    sends: Option<Box<dyn SendComm>>,
}

impl fmt::Debug for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Meeting({:?} {})", self.net, self.device)
    }
}

impl Meeting {
    /// Listens on a device of the network. The other end gets the handle.
    ///
    /// # Errors
    /// The network's.
    pub fn listen(net: &Arc<dyn Net>, device: u32) -> Result<(NetHandle, Meeting), NetError> {
        let (handle, listener) = net.listen(device)?;
        let net = net.clone();
        Ok((handle, Meeting { net, device, listener, connector: None, receives: None, sends: None }))
    }

    /// Starts to connect to the other end.
    ///
    /// # Errors
    /// The network's.
    pub fn connect(&mut self, theirs: &NetHandle) -> Result<(), NetError> {
        let device = self.net.device_towards(theirs, self.device);
        self.connector = Some(self.net.connect(device, theirs)?);
        Ok(())
    }

    /// The stream, once both connections are there.
    ///
    /// # Errors
    /// The network's.
    pub fn poll(&mut self) -> Result<Option<Messages>, NetError> {
        if self.receives.is_none() {
            self.receives = self.listener.poll_accept()?;
        }
        if let Some(connector) = self.connector.as_mut().filter(|_| self.sends.is_none()) {
            self.sends = connector.poll_connect()?;
        }
        if self.sends.is_none() || self.receives.is_none() {
            return Ok(None);
        }
        let both = self.sends.take().zip(self.receives.take());
        both.map(|(sends, receives)| Messages::new(sends, receives)).transpose()
    }
}
