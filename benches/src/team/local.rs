//! Ranks of one machine, in threads or in processes that `oxccl perf` has started: a file in memory with a seat for each.

use super::{Record, Team, TeamError};
use oxccl_shared::sync::{Line128, Sys, Word, cpu_relax};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a rank waits for the others, who may be measuring or checking a large buffer.
const PATIENCE: Duration = Duration::from_secs(600);
/// Polls before the processor is offered to somebody else.
const SPINS: u32 = 2000;

/// One rank's words, written by that rank only.
#[repr(C)]
struct Seat {
    /// Exchanges that this rank has come to.
    arrived: Line128<Word<u64, Sys>>,
    /// 1 once the rank has given up.
    gave_up: Word<u64, Sys>,
    /// Records of even and of odd exchanges: a rank can be one exchange ahead of the slowest reader, never two.
    records: [[Word<u64, Sys>; 16]; 2],
}

/// Words of the process that started the ranks.
#[repr(C)]
struct Head {
    /// 1 once the run has been ended from outside.
    stopped: Line128<Word<u64, Sys>>,
}

/// The memory that the ranks share.
pub struct Region {
    base: NonNull<u8>,
    bytes: usize,
    ranks: u32,
    file: File,
}

// SAFETY: what lies in the region is words that any thread may touch, and seats are written by their ranks only.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// A new region, all seats empty.
    pub fn create(ranks: u32) -> std::io::Result<Region> {
        let file = File::from(rustix::fs::memfd_create("oxccl-perf", MemfdFlags::CLOEXEC)?);
        let wanted = Region::bytes(ranks) as u64;
        // The kernel does not fail the call: it kills the process with SIGXFSZ.
        if let Some(limit) = getrlimit(Resource::Fsize).current.filter(|limit| *limit < wanted) {
            return Err(std::io::Error::other(format!(
                "the file oxccl-perf, which is in memory, needs {wanted} bytes, and a file of this process may have {limit} (RLIMIT_FSIZE); raise the limit (ulimit -f)"
            )));
        }
        file.set_len(wanted)?;
        Region::map(file, ranks)
    }

    /// The region that process `pid` has open as `fd`.
    pub fn open(pid: u32, fd: RawFd, ranks: u32) -> std::io::Result<Region> {
        let path = format!("/proc/{pid}/fd/{fd}");
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() < Region::bytes(ranks) as u64 {
            return Err(std::io::Error::other("too small for the ranks of this run"));
        }
        Region::map(file, ranks)
    }

    /// The descriptor by which [`Self::open`] finds the region.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Ends the run: every rank's next exchange fails.
    pub fn stop(&self) {
        self.head().stopped.store_release(1);
    }

    fn bytes(ranks: u32) -> usize {
        size_of::<Head>() + ranks as usize * size_of::<Seat>()
    }

    fn map(file: File, ranks: u32) -> std::io::Result<Region> {
        let bytes = Region::bytes(ranks);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at an address of the kernel's choice, of a file of at least this length.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, file.as_fd(), 0)? };
        let base =
            NonNull::new(base.cast()).ok_or_else(|| std::io::Error::other("mapped at address zero"))?;
        Ok(Region { base, bytes, ranks, file })
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping begins with a head, page-aligned, and lives as long as `self`; words may be any bytes.
        unsafe { self.base.cast::<Head>().as_ref() }
    }

    fn seat(&self, rank: u32) -> &Seat {
        assert!(rank < self.ranks);
        let offset = size_of::<Head>() + rank as usize * size_of::<Seat>();
        // SAFETY: within the mapping, by the assertion above and the length in `map`.
        let seat = unsafe { self.base.add(offset) };
        // SAFETY: sizes of both structs are multiples of 128, so the seat is aligned; words may be any bytes.
        unsafe { seat.cast::<Seat>().as_ref() }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: made by `map`, and no reference into it outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// One rank at its seat.
pub struct LocalTeam {
    region: Arc<Region>,
    rank: u32,
    /// Exchanges so far.
    number: u64,
}

impl LocalTeam {
    pub fn new(region: Arc<Region>, rank: u32) -> LocalTeam {
        LocalTeam { region, rank, number: 0 }
    }

    /// Announces this rank and waits for the others.
    fn meet(&mut self) -> Result<(), TeamError> {
        self.number += 1;
        self.region.seat(self.rank).arrived.store_release(self.number);
        for rank in 0..self.region.ranks {
            self.wait_for(rank)?;
        }
        Ok(())
    }

    fn wait_for(&self, rank: u32) -> Result<(), TeamError> {
        let seat = self.region.seat(rank);
        // ACQUIRE pairs with the RELEASE in `meet`: the record written before it is visible.
        let here = || seat.arrived.load_acquire() >= self.number;
        for _ in 0..SPINS {
            if here() {
                return Ok(());
            }
            cpu_relax();
        }
        let start = Instant::now();
        while !here() {
            self.poll()?;
            if start.elapsed() > PATIENCE {
                return Err(TeamError::Late { rank, number: self.number, seconds: PATIENCE.as_secs() });
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl Team for LocalTeam {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.region.ranks
    }

    fn exchange(&mut self, mine: &Record) -> Result<Vec<Record>, TeamError> {
        let side = (self.number + 1) as usize % 2;
        for (word, value) in self.region.seat(self.rank).records[side].iter().zip(mine) {
            word.store_relaxed(*value);
        }
        self.meet()?;
        let record = |rank| self.region.seat(rank).records[side].each_ref().map(Word::load_relaxed);
        Ok((0..self.region.ranks).map(record).collect())
    }

    fn barrier(&mut self) -> Result<(), TeamError> {
        self.meet()
    }

    fn poll(&self) -> Result<(), TeamError> {
        if let Some(rank) = (0..self.region.ranks).find(|r| self.region.seat(*r).gave_up.load_acquire() == 1)
        {
            return Err(TeamError::GaveUp { rank });
        }
        match self.region.head().stopped.load_acquire() {
            1 => Err(TeamError::Stopped),
            _ => Ok(()),
        }
    }

    fn give_up(&mut self) {
        self.region.seat(self.rank).gave_up.store_release(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn teams(ranks: u32) -> Vec<LocalTeam> {
        let region = Arc::new(Region::create(ranks).unwrap());
        (0..ranks).map(|rank| LocalTeam::new(region.clone(), rank)).collect()
    }

    #[test]
    fn every_rank_sees_every_card_of_every_exchange() {
        std::thread::scope(|scope| {
            for mut team in teams(3) {
                scope.spawn(move || {
                    for round in 0..500u64 {
                        let record = [round * 10 + u64::from(team.rank()); 16];
                        let records = team.exchange(&record).unwrap();
                        let expected: Vec<Record> = (0..3).map(|rank| [round * 10 + rank; 16]).collect();
                        assert_eq!(records, expected);
                        if round % 3 == 0 {
                            team.barrier().unwrap();
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn who_gives_up_releases_the_others() {
        let mut teams = teams(2);
        let mut quitter = teams.pop().unwrap();
        quitter.give_up();
        assert!(matches!(teams[0].poll(), Err(TeamError::GaveUp { rank: 1 })));
        assert!(matches!(teams[0].barrier(), Err(TeamError::GaveUp { rank: 1 })));
    }

    #[test]
    fn a_region_is_found_by_its_descriptor() {
        let region = Region::create(2).unwrap();
        let other = Region::open(std::process::id(), region.fd(), 2).unwrap();
        region.stop();
        let mut team = LocalTeam::new(Arc::new(other), 0);
        assert!(matches!(team.barrier(), Err(TeamError::Stopped)));
        assert!(Region::open(std::process::id(), region.fd(), 100_000).is_err());
    }
}
