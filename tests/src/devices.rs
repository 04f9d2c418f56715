//! Worlds of GPUs: the cases of the CPU ranks, on device memory.

use crate::case::{Case, Part, Placement};
use crate::harness::{Settings, first_error, on_threads};
use oxccl::cuda::{Capture, CudaError, DeviceMemory, Driver, Graph, GraphExec, Stream};
use oxccl::{Config, DeviceCommunicator, DeviceGroup, Error, UniqueId, Window, device_group};
use oxccl_shared::algo::symmetric::{FUNCS, touches};
use std::path::PathBuf;

/// How a case's calls come onto streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Launch {
    /// One thread, a group over all communicators.
    Group,
    /// A thread for each rank.
    Threads,
    /// As by one thread, into a graph for each rank, which is launched once.
    Graph,
}

impl Launch {
    /// All.
    pub const ALL: [Launch; 3] = [Launch::Group, Launch::Threads, Launch::Graph];
}

/// A rank, with a stream and some memory on its GPU.
pub struct DeviceRank {
    /// The rank.
    pub comm: DeviceCommunicator,
    /// Where its operations go.
    pub stream: Stream,
    memory: DeviceMemory,
    /// Over that memory, if it is a symmetric one.
    window: Option<Window>,
}

/// The ranks of a communicator of GPUs that are in this process, in rank order.
pub struct DeviceWorld {
    /// How it was set up.
    pub settings: Settings,
    /// The ranks.
    pub ranks: Vec<DeviceRank>,
}

/// One call of one rank.
struct Task<'a> {
    case: &'a Case,
    part: Part,
    /// Where its buffers are on the GPU.
    places: Vec<u64>,
}

/// One rank's calls of a group, in order.
type Work<'a> = Vec<Task<'a>>;

/// The number of GPUs that this process sees.
///
/// # Panics
/// Without a driver.
pub fn gpus() -> u32 {
    Driver::get().expect("these tests need a GPU").device_count()
}

/// The most ranks that a world of this machine has: one for each GPU, and with `OXCCL_DUPLICATE_GPUS=1` four.
///
/// # Panics
/// Without a driver.
pub fn ranks_max() -> u32 {
    gpus() * if shares_gpus() { 4 } else { 1 }
}

/// The most ranks for which there are kernels to all peers at once, where ranks may share GPUs; else as [`ranks_max`].
///
/// # Panics
/// Without a driver.
pub fn places_max() -> u32 {
    if shares_gpus() { ranks_max().max(8) } else { ranks_max() }
}

/// The GPUs of so many ranks, in turn.
pub fn ordinals(nranks: u32) -> Vec<u32> {
    (0..nranks).map(ordinal_of).collect()
}

/// The GPU of a rank.
pub fn ordinal_of(rank: u32) -> u32 {
    rank % gpus()
}

fn shares_gpus() -> bool {
    Config::from_env().expect("a valid environment").p2p.shares_gpus
}

/// Alignment of buffers, before the case's offset.
const ALIGN: u64 = 256;
const LINE_BYTES: u64 = 128;

impl DeviceWorld {
    /// Ranks on the first `nranks` GPUs, or on all of them in turn, with at most `channels` channels.
    ///
    /// # Panics
    /// If that fails.
    pub fn new(nranks: u32, settings: Settings, channels: Option<u32>) -> DeviceWorld {
        DeviceWorld::with(nranks, settings, channels, |_| ())
    }

    /// The same, with a changed configuration.
    ///
    /// # Panics
    /// If that fails.
    pub fn with(
        nranks: u32,
        settings: Settings,
        channels: Option<u32>,
        adjust: impl FnOnce(&mut Config),
    ) -> DeviceWorld {
        let mut config = device_config(&settings, channels);
        adjust(&mut config);
        let comms = DeviceCommunicator::init_all_with(&ordinals(nranks), &config);
        DeviceWorld::of(settings, comms.unwrap_or_else(|error| panic!("{error}")))
    }

    /// Rank i on host `hosts[i]` (`NCCL_HOSTID`), each on a GPU of its own as far as there are as many; then GPUs are shared.
    ///
    /// # Panics
    /// If that fails.
    pub fn on_hosts(hosts: &[&str], settings: Settings, adjust: impl Fn(&mut Config) + Sync) -> DeviceWorld {
        let config = device_config(&settings, None);
        let id = UniqueId::create_by(&config.bootstrap).expect("a root on the loopback interface");
        let join = |(rank, host): (u32, &&str)| {
            let mut config = config.clone();
            config.host_id = Some((*host).to_owned());
            config.p2p.shares_gpus |= hosts.len() > gpus() as usize;
            adjust(&mut config);
            let builder = DeviceCommunicator::builder().unique_id(id).device(rank % gpus());
            builder.rank(rank).ranks(hosts.len() as u32).config(config).build()
        };
        let comms = on_threads((0..).zip(hosts), join);
        let comms: Result<Vec<DeviceCommunicator>, Error> = comms.into_iter().collect();
        DeviceWorld::of(settings, comms.unwrap_or_else(|error| panic!("{error}")))
    }

    /// Of these communicators, in rank order: all ranks, or those of this process.
    ///
    /// # Panics
    /// If streams or memory cannot be had.
    pub fn of(settings: Settings, comms: Vec<DeviceCommunicator>) -> DeviceWorld {
        let rank = |comm: DeviceCommunicator| {
            let stream = Stream::new(comm.device())?;
            let memory = DeviceMemory::zeroed(comm.device(), 1 << 20)?;
            Ok(DeviceRank { comm, stream, memory, window: None })
        };
        let ranks: Result<Vec<DeviceRank>, CudaError> = comms.into_iter().map(rank).collect();
        DeviceWorld { settings, ranks: ranks.unwrap_or_else(|error| panic!("{error}")) }
    }

    /// From now on all buffers lie in a symmetric window of so many bytes, those of a call at the same places on every rank; but for unaligned
    /// ones that no other rank touches.
    ///
    /// # Panics
    /// If that fails.
    pub fn use_windows(&mut self, len_bytes: usize) {
        let register = |rank: &mut DeviceRank| {
            rank.memory = DeviceMemory::zeroed(rank.comm.device(), len_bytes).unwrap_or_else(broken_memory);
            let (address, len_bytes) = (rank.memory.address(), len_bytes as u64);
            // SAFETY: (1, 2) `leave_windows` drops it on every rank before memory is freed; (3) as the text above says; (4) tests that
            // fail do not look at what the memory holds.
            let window = unsafe { rank.comm.register_symmetric_window(address, len_bytes) };
            rank.window = Some(window.unwrap_or_else(|error| panic!("{error}")));
        };
        on_threads(self.ranks.iter_mut(), register);
    }

    /// Ends a healthy world whose buffers lie in windows.
    ///
    /// # Panics
    /// If the communicator is not healthy.
    pub fn leave_windows(mut self) {
        let leave = |rank: &mut DeviceRank| {
            let wait = |rank: &DeviceRank| -> Result<(), Error> {
                rank.comm.barrier(rank.stream.by_ref())?;
                rank.comm.synchronize(rank.stream.by_ref())
            };
            wait(rank).unwrap_or_else(|error| panic!("{error}"));
            drop(rank.window.take());
            wait(rank).unwrap_or_else(|error| panic!("{error}"));
        };
        on_threads(self.ranks.iter_mut(), leave);
    }

    /// Where a rank's memory is.
    pub fn address(&self, rank: usize) -> u64 {
        self.ranks[rank].memory.address()
    }

    /// Runs a case and compares everything.
    ///
    /// # Errors
    /// What went wrong, and where.
    pub fn check(&mut self, case: &Case, launch: Launch) -> Result<(), String> {
        self.check_group(std::slice::from_ref(case), launch)
    }

    /// Runs cases as one group of each rank, and compares everything.
    ///
    /// # Errors
    /// What went wrong, and where.
    pub fn check_group(&mut self, cases: &[Case], launch: Launch) -> Result<(), String> {
        let described =
            format!("\n  in {cases:?}\n  by {launch:?} of {} GPUs, {:?}", self.ranks.len(), self.settings);
        let mut work: Vec<Work<'_>> = (0..self.ranks.len()).map(|_| Work::default()).collect();
        for case in cases {
            let mut parts: Vec<Option<Part>> =
                case.all_parts(self.ranks[0].comm.size() as usize).into_iter().map(Some).collect();
            for (work, rank) in work.iter_mut().zip(&self.ranks) {
                let part = parts[rank.comm.rank() as usize].take().expect("each rank is here once");
                work.push(Task { case, part, places: Vec::new() });
            }
        }
        self.run(&mut work, launch).map_err(|error| format!("{error}{described}"))?;
        for (rank, work) in self.ranks.iter().map(|rank| rank.comm.rank()).zip(&work) {
            for (at, Task { case, part, .. }) in work.iter().enumerate() {
                part.compare(case.dtype)
                    .map_err(|what| format!("rank {rank}, call {at}: {what}{described}"))?;
            }
        }
        Ok(())
    }

    fn run(&mut self, work: &mut [Work<'_>], launch: Launch) -> Result<(), Error> {
        for (rank, work) in self.ranks.iter_mut().zip(&mut *work) {
            rank.upload(work).map_err(broken)?;
        }
        match launch {
            Launch::Group => add_all(&self.ranks, work)?,
            Launch::Threads => {
                let all = self.ranks.iter_mut().zip(&*work);
                first_error(on_threads(all, |(rank, work)| device_group(|group| rank.add(group, work))))?;
            }
            Launch::Graph => launch_graphs(&self.ranks, || add_all(&self.ranks, work))?,
        }
        self.ranks.iter().try_for_each(|rank| rank.comm.synchronize(rank.stream.by_ref()))?;
        for (rank, work) in self.ranks.iter().zip(work) {
            rank.download(work).map_err(broken)?;
        }
        Ok(())
    }
}

/// Settings of GPUs: with a bound on channels, slots are small.
pub fn device_config(settings: &Settings, channels: Option<u32>) -> Config {
    let mut config = settings.config();
    config.forced = settings.lists();
    config.ptx_path = std::env::var_os("OXCCL_PTX_PATH").map(PathBuf::from);
    config.channels.max = channels;
    config.p2p.shares_gpus = shares_gpus();
    config.device_buffer_bytes = Some(settings.buffer_bytes).filter(|_| channels.is_some());
    config
}

/// All ranks' calls, as one group of this thread.
fn add_all(ranks: &[DeviceRank], work: &[Work<'_>]) -> Result<(), Error> {
    device_group(|group| ranks.iter().zip(work).try_for_each(|(rank, work)| rank.add(group, work)))
}

/// No memory: the test cannot go on.
fn broken_memory(error: CudaError) -> DeviceMemory {
    panic!("{error}")
}

/// A driver's error outside of the library's operations: the test cannot go on.
fn broken(error: CudaError) -> Error {
    panic!("{error}")
}

/// Captures what `enqueue` puts on the ranks' streams: a graph for each rank.
///
/// # Errors
/// Those of `enqueue`.
///
/// # Panics
/// If the driver refuses something.
pub fn capture_graphs(
    ranks: &[DeviceRank],
    enqueue: impl FnOnce() -> Result<(), Error>,
) -> Result<Vec<Graph>, Error> {
    let captures = ranks.iter().map(|rank| Capture::begin(rank.stream.by_ref(), true));
    let captures: Vec<Capture<'_>> = captures.collect::<Result<_, _>>().map_err(broken)?;
    enqueue()?;
    // All first: while a thread captures one stream in this mode, the driver refuses it to instantiate another's graph.
    captures.into_iter().map(Capture::end).collect::<Result<_, CudaError>>().map_err(broken)
}

/// Puts a launch of a graph on each rank's stream.
///
/// # Panics
/// If the driver refuses it.
pub fn enqueue_graphs(ranks: &[DeviceRank], graphs: &[GraphExec]) {
    for (rank, graph) in ranks.iter().zip(graphs) {
        // SAFETY: (1) communicators and their memory live, and every stream is waited for before anything is dropped.
        let launched = unsafe { graph.launch(rank.stream.by_ref()) };
        launched.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Makes graphs ready to run.
///
/// # Panics
/// If the driver refuses it.
pub fn instantiate_graphs(graphs: &[Graph]) -> Vec<GraphExec> {
    graphs.iter().map(|graph| graph.instantiate().unwrap_or_else(|error| panic!("{error}"))).collect()
}

/// Captures what `enqueue` puts on the ranks' streams, and launches it once.
///
/// # Errors
/// Those of `enqueue`.
///
/// # Panics
/// If the driver refuses something.
pub fn launch_graphs(ranks: &[DeviceRank], enqueue: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    let graphs = instantiate_graphs(&capture_graphs(ranks, enqueue)?);
    enqueue_graphs(ranks, &graphs);
    ranks.iter().try_for_each(|rank| rank.comm.synchronize(rank.stream.by_ref()))
}

/// How far behind a line's border a buffer of a window begins, by its number in the call: anywhere, or at a multiple of 16; those of a call alike,
/// or not.
fn in_window(seed: u64, index: u64) -> u64 {
    let apart = [0, 5, 16, 52][(seed / 9 % 4) as usize] * index;
    let at = (seed * 13 + apart) % LINE_BYTES;
    if (seed / 36).is_multiple_of(3) { at / 16 * 16 } else { at }
}

impl DeviceRank {
    fn add<'env>(&'env self, group: &mut DeviceGroup<'env>, work: &[Task<'_>]) -> Result<(), Error> {
        work.iter().try_for_each(|Task { case, part, places }| {
            let bases: Vec<*mut u8> =
                places.iter().map(|place| std::ptr::without_provenance_mut(*place as usize)).collect();
            case.funcs().iter().try_for_each(|func| {
                let call = case.untyped(*func, (self.comm.rank(), self.comm.size()), part, &bases);
                // SAFETY: `all_parts` allocated the buffers with the lengths of the function, apart or with an
                // allowed overlap; they stay on this GPU until the stream has been synchronised.
                unsafe { group.add_untyped(&self.comm, &call, self.stream.by_ref()) }
            })
        })
    }

    /// Copies buffers with their guards to the GPU, as far from a line's border as on the host, or of a window where [`in_window`] says, but on whole
    /// elements, and notes where the bytes between the guards start.
    fn upload(&mut self, work: &mut [Task<'_>]) -> Result<(), CudaError> {
        let room = |len: usize| len as u64 + 2 * ALIGN;
        let buffers = work.iter_mut().flat_map(|task| &mut task.part.buffers);
        let total: u64 = buffers.map(|buffer| room(buffer.memory().len())).sum();
        assert!(self.window.is_none() || total <= self.memory.len() as u64, "the window is too short");
        if total > self.memory.len() as u64 {
            self.memory = DeviceMemory::zeroed(self.comm.device(), total.next_power_of_two() as usize)?;
        }
        let mut free = self.memory.address();
        for Task { case, part, places } in work {
            let elem_bytes = case.dtype.size_bytes() as u64;
            let [touches_send, touches_recv] =
                if FUNCS.contains(&case.func) { touches(case.func) } else { [true; 2] };
            for (index, buffer) in part.buffers.iter_mut().enumerate() {
                let start = buffer.start() as u64;
                let is_part = |place: Option<(usize, usize)>| place.is_some_and(|(of, _)| of == index);
                let is_touched = touches_send && is_part(part.send) || touches_recv && is_part(part.recv);
                let beside = match self.window.is_some() && is_touched {
                    true if case.placement == Placement::Apart => 0,
                    true => in_window(case.seed, index as u64),
                    false => buffer.bytes().as_ptr().addr() as u64 % 64,
                };
                let beside = beside / elem_bytes * elem_bytes;
                // Wherever the buffer begins on the host: the same on every rank, with room for the guard before it.
                let place = free.next_multiple_of(ALIGN) + ALIGN + beside;
                free += room(buffer.memory().len());
                let memory = buffer.memory();
                // SAFETY: (1, 2) `free` leaves room for all of it, and it outlives the wait below.
                unsafe {
                    self.stream.by_ref().copy_to_device(
                        place - start,
                        memory.as_ptr().cast(),
                        memory.len(),
                    )?
                };
                places.push(place);
            }
        }
        self.stream.synchronize()
    }

    fn download(&self, work: &mut [Task<'_>]) -> Result<(), CudaError> {
        for Task { part, places, .. } in work {
            for (buffer, place) in part.buffers.iter_mut().zip(places) {
                let start = buffer.start() as u64;
                let memory = buffer.memory();
                // SAFETY: (1, 2) as in `upload`.
                unsafe {
                    self.stream.by_ref().copy_to_host(
                        memory.as_mut_ptr().cast(),
                        *place - start,
                        memory.len(),
                    )?
                };
            }
        }
        self.stream.synchronize()
    }
}
