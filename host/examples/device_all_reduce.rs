//! All-reduce between the GPUs of this host, from one thread: correctness first, then the time of each size.
//!
//! ```text
//! cargo xtask build-ptx
//! cargo run --release --example device_all_reduce [number of GPUs, all by default] [largest size in bytes, 256 MiB by default]
//! ```
//!
//! With several processes, one for each GPU, the communicator comes from `DeviceCommunicator::from_env()` instead, and everything
//! below stays as it is.

use oxccl::cuda::{CudaError, DeviceMemory, Driver, Event, Stream};
use oxccl::{DeviceCommunicator, DeviceSlice, DeviceSliceMut, ReduceOp};
use std::error::Error;

/// Operations behind each other whose mean time is told.
const ITERATIONS: u32 = 20;

/// A rank: its communicator, a stream, and buffers on its GPU.
struct Rank {
    comm: DeviceCommunicator,
    stream: Stream,
    send: DeviceMemory,
    recv: DeviceMemory,
    begin: Event,
    end: Event,
}

impl Rank {
    fn new(comm: DeviceCommunicator, bytes_max: usize) -> Result<Rank, CudaError> {
        let device = comm.device();
        Ok(Rank {
            stream: Stream::new(device)?,
            send: DeviceMemory::zeroed(device, bytes_max)?,
            recv: DeviceMemory::zeroed(device, bytes_max)?,
            begin: Event::timed(device)?,
            end: Event::timed(device)?,
            comm,
        })
    }

    /// Puts an all-reduce of `count` floats on the stream. It returns at once.
    fn all_reduce(&mut self, count: usize) -> Result<(), oxccl::Error> {
        let send: DeviceSlice<f32> = DeviceSlice::new(&self.send, 0..count);
        let recv = DeviceSliceMut::new(&mut self.recv, 0..count);
        // SAFETY: (1) nothing else uses the buffers before the stream has been waited for; (2) the stream lives as long.
        unsafe { self.comm.all_reduce(send, recv, ReduceOp::SUM, self.stream.by_ref()) }
    }

    /// Element `i` of this rank's input. Small integers: their sums are exact.
    fn input(rank: u32, i: usize) -> f32 {
        (i % 13 + rank as usize) as f32
    }

    /// Fills input and output, so that nothing is right by chance.
    fn fill(&self, count: usize) -> Result<(), CudaError> {
        let input: Vec<f32> = (0..count).map(|i| Rank::input(self.comm.rank(), i)).collect();
        let nothing = vec![f32::NAN; count];
        for (memory, contents) in [(&self.send, &input), (&self.recv, &nothing)] {
            // SAFETY: (1, 2) the memory is longer than the contents, which outlive the wait below; nothing else uses them.
            unsafe {
                self.stream.by_ref().copy_to_device(memory.address(), contents.as_ptr().cast(), count * 4)?
            };
        }
        self.stream.synchronize()
    }

    /// How many elements of the output are wrong.
    fn wrong(&self, count: usize) -> Result<usize, CudaError> {
        let mut output = vec![0f32; count];
        // SAFETY: (1, 2) as in `fill`.
        unsafe {
            self.stream.by_ref().copy_to_host(output.as_mut_ptr().cast(), self.recv.address(), count * 4)?
        };
        self.stream.synchronize()?;
        let expected = |i| (0..self.comm.size()).map(|rank| Rank::input(rank, i)).sum::<f32>();
        Ok((0..count).filter(|i| output[*i] != expected(*i)).count())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let gpus = match arguments.next() {
        Some(text) => text.parse()?,
        None => Driver::get()?.device_count(),
    };
    let bytes_max: usize = arguments.next().map_or(Ok(256 << 20), |text| text.parse())?;
    let ordinals: Vec<u32> = (0..gpus).collect();
    let comms = DeviceCommunicator::init_all(&ordinals)?;
    println!("{gpus} x {}, {}", comms[0].device().name(), comms[0].memory());
    let mut ranks: Vec<Rank> =
        comms.into_iter().map(|comm| Rank::new(comm, bytes_max)).collect::<Result<_, _>>()?;

    println!("{:>12} {:>10} {:>12} {:>12} {:>7}", "bytes", "us", "algbw GB/s", "busbw GB/s", "wrong");
    let sizes = std::iter::successors(Some(8usize), |bytes| Some(bytes * 4)).take_while(|b| *b <= bytes_max);
    for bytes in sizes {
        let count = bytes / 4;
        ranks.iter().try_for_each(|rank| rank.fill(count))?;
        // All ranks before any is waited for: each waits for the others.
        ranks.iter_mut().try_for_each(|rank| rank.all_reduce(count))?;
        ranks.iter().try_for_each(|rank| rank.comm.synchronize(rank.stream.by_ref()))?;
        let wrong: usize = ranks.iter().map(|rank| rank.wrong(count)).sum::<Result<_, _>>()?;

        for iteration in 0..=ITERATIONS {
            for rank in &mut ranks {
                if iteration == 1 {
                    rank.stream.by_ref().record(&rank.begin)?;
                }
                rank.all_reduce(count)?;
            }
        }
        ranks.iter().try_for_each(|rank| rank.stream.by_ref().record(&rank.end))?;
        ranks.iter().try_for_each(|rank| rank.comm.synchronize(rank.stream.by_ref()))?;
        let us = ranks[0].end.elapsed_us(&ranks[0].begin)? / f64::from(ITERATIONS);
        let algbw = bytes as f64 / us / 1e3;
        let busbw = algbw * 2.0 * f64::from(gpus - 1) / f64::from(gpus);
        println!("{bytes:>12} {us:>10.2} {algbw:>12.2} {busbw:>12.2} {wrong:>7}");
        if wrong > 0 {
            return Err("wrong results".into());
        }
    }
    Ok(())
}
