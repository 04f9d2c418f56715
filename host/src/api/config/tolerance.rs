//! What NCCL makes of values that are none of ours: its users' scripts have such, and a program that loads this library in its place must start.
//!
//! Integers are C's (`strtoll` with base 0), any but 0 switches on, and what is too large is the largest. All else it ignores or takes for
//! something that was not meant; here it is ignored, and the log says so.

use super::Config;
use super::parse::{BUFFER_BYTES_MAX, BUFFER_BYTES_MIN, FLAG};
use crate::log;

/// Variables whose values are brought into their range, and what they are a multiple of.
const CLAMPED: [(&str, i64, i64, i64); 3] = [
    ("NCCL_BUFFSIZE", BUFFER_BYTES_MIN as i64, BUFFER_BYTES_MAX as i64, 1024),
    ("NCCL_IB_RETRY_CNT", 0, 7, 1),
    ("NCCL_IB_TIMEOUT", 1, 31, 1),
];

/// The value that NCCL takes `value` for, if it is an integer.
pub(super) fn meaning(variable: &str, expected: &str, value: &str) -> Option<String> {
    let number = integer(value).filter(|_| variable.starts_with("NCCL_"))?;
    if expected == FLAG {
        return Some(i64::from(number != 0).to_string());
    }
    let clamped = CLAMPED.iter().find(|(name, ..)| *name == variable);
    let number = clamped.map_or(number, |(_, least, most, unit)| number.clamp(*least, *most) / unit * unit);
    Some(number.to_string())
}

/// As `strtoll` reads it with base 0, if that is all of the text.
fn integer(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let hex = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let (digits, radix) = match hex {
        Some(digits) => (digits, 16),
        None if digits.len() > 1 && digits.starts_with('0') => (digits, 8),
        None => (digits, 10),
    };
    let is_number = digits.chars().all(|digit| digit.is_digit(radix));
    is_number.then(|| i64::from_str_radix(digits, radix).ok()).flatten().map(|number| sign * number)
}

impl Config {
    /// Fewest channels above the most: as in NCCL, both are the most.
    pub fn reconcile_channels(&mut self) {
        if let (Some(min), Some(max)) = (self.channels.min, self.channels.max)
            && min > max
        {
            log::warn_once(format!("{min} channels at least, and {max} at most: both are taken as {max}"));
            self.channels.min = Some(max);
        }
    }

    /// A topology that cannot be found is detected, as in NCCL: images set the variable for machines of which they are one.
    pub(super) fn forget_missing_topology(&mut self) {
        if let Some(path) = self.topology.file.take_if(|path| !path.exists()) {
            log::warn_once(format!(
                "NCCL_TOPO_FILE={}: there is no such file; it is ignored",
                path.display()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::CtaPolicy;

    fn tolerant(pairs: &[(&str, &str)]) -> Config {
        let lookup = |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned());
        Config::from_lookup_as_nccl(&lookup).expect("NCCL starts")
    }

    #[test]
    fn integers_are_those_of_c() {
        let read = ["0", "12", "-2", "+7", "0x10", "0X1f", "010", "", "0x", "1x", "true", "08"].map(integer);
        let expected = [Some(0), Some(12), Some(-2), Some(7), Some(16), Some(31), Some(8)];
        assert_eq!(read[..7], expected);
        assert_eq!(read[7..], [None; 5]);
    }

    /// Values of public scripts and of vLLM, with which NCCL starts.
    #[test]
    fn what_nccl_starts_with_starts() {
        let plain = tolerant(&[]);
        for (name, value) in [
            ("NCCL_NTHREADS", "1"),
            ("NCCL_DEBUG", "ERROR"),
            ("NCCL_DEBUG_SUBSYS", "NONE"),
            ("NCCL_DEBUG_SUBSYS", "INIT,"),
            ("NCCL_ALGO", "NVLS"),
            ("NCCL_ALGO", "PAT"),
            ("NCCL_PROTO", "^LL,LL128,Simple"),
            ("NCCL_P2P_DISABLE", "true"),
            ("NCCL_SOCKET_NTHREADS", "many"),
            ("NCCL_TOPO_FILE", "/nowhere/topo.xml"),
        ] {
            assert_eq!(tolerant(&[(name, value)]).must_agree(), plain.must_agree(), "{name}={value}");
        }
        assert!(!tolerant(&[("NCCL_P2P_DISABLE", "2")]).p2p.enabled);
        assert!(!tolerant(&[("NCCL_SHM_DISABLE", "0x1")]).transports.shm);
        assert_eq!(tolerant(&[("NCCL_BUFFSIZE", "16777216")]).buffer_bytes, 8 << 20);
        assert_eq!(tolerant(&[("NCCL_BUFFSIZE", "100000")]).buffer_bytes, 99_328);
        let ib = tolerant(&[("NCCL_IB_RETRY_CNT", "13"), ("NCCL_IB_TIMEOUT", "50")]).net.ib;
        assert_eq!((ib.retry_count, ib.timeout), (7, 31));
        let policy = |value| tolerant(&[("NCCL_CTA_POLICY", value)]).cta_policy;
        assert_eq!(policy("ZERO"), Some(CtaPolicy::Zero));
        assert_eq!(policy("EFFICIENCY|ZERO"), Some(CtaPolicy::Zero));
        assert_eq!(policy("default"), Some(CtaPolicy::Default));
        let mut config = tolerant(&[("NCCL_MIN_NCHANNELS", "32"), ("NCCL_MAX_NCHANNELS", "16")]);
        config.reconcile_channels();
        assert_eq!((config.channels.min, config.channels.max), (Some(16), Some(16)));
    }

    #[test]
    fn our_own_variables_are_strict_all_the_same() {
        let lookup = |name: &str| (name == "OXCCL_STATUS").then(|| "2".to_owned());
        assert_eq!(Config::from_lookup_as_nccl(&lookup).unwrap_err().variable, "OXCCL_STATUS");
    }
}
