//! What a rank tells the others about itself at init.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

/// A rank's whereabouts and settings, gathered from all ranks by the bootstrap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PeerInfo {
    /// Digest of the host: equal where /dev/shm is shared.
    pub host: u64,
    /// Random number of the process.
    pub process: u64,
    /// Process id, for messages.
    pub pid: u32,
    /// Processors this process may run on.
    pub processors: u32,
    /// Digest of every setting that must be equal on all ranks.
    pub settings: u64,
}

/// Bytes of a [`PeerInfo`] on the wire.
const WIRE_BYTES: usize = 32;

impl PeerInfo {
    /// This process's; `host_id` (`NCCL_HOSTID`) stands for the host where given, so that tests can split one.
    pub fn local(host_id: Option<&str>, settings: u64) -> PeerInfo {
        PeerInfo {
            host: host_digest(host_id),
            process: process_number(),
            pid: std::process::id(),
            processors: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            settings,
        }
    }

    /// For the wire.
    pub fn to_bytes(&self) -> [u8; WIRE_BYTES] {
        let mut bytes = [0; WIRE_BYTES];
        bytes[..8].copy_from_slice(&self.host.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.process.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.pid.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.processors.to_le_bytes());
        bytes[24..].copy_from_slice(&self.settings.to_le_bytes());
        bytes
    }

    /// From the wire; nothing if the length is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<PeerInfo> {
        let bytes: &[u8; WIRE_BYTES] = bytes.try_into().ok()?;
        let u64_at = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        let u32_at = |at: usize| u32::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        Some(PeerInfo {
            host: u64_at(0),
            process: u64_at(8),
            pid: u32_at(16),
            processors: u32_at(20),
            settings: u64_at(24),
        })
    }
}

/// Hosts differ in name or boot; containers of one host differ in their /dev/shm mount.
fn host_digest(host_id: Option<&str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    if let Some(id) = host_id {
        id.hash(&mut hasher);
        return hasher.finish();
    }
    rustix::system::uname().nodename().to_bytes().hash(&mut hasher);
    std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default().hash(&mut hasher);
    if let Ok(stat) = rustix::fs::stat("/dev/shm") {
        stat.st_dev.hash(&mut hasher);
    }
    hasher.finish()
}

/// The same for all communicators of a process, another one in every process.
fn process_number() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(|| {
        getrandom::u64().unwrap_or_else(|_| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(0, |d| d.as_nanos() as u64) ^ u64::from(std::process::id()) << 32
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip() {
        let info = PeerInfo { processors: 3, ..PeerInfo::local(Some("a"), 9) };
        assert_eq!(PeerInfo::from_bytes(&info.to_bytes()), Some(info));
        assert_eq!(PeerInfo::from_bytes(&[0; 31]), None);
        assert_ne!(info.host, PeerInfo::local(Some("b"), 9).host);
    }
}
