//! Layer: host / topology / system.
//! Takes: kinds of links and CPUs.
//! Gives: their bandwidth in GB/s, as NCCL assumes it, and the speeds that the search tries: [`Tables`].
//! Never: measured numbers. They are NCCL's, so that answers can be compared; source: reference of NCCL 2.30 and
//! 2.13.

use super::{CpuModel, LinkKind};

/// Inside a device.
pub const LOCAL_BW: f32 = 5000.0;
/// Mb/s of a network device that does not report its speed: 10 Gb/s Ethernet.
pub const NET_SPEED_MBITS: u32 = 10_000;

/// Constants that NCCL has changed between releases.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tables {
    /// Since 2.14, with the CPUs of 2.30.
    #[default]
    Current,
    /// Up to 2.13: 22 GB/s for an NVLink of Volta and Ampere, and speeds to match.
    Nccl213,
}

impl Tables {
    /// One NVLink of a GPU.
    pub fn nvlink_bw(self, sm: u32) -> f32 {
        match (sm, self) {
            (100.., _) => 40.1,
            (90.., _) => 20.6,
            (86, _) => 12.0,
            (60..70, _) => 18.0,
            (_, Tables::Current) => 20.0,
            (_, Tables::Nccl213) => 22.0,
        }
    }

    /// Between two NUMA nodes.
    pub fn cpu_bw(self, model: CpuModel) -> f32 {
        match model {
            CpuModel::IntelBroadwell => 6.0,
            CpuModel::IntelSkylake if self == Tables::Nccl213 => 9.0,
            CpuModel::IntelSkylake => 10.0,
            CpuModel::IntelSapphireRapids => 22.0,
            CpuModel::IntelEmeraldRapids => 40.0,
            CpuModel::Amd => 16.0,
            CpuModel::Zhaoxin => 6.0,
            CpuModel::ZhaoxinYongfeng => 9.0,
            CpuModel::Arm => 6.0,
            CpuModel::Power => 32.0,
            CpuModel::Unknown => LOCAL_BW,
        }
    }

    /// Speeds of a channel that the search tries, highest first.
    pub fn speeds(self, sm: u32, is_inter: bool) -> &'static [f32] {
        match (sm, is_inter, self) {
            // NCCL's end at 18, which GPUs that only PCI joins do not have: it takes one channel of 0.1 GB/s.
            (100.., false, _) => &[
                90., 80., 70., 60., 50., 45., 40., 30., 24., 20., 19., 18., 15., 12., 10., 9., 7., 6., 5.,
                4., 3.,
            ],
            (100.., true, _) => &[
                96., 86., 80., 48., 45.1, 42., 40., 30., 24., 22., 20., 17.5, 15., 12., 6., 3., 2.4, 1.2,
                0.24, 0.12,
            ],
            (90.., false, _) => &[60., 50., 40., 30., 24., 20., 15., 12., 11., 6., 3.],
            (90.., true, _) => {
                &[48., 45., 42., 40., 30., 24., 22., 20., 17.5, 15., 12., 6., 3., 2.4, 1.2, 0.24, 0.12]
            }
            (_, false, Tables::Current) => &[40., 30., 20., 18., 15., 12., 10., 9., 7., 6., 5., 4., 3.],
            (_, true, Tables::Current) => {
                &[48., 30., 28., 24., 20., 18., 15., 12., 10., 9., 7., 6., 5., 4., 3., 2.4, 1.2, 0.24, 0.12]
            }
            (_, false, Tables::Nccl213) => &[44., 30., 22., 18., 15., 12., 10., 9., 7., 6., 5., 4., 3.],
            (_, true, Tables::Nccl213) => {
                &[48., 30., 24., 22., 18., 15., 12., 10., 9., 7., 6., 5., 4., 3., 2.4, 1.2, 0.24, 0.12]
            }
        }
    }
}

/// GB/s of a PCI link. A hidden width counts as 16 lanes, an unknown speed as that of PCI 3: both as in NCCL.
pub fn pci_bw(link_speed: Option<&str>, link_width: Option<u32>) -> f32 {
    // GT/s, and the payload of one lane in units of 100 Mb/s. The kernel writes both "8 GT/s" and "8.0 GT/s PCIe".
    const GENERATIONS: [(f32, f32); 6] =
        [(2.5, 15.0), (5.0, 30.0), (8.0, 60.0), (16.0, 120.0), (32.0, 240.0), (64.0, 480.0)];
    let speed = link_speed.and_then(|text| text.split_whitespace().next()?.parse::<f32>().ok());
    let lane =
        GENERATIONS.iter().find(|(transfers, _)| speed == Some(*transfers)).map_or(60.0, |(_, lane)| *lane);
    let lanes = link_width.filter(|lanes| *lanes > 0).unwrap_or(16);
    lanes as f32 * lane / 80.0
}

/// PCI bandwidth that two GPUs use when they exchange data through an Intel CPU: it splits their packets.
pub fn through_intel(bw: f32) -> f32 {
    bw * 6.0 / 5.0
}

impl LinkKind {
    /// NCCL's name.
    pub fn name(self) -> &'static str {
        match self {
            LinkKind::Loc => "LOC",
            LinkKind::NvLink => "NVL",
            LinkKind::C2c => "C2C",
            LinkKind::Pci => "PCI",
            LinkKind::Sys => "SYS",
            LinkKind::Net => "NET",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_links() {
        assert_eq!(pci_bw(Some("32.0 GT/s PCIe"), Some(0)), 48.0);
        assert_eq!(pci_bw(Some("8 GT/s"), Some(16)), 12.0);
        assert_eq!(pci_bw(Some("32 GT/s PCIe/s"), Some(16)), 48.0);
        assert_eq!(pci_bw(Some("5 GT/s"), Some(8)), 3.0);
        assert_eq!(pci_bw(Some("Unknown"), None), 12.0);
    }

    #[test]
    fn speeds_fall() {
        for (sm, tables) in
            [(70, Tables::Current), (70, Tables::Nccl213), (90, Tables::Current), (100, Tables::Current)]
        {
            for is_inter in [false, true] {
                assert!(tables.speeds(sm, is_inter).is_sorted_by(|a, b| a > b));
            }
        }
    }
}
