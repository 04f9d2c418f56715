//! Peer info: what a rank publishes about itself at init.

use crate::os::{NoDescriptor, with_room};
use crate::topology::detect::Sysfs;
use crate::wire::{Message, digest};
use serde::{Deserialize, Serialize};
use std::sync::OnceLock;

/// Where a rank runs and its settings, gathered from all ranks by the bootstrap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PeerInfo {
    /// Digest of the host and the user: equal where /dev/shm is shared, and each can open the other's files there.
    pub host: u64,
    /// Random number of the process.
    pub process: u64,
    /// Process id, for messages.
    pub pid: u32,
    /// A random number of this rank in this communicator, which only the communicator's ranks learn: the names of the rank's files
    /// follow from it.
    pub files: u64,
    /// The NUMA node that has all of `processors`, if one has.
    pub numa_node: Option<u32>,
    /// CPUs that this thread may run on, one bit each.
    pub processors: [u64; PROCESSOR_WORDS],
    /// Digest of all settings that must be equal on all ranks.
    pub settings: u64,
    /// Of those by itself, since it is one of safety: whether data between hosts is encrypted.
    pub encrypts: bool,
}

/// A random id of each boot of a host.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Words of a processor set: as many as `sched_getaffinity` gives on Linux (1,024 processors).
const PROCESSOR_WORDS: usize = 16;

impl PeerInfo {
    /// This process's info. `host_id` (`NCCL_HOSTID`) overrides the host's identity, so that tests can split a host. The user is part of it
    /// even so.
    ///
    /// # Errors
    /// The process has no descriptor left to ask the kernel for the host's identity. (Where the kernel has none, it
    /// is the host's name.)
    pub fn local(host_id: Option<&str>, settings: u64) -> Result<PeerInfo, NoDescriptor> {
        Ok(PeerInfo {
            host: digest(&(host_digest(host_id)?, user_outside()?)),
            process: process_number(),
            pid: std::process::id(),
            files: random(),
            numa_node: None,
            processors: processors(),
            settings,
            encrypts: false,
        })
    }

    /// Adds its NUMA node, if its CPUs determine one.
    pub fn on_numa_node(self) -> PeerInfo {
        PeerInfo { numa_node: Sysfs::live().numa_node_of(&self.processors), ..self }
    }
}

impl Message for PeerInfo {
    const VERSION: u8 = 2;
    const BYTES_MAX: usize = 59 + 10 * PROCESSOR_WORDS;
}

/// CPUs for each rank of a host, among those that any of them may use; `None` if ranks must share.
pub fn processors_each(peers: &[PeerInfo], host: u64) -> u32 {
    let mut union = [0u64; PROCESSOR_WORDS];
    let mut ranks = 0;
    for peer in peers.iter().filter(|peer| peer.host == host) {
        ranks += 1;
        union.iter_mut().zip(peer.processors).for_each(|(word, more)| *word |= more);
    }
    union.iter().map(|word| word.count_ones()).sum::<u32>().checked_div(ranks).unwrap_or_default()
}

/// The calling thread's affinity; all CPUs where the kernel does not say.
fn processors() -> [u64; PROCESSOR_WORDS] {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return [u64::MAX; PROCESSOR_WORDS] };
    let mut words = [0; PROCESSOR_WORDS];
    for cpu in (0..64 * PROCESSOR_WORDS).filter(|cpu| set.is_set(*cpu)) {
        words[cpu / 64] |= 1 << (cpu % 64);
    }
    words
}

/// The effective user as the user namespace around this process's one calls it: root of a container without privileges is the user who started
/// it, and can open the files of another container's root only if that user started both.
fn user_outside() -> Result<u32, NoDescriptor> {
    let user = rustix::process::geteuid().as_raw();
    match with_room(|| std::fs::read_to_string("/proc/self/uid_map")) {
        Ok(map) => Ok(outside(user, &map)),
        // A kernel without user namespaces has no such file.
        Err(error) => NoDescriptor::of(&error).map_or(Ok(user), Err),
    }
}

/// Each line of the map has the first user inside, the first one outside, and how many there are.
fn outside(user: u32, map: &str) -> u32 {
    let of_line = |line: &str| {
        let mut numbers = line.split_whitespace().map_while(|word| word.parse::<u32>().ok());
        let [inside, outside, count] = [numbers.next()?, numbers.next()?, numbers.next()?];
        let at = user.checked_sub(inside).filter(|at| *at < count)?;
        outside.checked_add(at)
    };
    map.lines().find_map(of_line).unwrap_or(user)
}

/// Hosts differ in name or boot; containers of one host differ in their /dev/shm mount. (Users of one host are told apart above: memory of one
/// is closed to the other, so that they go by the network.)
fn host_digest(host_id: Option<&str>) -> Result<u64, NoDescriptor> {
    if let Some(id) = host_id {
        return Ok(digest(id));
    }
    let boot = with_room(|| std::fs::read(BOOT_ID));
    // If one rank could not read it, ranks would take each other for ranks of other hosts.
    if let Some(none_left) = boot.as_ref().err().and_then(NoDescriptor::of) {
        return Err(none_left);
    }
    let shm = rustix::fs::stat("/dev/shm").map(|stat| stat.st_dev).ok();
    Ok(digest(&(rustix::system::uname().nodename().to_bytes(), boot.unwrap_or_default(), shm)))
}

/// The same for all communicators of a process, and different in every process.
fn process_number() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    // Forked processes share the number, and nothing else.
    NUMBER.get_or_init(random) ^ u64::from(std::process::id()) << 32
}

/// Without the system's randomness, a number that is merely hard to guess.
pub(super) fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one((std::process::id(), now())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_of_a_namespace_is_who_it_is_outside() {
        let host = "         0          0 4294967295\n";
        assert_eq!([0, 1000, u32::MAX].map(|user| outside(user, host)), [0, 1000, u32::MAX]);
        let container = "         0       1000          1\n         1     100000      65536\n";
        assert_eq!(
            [0, 1, 65_536, 70_000].map(|user| outside(user, container)),
            [1000, 100_000, 165_535, 70_000]
        );
        assert_eq!(["", "nonsense", "0 1", "0 4294967295 9"].map(|map| outside(7, map)), [7; 4]);
    }

    #[test]
    fn bytes_round_trip() {
        let info = PeerInfo::local(Some("a"), 9).unwrap();
        assert_eq!(PeerInfo::from_bytes(&info.to_bytes()), Ok(info));
        let placed = PeerInfo { numa_node: Some(3), ..info };
        assert_eq!(PeerInfo::from_bytes(&placed.to_bytes()), Ok(placed));
        assert!(PeerInfo::from_bytes(&[0; 31]).is_err());
        let full = PeerInfo {
            host: u64::MAX,
            process: u64::MAX,
            pid: u32::MAX,
            files: u64::MAX,
            numa_node: Some(u32::MAX),
            processors: [u64::MAX; PROCESSOR_WORDS],
            settings: u64::MAX,
            encrypts: true,
        };
        assert_eq!(PeerInfo::from_bytes(&full.to_bytes()), Ok(full));
        assert!(info.processors.iter().any(|word| *word != 0));
        assert_ne!(info.host, PeerInfo::local(Some("b"), 9).unwrap().host);
        assert_ne!(
            info.files,
            PeerInfo::local(Some("a"), 9).unwrap().files,
            "each communicator has files of its own"
        );
    }

    #[test]
    fn ranks_bound_to_processors_of_their_own_share_none() {
        let on = |host, cpus: u64| {
            let mut processors = [0; PROCESSOR_WORDS];
            processors[0] = cpus;
            PeerInfo { host, processors, ..PeerInfo::default() }
        };
        assert_eq!(processors_each(&[on(1, 0b01), on(1, 0b10)], 1), 1);
        assert_eq!(processors_each(&[on(1, 0b01), on(1, 0b01)], 1), 0);
        assert_eq!(processors_each(&[on(1, 0b11), on(1, 0b11), on(2, 0b11)], 1), 1);
        assert_eq!(processors_each(&[on(1, 0b11), on(1, 0b11), on(1, 0b11)], 1), 0);
        assert_eq!(processors_each(&[on(1, 0xff), on(1, 0xff00), on(1, 0x1ff)], 1), 5);
        assert_eq!(processors_each(&[], 1), 0);
    }
}
