//! Builds a communicator from settings.

use super::communicator::{Comm, Communicator};
use super::config::{Config, MISSING_ID};
use super::error::Error;
use super::handle::CommHandle;
use super::init::{Init, Joined, Started, agree_on_algorithms};
use super::launcher::LaunchEnv;
use super::membership::{Membership, watch};
use super::pending::Pending;
use super::split::Turn;
use super::stalls::Stalls;
use super::{asked, init_log, split, tune_file};
use crate::bootstrap::{Bootstrap, UniqueId, Watch};
use crate::connect::ConnectError;
use crate::gpu::bundle::Bundle;
use crate::launch::{CustomAlgorithm, Engine, Health, StreamMachine, in_flight};
use crate::log::Laps;
use crate::machine::cpu::Cpu;
use crate::machine::cuda::Cuda;
use crate::net::warn_of_names;
use crate::plan::CtaPolicy;
use crate::profiler::{About, Profiler};
use crate::transport::{Allowed, TransportKind};
use crate::tuner::Plugin;
use oxccl_shared::abi::{Algorithm, Protocol, Rank};
use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Builds a communicator: id, rank, number of ranks, unit of the machine `M`, and settings that should not come from
/// the environment.
pub struct Builder<M: Init> {
    id: Option<UniqueId>,
    rank: u32,
    nranks: u32,
    unit: M::Unit,
    config: Option<Config>,
    overrides: Overrides,
}

/// Sets up a communicator on CPUs.
pub type CommunicatorBuilder = Builder<Cpu>;

/// Sets up a communicator of GPUs.
pub type DeviceCommunicatorBuilder = Builder<Cuda>;

/// Explicit settings, which override the environment.
#[derive(Clone, Debug, Default)]
struct Overrides {
    algorithm: Option<Algorithm>,
    protocol: Option<Protocol>,
    transport: Option<TransportKind>,
    timeout: Option<Duration>,
    cta_policy: Option<CtaPolicy>,
    deterministic: Option<bool>,
    tune_file: Option<PathBuf>,
    custom: Vec<CustomAlgorithm>,
    kernels: Option<Arc<Bundle>>,
}

impl Overrides {
    /// Whether the program has set nothing that can be wrong.
    fn is_empty(&self) -> bool {
        let Overrides { algorithm, protocol, transport, timeout, cta_policy, tune_file, custom, .. } = self;
        let is_unset = algorithm.is_none() && protocol.is_none() && transport.is_none() && timeout.is_none();
        is_unset && cta_policy.is_none() && tune_file.is_none() && custom.is_empty()
    }
}

impl<M: Init> Default for Builder<M> {
    fn default() -> Builder<M> {
        let (unit, overrides) = (M::Unit::default(), Overrides::default());
        Builder { id: None, rank: 0, nranks: 0, unit, config: None, overrides }
    }
}

impl<M: Init> Clone for Builder<M> {
    fn clone(&self) -> Builder<M> {
        let (config, overrides) = (self.config.clone(), self.overrides.clone());
        Builder { config, overrides, ..*self }
    }
}

impl<M: Init> fmt::Debug for Builder<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Builder { id, rank, nranks, unit, config, overrides } = self;
        let mut out = f.debug_struct("Builder");
        out.field("id", id).field("rank", rank).field("nranks", nranks).field("unit", unit);
        out.field("config", config).field("overrides", overrides).finish()
    }
}

impl<M: Init<Unit = u32>> Builder<M> {
    /// This rank's GPU, by its CUDA ordinal in this process.
    pub fn device(mut self, ordinal: u32) -> Self {
        self.unit = ordinal;
        self
    }
}

impl Builder<Cuda> {
    /// Takes the kernels from this bundle, and looks for no file: [`Bundle::from_bytes`](crate::cuda::bundle::Bundle::from_bytes) makes
    /// one of `include_bytes!`. The first communicator on a GPU decides for those that live at the same time.
    pub fn kernels(mut self, bundle: Arc<Bundle>) -> Self {
        self.overrides.kernels = Some(bundle);
        self
    }

    /// How many multiprocessors operations may take; the same on every rank.
    pub fn cta_policy(mut self, policy: CtaPolicy) -> Self {
        self.overrides.cta_policy = Some(policy);
        self
    }
}

impl<M: Init> Builder<M> {
    /// The id that one rank created and distributed to all.
    pub fn unique_id(mut self, id: UniqueId) -> Self {
        self.id = Some(id);
        self
    }

    /// This rank.
    pub fn rank(mut self, rank: u32) -> Self {
        self.rank = rank;
        self
    }

    /// The number of ranks.
    pub fn ranks(mut self, nranks: u32) -> Self {
        self.nranks = nranks;
        self
    }

    /// Takes id, rank and number of ranks from the launcher's environment. A GPU is that of the rank's number on its host.
    ///
    /// # Errors
    /// [`Error::Launch`]: no launcher is recognised, or its variables cannot be used. If they still say where the ranks meet, the other ranks are
    /// told, and their joins fail. That takes some seconds if no other rank is there.
    pub fn from_env(self) -> Result<Self, Error> {
        let launch = LaunchEnv::from_process().inspect_err(LaunchEnv::decline)?;
        let unit = M::unit_of(launch.local_rank.unwrap_or(launch.rank));
        let this = self.unique_id(launch.unique_id()?).rank(launch.rank).ranks(launch.nranks);
        Ok(Builder { unit, ..this })
    }

    /// Replaces the environment's settings.
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Uses this algorithm wherever the function has it.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.overrides.algorithm = Some(algorithm);
        self
    }

    /// Uses an algorithm that is not the library's for every call that it offers, where all ranks reach each other without a network.
    /// Of several, the first that offers a call carries it out. Every rank must register the same ones.
    pub fn register(mut self, algorithm: CustomAlgorithm) -> Self {
        self.overrides.custom.push(algorithm);
        self
    }

    /// Uses this protocol.
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.overrides.protocol = Some(protocol);
        self
    }

    /// Uses this transport and no other.
    pub fn transport(mut self, transport: TransportKind) -> Self {
        self.overrides.transport = Some(transport);
        self
    }

    /// Timeout of an operation that waits for a peer without progress.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.overrides.timeout = Some(timeout);
        self
    }

    /// Results of reductions have the bits of a reduction by rank, from left to right, whatever the size, the algorithm's place and the
    /// machine; or that of the fastest algorithm. See [`Config::deterministic`]; every rank must say the same.
    pub fn deterministic(mut self, deterministic: bool) -> Self {
        self.overrides.deterministic = Some(deterministic);
        self
    }

    /// Chooses by the tables in this file, which `oxccl tune` writes. Every rank needs the same tables.
    pub fn tune_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.overrides.tune_file = Some(path.into());
        self
    }

    /// Joins. Returns when all ranks have joined, or with the same error on all.
    ///
    /// # Errors
    /// Any [`Error`] but `Argument` and `Operation`.
    pub fn build(self) -> Result<Comm<M>, Error> {
        if in_flight::any() {
            // It goes on meanwhile.
            return self.start()?.wait();
        }
        let config = self.settings()?;
        let handle = CommHandle::joining(Rank(self.rank), self.nranks);
        self.join(config, &handle)
    }

    /// Starts to join, on a thread of its own, and returns at once: [`Pending::poll`] says when the communicator is ready, and
    /// [`Pending::handle`] is there to abort it from any thread before that and after.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Impossible`], [`Error::Tune`]: nothing has been sent, so that other settings can be tried, unless the
    /// environment cannot be read ([`Self::decline`]). [`Error::Bootstrap`]: there is no thread for it.
    /// All others come from the [`Pending`]; of an abort [`Error::Operation`] with [`Fault::Aborted`](crate::Fault::Aborted).
    pub fn start(self) -> Result<Pending<Comm<M>>, Error> {
        let config = self.settings()?;
        Pending::start(CommHandle::joining(Rank(self.rank), self.nranks), move |handle| {
            self.join(config, handle)
        })
    }

    /// Does not join, and tells the others, whose joins fail and name this rank: for a program that cannot go on to [`Self::build`]. That
    /// does so itself where the environment's settings are wrong. The id is used up then. Returns within moments, or three seconds where
    /// the process that has the id's root does not answer.
    pub fn decline(&self) {
        self.decline_saying("");
    }

    /// The others' errors say why.
    fn decline_saying(&self, why: &str) {
        if let Some(id) = self.id.filter(|_| self.nranks > 1) {
            Bootstrap::decline(&id, (Rank(self.rank), self.nranks), why);
        }
    }

    /// Joins with several ranks of this process at the same time, and gives them all to the calling thread, in order.
    ///
    /// # Errors
    /// That of the first rank which failed by itself; then all are gone.
    pub fn build_all(ranks: impl IntoIterator<Item = Builder<M>>) -> Result<Vec<Comm<M>>, Error> {
        let started: Result<Vec<_>, Error> = ranks.into_iter().map(Builder::start).collect();
        all_ready(started?)
    }

    fn join(self, config: Config, handle: &CommHandle) -> Result<Comm<M>, Error> {
        asked::list(handle, &config);
        let connect = || {
            let id = match self.id {
                Some(id) => id,
                None if self.nranks == 1 => UniqueId::create_by(&config.bootstrap)?,
                None => return Err(MISSING_ID.into()),
            };
            let (place, settings) = ((Rank(self.rank), self.nranks), &config.bootstrap);
            let joined = Bootstrap::connect_unless(&id, place, settings, handle.cancel());
            Ok(joined.map_err(|error| error.in_call("joining", None))?)
        };
        let joined = connect().and_then(|bootstrap| assemble(bootstrap, config.clone(), self.unit, handle));
        joined.map_err(|error| handle.failed(error))
    }

    fn settings(&self) -> Result<Config, Error> {
        let read = match &self.config {
            Some(config) => config.clone(),
            None => Config::from_env().inspect_err(|error| self.decline_saying(&error.to_string()))?,
        };
        // Whatever the program tries next fails by the environment too, unless it sets something itself.
        let is_of_environment = self.config.is_none() && self.overrides.is_empty();
        self.settled(read).inspect_err(|error| {
            if is_of_environment {
                self.decline_saying(&error.to_string());
            }
        })
    }

    /// With what the program has set, checked, and with the tuning file read.
    fn settled(&self, mut config: Config) -> Result<Config, Error> {
        let Overrides {
            algorithm,
            protocol,
            transport,
            timeout,
            cta_policy,
            deterministic,
            tune_file,
            custom,
            kernels,
        } = self.overrides.clone();
        config.cta_policy = cta_policy.or(config.cta_policy);
        config.custom.extend(custom);
        config.kernels = kernels.or(config.kernels);
        config.forced = algorithm.map_or(config.forced, |algorithm| config.forced.with_algorithm(algorithm));
        config.forced = protocol.map_or(config.forced, |protocol| config.forced.with_protocol(protocol));
        config.tune_file = tune_file.or(config.tune_file);
        config.transports = transport.map_or(config.transports, Allowed::only);
        config.timeout = timeout.unwrap_or(config.timeout);
        config.deterministic = deterministic.unwrap_or(config.deterministic);
        config.validate(self.nranks)?;
        config.start_log();
        M::check_settings(&config, self.nranks)?;
        tune_file::load(&mut config)?;
        Ok(config)
    }
}

impl<M: Init> Comm<M> {
    /// Starts setting up a communicator.
    pub fn builder() -> Builder<M> {
        Builder::default()
    }

    /// Joins with the rank that mpirun, Slurm or torchrun assigned to this process (see [`super::launcher`]); on
    /// GPUs, with the GPU of the rank's number on its host.
    ///
    /// # Errors
    /// Any [`Error`] but `Argument` and `Operation`; a configuration error when no launcher is recognised.
    pub fn from_env() -> Result<Comm<M>, Error> {
        Comm::<M>::builder().from_env()?.build()
    }

    /// Splits the ranks by `color` into new communicators on the same machine, each ordered by `key`, then by rank
    /// here. A rank with `None` joins none and receives none. Every rank must call it at the same time; ranks on GPUs
    /// that share a thread need a thread each for it.
    ///
    /// The new communicator has its own memory and channels: the topology search runs again for its ranks, and a
    /// tuning file's table for its number of ranks applies. Its failures do not affect this communicator, which can
    /// be used, split again or dropped meanwhile. Settings about this one's ranks (`NCCL_RINGS`, `NCCL_GRAPH_FILE`,
    /// dumps) do not apply to it.
    ///
    /// # Errors
    /// Any [`Error`] but `Argument`. Those of the bootstrap ([`BootstrapError`](crate::BootstrapError)) name ranks by their numbers here;
    /// other errors, of the connections of the new communicator, by their numbers there.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Comm<M>>, Error> {
        if in_flight::any() {
            // It goes on meanwhile.
            return self.start_split(color, key)?.wait();
        }
        self.splitting(color, key)?.run(&self.member.handle.joining_from())
    }

    /// As [`Self::split`], on a thread of its own: returns at once, so that one thread may split several ranks, and abort. Splits of
    /// a communicator take place in the order in which they were started. Until the new communicator is ready, dropping this one
    /// waits until its ranks have met.
    ///
    /// # Errors
    /// The communicator's error; there is no thread for it. All others come from the [`Pending`].
    pub fn start_split(&self, color: Option<u32>, key: i32) -> Result<Pending<Option<Comm<M>>>, Error> {
        let splitting = self.splitting(color, key)?;
        Pending::start(self.member.handle.joining_from(), move |handle| splitting.run(handle))
    }

    /// As [`Self::split`], for several ranks that a thread has, at the same time: each with its color and key.
    ///
    /// # Errors
    /// That of the first rank which failed by itself.
    pub fn split_all<'c>(
        ranks: impl IntoIterator<Item = (&'c Comm<M>, Option<u32>, i32)>,
    ) -> Result<Vec<Option<Comm<M>>>, Error> {
        let started: Result<Vec<_>, Error> =
            ranks.into_iter().map(|(comm, color, key)| comm.start_split(color, key)).collect();
        all_ready(started?)
    }

    fn splitting(&self, color: Option<u32>, key: i32) -> Result<Splitting<M>, Error> {
        self.can_regroup()?;
        let (watch, turn) = (self.member.watch().clone(), self.member.splits.next());
        let (stalls, config, unit) = (self.member.stalls(), split::settings(&self.config), self.unit());
        Ok(Splitting { watch, turn, stalls, color, key, config, unit })
    }
}

/// The work of a split, for any thread.
struct Splitting<M: Init> {
    /// The parent's.
    watch: Arc<Watch>,
    turn: Turn,
    stalls: Option<Arc<Stalls>>,
    color: Option<u32>,
    key: i32,
    /// The child's.
    config: Config,
    unit: M::Unit,
}

impl<M: Init> Splitting<M> {
    fn run(self, handle: &CommHandle) -> Result<Option<Comm<M>>, Error> {
        let Splitting { watch, turn, stalls, color, key, config, unit } = self;
        let nranks = watch.bootstrap().nranks();
        let child = split::split(&watch, (turn, stalls), color, key, handle.cancel());
        // The parent may go before the child is ready.
        drop(watch);
        let assemble = |(bootstrap, members): (Bootstrap, Vec<Rank>)| {
            let child = assemble(bootstrap, config, unit, handle);
            child.map_err(|error| split::by_numbers_in_parent(error, &members, nranks))
        };
        let child = child.and_then(|child| child.map(assemble).transpose());
        if let Ok(None) = child {
            handle.ended();
        }
        child.map_err(|error| handle.failed(error))
    }
}

/// Waits for what was started together.
///
/// # Errors
/// That of the first rank which failed by itself.
fn all_ready<T>(started: Vec<Pending<T>>) -> Result<Vec<T>, Error> {
    let joined: Vec<Result<T, Error>> = started.into_iter().map(Pending::wait).collect();
    let is_own = |error: &Error| !matches!(error, Error::Connect(ConnectError::PeerFailed { .. }));
    let mut errors: Vec<&Error> = joined.iter().filter_map(|joined| joined.as_ref().err()).collect();
    errors.sort_by_key(|error| !is_own(error));
    match errors.first() {
        Some(error) => Err((*error).clone()),
        None => joined.into_iter().collect(),
    }
}

impl Communicator {
    /// Joins as `rank` of `nranks` with the environment's settings. Returns when all ranks have joined.
    ///
    /// # Errors
    /// Any [`Error`] but `Argument` and `Operation`.
    pub fn init(id: &UniqueId, rank: u32, nranks: u32) -> Result<Communicator, Error> {
        Communicator::builder().unique_id(*id).rank(rank).ranks(nranks).build()
    }
}

impl<M: Init<Unit = u32> + StreamMachine> Comm<M> {
    /// A communicator of GPUs of this process, all of whose ranks the calling thread gets, in the order of `ordinals`.
    ///
    /// # Errors
    /// That of the first rank which failed by itself.
    pub fn init_all(ordinals: &[u32]) -> Result<Vec<Comm<M>>, Error> {
        let config = Config::from_env()?;
        Comm::<M>::init_all_with(ordinals, &config)
    }

    /// As [`Self::init_all`], with these settings instead of the environment's.
    ///
    /// # Errors
    /// As [`Self::init_all`].
    pub fn init_all_with(ordinals: &[u32], config: &Config) -> Result<Vec<Comm<M>>, Error> {
        let mut config = config.clone();
        // All ranks are in this process: no other interface is needed, and none need exist.
        config.bootstrap.bind_addr.get_or_insert(Ipv4Addr::LOCALHOST.into());
        let id = UniqueId::create_by(&config.bootstrap)?;
        let rank = |(rank, ordinal): (usize, &u32)| {
            let builder = Comm::<M>::builder().unique_id(id).device(*ordinal);
            builder.rank(rank as u32).ranks(ordinals.len() as u32).config(config.clone())
        };
        Builder::build_all(ordinals.iter().enumerate().map(rank))
    }
}

/// The profiler plugin that the user wants, for this communicator.
fn profiler(watch: &Watch, config: &Config) -> Profiler {
    let bootstrap = watch.bootstrap();
    let hosts: BTreeSet<String> = bootstrap.places().into_iter().map(|place| place.host).collect();
    let about = About {
        communicator: bootstrap.number(),
        name: config.name.as_deref(),
        rank: bootstrap.rank(),
        nranks: bootstrap.nranks(),
        nhosts: hosts.len() as u32,
    };
    Profiler::start(&config.profiler, &about)
}

/// The init pipeline: connects all ranks, starts the monitor thread and the machine, and returns the communicator.
pub(super) fn assemble<M: Init>(
    bootstrap: Bootstrap,
    config: Config,
    unit: M::Unit,
    handle: &CommHandle,
) -> Result<Comm<M>, Error> {
    let (rank, nranks) = (bootstrap.rank(), bootstrap.nranks());
    asked::list(handle, &config);
    let started = Instant::now();
    let tuner = Plugin::find(&config.tuner, &config.net.plugins);
    let mut laps = Laps::start(rank);
    let agreed = agree_on_algorithms(&bootstrap, &config, tuner.as_deref()).map_err(Error::from);
    laps.done("algorithms agreed");
    let connected = match agreed.and_then(|()| M::connect(&bootstrap, &config, unit)) {
        Ok(connected) => connected,
        Err(error) => {
            // All ranks have agreed to fail: leaving in order delivers the vote to those that still gather it. If
            // they have not, because one is lost, dropping the bootstrap tells them that this rank aborted.
            if !matches!(error, Error::Bootstrap(_) | Error::Connect(ConnectError::Bootstrap(_))) {
                bootstrap.close();
            }
            return Err(error);
        }
    };
    warn_of_names(&config.net);
    let health = Arc::new(Health::new(rank, nranks));
    let stalls = Arc::new(Stalls::new(&bootstrap, &config));
    let watch = watch(bootstrap, (&health, &stalls), M::notes(&connected));
    let joined = Joined { rank, nranks, config: &config, health: &health, watch: &watch, tuner };
    let Started { machine, device, rings, memory } = M::start(connected, &joined)?;
    let probe = machine.probe();
    stalls.start(probe.clone(), &memory());
    watch.wake();
    handle.joined((rank, nranks), (&health, &stalls), &watch, probe)?;
    asked::tell_of_failures(handle, &health);
    let engine = Engine::new(machine).profiled_by(profiler(&watch, &config));
    let member = Membership::new((rank, nranks), rings, handle.clone(), watch);
    let comm = Comm::new(member, (config, unit), memory, engine, device);
    init_log::write(&comm, started.elapsed());
    Ok(comm)
}
