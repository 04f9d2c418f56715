//! Layer: host / transport, beside shared memory.
//! Takes: the process of another rank of this host, and a place in its memory where it says a number.
//! Gives: [`ProcessMemory`], by which this rank copies long messages out of that process (cross memory attach, process_vm_readv(2)).
//! Never: writes into another process, or reads what was not offered.

use oxccl_device::remote::{RemoteMemory, Unreadable};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Whether ranks of a host read each other's memory (`OXCCL_CMA`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cma {
    /// Where the kernel lets them, which depends on its settings (`kernel.yama.ptrace_scope` 0) and on the container's, and copies fast enough.
    #[default]
    Allowed,
    /// Wherever the kernel lets them, and this process permits every process of its user to attach to it, which `ptrace_scope` 1 asks for.
    Permit,
    /// Never.
    Off,
}

impl Cma {
    /// By its value in `OXCCL_CMA`.
    pub fn from_name(name: &str) -> Option<Cma> {
        [("0", Cma::Off), ("1", Cma::Permit), ("auto", Cma::Allowed)]
            .into_iter()
            .find_map(|(known, cma)| (known == name).then_some(cma))
    }

    /// Whether this rank reads, and offers its memory.
    pub fn is_on(self) -> bool {
        match self {
            Cma::Allowed => kernel_copies_fast(),
            Cma::Permit => true,
            Cma::Off => false,
        }
    }

    /// Lets others of this user read this process's memory, if that is what is wanted.
    pub fn permit(self) {
        if self == Cma::Permit {
            // Kernels without Yama know nothing of it and need nothing of it.
            // SAFETY: PR_SET_PTRACER takes a number, and no memory.
            unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
        }
    }
}

/// Reading pays up to this many times the time of memcpy, for a message within one process. The kernel looks up and holds each page. On Xeons it
/// takes 2.0 to 3.2 times as long as memcpy, more where several processes ask at once, and reading is faster
/// (docs/measurements/2026-11-29-cpu-many-ranks.md). On AMD's processors, with the mitigations that they need, it takes four to nine times as long,
/// and two copies are faster, one by each rank, through buffers that change hands (docs/measurements/2026-11-29-cpu-zen4.md).
const KERNEL_MAX: f64 = 3.5;

/// Whether one copy by this kernel is faster than two by the ranks, found out once in the life of a process, in some 300 us.
fn kernel_copies_fast() -> bool {
    static IS: OnceLock<bool> = OnceLock::new();
    *IS.get_or_init(|| {
        let Ok(pid) = std::process::id().try_into() else { return false };
        let (from, mut to) = (vec![1u8; PROBED_BYTES], vec![0u8; PROBED_BYTES]);
        let (memory, address) = (ProcessMemory { pid }, from.as_ptr().expose_provenance() as u64);
        let (mut read, mut copied) = (Duration::MAX, Duration::MAX);
        for _ in 0..PROBES {
            let begun = Instant::now();
            // SAFETY: (1) `to` is as long; (2) so is `from`.
            if unsafe { memory.read(to.as_mut_ptr(), address, PROBED_BYTES) }.is_err() {
                return false;
            }
            read = read.min(begun.elapsed());
            let begun = Instant::now();
            black_box(&mut to[..]).copy_from_slice(black_box(&from));
            copied = copied.min(begun.elapsed());
        }
        let pays = pays(read, copied);
        let what = if pays { "are read out of their senders' memory" } else { "go through slots" };
        tracing::info!(
            "long messages {what} (OXCCL_CMA=auto): for {PROBED_BYTES} bytes process_vm_readv takes {read:?}, memcpy {copied:?}"
        );
        pays
    })
}

/// Whether reading pays where the kernel takes so long for what memcpy takes so long for.
fn pays(read: Duration, copied: Duration) -> bool {
    read <= copied.mul_f64(KERNEL_MAX)
}

/// A message that is long enough for its pages to count, and fits every processor's inner caches.
const PROBED_BYTES: usize = 64 << 10;
/// The least time of so many counts: an interrupt lengthens one, and what ranks beside us do in their inits lengthens many.
const PROBES: u32 = 64;

/// What a rank says of its process so that others can find out whether they read the right memory: a process id may mean another process
/// where namespaces differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Probe {
    address: u64,
    number: u64,
}

impl Probe {
    /// This process's.
    pub fn here() -> Probe {
        static NUMBER: OnceLock<Box<u64>> = OnceLock::new();
        let number = NUMBER.get_or_init(|| Box::new(super::peer::random()));
        Probe { address: std::ptr::from_ref::<u64>(number).expose_provenance() as u64, number: **number }
    }
}

/// The memory of a process of this host.
#[derive(Debug)]
pub struct ProcessMemory {
    pid: libc::pid_t,
}

impl ProcessMemory {
    /// That of the process `pid`, if this one may read it and it is the one that made `probe`.
    pub fn attach(pid: u32, probe: Probe) -> Option<ProcessMemory> {
        let memory = ProcessMemory { pid: pid.try_into().ok()? };
        let mut number = 0u64;
        // SAFETY: (1) a local; (2) nothing is assumed of what is read.
        let read = unsafe { memory.read((&raw mut number).cast(), probe.address, size_of::<u64>()) };
        (read.is_ok() && number == probe.number).then_some(memory)
    }
}

impl RemoteMemory for ProcessMemory {
    unsafe fn read(&self, dst: *mut u8, address: u64, len_bytes: usize) -> Result<(), Unreadable> {
        let mut done = 0;
        while done < len_bytes {
            let iov_len = len_bytes - done;
            let local = libc::iovec { iov_base: dst.wrapping_add(done).cast(), iov_len };
            let at = address.wrapping_add(done as u64) as usize;
            let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(at), iov_len };
            // SAFETY: obligation 1; the kernel checks the other process's addresses, and copies what is there.
            let read = unsafe { libc::process_vm_readv(self.pid, &local, 1, &remote, 1, 0) };
            match usize::try_from(read) {
                Ok(0) => return Err(Unreadable),
                Ok(read) => done += read,
                Err(_) => match std::io::Error::last_os_error().raw_os_error() {
                    Some(libc::EINTR) => {}
                    _ => return Err(Unreadable),
                },
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_takes_far_longer_than_memcpy_is_not_asked_unless_the_user_wants_it() {
        // As measured on a Xeon, at best and at worst beside 15 other ranks, on a Zen 5, and on a Zen 4 at both.
        assert!(pays(Duration::from_nanos(3650), Duration::from_nanos(1810)));
        assert!(pays(Duration::from_nanos(6640), Duration::from_nanos(2085)));
        assert!(!pays(Duration::from_nanos(8142), Duration::from_nanos(2123)));
        assert!(!pays(Duration::from_nanos(4380), Duration::from_nanos(490)));
        assert!(!pays(Duration::from_nanos(5540), Duration::from_nanos(1130)));
        assert!(Cma::Permit.is_on() && !Cma::Off.is_on());
    }

    #[test]
    fn a_process_reads_itself_and_nothing_under_another_number() {
        let (pid, probe) = (std::process::id(), Probe::here());
        let memory = ProcessMemory::attach(pid, probe).expect("every process may read itself");
        assert!(ProcessMemory::attach(pid, Probe { number: probe.number ^ 1, ..probe }).is_none());
        assert!(ProcessMemory::attach(pid, Probe { address: 8, ..probe }).is_none());
        // Larger than any process number.
        assert!(ProcessMemory::attach(1 << 30, probe).is_none());

        let from: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        let mut to = vec![0; from.len()];
        let address = from.as_ptr().expose_provenance() as u64;
        // SAFETY: (1) `to` is as long; (2) so is `from`.
        unsafe { memory.read(to.as_mut_ptr(), address, from.len()) }.unwrap();
        assert!(from == to);
    }

    #[test]
    fn neither_unmapped_memory_nor_that_of_processes_that_have_ended_is_read() {
        let memory = ProcessMemory { pid: std::process::id() as i32 };
        let mut to = [0u8; 64];
        // SAFETY: (1) `to` has room; (2) nothing is assumed of the result.
        assert_eq!(unsafe { memory.read(to.as_mut_ptr(), 64, 64) }, Err(Unreadable));
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        let pid = child.id() as i32;
        child.wait().expect("its end");
        // SAFETY: as above.
        let read = unsafe { ProcessMemory { pid }.read(to.as_mut_ptr(), 64, 64) };
        assert_eq!(read, Err(Unreadable));
    }
}
