//! OxCCL, and the team of ranks that a launcher started without MPI's library.

use super::{Call, Engine, EngineError, InFlight, Memory, PeerMemory};
use crate::cli::{PerfArgs, Transport};
use crate::collective::{Collective, Transfer};
use crate::team::{Record, Team, TeamError, bytes_of_record, record_of_bytes};
use oxccl::{Blocks, Communicator, Config, Func, ReduceOp, TransportKind, UniqueId, Untyped, UntypedV};

/// A communicator.
pub struct OxcclEngine {
    communicator: Communicator,
    description: String,
}

impl OxcclEngine {
    /// A communicator over all ranks of `team`.
    pub fn new(team: &mut dyn Team, args: &PerfArgs) -> Result<OxcclEngine, SetupError> {
        let mut builder =
            Communicator::builder().unique_id(agree_on_id(team)?).rank(team.rank()).ranks(team.size());
        if let Some(list) = &args.algo {
            let mut config = Config::from_env().map_err(oxccl::Error::from).map_err(EngineError::from)?;
            config.forced = config.forced.with_algorithms(list).unwrap_or(config.forced);
            builder = builder.config(config);
        }
        if let Some(protocol) = args.proto {
            builder = builder.protocol(protocol);
        }
        if !args.timeout.is_zero() {
            builder = builder.timeout(args.timeout);
        }
        builder = match args.transport {
            Transport::Auto => builder,
            Transport::Inproc => builder.transport(TransportKind::InProcess),
            Transport::Shm => builder.transport(TransportKind::Shm),
            Transport::Tcp => builder.transport(TransportKind::Tcp),
            Transport::Net => builder.transport(TransportKind::Net),
        };
        let communicator = builder.build().map_err(EngineError::from)?;
        let mut kinds: Vec<&str> =
            communicator.memory().peers.iter().map(|peer| peer.transport.name()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let description = format!(
            "{}, transport {}, algorithm {}, protocol {}",
            env!("CARGO_PKG_VERSION"),
            if kinds.is_empty() { "none".into() } else { kinds.join("+") },
            args.algo.as_deref().unwrap_or("auto"),
            args.proto.map_or("auto", |p| p.name()),
        );
        Ok(OxcclEngine { communicator, description })
    }
}

impl OxcclEngine {
    /// The communicator.
    pub fn communicator(&self) -> &Communicator {
        &self.communicator
    }
}

/// Why a communicator could not be had.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error(transparent)]
    Team(#[from] TeamError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("the engine {engine} has no part in --backend {backend}; its engines are {engines}")]
    Backend { engine: &'static str, backend: &'static str, engines: &'static str },
    #[error("the id that rank 0 made: {0}")]
    Id(#[from] ::oxccl::bootstrap::UniqueIdError),
}

/// The id that rank 0 makes.
pub fn agree_on_id(team: &mut dyn Team) -> Result<UniqueId, SetupError> {
    let mut mine = Record::default();
    if team.rank() == 0 {
        // By the environment, as the communicators: NCCL_SOCKET_IFNAME names the interface.
        let id = UniqueId::create().map_err(EngineError::from)?;
        mine = record_of_bytes(&id.to_bytes());
    }
    let records = team.exchange(&mine)?;
    Ok(UniqueId::from_bytes(&bytes_of_record(&records[0]))?)
}

/// What OxCCL calls it; of what is made of sends and receives, the send.
pub fn func(collective: Collective) -> Func {
    match collective {
        Collective::AllReduce => Func::AllReduce,
        Collective::AllGather => Func::AllGather,
        Collective::ReduceScatter => Func::ReduceScatter,
        Collective::Broadcast => Func::Broadcast,
        Collective::Reduce => Func::Reduce,
        Collective::AllToAll => Func::AllToAll,
        Collective::Gather => Func::Gather,
        Collective::Scatter => Func::Scatter,
        Collective::Barrier => Func::Barrier,
        Collective::SendRecv | Collective::AllToAllV | Collective::AllGatherV => Func::Send,
        Collective::ReduceScatterV => Func::Reduce,
    }
}

/// A call as OxCCL has it; of one that is several, the first kind.
pub fn untyped(call: &Call) -> Untyped {
    let op = ReduceOp::of_kind(call.op, call.dtype, call.scalar_bits);
    let Call { send, recv, count, root, .. } = *call;
    Untyped { send, recv, count, op, peer: root, ..Untyped::new(func(call.collective), call.dtype) }
}

impl Call {
    /// What `rank` calls in a group, for a collective that is made of several calls; none for the others. All-gather-v and reduce-scatter-v
    /// are what the library's functions of these names make of them.
    pub fn in_group(&self, rank: u32, ranks: u32) -> Vec<Untyped> {
        let (one, bytes) = (untyped(self), self.dtype.size_bytes());
        match self.collective {
            Collective::SendRecv | Collective::AllGatherV => {
                let transfers = self.collective.transfers(self.count, rank, ranks, self.root).into_iter();
                transfers.map(|transfer| self.message(transfer)).collect()
            }
            Collective::ReduceScatterV => {
                let blocks = (0..ranks).map(|root| (root, Collective::uneven_block(self.count, root)));
                let call = |(root, block): (u32, std::ops::Range<usize>)| {
                    let send = self.send.wrapping_add(block.start * bytes).cast_const().cast();
                    Untyped { send, count: block.len(), peer: root, ..one }
                };
                blocks.filter(|(_, block)| !block.is_empty()).map(call).collect()
            }
            _ => Vec::new(),
        }
    }

    /// One message as OxCCL has it.
    fn message(&self, Transfer { is_send, peer, first, count }: Transfer) -> Untyped {
        let (one, at) = (untyped(self), first * self.dtype.size_bytes());
        match is_send {
            true => Untyped { send: self.send.wrapping_add(at).cast_const().cast(), count, peer, ..one },
            false => {
                Untyped { func: Func::Recv, recv: self.recv.wrapping_add(at).cast(), count, peer, ..one }
            }
        }
    }

    /// Whether OxCCL's untyped calls need several of them, or one with blocks.
    pub fn is_several(&self) -> bool {
        use Collective::{AllGatherV, AllToAllV, ReduceScatterV, SendRecv};
        matches!(self.collective, SendRecv | AllToAllV | AllGatherV | ReduceScatterV)
    }

    /// Runs `body` on an all-to-all-v of `rank`, as OxCCL has it.
    pub fn as_all_to_all_v<R>(&self, rank: u32, ranks: u32, body: impl FnOnce(&UntypedV<'_>) -> R) -> R {
        let blocks = |is_send| self.collective.blocks(self.count, rank, ranks, is_send);
        let (sent, received) = (blocks(true), blocks(false));
        let send_blocks = Blocks { counts: &sent.0, displs: &sent.1 };
        let recv_blocks = Blocks { counts: &received.0, displs: &received.1 };
        body(&UntypedV { send: self.send, send_blocks, recv: self.recv, recv_blocks, dtype: self.dtype })
    }
}

impl OxcclEngine {
    /// # Safety
    /// 1. As [`Engine::run`].
    unsafe fn grouped(&self, calls: &[Call]) -> Result<(), ::oxccl::Error> {
        let communicator = &self.communicator;
        let (rank, size) = (communicator.rank(), communicator.size());
        oxccl::group(|group| {
            for call in calls {
                if call.collective == Collective::AllToAllV {
                    // SAFETY: obligation 1; the group runs before `run` returns.
                    call.as_all_to_all_v(rank, size, |v| unsafe { group.add_untyped_v(communicator, v) })?;
                    continue;
                }
                if call.collective == Collective::SendRecv {
                    // Without memory from the heap, which no caller of MPI's function pays for.
                    for message in Collective::send_recv(call.count, rank, size) {
                        // SAFETY: obligation 1; the group runs before `run` returns.
                        unsafe { group.add_untyped(communicator, &call.message(message))? };
                    }
                    continue;
                }
                if !call.is_several() {
                    // SAFETY: obligation 1; the group runs before `run` returns.
                    unsafe { group.add_untyped(communicator, &untyped(call))? };
                }
                for one in call.in_group(rank, size) {
                    // SAFETY: as above.
                    unsafe { group.add_untyped(communicator, &one)? };
                }
            }
            Ok(())
        })
    }
}

impl Engine for OxcclEngine {
    fn name(&self) -> &'static str {
        "oxccl"
    }

    fn describe(&self) -> String {
        self.description.clone()
    }

    fn memory(&self) -> Option<Memory> {
        let report = self.communicator.memory();
        let peer = |peer: &oxccl::PeerMemory| PeerMemory {
            rank: peer.rank.0,
            transport: peer.transport.name().into(),
            bytes: peer.inbound_bytes + peer.outbound_bytes,
        };
        Some(Memory {
            communicator_bytes: report.total_bytes(),
            peers: report.peers.iter().map(peer).collect(),
        })
    }

    fn refuses(&self, _: &Call) -> Option<&'static str> {
        None
    }

    unsafe fn run(&mut self, calls: &[Call]) -> Result<(), EngineError> {
        match calls {
            [call] if call.collective == Collective::AllToAllV => {
                let communicator = &self.communicator;
                let (rank, size) = (communicator.rank(), communicator.size());
                // SAFETY: obligation 1.
                call.as_all_to_all_v(rank, size, |v| unsafe { communicator.run_untyped_v(v) })?;
            }
            [call] if !call.is_several() => {
                // SAFETY: obligation 1.
                unsafe { self.communicator.run_untyped(&untyped(call))? };
            }
            // SAFETY: obligation 1.
            several => unsafe { self.grouped(several)? },
        }
        Ok(())
    }

    fn in_flight(&mut self) -> Option<&mut dyn InFlight> {
        Some(self)
    }
}

impl InFlight for OxcclEngine {
    fn refuses(&self, _: &Call) -> Option<&'static str> {
        None
    }

    unsafe fn run_beside(&mut self, call: &Call, work: &mut dyn FnMut() -> bool) -> Result<(), EngineError> {
        let communicator = &self.communicator;
        let (rank, size) = (communicator.rank(), communicator.size());
        let request = communicator.start((), |calls, ()| {
            if call.collective == Collective::AllToAllV {
                // SAFETY: obligation 1; the request is waited for below.
                return call.as_all_to_all_v(rank, size, |v| unsafe { calls.untyped_v(v) });
            }
            let one = if call.is_several() { None } else { Some(untyped(call)) };
            for one in call.in_group(rank, size).into_iter().chain(one) {
                // SAFETY: as above.
                unsafe { calls.untyped(&one)? };
            }
            Ok(())
        })?;
        let mut is_over = false;
        while work() {
            is_over = is_over || request.test(communicator)?;
        }
        request.wait(communicator)?;
        Ok(())
    }
}

/// Ranks that mpirun, Slurm or torchrun started, on any number of hosts: the tool's own words travel over a communicator of
/// their own.
pub struct LaunchedTeam {
    communicator: Communicator,
}

impl LaunchedTeam {
    pub fn from_env() -> Result<LaunchedTeam, ::oxccl::Error> {
        Ok(LaunchedTeam { communicator: Communicator::from_env()? })
    }
}

impl From<::oxccl::Error> for TeamError {
    fn from(error: ::oxccl::Error) -> TeamError {
        TeamError::Library { library: "oxccl", message: error.to_string() }
    }
}

impl Team for LaunchedTeam {
    fn rank(&self) -> u32 {
        self.communicator.rank()
    }

    fn size(&self) -> u32 {
        self.communicator.size()
    }

    fn exchange(&mut self, mine: &Record) -> Result<Vec<Record>, TeamError> {
        let mut words = vec![0u64; mine.len() * self.size() as usize];
        self.communicator.all_gather(mine, &mut words)?;
        let (records, _) = words.as_chunks();
        Ok(records.to_vec())
    }

    fn barrier(&mut self) -> Result<(), TeamError> {
        Ok(self.communicator.barrier()?)
    }

    fn give_up(&mut self) {
        self.communicator.abort();
    }
}
