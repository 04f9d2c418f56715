//! Ports as devices of the network.

use super::config::IbConfig;
use super::gid::{self, Entry};
use super::verbs::abi::value::{LINK_LAYER_ETHERNET, LINK_LAYER_INFINIBAND, PORT_ACTIVE};
use super::verbs::abi::{AhAttr, Gid, GlobalRoute, PortAttr};
use super::verbs::{OpenDevice, takes_dma_buf};
use crate::net::{MemoryKinds, REQUESTS_MAX};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Most bytes of one message: a length that fits the immediate of an RDMA write.
pub(super) const MESSAGE_MAX_BYTES: u32 = 1 << 30;
/// Hop limit of RoCE packets.
const HOP_LIMIT: u8 = 255;

/// A usable port.
#[derive(Debug)]
pub(super) struct Port {
    pub device: Arc<OpenDevice>,
    pub number: u8,
    pub gid: Entry,
    pub lid: u16,
    /// Value of `enum ibv_mtu`.
    pub mtu: u32,
    pub is_ethernet: bool,
    pub speed_mbps: u32,
    /// Most bytes of one request; a longer message takes several.
    pub request_max_bytes: u32,
    pub queue_pairs_max: u32,
    pub card_guid: u64,
    pub memory: MemoryKinds,
    pub pci_path: Option<String>,
}

impl Port {
    /// The active ports of these devices that `config` admits. Logs a port that is skipped for lack of a GID.
    pub(super) fn all(devices: &[Arc<OpenDevice>], config: &IbConfig, sysfs: &Path) -> Vec<Arc<Port>> {
        let mut ports = Vec::new();
        for device in devices {
            let count = device.attributes().map_or(0, |attributes| attributes.phys_port_cnt);
            for number in 1..=count {
                if config.hca.as_ref().is_some_and(|filter| !filter.admits(device.name(), number)) {
                    continue;
                }
                match Port::open(device, number, config, sysfs) {
                    Ok(port) => ports.extend(port.map(Arc::new)),
                    Err(error) => {
                        tracing::warn!(device = %device.name(), port = number, %error, "an RDMA port cannot be used");
                    }
                }
            }
        }
        ports
    }

    /// `None` if the port is not active, or of a kind without reliable connections.
    fn open(
        device: &Arc<OpenDevice>,
        number: u8,
        config: &IbConfig,
        sysfs: &Path,
    ) -> io::Result<Option<Port>> {
        let port = device.port(number)?;
        let is_known = matches!(port.link_layer, LINK_LAYER_INFINIBAND | LINK_LAYER_ETHERNET);
        if port.state != PORT_ACTIVE || !is_known {
            return Ok(None);
        }
        let attributes = device.attributes()?;
        let directory = sysfs.join("class/infiniband").join(device.name());
        let is_ethernet = port.link_layer == LINK_LAYER_ETHERNET;
        let gid = choose_gid(device, number, &port, config, &directory)?;
        let pci_path = std::fs::canonicalize(directory.join("device")).ok();
        Ok(Some(Port {
            device: device.clone(),
            number,
            gid,
            lid: port.lid,
            mtu: port.active_mtu,
            is_ethernet,
            speed_mbps: speed_mbps(&port),
            request_max_bytes: port.max_msg_sz.clamp(1, MESSAGE_MAX_BYTES),
            queue_pairs_max: u32::try_from(attributes.max_qp).unwrap_or(0),
            card_guid: u64::from_be(attributes.sys_image_guid),
            memory: memory_kinds(device, sysfs),
            pci_path: pci_path.map(|path| path.to_string_lossy().into_owned()),
        }))
    }

    /// Name for messages.
    pub(super) fn name(&self) -> String {
        format!("{}:{}", self.device.name(), self.number)
    }

    /// Requests that a send queue must hold: 32 messages of data and immediate, or one message of maximal length.
    pub(super) fn send_requests(&self) -> u32 {
        2 * REQUESTS_MAX as u32 + MESSAGE_MAX_BYTES.div_ceil(self.request_max_bytes)
    }

    /// The route to a port with this LID and GID.
    pub(super) fn path_to(&self, lid: u16, gid: Gid, config: &IbConfig) -> AhAttr {
        // Within an InfiniBand subnet the LID is enough; RoCE has no LIDs, and routers between subnets use the GID.
        let by_gid = self.is_ethernet || gid.subnet() != self.gid.gid.subnet();
        let grh = GlobalRoute {
            dgid: gid,
            flow_label: 0,
            sgid_index: self.gid.index,
            hop_limit: HOP_LIMIT,
            traffic_class: config.traffic_class,
        };
        AhAttr {
            grh: if by_gid { grh } else { GlobalRoute::default() },
            dlid: lid,
            sl: config.service_level,
            is_global: u8::from(by_gid),
            port_num: self.number,
            ..AhAttr::default()
        }
    }
}

fn choose_gid(
    device: &OpenDevice,
    number: u8,
    port: &PortAttr,
    config: &IbConfig,
    directory: &Path,
) -> io::Result<Entry> {
    let mut entries = Vec::new();
    for index in 0..=u8::try_from(port.gid_tbl_len.saturating_sub(1)).unwrap_or(u8::MAX) {
        // Unset entries are an error in some drivers and zero in others.
        if let Some(gid) = device.gid(number, index).ok().filter(|gid| *gid != Gid::default()) {
            entries.push(Entry { index, gid, roce_version: roce_version(directory, number, index) });
        }
    }
    // On InfiniBand only the first one matters, which the subnet manager assigned.
    let is_ethernet = port.link_layer == LINK_LAYER_ETHERNET;
    let first = entries.first().copied().filter(|_| !is_ethernet && config.gid_index.is_none());
    first.or_else(|| gid::choose(&entries, config)).ok_or_else(|| {
        io::Error::other(format!(
            "none of its {} GIDs suits NCCL_IB_GID_INDEX and NCCL_IB_ADDR_RANGE: has its interface an address?",
            entries.len()
        ))
    })
}

/// The kernel reports the kind of a GID as text; unknown where sysfs is hidden.
fn roce_version(directory: &Path, number: u8, index: u8) -> Option<u8> {
    let file = directory.join(format!("ports/{number}/gid_attrs/types/{index}"));
    let kind = std::fs::read_to_string(file).ok()?;
    if kind.contains("RoCE v2") { Some(2) } else { kind.contains("RoCE v1").then_some(1) }
}

/// The kinds of memory that it can access. CUDA memory by address needs a kernel module, of which there have been
/// several.
fn memory_kinds(device: &OpenDevice, sysfs: &Path) -> MemoryKinds {
    let modules = [
        "module/nvidia_peermem/version",
        "module/nv_peer_mem/version",
        "kernel/mm/memory_peers/nv_mem/version",
    ];
    let mut kinds = MemoryKinds::HOST;
    kinds.set(MemoryKinds::CUDA, modules.iter().any(|file| sysfs.join(file).exists()));
    kinds.set(MemoryKinds::DMA_BUF, takes_dma_buf(device));
    kinds
}

/// Number of lanes times their speed; an unknown code counts as the slowest.
fn speed_mbps(port: &PortAttr) -> u32 {
    let lanes = match port.active_width {
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    };
    let lane_mbps = match port.active_speed {
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 2_500,
    };
    lanes * lane_mbps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_gid_is_read_from_sysfs() {
        let sysfs = tempfile::tempdir().expect("a directory");
        let types = sysfs.path().join("ports/1/gid_attrs/types");
        std::fs::create_dir_all(&types).expect("a directory");
        for (index, kind) in [(0, "IB/RoCE v1\n"), (1, "RoCE v2\n"), (2, "IB\n")] {
            std::fs::write(types.join(index.to_string()), kind).expect("a file");
        }
        let versions = [0, 1, 2, 3].map(|index| roce_version(sysfs.path(), 1, index));
        assert_eq!(versions, [Some(1), Some(2), None, None]);
    }
}
