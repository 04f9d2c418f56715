//! Which devices rings go by.

use super::*;
use crate::net::loopback::Loopback;
use crate::net::{Connector, Listener, NetHandle};

/// A network of three devices, `nic0` to `nic2`.
#[derive(Debug)]
struct Three(Loopback);

impl Net for Three {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn devices(&self) -> u32 {
        3
    }
    fn properties(&self, device: u32) -> Result<NetProperties, NetError> {
        Ok(NetProperties { name: format!("nic{device}"), ..self.0.properties(0)? })
    }
    fn listen(&self, _: u32) -> Result<(NetHandle, Box<dyn Listener>), NetError> {
        self.0.listen(0)
    }
    fn connect(&self, _: u32, handle: &NetHandle) -> Result<Box<dyn Connector>, NetError> {
        self.0.connect(0, handle)
    }
}

/// Those that the search gave them, where the network has them and GPUDirect is as for the rank's own; or else the rank's own.
#[test]
fn rings_go_by_devices_of_their_own_where_these_are_as_good() {
    let net: Arc<dyn Net> = Arc::new(Three(Loopback::new(1)));
    let network = Network::on_nearest_device(net, BusId::new(0, 0x77, 0), 0).unwrap();
    assert_eq!(network.device, 0);
    let name = |name: &str| Some(name.to_owned());
    let rings = [[name("nic1"), None], [name("nic2"), name("nic1")], [name("nic0"), name("elsewhere")]];
    let by = |refused: &str| network.ring_devices(&rings, |nic| nic.name != refused);
    assert_eq!(by("none"), [[1, 0], [2, 1], [0, 0]]);
    assert_eq!(by("nic2"), [[1, 0], [0, 1], [0, 0]]);
    assert_eq!(by("nic0"), by("none"), "its own is its own");
}
