//! Layer: host / topology / detect.
//! Takes: NVIDIA's management library, loaded at first use.
//! Gives: the host's GPUs with their NVLinks, and the pairs without peer access.
//! Never: links to the library: the same binary runs on a host without GPUs.

use super::facts::{GpuFacts, PeerFacts};
use crate::topology::{BusId, C2c, NvLink};
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus};
use nvml_wrapper::enum_wrappers::nv_link::IntDeviceType;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};
use oxccl_shared::abi::Rank;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::{Mutex, OnceLock, PoisonError};
use thiserror::Error;

/// Why NVML gives no answer.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NvmlError {
    /// The library is missing, or the driver does not answer it.
    #[error("NVML (libnvidia-ml.so.1): {0}; a host without it needs a topology file")]
    Load(String),
    /// A query about a GPU failed.
    #[error("NVML, GPU {dev}: {what}: {message}")]
    Device {
        /// NVML's index of the GPU.
        dev: u32,
        /// The query.
        what: &'static str,
        /// NVML's answer.
        message: String,
    },
    /// CUDA has a GPU that NVML does not know.
    #[error("NVML does not know GPU {bus_id}: {message}")]
    Unknown {
        /// The GPU.
        bus_id: BusId,
        /// NVML's answer.
        message: String,
    },
}

/// The library's name in the driver package; the name without a number belongs to development packages.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// NCCL's address for an NVSwitch that a virtual machine may not see. NVML gives such a switch an address of ones,
/// whose number of digits differs between drivers.
const HIDDEN_SWITCH: BusId = BusId(0xfff_ffff << 20 | 0xf_fff0);
/// NVML's field ids of chip-to-chip links: their number, and MB/s of one.
const C2C_COUNT: u32 = 170;
const C2C_BW: u32 = 172;

/// The library, loaded once and kept: a process that creates many communicators uses it many times.
fn library() -> Result<&'static Nvml, NvmlError> {
    static NVML: OnceLock<Result<Nvml, String>> = OnceLock::new();
    let load = || Nvml::builder().lib_path(OsStr::new(LIBRARY)).init().map_err(|error| error.to_string());
    NVML.get_or_init(load).as_ref().map_err(|message| NvmlError::Load(message.clone()))
}

/// What a GPU is, and the GPUs of the host whose memory it may not access.
type Known = (GpuFacts, Vec<BusId>);

/// The GPU at an address, and the GPUs of the host whose memory it may not access. Asked once: each of some 50 questions goes to the GPU's
/// firmware, and a rank that goes on after a death is in a hurry.
///
/// # Errors
/// As for [`gpus`].
pub fn gpu(bus_id: BusId) -> Result<Known, NvmlError> {
    static KNOWN: Mutex<BTreeMap<BusId, Known>> = Mutex::new(BTreeMap::new());
    let lock = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = lock().get(&bus_id) {
        return Ok(known.clone());
    }
    let known = ask(bus_id)?;
    lock().insert(bus_id, known.clone());
    Ok(known)
}

fn ask(bus_id: BusId) -> Result<Known, NvmlError> {
    let nvml = library()?;
    let address = bus_id.to_string();
    let unknown =
        |error: nvml_wrapper::error::NvmlError| NvmlError::Unknown { bus_id, message: error.to_string() };
    let own = nvml.device_by_pci_bus_id(address.as_str()).map_err(unknown)?;
    let dev = own.index().map_err(unknown)?;
    let count = nvml.device_count().map_err(unknown)?;
    let others = (0..count).filter(|other| *other != dev);
    let others = others.filter_map(|other| nvml.device_by_index(other).ok());
    let refused = others.filter(|other| refuses(&own, other) || refuses(other, &own));
    let refused = refused.filter_map(|other| other.pci_info().ok()?.bus_id.parse().ok()).collect();
    Ok((facts(dev, &own)?, refused))
}

/// NVML's number of the GPU at an address, which counts all GPUs of the host, hidden ones too. `None` without NVML.
pub fn index(bus_id: BusId) -> Option<u32> {
    library().ok()?.device_by_pci_bus_id(bus_id.to_string().as_str()).ok()?.index().ok()
}

/// GPUs in NVML's order, and pairs of them that may not access each other's memory.
///
/// # Errors
/// If the library cannot be loaded, or a GPU does not answer.
pub fn gpus() -> Result<(Vec<GpuFacts>, Vec<PeerFacts>), NvmlError> {
    let nvml = library()?;
    let count = nvml.device_count().map_err(|error| NvmlError::Load(error.to_string()))?;
    let device = |dev| nvml.device_by_index(dev).map_err(|error| failed(dev, "device", error));
    let devices = (0..count).map(device).collect::<Result<Vec<_>, _>>()?;
    let facts = devices.iter().enumerate().map(|(dev, device)| facts(dev as u32, device));
    Ok((facts.collect::<Result<_, _>>()?, blocked(&devices)))
}

fn failed(dev: u32, what: &'static str, error: impl ToString) -> NvmlError {
    NvmlError::Device { dev, what, message: error.to_string() }
}

fn facts(dev: u32, device: &Device<'_>) -> Result<GpuFacts, NvmlError> {
    let pci = device.pci_info().map_err(|error| failed(dev, "PCI address", error))?;
    let bus_id = pci.bus_id.parse().map_err(|_| failed(dev, "PCI address", pci.bus_id.clone()))?;
    let capability =
        device.cuda_compute_capability().map_err(|error| failed(dev, "compute capability", error))?;
    let sm = (capability.major * 10 + capability.minor).max(0) as u32;
    Ok(GpuFacts {
        bus_id,
        dev: Some(dev),
        rank: None,
        sm: Some(sm),
        // GeForce boards refuse GPUDirect RDMA. The NIC's own driver is checked elsewhere.
        gdr: Some(!device.name().is_ok_and(|name| name.contains("GeForce"))),
        nvlinks: nvlinks(device, sm),
        c2c: c2c(device),
    })
}

/// Most links of a GPU of this generation.
fn links_max(sm: u32) -> u32 {
    match sm {
        90.. => 18,
        80.. => 12,
        70.. => 6,
        60.. => 4,
        _ => 0,
    }
}

/// Active links, one entry for each peer. A link that does not answer counts as absent.
fn nvlinks(device: &Device<'_>, sm: u32) -> Vec<NvLink> {
    let mut found: Vec<NvLink> = Vec::new();
    for number in 0..links_max(sm) {
        let link = device.link_wrapper_for(number);
        if !link.is_active().unwrap_or(false) {
            continue;
        }
        let Ok(remote) = link.remote_pci_info() else { continue };
        let Ok(target) = remote.bus_id.parse::<BusId>() else { continue };
        let target = if target.0 >= HIDDEN_SWITCH.0 { HIDDEN_SWITCH } else { target };
        let class = match link.remote_device_type(number) {
            Ok(IntDeviceType::Gpu) => 0x03_0200,
            Ok(IntDeviceType::Ibmnpu) => 0x06_8001,
            // A hidden peer is a switch.
            _ => 0x06_8000,
        };
        match found.iter_mut().find(|known| known.target == target) {
            Some(known) => known.count += 1,
            None => found.push(NvLink { target, count: 1, target_class: Some(class) }),
        }
    }
    found
}

fn c2c(device: &Device<'_>) -> Vec<C2c> {
    let number = |value: &SampleValue| match *value {
        SampleValue::U32(number) => Some(number),
        SampleValue::U64(number) => u32::try_from(number).ok(),
        _ => None,
    };
    let field = |id: u32| -> Option<u32> {
        let sample = device.field_values_for(&[FieldId(id)]).ok()?.into_iter().next()?.ok()?;
        number(sample.value.as_ref().ok()?)
    };
    let links = field(C2C_COUNT).filter(|count| *count > 0).zip(field(C2C_BW));
    links.map(|(count, bw_mbytes)| C2c { bw_mbytes, count }).into_iter().collect()
}

/// Whether the driver denies peer reads or writes. An old library that cannot answer denies nothing.
fn refuses(a: &Device<'_>, b: &Device<'_>) -> bool {
    let asked = [P2pCapabilitiesIndex::Read, P2pCapabilitiesIndex::Write];
    asked.into_iter().any(|index| a.p2p_status(b, index).is_ok_and(|status| status != P2pStatus::Ok))
}

/// Pairs that the driver denies.
fn blocked(devices: &[Device<'_>]) -> Vec<PeerFacts> {
    let pairs = (0..devices.len()).flat_map(|a| (0..devices.len()).map(move |b| (a, b)));
    let refused = pairs.filter(|(a, b)| a != b && refuses(&devices[*a], &devices[*b]));
    refused.map(|(a, b)| (Rank(a as u32), Rank(b as u32))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_switch_has_the_name_that_nccl_gives_it() {
        assert_eq!(HIDDEN_SWITCH.to_string(), "fffffff:ff:ff.0");
        assert!("FFFFFFFF:FF:FF.0".parse::<BusId>().unwrap() > HIDDEN_SWITCH);
    }
}
