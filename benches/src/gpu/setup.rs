//! From the command line to seats and engines, and what beginning with each engine costs.

use super::driver::{self, GpuError};
use super::engine::{GpuEngine, Seat, SeatCall};
use super::nccl::{Nccl, NcclEngine};
use super::oxccl::OxcclGpuEngine;
use crate::cli::{EngineChoice, PerfArgs};
use crate::collective::Collective;
use crate::engine::{Call, EngineError, SetupError};
use crate::report::{EngineFacts, StartCost};
use crate::team::{Record, Team};
use oxccl::cuda::{CudaError, DeviceMemory};
use oxccl_shared::abi::{DataType, RedOp};
use std::time::{Duration, Instant};

/// Bytes of the first all-reduce.
const FIRST_BYTES: usize = 1 << 20;
/// How long the first all-reduce may take without `--timeout`: libraries load their kernels in it.
const FIRST_PATIENCE: Duration = Duration::from_secs(120);

/// The GPUs that this process sees.
pub fn device_count() -> Result<u32, GpuError> {
    driver::start()
}

/// Keeps NCCL from multicast objects (NVLS) unless the user has decided: they are a resource of the whole machine, which others may
/// be using, and on a shared machine their creation can hang.
///
/// # Safety
/// 1. No other thread of this process runs.
pub unsafe fn prepare_environment() {
    if std::env::var_os("NCCL_NVLS_ENABLE").is_none() {
        // SAFETY: obligation 1.
        unsafe { std::env::set_var("NCCL_NVLS_ENABLE", "0") };
    }
}

/// The seats of this thread, which is the `thread`-th of the `threads` on this machine.
pub fn seats(team: &dyn Team, thread: u32, threads: u32, args: &PerfArgs) -> Result<Vec<Seat>, GpuError> {
    driver::start()?;
    let each = args.per_thread();
    let wanted = ordinals(thread, threads, each, &args.devices)?;
    let seat = |(rank, device)| Seat::new(rank, device);
    let seats: Vec<Seat> = (team.rank() * each..).zip(wanted).map(seat).collect::<Result<_, CudaError>>()?;
    // For good: a thread with one GPU need not push and pop its context around every call.
    std::mem::forget(seats[0].bind()?);
    Ok(seats)
}

/// The GPUs of the `thread`-th thread's ranks: rank by rank, or what `--devices` says.
fn ordinals(thread: u32, threads: u32, each: u32, named: &[u32]) -> Result<Vec<u32>, GpuError> {
    let needed = threads * each;
    if !named.is_empty() && named.len() < needed as usize {
        return Err(GpuError::Devices { named: named.len(), needed });
    }
    let locals = thread * each..(thread + 1) * each;
    Ok(locals.map(|local| named.get(local as usize).copied().unwrap_or(local)).collect())
}

/// The model of the first seat's GPU, and every seat's ordinal.
pub fn facts(seats: &[Seat]) -> (String, Vec<u8>) {
    let ordinals = seats.iter().map(|seat| seat.device().ordinal() as u8).collect();
    (seats[0].device().name().into(), ordinals)
}

/// What a run compares.
type Engines = Vec<Box<dyn GpuEngine>>;

/// Engines in the order of the command line, each with what its start cost. The first also pays for what the process itself meets
/// for the first time; `--init-time` gives each engine processes of its own.
pub fn start_engines(
    team: &mut dyn Team,
    seats: &[Seat],
    args: &PerfArgs,
) -> Result<(Engines, Vec<EngineFacts>), SetupError> {
    let mut engines: Engines = Vec::new();
    let mut facts = Vec::new();
    for choice in &args.engines {
        let same = args.engines[..engines.len()].iter().filter(|other| kind(other) == kind(choice)).count();
        let name = if same == 0 { kind(choice).into() } else { format!("{}-{}", kind(choice), same + 1) };
        let (engine, start) = start_engine(choice, name, team, seats, args)?;
        facts.push(EngineFacts {
            name: engine.name(),
            description: engine.describe(),
            memory: None,
            start: Some(start),
        });
        engines.push(engine);
    }
    Ok((engines, facts))
}

fn kind(choice: &EngineChoice) -> &'static str {
    match choice {
        EngineChoice::Oxccl => "oxccl",
        EngineChoice::Mpi { .. } => "mpi",
        EngineChoice::Memcpy => "memcpy",
        EngineChoice::TcpStream => "tcp-stream",
        EngineChoice::Nccl { .. } => "nccl",
    }
}

/// A library that is loaded, so that its loading is not timed.
enum Loaded {
    Oxccl,
    Nccl(std::rc::Rc<Nccl>),
}

impl Loaded {
    fn load(choice: &EngineChoice) -> Result<Loaded, SetupError> {
        match choice {
            EngineChoice::Nccl { library } => {
                Ok(Loaded::Nccl(Nccl::open(library).map_err(EngineError::from)?))
            }
            EngineChoice::Oxccl => Ok(Loaded::Oxccl),
            other => Err(SetupError::Backend {
                engine: kind(other),
                backend: "cuda",
                engines: "oxccl and nccl[=/path/to/libnccl.so.2]",
            }),
        }
    }

    fn start(
        &self,
        name: String,
        team: &mut dyn Team,
        seats: &[Seat],
        args: &PerfArgs,
    ) -> Result<Box<dyn GpuEngine>, SetupError> {
        match self {
            Loaded::Oxccl => Ok(Box::new(OxcclGpuEngine::new(name, team, seats, args)?)),
            Loaded::Nccl(nccl) => Ok(Box::new(NcclEngine::new(nccl, name, team, seats)?)),
        }
    }
}

/// Makes communicators and runs a first all-reduce.
fn start_engine(
    choice: &EngineChoice,
    name: String,
    team: &mut dyn Team,
    seats: &[Seat],
    args: &PerfArgs,
) -> Result<(Box<dyn GpuEngine>, StartCost), SetupError> {
    let loaded = Loaded::load(choice)?;
    let buffer = |seat: &Seat| DeviceMemory::zeroed(seat.device(), 2 * FIRST_BYTES);
    let buffers: Vec<DeviceMemory> =
        seats.iter().map(buffer).collect::<Result<_, CudaError>>().map_err(EngineError::from)?;
    let free = |seats: &[Seat]| -> Result<Vec<usize>, EngineError> {
        let free = |seat: &Seat| seat.device().memory_info().map(|(free, _)| free);
        Ok(seats.iter().map(free).collect::<Result<_, CudaError>>()?)
    };
    team.barrier()?;
    let before = free(seats)?;
    // Nobody begins to allocate before all have looked: ranks may share a GPU.
    team.barrier()?;
    let start = Instant::now();
    let mut engine = loaded.start(name, team, seats, args)?;
    let created = start.elapsed();
    let after_creation = free(seats)?;
    let looked = start.elapsed();
    let patience = args.patience(FIRST_PATIENCE);
    first_all_reduce(engine.as_mut(), team, seats, &buffers, patience)?;
    let reduced = start.elapsed() - (looked - created);
    team.barrier()?;
    let after_use = free(seats)?;
    let used =
        |after: &[usize]| before.iter().zip(after).map(|(b, a)| b.saturating_sub(*a)).max().unwrap_or(0);
    let mut record = Record::default();
    record[..4].copy_from_slice(&[
        created.as_micros() as u64,
        reduced.as_micros() as u64,
        used(&after_creation) as u64,
        used(&after_use) as u64,
    ]);
    let records = team.exchange(&record)?;
    let most = |at: usize| records.iter().map(|record| record[at]).max().unwrap_or(0);
    let cost = StartCost {
        create_ms: most(0) as f64 / 1e3,
        first_all_reduce_ms: most(1) as f64 / 1e3,
        created_bytes: most(2),
        used_bytes: most(3),
    };
    Ok((engine, cost))
}

fn first_all_reduce(
    engine: &mut dyn GpuEngine,
    team: &mut dyn Team,
    seats: &[Seat],
    buffers: &[DeviceMemory],
    patience: Duration,
) -> Result<(), SetupError> {
    let call = |memory: &DeviceMemory| {
        let send = std::ptr::without_provenance_mut::<u8>(memory.address() as usize);
        Call {
            collective: Collective::AllReduce,
            send,
            recv: send.wrapping_add(FIRST_BYTES),
            count: FIRST_BYTES / DataType::F32.size_bytes(),
            dtype: DataType::F32,
            op: RedOp::Sum,
            scalar_bits: 0,
            root: 0,
            in_place: false,
        }
    };
    let calls: Vec<SeatCall> =
        buffers.iter().enumerate().map(|(seat, memory)| SeatCall { seat, call: call(memory) }).collect();
    // SAFETY: each buffer has both parts, and nobody else has it; the engine was made for these seats.
    unsafe { engine.enqueue(seats, &calls)? };
    let start = Instant::now();
    for seat in seats {
        while !seat.stream().is_done().map_err(EngineError::from)? {
            team.poll()?;
            engine.health()?;
            if start.elapsed() > patience {
                let (rank, device) = (seat.rank, seat.device().ordinal());
                let what = format!("the first all-reduce of {}", engine.name());
                return Err(EngineError::Gpu(GpuError::Late { rank, device, what, limit: patience }).into());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_gpus_in_turn_or_as_named() {
        assert_eq!(ordinals(2, 4, 1, &[]).unwrap(), [2]);
        assert_eq!(ordinals(1, 2, 2, &[]).unwrap(), [2, 3]);
        assert_eq!(ordinals(1, 2, 2, &[3, 2, 1, 0]).unwrap(), [1, 0]);
        assert_eq!(ordinals(1, 2, 1, &[0, 0]).unwrap(), [0]);
        assert!(matches!(ordinals(0, 4, 1, &[0, 1]), Err(GpuError::Devices { named: 2, needed: 4 })));
    }
}
