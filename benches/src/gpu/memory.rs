//! Buffers in device memory with guards, and the way of a pattern there and back: in pieces through pinned memory, each piece
//! written or compared by several threads.

use super::driver::GpuError;
use super::engine::Extent;
use oxccl::cuda::{Allocation, CudaError, Device, DeviceMemory, Mapping, PinnedMemory, Stream};
use std::ops::Range;

/// Bytes watched on each side of a call's part.
const GUARD_BYTES: usize = 4096;
/// Where the part begins: as aligned as memory of its own, so that no engine is slower for the guard before it.
const LEAD_BYTES: usize = 2 << 20;
/// What lies where no call has written.
const POISON: u8 = 0xa5;
/// A piece.
const STAGING_BYTES: usize = 32 << 20;
/// Fewer bytes are not worth a second thread.
const THREAD_BYTES: usize = 256 << 10;
/// The unit in which checks choose what to compare.
const SAMPLE_BYTES: usize = 1 << 20;

/// What a buffer is made of.
enum Memory {
    Plain(DeviceMemory),
    /// Which other processes and GPUs can map.
    Shareable(Mapping),
}

impl Memory {
    fn new(device: &Device, bytes: usize, is_shareable: bool) -> Result<Memory, CudaError> {
        if !is_shareable {
            return Ok(Memory::Plain(DeviceMemory::zeroed(device, bytes)?));
        }
        let others = (0..device.driver().device_count()).filter(|other| *other != device.ordinal());
        let others: Vec<u32> =
            others.filter(|other| device.can_access_ordinal(*other).unwrap_or(false)).collect();
        let mapping = Allocation::new(device, bytes)?.map(&others)?;
        mapping.zero()?;
        Ok(Memory::Shareable(mapping))
    }

    fn address(&self) -> u64 {
        match self {
            Memory::Plain(memory) => memory.address(),
            Memory::Shareable(mapping) => mapping.address(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Memory::Plain(memory) => memory.len(),
            Memory::Shareable(mapping) => mapping.len(),
        }
    }
}

/// One buffer.
pub struct GpuBuffer {
    memory: Memory,
    origin: usize,
    /// What the tool itself does with the buffer, done when a method returns.
    stream: Stream,
}

impl GpuBuffer {
    /// A buffer for parts of up to `max_bytes`, which begin `misalign` bytes after a border of 2 MiB.
    pub fn new(
        device: &Device,
        max_bytes: usize,
        misalign: usize,
        is_shareable: bool,
    ) -> Result<GpuBuffer, GpuError> {
        let origin = LEAD_BYTES + misalign;
        let memory = Memory::new(device, origin + max_bytes + GUARD_BYTES, is_shareable)?;
        Ok(GpuBuffer { memory, origin, stream: Stream::new(device)? })
    }

    fn poison(&self, bytes: usize) -> Result<(), CudaError> {
        let at = self.range(self.origin, bytes);
        // SAFETY: within the allocation, by `range`, and no engine is at work on it: the bench has waited for all.
        unsafe { self.stream.by_ref().fill(at, POISON, bytes) }?;
        self.stream.synchronize()
    }

    fn upload(&self, start: usize, bytes: &[u8]) -> Result<(), CudaError> {
        let at = self.range(start, bytes.len());
        // SAFETY: within the allocation, by `range`, and no engine is at work on it; `bytes` is borrowed until it is done.
        unsafe { self.stream.by_ref().copy_to_device(at, bytes.as_ptr().cast(), bytes.len()) }?;
        self.stream.synchronize()
    }

    fn download(&self, start: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        let at = self.range(start, bytes.len());
        // SAFETY: as for `upload`.
        unsafe { self.stream.by_ref().copy_to_host(bytes.as_mut_ptr().cast(), at, bytes.len()) }?;
        self.stream.synchronize()
    }

    fn range(&self, start: usize, bytes: usize) -> u64 {
        assert!(
            start.checked_add(bytes).is_some_and(|end| end <= self.memory.len()),
            "outside the allocation"
        );
        self.memory.address() + start as u64
    }

    /// Its allocation.
    pub fn whole(&self) -> Extent {
        Extent { address: self.memory.address(), bytes: self.memory.len() }
    }

    /// The address of byte `offset`.
    pub fn at(&self, offset: usize) -> u64 {
        self.memory.address() + (self.origin + offset) as u64
    }

    /// Poisons the first `bytes` bytes and sets the guards around them.
    pub fn arm(&self, bytes: usize) -> Result<(), GpuError> {
        let pattern: Vec<u8> = (0..GUARD_BYTES).map(guard_byte).collect();
        if bytes > 0 {
            self.poison(bytes)?;
        }
        self.upload(self.origin - GUARD_BYTES, &pattern)?;
        Ok(self.upload(self.origin + bytes, &pattern)?)
    }

    /// Guard bytes around the first `bytes` bytes that are no longer what [`Self::arm`] wrote.
    pub fn violations(&self, bytes: usize) -> Result<u64, GpuError> {
        let mut changed = 0;
        for start in [self.origin - GUARD_BYTES, self.origin + bytes] {
            let mut guard = [0; GUARD_BYTES];
            self.download(start, &mut guard)?;
            changed += guard.iter().enumerate().filter(|(i, byte)| **byte != guard_byte(*i)).count();
        }
        Ok(changed as u64)
    }
}

/// Differs from neighbour to neighbour, so that a block moved as a whole is seen.
fn guard_byte(i: usize) -> u8 {
    (i as u8).wrapping_mul(167) ^ 0xa5
}

/// Counts bytes that are not poison.
pub fn touched(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte != POISON).count() as u64
}

/// Pinned memory for pieces, and the number of threads that work on one.
pub struct Staging {
    memory: PinnedMemory,
    threads: usize,
}

impl Staging {
    pub fn new(device: &Device, max_bytes: usize, threads: usize) -> Result<Staging, GpuError> {
        let bytes = STAGING_BYTES.min(max_bytes.next_multiple_of(8)).max(8);
        Ok(Staging { memory: PinnedMemory::zeroed(device, bytes)?, threads })
    }

    fn bytes(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.memory.len());
        // SAFETY: the allocation is initialised and as long as that; it is borrowed with `self`, and copies from and to it are done
        // when the buffer's methods return.
        unsafe { std::slice::from_raw_parts_mut(self.memory.host(), len) }
    }

    /// Writes a part of a buffer; `write` gets an offset within the part, a multiple of 8, and the bytes from there on.
    pub fn fill(
        &mut self,
        buffer: &GpuBuffer,
        part: Range<usize>,
        write: &(dyn Fn(usize, &mut [u8]) + Sync),
    ) -> Result<(), GpuError> {
        for piece in pieces(part.len(), self.memory.len()) {
            let threads = self.threads;
            let staged = self.bytes(piece.len());
            let shares = staged.chunks_mut(share(piece.len(), threads)).enumerate();
            let size = share(piece.len(), threads);
            std::thread::scope(|scope| {
                for (at, share) in shares {
                    let offset = piece.start + at * size;
                    if piece.len() <= size {
                        write(offset, share);
                    } else {
                        scope.spawn(move || write(offset, share));
                    }
                }
            });
            buffer.upload(buffer.origin + part.start + piece.start, staged)?;
        }
        Ok(())
    }

    /// The sum of `count` over a part of a buffer, or over samples of it where it has more than `limit` bytes (0: no limit).
    pub fn count(
        &mut self,
        buffer: &GpuBuffer,
        part: Range<usize>,
        limit: usize,
        count: &(dyn Fn(usize, &[u8]) -> u64 + Sync),
    ) -> Result<u64, GpuError> {
        let mut sum = 0;
        for piece in samples(part.len(), limit, self.memory.len()) {
            let threads = self.threads;
            let staged = self.bytes(piece.len());
            buffer.download(buffer.origin + part.start + piece.start, staged)?;
            let size = share(piece.len(), threads);
            sum += std::thread::scope(|scope| {
                let one = |(at, share)| {
                    let offset = piece.start + at * size;
                    scope.spawn(move || count(offset, share))
                };
                if piece.len() <= size {
                    return count(piece.start, staged);
                }
                let workers: Vec<_> = staged.chunks(size).enumerate().map(one).collect();
                // A worker that panicked has counted nothing, and the whole program is wrong.
                workers
                    .into_iter()
                    .map(|w| w.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
                    .sum::<u64>()
            });
        }
        Ok(sum)
    }
}

/// Bytes of a thread's share of a piece: a multiple of 8, so that no element is torn.
fn share(bytes: usize, threads: usize) -> usize {
    bytes.div_ceil(threads.max(1)).max(THREAD_BYTES).next_multiple_of(8)
}

fn pieces(bytes: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    let step = step / 8 * 8;
    (0..bytes).step_by(step).map(move |start| start..bytes.min(start + step))
}

/// What a check compares: everything, or every k-th MiB and the last one, where k is the least that keeps to `limit` bytes.
fn samples(bytes: usize, limit: usize, step: usize) -> Vec<Range<usize>> {
    if limit == 0 || bytes <= limit {
        return pieces(bytes, step).collect();
    }
    let every = bytes.div_ceil(limit.max(SAMPLE_BYTES));
    let units: Vec<Range<usize>> = pieces(bytes, SAMPLE_BYTES.min(step)).collect();
    let last = units.len().saturating_sub(1);
    units
        .into_iter()
        .enumerate()
        .filter(|(at, _)| at % every == 0 || *at == last)
        .map(|(_, unit)| unit)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_everything_once() {
        for (bytes, step) in [(0, 64), (7, 64), (64, 64), (65, 64), (1000, 72)] {
            let mut end = 0;
            for piece in pieces(bytes, step) {
                assert_eq!(piece.start, end);
                assert_eq!(piece.start % 8, 0);
                end = piece.end;
            }
            assert_eq!(end, bytes);
        }
    }

    #[test]
    fn samples_keep_to_the_limit_and_end_with_the_last_mib() {
        let (mib, limit) = (1 << 20, 256 << 20);
        assert_eq!(samples(100 * mib, limit, 32 * mib).len(), 4);
        let chosen = samples((2 << 30) + 12, limit, 32 * mib);
        let bytes: usize = chosen.iter().map(|range| range.len()).sum();
        assert!(bytes <= limit && bytes > limit / 2, "{bytes}");
        assert_eq!((chosen[0].start, chosen[chosen.len() - 1].end), (0, (2 << 30) + 12));
        assert_eq!(samples(2 << 30, 0, 32 * mib).len(), 64);
    }

    #[test]
    fn shares_do_not_tear_elements() {
        assert_eq!(share(100, 8), THREAD_BYTES);
        assert_eq!(share(32 << 20, 16), 2 << 20);
        assert_eq!(share((32 << 20) - 8, 7) % 8, 0);
    }
}
