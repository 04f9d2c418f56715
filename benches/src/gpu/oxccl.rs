//! OxCCL's communicators of GPUs, one for each rank of this thread.

use super::engine::{Extent, GpuEngine, Registration, Seat, SeatCall};
use crate::cli::PerfArgs;
use crate::collective::Collective;
use crate::engine::{Call, EngineError, SetupError, agree_on_id, untyped};
use crate::team::Team;
use oxccl::{Config, CtaPolicy, DeviceCommunicator, UniqueId, UntypedV, Window, device_group};

/// Collectives of OxCCL.
pub struct OxcclGpuEngine {
    name: String,
    description: String,
    /// Whether every call that can goes by copy engines.
    takes_no_blocks: bool,
    /// Before the communicators.
    windows: Vec<Window>,
    communicators: Vec<DeviceCommunicator>,
}

impl OxcclGpuEngine {
    /// A communicator over the ranks of all threads of `team`, each of which has as many seats.
    pub fn new(
        name: String,
        team: &mut dyn Team,
        seats: &[Seat],
        args: &PerfArgs,
    ) -> Result<OxcclGpuEngine, SetupError> {
        let mut config = Config::from_env().map_err(oxccl::Error::from).map_err(EngineError::from)?;
        if let Some(list) = &args.algo {
            config.forced = config.forced.with_algorithms(list).unwrap_or(config.forced);
        }
        config.forced = args.proto.map_or(config.forced, |protocol| config.forced.with_protocol(protocol));
        if let Some(channels) = args.channels {
            (config.channels.min, config.channels.max) = (Some(channels), Some(channels));
        }
        config.timeout = args.patience(config.timeout);
        let id = agree_on_id(team)?;
        let ranks = team.size() * seats.len() as u32;
        let communicators = join_all(id, ranks, seats, &config).map_err(EngineError::from)?;
        let description = format!(
            "{}, algorithm {}, protocol {}, {}",
            env!("CARGO_PKG_VERSION"),
            args.algo.as_deref().unwrap_or("auto"),
            args.proto.map_or("auto", |protocol| protocol.name()),
            communicators[0].memory(),
        );
        let takes_no_blocks = config.cta_policy == Some(CtaPolicy::Zero);
        Ok(OxcclGpuEngine { name, description, takes_no_blocks, windows: Vec::new(), communicators })
    }
}

/// All ranks of this thread at once, since each waits for the others.
fn join_all(
    id: UniqueId,
    ranks: u32,
    seats: &[Seat],
    config: &Config,
) -> Result<Vec<DeviceCommunicator>, oxccl::Error> {
    std::thread::scope(|scope| {
        let join = |seat: &Seat| {
            let (rank, device) = (seat.rank, seat.device().ordinal());
            let builder = DeviceCommunicator::builder().unique_id(id).rank(rank).ranks(ranks);
            let builder = builder.device(device).config(config.clone());
            scope.spawn(move || builder.build())
        };
        let threads: Vec<_> = seats.iter().map(join).collect();
        threads.into_iter().map(|thread| thread.join().expect("joining does not panic")).collect()
    })
}

impl OxcclGpuEngine {
    /// The communicator of this thread's first rank.
    pub fn communicator(&self) -> &DeviceCommunicator {
        &self.communicators[0]
    }
}

impl GpuEngine for OxcclGpuEngine {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn describe(&self) -> String {
        self.description.clone()
    }

    unsafe fn register(
        &mut self,
        _: &[Seat],
        buffers: &[[Extent; 2]],
        kind: Registration,
    ) -> Result<(), EngineError> {
        if kind == Registration::Local {
            // What ncclCommRegister is here: nothing.
            return Ok(());
        }
        // All ranks of this thread at once, since each waits for the others.
        let made: Vec<Result<Vec<Window>, oxccl::Error>> = std::thread::scope(|scope| {
            let show = |(communicator, buffers): (&mut DeviceCommunicator, &[Extent; 2])| {
                let (communicator, buffers) = (&*communicator, *buffers);
                buffers
                    .iter()
                    // SAFETY: (1) obligation 1; (2) windows are dropped with the engine, whose streams have been waited for; (3) the
                    // ranks' calls lie at the same offsets; (4) a run that fails ends.
                    .map(|buffer| unsafe {
                        communicator.register_symmetric_window(buffer.address, buffer.bytes as u64)
                    })
                    .collect()
            };
            let ranks = self.communicators.iter_mut().zip(buffers);
            let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || show(rank))).collect();
            threads.into_iter().map(|thread| thread.join().expect("registering does not panic")).collect()
        });
        for windows in made {
            self.windows.extend(windows?);
        }
        Ok(())
    }

    fn refuses(&self, call: &Call) -> Option<&'static str> {
        let is_apart = call.in_place && [Collective::Gather, Collective::Scatter].contains(&call.collective);
        let is_placed = self.takes_no_blocks && !self.windows.is_empty();
        (is_apart && is_placed)
            .then_some("in place the ranks' buffers lie at different offsets of the window")
    }

    unsafe fn enqueue(&mut self, seats: &[Seat], calls: &[SeatCall]) -> Result<(), EngineError> {
        if let [SeatCall { seat, call }] = calls
            && !call.is_several()
        {
            let (communicator, stream) = (&self.communicators[*seat], seats[*seat].stream());
            // SAFETY: obligation 1; a seat's stream lives as long as the engine.
            unsafe { communicator.enqueue_untyped(&untyped(call), stream)? };
            return Ok(());
        }
        let group = device_group(|group| {
            for SeatCall { seat, call } in calls {
                let (communicator, stream) = (&self.communicators[*seat], seats[*seat].stream());
                let (rank, size) = (communicator.rank(), communicator.size());
                if call.collective == Collective::AllToAllV {
                    // SAFETY: as above.
                    let add = |v: &UntypedV<'_>| unsafe { group.add_untyped_v(communicator, v, stream) };
                    call.as_all_to_all_v(rank, size, add)?;
                    continue;
                }
                if !call.is_several() {
                    // SAFETY: as above.
                    unsafe { group.add_untyped(communicator, &untyped(call), stream)? };
                }
                for one in call.in_group(rank, size) {
                    // SAFETY: as above.
                    unsafe { group.add_untyped(communicator, &one, stream)? };
                }
            }
            Ok(())
        });
        Ok(group?)
    }

    fn health(&mut self) -> Result<(), EngineError> {
        let mut errors = self.communicators.iter().filter_map(DeviceCommunicator::async_error);
        errors.next().map_or(Ok(()), |error| Err(error.into()))
    }

    fn abort(&mut self) {
        self.communicators.iter().for_each(DeviceCommunicator::abort);
    }
}
