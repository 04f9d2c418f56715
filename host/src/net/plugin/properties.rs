//! A plugin's device properties, independent of the version of its table.

use super::abi::{Code, GetProperties, Properties8, Properties9, Properties11, Properties12};
use crate::net::{MemoryKinds, NetError, NetProperties};
use core::ffi::{CStr, c_char, c_int};

/// The function that fills in a device's properties, of any version.
#[derive(Clone, Copy)]
pub enum AnyProperties {
    V8(GetProperties<Properties8>),
    V9(GetProperties<Properties9>),
    V11(GetProperties<Properties11>),
    V12(GetProperties<Properties12>),
}

/// The properties that all versions have.
pub struct Facts {
    name: *const c_char,
    pci_path: *const c_char,
    guid: u64,
    ptr_support: c_int,
    reg_is_global: c_int,
    speed: c_int,
    port: c_int,
    latency: f32,
    max_comms: c_int,
    /// 0 if no kernel has to drive the device.
    device_type: c_int,
    /// Most bytes of a message and of a collective's buffer; `None` before version 9.
    pub max_bytes: Option<(usize, usize)>,
}

macro_rules! any_properties {
    ($($version:ident: $properties:ident, $max_bytes:expr;)*) => {
        $(
            impl From<GetProperties<$properties>> for AnyProperties {
                fn from(get: GetProperties<$properties>) -> Self {
                    AnyProperties::$version(get)
                }
            }
        )*

        impl AnyProperties {
            /// Queries a device.
            ///
            /// # Safety
            /// 1. The plugin is initialised, and has this device.
            pub unsafe fn of(self, device: c_int) -> Result<Facts, Code> {
                match self {
                    $(
                        AnyProperties::$version(get) => {
                            let mut p = $properties::empty();
                            // SAFETY: obligation 1; `p` is of the type that this version fills in.
                            let code = unsafe { get(device, &mut p) };
                            if code != 0 {
                                return Err(code);
                            }
                            let max_bytes: fn(&$properties) -> Option<(usize, usize)> = $max_bytes;
                            Ok(Facts {
                                name: p.name,
                                pci_path: p.pci_path,
                                guid: p.guid,
                                ptr_support: p.ptr_support,
                                reg_is_global: p.reg_is_global,
                                speed: p.speed,
                                port: p.port,
                                latency: p.latency,
                                max_comms: p.max_comms,
                                device_type: p.device_type,
                                max_bytes: max_bytes(&p),
                            })
                        }
                    )*
                }
            }
        }
    };
}

any_properties! {
    V8: Properties8, |_| None;
    V9: Properties9, |p| Some((p.max_p2p_bytes, p.max_coll_bytes));
    V11: Properties11, |p| Some((p.max_p2p_bytes, p.max_coll_bytes));
    V12: Properties12, |p| Some((p.max_p2p_bytes, p.max_coll_bytes));
}

impl Facts {
    /// Converts them for a device of the plugin `plugin` by number; operations have at most `max_bytes`.
    ///
    /// # Errors
    /// [`NetError::Unsupported`]: kernels would have to drive the device.
    ///
    /// # Safety
    /// 1. The plugin is initialised, which keeps its strings alive.
    pub unsafe fn properties(
        &self,
        plugin: &str,
        device: u32,
        max_bytes: usize,
    ) -> Result<NetProperties, NetError> {
        if self.device_type != 0 {
            // Kernels would have to unpack its messages.
            return Err(NetError::Unsupported {
                device: format!("{plugin} device {device}"),
                what: "a network that kernels drive".into(),
            });
        }
        let positive = |number: c_int| number.max(0) as u32;
        // SAFETY: obligation 1.
        let (name, pci_path) = unsafe { (string(self.name), string(self.pci_path)) };
        Ok(NetProperties {
            name: name.unwrap_or_else(|| format!("{plugin}{device}")),
            pci_path,
            guid: self.guid,
            memory: MemoryKinds::from_bits_truncate(self.ptr_support as u32),
            registers_globally: self.reg_is_global != 0,
            speed_mbps: positive(self.speed),
            port: positive(self.port),
            latency_us: self.latency,
            comms_max: positive(self.max_comms),
            message_max_bytes: max_bytes,
        })
    }
}

/// # Safety
/// `at` is a string or null.
unsafe fn string(at: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
}
