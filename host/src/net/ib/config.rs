//! Settings of the network over InfiniBand and RoCE, by NCCL's names.

use super::address::AddressRange;
use super::hca::HcaFilter;

/// Most queue pairs of one connection, as in NCCL.
pub const QPS_MAX: u32 = 128;

/// Settings of the network over InfiniBand and RoCE. `Default` is that of an empty environment. Timeout, retries,
/// traffic class and service level apply to this side's packets; the connecting side chooses the rest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IbConfig {
    /// Ignores all such devices (`NCCL_IB_DISABLE`).
    pub disabled: bool,
    /// Which devices and ports may be used (`NCCL_IB_HCA`). Default: all ports that are active.
    pub hca: Option<HcaFilter>,
    /// Index into each port's GID table (`NCCL_IB_GID_INDEX`). Default: chosen by the next three.
    pub gid_index: Option<u8>,
    /// The version of RoCE to prefer (`NCCL_IB_ROCE_VERSION_NUM`). Default 2.
    pub roce_version: u8,
    /// Whether to prefer GIDs of IPv6 addresses (`NCCL_IB_ADDR_FAMILY`). Default: those of IPv4.
    pub prefer_ipv6: bool,
    /// Prefix that the GID's address must have (`NCCL_IB_ADDR_RANGE`, for example `10.1.0.0/16`).
    pub address_range: Option<AddressRange>,
    /// Timeout of an acknowledgement: 4.096 us times 2 to this power (`NCCL_IB_TIMEOUT`). Default 20, 4.3 s.
    pub timeout: u8,
    /// Most retransmissions of a packet (`NCCL_IB_RETRY_CNT`). Default 7. Linux's rdma_rxe takes 7 as unlimited.
    pub retry_count: u8,
    /// Index into the table of partition keys (`NCCL_IB_PKEY`).
    pub pkey_index: u16,
    /// Service level (`NCCL_IB_SL`).
    pub service_level: u8,
    /// Traffic class; in RoCE the packet's type of service (`NCCL_IB_TC`).
    pub traffic_class: u8,
    /// Queue pairs of a connection (`NCCL_IB_QPS_PER_CONNECTION`). Default 1.
    pub queue_pairs: u32,
    /// Whether to split each message over all queue pairs, instead of alternating by message
    /// (`NCCL_IB_SPLIT_DATA_ON_QPS`).
    pub split_data: bool,
    /// Whether the device's writes may pass each other on the PCI bus (`NCCL_IB_PCI_RELAXED_ORDERING`; 2: where the
    /// library can).
    pub relaxed_ordering: bool,
    /// Whether switches may reorder packets, so that data and its immediate must be two requests
    /// (`NCCL_IB_ADAPTIVE_ROUTING`). Default: on InfiniBand yes, on RoCE no.
    pub adaptive_routing: Option<bool>,
    /// With adaptive routing, messages of more bytes than this are two requests (`NCCL_IB_AR_THRESHOLD`). Default
    /// 8192.
    pub adaptive_threshold_bytes: usize,
}

impl Default for IbConfig {
    fn default() -> Self {
        IbConfig {
            disabled: false,
            hca: None,
            gid_index: None,
            roce_version: 2,
            prefer_ipv6: false,
            address_range: None,
            timeout: 20,
            retry_count: 7,
            pkey_index: 0,
            service_level: 0,
            traffic_class: 0,
            queue_pairs: 1,
            split_data: false,
            relaxed_ordering: true,
            adaptive_routing: None,
            adaptive_threshold_bytes: 8192,
        }
    }
}

impl IbConfig {
    /// The variables that [`Self::set`] understands.
    pub const VARIABLES: [&'static str; 16] = [
        "NCCL_IB_DISABLE",
        "NCCL_IB_HCA",
        "NCCL_IB_GID_INDEX",
        "NCCL_IB_ROCE_VERSION_NUM",
        "NCCL_IB_ADDR_FAMILY",
        "NCCL_IB_ADDR_RANGE",
        "NCCL_IB_TIMEOUT",
        "NCCL_IB_RETRY_CNT",
        "NCCL_IB_PKEY",
        "NCCL_IB_SL",
        "NCCL_IB_TC",
        "NCCL_IB_QPS_PER_CONNECTION",
        "NCCL_IB_SPLIT_DATA_ON_QPS",
        "NCCL_IB_PCI_RELAXED_ORDERING",
        "NCCL_IB_ADAPTIVE_ROUTING",
        "NCCL_IB_AR_THRESHOLD",
    ];

    /// Sets the option of `variable`, one of [`Self::VARIABLES`].
    ///
    /// # Errors
    /// The form expected instead of `value`.
    pub fn set(&mut self, variable: &str, value: &str) -> Result<(), &'static str> {
        match variable {
            "NCCL_IB_DISABLE" => self.disabled = flag(value)?,
            "NCCL_IB_HCA" => self.hca = Some(HcaFilter::parse(value).ok_or(HCA)?),
            "NCCL_IB_GID_INDEX" => self.gid_index = or_automatic(value, 0..=255)?,
            "NCCL_IB_ROCE_VERSION_NUM" => {
                self.roce_version = number(value, 1..=2).ok_or("1 or 2 was expected")?
            }
            "NCCL_IB_ADDR_FAMILY" => self.prefer_ipv6 = is_ipv6(value)?,
            "NCCL_IB_ADDR_RANGE" => self.address_range = Some(AddressRange::parse(value).ok_or(RANGE)?),
            "NCCL_IB_TIMEOUT" => self.timeout = number(value, 1..=31).ok_or("1 to 31 was expected")?,
            "NCCL_IB_RETRY_CNT" => self.retry_count = number(value, 0..=7).ok_or("0 to 7 was expected")?,
            "NCCL_IB_PKEY" => self.pkey_index = number(value, 0..=u16::MAX).ok_or(PKEY)?,
            "NCCL_IB_SL" => self.service_level = number(value, 0..=15).ok_or("0 to 15 was expected")?,
            "NCCL_IB_TC" => self.traffic_class = number(value, 0..=255).ok_or("0 to 255 was expected")?,
            "NCCL_IB_QPS_PER_CONNECTION" => {
                self.queue_pairs = number(value, 1..=QPS_MAX).ok_or("1 to 128 queue pairs were expected")?;
            }
            "NCCL_IB_SPLIT_DATA_ON_QPS" => self.split_data = flag(value)?,
            "NCCL_IB_PCI_RELAXED_ORDERING" => {
                self.relaxed_ordering = number(value, 0..=2).ok_or("0, 1 or 2 was expected")? != 0;
            }
            "NCCL_IB_ADAPTIVE_ROUTING" => {
                self.adaptive_routing = or_automatic(value, 0..=1)?.map(|on| on == 1)
            }
            "NCCL_IB_AR_THRESHOLD" => {
                self.adaptive_threshold_bytes =
                    value.parse().map_err(|_| "a number of bytes was expected")?;
            }
            _ => return Err("no setting of the network IB"),
        }
        Ok(())
    }
}

const HCA: &str = "a list of devices was expected, such as mlx5_0:1,mlx5_1 or =mlx5_0 or ^mlx5_2";
const RANGE: &str = "an address and its prefix were expected, such as 10.1.0.0/16";
const PKEY: &str = "an index into the table of partition keys was expected, 0 to 65535";

fn number<T: std::str::FromStr + PartialOrd>(text: &str, range: std::ops::RangeInclusive<T>) -> Option<T> {
    text.parse().ok().filter(|number| range.contains(number))
}

fn flag(text: &str) -> Result<bool, &'static str> {
    number(text, 0..=1).map(|flag: u8| flag == 1).ok_or("0 or 1 was expected")
}

/// -1 is NCCL's value for "automatic".
fn or_automatic(text: &str, range: std::ops::RangeInclusive<u8>) -> Result<Option<u8>, &'static str> {
    if text == "-1" {
        return Ok(None);
    }
    let expected = if *range.end() == 1 { "-1, 0 or 1 was expected" } else { "-1 or 0 to 255 was expected" };
    number(text, range).map(Some).ok_or(expected)
}

fn is_ipv6(text: &str) -> Result<bool, &'static str> {
    match text {
        "AF_INET" => Ok(false),
        "AF_INET6" => Ok(true),
        _ => Err("AF_INET or AF_INET6 was expected"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_understood() {
        let values = [
            "1",
            "=mlx5_0:1",
            "3",
            "1",
            "AF_INET6",
            "10.1.0.0/16",
            "14",
            "3",
            "1",
            "2",
            "106",
            "4",
            "1",
            "0",
            "1",
            "0",
        ];
        let mut config = IbConfig::default();
        for (variable, value) in IbConfig::VARIABLES.into_iter().zip(values) {
            assert_eq!(config.set(variable, value), Ok(()), "{variable}={value}");
        }
        let wanted = IbConfig {
            disabled: true,
            hca: HcaFilter::parse("=mlx5_0:1"),
            gid_index: Some(3),
            roce_version: 1,
            prefer_ipv6: true,
            address_range: AddressRange::parse("10.1.0.0/16"),
            timeout: 14,
            retry_count: 3,
            pkey_index: 1,
            service_level: 2,
            traffic_class: 106,
            queue_pairs: 4,
            split_data: true,
            relaxed_ordering: false,
            adaptive_routing: Some(true),
            adaptive_threshold_bytes: 0,
        };
        assert_eq!(config, wanted);
    }

    #[test]
    fn nccl_s_automatic_values_are_the_defaults() {
        let mut config = IbConfig::default();
        for (variable, value) in [
            ("NCCL_IB_GID_INDEX", "-1"),
            ("NCCL_IB_ADAPTIVE_ROUTING", "-1"),
            ("NCCL_IB_PCI_RELAXED_ORDERING", "2"),
        ] {
            assert_eq!(config.set(variable, value), Ok(()));
        }
        assert_eq!(config, IbConfig::default());
    }

    #[test]
    fn what_cannot_be_used_changes_nothing() {
        let wrong = [
            ("NCCL_IB_DISABLE", "yes"),
            ("NCCL_IB_HCA", "^"),
            ("NCCL_IB_GID_INDEX", "256"),
            ("NCCL_IB_ROCE_VERSION_NUM", "3"),
            ("NCCL_IB_ADDR_FAMILY", "AF_UNIX"),
            ("NCCL_IB_ADDR_RANGE", "10.1.0.0/33"),
            ("NCCL_IB_TIMEOUT", "32"),
            ("NCCL_IB_RETRY_CNT", "8"),
            ("NCCL_IB_QPS_PER_CONNECTION", "0"),
            ("NCCL_IB_ADAPTIVE_ROUTING", "2"),
            ("NCCL_IB_NO_SUCH", "1"),
        ];
        let mut config = IbConfig::default();
        for (variable, value) in wrong {
            assert!(config.set(variable, value).is_err(), "{variable}={value}");
            assert_eq!(config, IbConfig::default());
        }
    }
}
