//! Whether a NIC accesses GPU memory directly (GPUDirect RDMA), by NCCL's rules: pure.

use crate::gpu::RdmaFacts;
use crate::net::{GdrConfig, MemoryKinds};
use crate::topology::{NicReach, PathKind};
use thiserror::Error;

/// The facts of the decision.
#[derive(Clone, Copy, Debug)]
pub struct GdrCase {
    /// Farthest path type, if the user sets it.
    pub level: Option<PathKind>,
    /// The user's other settings.
    pub config: GdrConfig,
    /// Kinds of memory that the NIC can access.
    pub nic: MemoryKinds,
    /// The driver's facts about the GPU.
    pub gpu: RdmaFacts,
    /// The GPU's compute capability, as 90.
    pub sm: u32,
    /// The distance of the two, if known.
    pub reach: Option<NicReach>,
}

/// How a NIC accesses GPU memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gdr {
    /// How the memory is registered.
    pub known_by: KnownBy,
    /// Whether sends use it too, beside receives.
    pub reads: bool,
    /// Whether received data must be flushed before the GPU may read it.
    pub needs_flush: bool,
}

/// How GPU memory is registered with a NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KnownBy {
    /// By a dma-buf; if the driver provides none, by address where `or_address` permits it.
    DmaBuf {
        /// Map it over PCIe, although the GPU has a faster link to its CPU.
        over_pcie: bool,
        /// Whether registration by address is possible too.
        or_address: bool,
    },
    /// By its address: a kernel module, or the network, asks the driver.
    Address,
}

/// Why a NIC does not access GPU memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NoGdr {
    #[error(
        "the network does not use memory of GPUs (InfiniBand: nvidia_peermem is not loaded, and dma-buf not supported)"
    )]
    Network,
    #[error("the GPU's driver does not let NICs use its memory")]
    Gpu,
    #[error("the network takes memory of GPUs as dma-bufs only, and {0}")]
    NoDmaBuf(&'static str),
    #[error("where the NIC is is not known, and NCCL_NET_GDR_LEVEL is {0}")]
    Nowhere(PathKind),
    #[error("the NIC is as far from the GPU as {kind}, and NCCL_NET_GDR_LEVEL is {level}")]
    Far { kind: PathKind, level: PathKind },
}

/// Compute capability from which a NIC's reads are fast despite other PCIe traffic.
const FAST_READS_SM: u32 = 80;

/// Decides whether the NIC of a case uses GPUDirect RDMA, and how.
///
/// # Errors
/// Why not.
pub fn decide(case: &GdrCase) -> Result<Gdr, NoGdr> {
    let GdrCase { level, config, nic, gpu, sm, reach } = *case;
    if !nic.intersects(MemoryKinds::CUDA | MemoryKinds::DMA_BUF) {
        return Err(NoGdr::Network);
    }
    if !gpu.is_supported {
        return Err(NoGdr::Gpu);
    }
    let level = level.unwrap_or(if config.c2c { PathKind::P2c } else { PathKind::Pxb });
    let kind = reach.map_or(PathKind::Sys, |reach| reach.kind);
    if kind > level {
        return Err(reach.map_or(NoGdr::Nowhere(level), |_| NoGdr::Far { kind, level }));
    }
    // Data takes the PCIe bus, while the word that announces it takes the chip-to-chip link and may overtake it.
    let parts_ways = reach.is_some_and(|reach| reach.has_c2c && reach.kind <= PathKind::Pxb);
    let or_address = nic.contains(MemoryKinds::CUDA);
    let by_dma_buf = nic.contains(MemoryKinds::DMA_BUF) && config.dma_buf && gpu.dma_buf;
    let known_by = match (by_dma_buf, or_address) {
        (true, _) => KnownBy::DmaBuf { over_pcie: parts_ways, or_address },
        (false, true) => KnownBy::Address,
        (false, false) if !config.dma_buf => return Err(NoGdr::NoDmaBuf("NCCL_DMABUF_ENABLE is 0")),
        (false, false) => return Err(NoGdr::NoDmaBuf("the GPU's driver makes none")),
    };
    // Before Ampere a NIC's reads compete badly with other PCIe traffic; with NVLink there is none.
    let reads_pay = sm >= FAST_READS_SM || reach.is_some_and(|reach| reach.is_joined);
    let needs_flush = config.flush.unwrap_or(!gpu.writes_are_ordered || parts_ways);
    Ok(Gdr { known_by, reads: config.read.unwrap_or(reads_pay), needs_flush })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NEAR: NicReach = NicReach { kind: PathKind::Pxb, has_c2c: false, is_joined: true };

    /// Hopper and a NIC under its switches, both with all features.
    const CASE: GdrCase = GdrCase {
        level: None,
        config: GdrConfig { read: None, c2c: true, dma_buf: true, flush: None },
        nic: MemoryKinds::all(),
        gpu: RdmaFacts { is_supported: true, dma_buf: true, writes_are_ordered: true },
        sm: 90,
        reach: Some(NEAR),
    };
    const DMA_BUF: KnownBy = KnownBy::DmaBuf { over_pcie: false, or_address: true };

    fn at(kind: PathKind) -> Option<NicReach> {
        Some(NicReach { kind, ..NEAR })
    }

    #[test]
    fn hopper_under_the_nics_switch_uses_it_both_ways_without_a_flush() {
        assert_eq!(decide(&CASE), Ok(Gdr { known_by: DMA_BUF, reads: true, needs_flush: false }));
    }

    #[test]
    fn by_default_the_way_ends_at_the_host_bridge() {
        let far = GdrCase { reach: at(PathKind::Phb), ..CASE };
        let (kind, level) = (PathKind::Phb, PathKind::P2c);
        assert_eq!(decide(&far), Err(NoGdr::Far { kind, level }));
        assert!(decide(&GdrCase { level: Some(PathKind::Phb), ..far }).is_ok());
        assert_eq!(
            decide(&GdrCase { level: Some(PathKind::Loc), ..CASE }),
            Err(NoGdr::Far { kind: PathKind::Pxb, level: PathKind::Loc })
        );
        let unknown = GdrCase { reach: None, ..CASE };
        assert_eq!(decide(&unknown), Err(NoGdr::Nowhere(PathKind::P2c)));
        assert!(decide(&GdrCase { level: Some(PathKind::Sys), ..unknown }).is_ok());
    }

    #[test]
    fn a_chip_to_chip_link_is_a_way_unless_the_user_says_not() {
        let grace = GdrCase { reach: at(PathKind::P2c), ..CASE };
        assert!(decide(&grace).is_ok());
        let config = GdrConfig { c2c: false, ..CASE.config };
        assert!(decide(&GdrCase { config, ..grace }).is_err());
    }

    /// The announcement does not push data ahead of it that took another path.
    #[test]
    fn data_on_the_bus_and_announcements_on_the_link_need_a_flush() {
        let reach = Some(NicReach { has_c2c: true, ..NEAR });
        let known_by = KnownBy::DmaBuf { over_pcie: true, or_address: true };
        let expected = Gdr { known_by, reads: true, needs_flush: true };
        assert_eq!(decide(&GdrCase { reach, ..CASE }), Ok(expected));
    }

    #[test]
    fn what_the_gpu_does_not_order_is_flushed_unless_the_user_knows_better() {
        let flushes = |writes_are_ordered, flush| {
            let gpu = RdmaFacts { writes_are_ordered, ..CASE.gpu };
            let config = GdrConfig { flush, ..CASE.config };
            decide(&GdrCase { gpu, config, ..CASE }).unwrap().needs_flush
        };
        assert!(flushes(false, None) && !flushes(true, None));
        assert!(flushes(true, Some(true)) && !flushes(false, Some(false)));
    }

    #[test]
    fn old_gpus_read_where_nothing_else_is_on_the_bus() {
        let reads = |sm, is_joined, read| {
            let config = GdrConfig { read, ..CASE.config };
            let reach = Some(NicReach { is_joined, ..NEAR });
            decide(&GdrCase { sm, reach, config, ..CASE }).unwrap().reads
        };
        assert!(reads(80, false, None) && reads(70, true, None) && !reads(70, false, None));
        assert!(reads(70, false, Some(true)) && !reads(90, true, Some(false)));
    }

    #[test]
    fn what_one_side_lacks_is_said() {
        let nic = |nic| decide(&GdrCase { nic, ..CASE });
        assert_eq!(nic(MemoryKinds::HOST), Err(NoGdr::Network));
        assert_eq!(nic(MemoryKinds::HOST | MemoryKinds::CUDA).unwrap().known_by, KnownBy::Address);
        let only_dma_buf = GdrCase { nic: MemoryKinds::HOST | MemoryKinds::DMA_BUF, ..CASE };
        let alone = KnownBy::DmaBuf { over_pcie: false, or_address: false };
        assert_eq!(decide(&only_dma_buf).unwrap().known_by, alone);
        let gpu = RdmaFacts { dma_buf: false, ..CASE.gpu };
        let refused = decide(&GdrCase { gpu, ..only_dma_buf }).unwrap_err();
        assert!(refused.to_string().ends_with("the GPU's driver makes none"), "{refused}");
        let config = GdrConfig { dma_buf: false, ..CASE.config };
        let refused = decide(&GdrCase { config, ..only_dma_buf }).unwrap_err();
        assert!(refused.to_string().ends_with("NCCL_DMABUF_ENABLE is 0"), "{refused}");
        let gpu = RdmaFacts { is_supported: false, ..CASE.gpu };
        assert_eq!(decide(&GdrCase { gpu, ..CASE }), Err(NoGdr::Gpu));
    }

    proptest! {
        /// Allowing more distance never disables anything.
        #[test]
        fn a_greater_level_allows_no_less(
            kind in proptest::sample::select(&PathKind::ALL[..]),
            level in proptest::sample::select(&PathKind::ALL[..]),
        ) {
            let is_used = |level| decide(&GdrCase { level: Some(level), reach: at(kind), ..CASE }).is_ok();
            prop_assert_eq!(is_used(level), kind <= level);
            let farther = level.farther().unwrap_or(level);
            prop_assert!(!is_used(level) || is_used(farther));
        }
    }
}
