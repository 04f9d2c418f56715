//! Layer: host / topology / system.
//! Takes: the identities of chips and boards.
//! Gives: their models, as far as bandwidths and behaviour depend on them.
//! Never: bandwidths.

use super::{CpuModel, GpuNode};
use crate::topology::{Cpu, Gpu, Pci};

pub(super) fn gpu_node(pci: &Pci, gpu: &Gpu) -> Option<GpuNode> {
    Some(GpuNode {
        bus_id: pci.bus_id,
        dev: gpu.dev.unwrap_or(gpu.rank?.0),
        rank: gpu.rank?,
        sm: gpu.sm.unwrap_or(0),
        gdr: gpu.gdr.unwrap_or(false),
        device: pci.device,
        is_consumer: is_consumer(pci, gpu.sm.unwrap_or(0)),
    })
}

/// GeForce boards since Turing are display controllers whose device ids are in the first 48 of each 128; ids of
/// workstation boards, which have peer access, are above.
fn is_consumer(pci: &Pci, sm: u32) -> bool {
    let is_display = pci.class == Some(0x03_0000);
    sm >= 75
        && is_display
        && pci.vendor == Some(0x10de)
        && pci.device.is_some_and(|device| device & 0x7f < 0x30)
}

pub(super) fn chip_of(pci: &Pci) -> u64 {
    let ids = [pci.vendor, pci.device, pci.subsystem_vendor, pci.subsystem_device];
    ids.into_iter().fold(0, |chip, id| chip << 16 | u64::from(id.unwrap_or(0)))
}

impl CpuModel {
    /// The model of a NUMA node, from its attributes.
    pub fn of(cpu: &Cpu) -> CpuModel {
        let (family, model) = (cpu.family_id.unwrap_or(0), cpu.model_id.unwrap_or(0));
        match (cpu.arch.as_deref(), cpu.vendor.as_deref()) {
            (Some("arm64" | "aarch64"), _) => CpuModel::Arm,
            (Some("ppc64"), _) => CpuModel::Power,
            (_, Some("GenuineIntel")) => match (family, model) {
                (6, 0xcf..) => CpuModel::IntelEmeraldRapids,
                (6, 0x8f..) => CpuModel::IntelSapphireRapids,
                (6, 0x55..) => CpuModel::IntelSkylake,
                _ => CpuModel::IntelBroadwell,
            },
            (_, Some("AuthenticAMD")) => CpuModel::Amd,
            (_, Some("CentaurHauls" | "  Shanghai  ")) if (family, model) == (7, 0x5b) => {
                CpuModel::ZhaoxinYongfeng
            }
            (_, Some("CentaurHauls" | "  Shanghai  ")) => CpuModel::Zhaoxin,
            _ => CpuModel::Unknown,
        }
    }
}
