//! Arenas between threads and between processes, in every way that the settings allow; and a kernel that faults, in a
//! process of its own, whose context it breaks.

use crate::checks::{Bench, Said, WORDS, ensure, is_put};
use oxccl::bootstrap::{Bootstrap, BootstrapConfig, UniqueId};
use oxccl::cuda::{CudaError, Driver};
use oxccl::transport::PeerInfo;
use oxccl::transport::p2p::{AllocationKind, Arena, ArenaWanted, Domain, Domains, P2pSettings};
use oxccl::wire::Message;
use oxccl_shared::abi::Rank;
use std::ops::Range;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Settings of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    CuMem,
    Legacy,
    Off,
    /// As `CuMem`, but ranks 0 and 1, 2 and 3 and so on use host memory.
    Mixed,
}

impl Way {
    pub const ALL: [Way; 4] = [Way::CuMem, Way::Legacy, Way::Off, Way::Mixed];

    fn settings(self) -> P2pSettings {
        P2pSettings { enabled: self != Way::Off, cumem: self != Way::Legacy, ..P2pSettings::default() }
    }

    /// The memory domain in which every rank has peers.
    fn domain(self) -> Domain {
        if matches!(self, Way::Off | Way::Mixed) { Domain::Host } else { Domain::Device }
    }

    /// The kind of memory in that domain if every GPU reaches every other and nothing else is refused.
    fn allocation_kind(self, processes: bool) -> AllocationKind {
        match (self, processes) {
            (Way::CuMem, true) => AllocationKind::Shareable,
            (Way::Off | Way::Mixed, true) => AllocationKind::HostFile,
            (Way::Off | Way::Mixed, false) => AllocationKind::Pinned,
            _ => AllocationKind::Device,
        }
    }
}

/// How ranks are spread over processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// One each, and every process sees every GPU.
    One,
    /// Two threads in each.
    Two,
    /// One each, and every process sees its own GPU only, as batch systems arrange it.
    Hidden,
}

impl Layout {
    pub const ALL: [Layout; 3] = [Layout::One, Layout::Two, Layout::Hidden];

    fn ranks_each(self) -> u32 {
        if self == Layout::Two { 2 } else { 1 }
    }
}

/// What a process of the checks is to do: `arena <way> <first rank> <ranks> <of how many> <id>` or `fault`.
const CHILD: &str = "OXCCL_CUDA_CHECK_CHILD";

/// The first of the words that rank `from` writes to rank `to`; they count up from it.
fn value(from: u32, to: u32) -> u32 {
    10_000_000 * (from + 1) + 100_000 * to
}

fn config() -> BootstrapConfig {
    let bind_addr = Some(std::net::Ipv4Addr::LOCALHOST.into());
    BootstrapConfig { timeout: Duration::from_secs(60), bind_addr, ..BootstrapConfig::default() }
}

/// Every rank writes to every rank's memory, its own included; then each looks at what was written to its own, and at what it
/// wrote to the others.
fn run_rank(
    way: Way,
    rank: u32,
    nranks: u32,
    id: &UniqueId,
) -> Result<AllocationKind, Box<dyn std::error::Error>> {
    let bootstrap = Bootstrap::connect(id, Rank(rank), nranks, &config())?;
    let bench = Bench::new(rank % Driver::get()?.device_count())?;
    let blocks = bootstrap.all_gather(&PeerInfo::local(None, 0)?.to_bytes())?;
    let peers = blocks.iter().map(|block| PeerInfo::from_bytes(block)).collect::<Result<Vec<_>, _>>()?;
    let part_bytes = 4 * WORDS as usize;
    // Unequal lengths, so that a mix-up of ranks shows.
    let lens = |domains: &Domains, peer: Rank| {
        let len = nranks as usize * part_bytes + peer.index() * 4096;
        let has_host = domains.on_host().iter().any(|pair| pair.0 == peer || pair.1 == peer);
        [len, if has_host { len } else { 0 }]
    };
    let refused: Vec<Rank> = if way == Way::Mixed { vec![Rank(rank ^ 1)] } else { Vec::new() };
    let wanted = ArenaWanted {
        device: &bench.device,
        peers: &peers,
        settings: &way.settings(),
        refused: &refused,
        lens: &lens,
    };
    let arena = Arena::connect(&bootstrap, &wanted)?;
    let part = |of: u32, from: u32| {
        // A rank's own words are on its GPU.
        let base = arena
            .base(Rank(of), arena.domains().of(Rank(of), Rank(from)))
            .ok_or_else(|| format!("rank {of} of this host is not reached"))?;
        Ok::<u64, String>(base + u64::from(from) * part_bytes as u64)
    };
    for from in 0..nranks {
        let words = bench.read(part(rank, from)?)?;
        ensure!(words.iter().all(|word| *word == 0), "rank {rank}: memory is not zeroed");
    }
    bootstrap.barrier()?;
    for to in 0..nranks {
        bench.launch("put", bench.stream.by_ref(), part(to, rank)?, value(rank, to))?;
    }
    bench.stream.synchronize()?;
    bootstrap.barrier()?;
    for peer in 0..nranks {
        let words = bench.read(part(rank, peer)?)?;
        ensure!(is_put(&words, value(peer, rank)), "rank {rank}: what rank {peer} wrote differs");
        let words = bench.read(part(peer, rank)?)?;
        ensure!(is_put(&words, value(rank, peer)), "rank {rank}: what it wrote to rank {peer} differs");
    }
    let kind = arena.allocation_kind(Rank(rank), way.domain()).ok_or("this rank has no memory there")?;
    bootstrap.barrier()?;
    arena.close(&bootstrap);
    bootstrap.close();
    Ok(kind)
}

/// Ranks as threads: twice as many as devices, so that some share one.
pub fn threads(way: Way) -> Said {
    let nranks = 2 * Driver::get()?.device_count();
    let id = UniqueId::create_by(&config())?;
    let start = Instant::now();
    judge(way, false, run_ranks(way, 0..nranks, nranks, &id), start)
}

/// Ranks of this process.
fn run_ranks(way: Way, ranks: Range<u32>, nranks: u32, id: &UniqueId) -> Vec<Result<AllocationKind, String>> {
    std::thread::scope(|scope| {
        let run = move |rank| run_rank(way, rank, nranks, id).map_err(|error| error.to_string());
        let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("panic".to_owned()))).collect()
    })
}

/// Ranks as processes, at least two; `program` gives a command that comes to [`run_child`].
pub fn processes(way: Way, layout: Layout, program: fn() -> Command) -> Said {
    let devices = Driver::get()?.device_count();
    let (processes, each) = (devices.max(2), layout.ranks_each());
    let id = UniqueId::create_by(&config())?;
    let hex: String = id.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let start = Instant::now();
    let start_one = |process| {
        let mut command = program();
        if layout == Layout::Hidden {
            command.env("CUDA_VISIBLE_DEVICES", visible(process % devices));
        }
        spawn(command, &format!("arena {way:?} {} {each} {} {hex}", process * each, processes * each))
    };
    let children = (0..processes).map(start_one).collect::<Result<Vec<_>, _>>()?;
    let read = |output: std::io::Result<Output>| {
        let output = output.map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let said = text.lines().find_map(|line| line.strip_prefix("kind="));
        said.and_then(kind_of).ok_or_else(|| format!("{text}{}", String::from_utf8_lossy(&output.stderr)))
    };
    let results = children.into_iter().map(|child| read(child.wait_with_output())).collect();
    judge(way, true, results, start)
}

/// The name by which the driver would show the `at`-th of the GPUs that this process sees.
fn visible(at: u32) -> String {
    let all = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let names: Vec<&str> = all.split(',').filter(|name| !name.is_empty()).collect();
    names.get(at as usize).map_or_else(|| at.to_string(), ToString::to_string)
}

fn judge(way: Way, processes: bool, results: Vec<Result<AllocationKind, String>>, start: Instant) -> Said {
    let kinds = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    let ms = start.elapsed().as_millis();
    ensure!(kinds.iter().all(|kind| *kind == kinds[0]), "ranks differ: {kinds:?}");
    let note =
        if kinds[0] == way.allocation_kind(processes) { "first choice" } else { "NOT the first choice" };
    let parts = if processes { "processes" } else { "threads" };
    Ok(format!("{} {parts}, {} ({note}), {ms} ms in all", kinds.len(), kinds[0]))
}

fn kind_of(text: &str) -> Option<AllocationKind> {
    let kinds =
        [AllocationKind::Device, AllocationKind::Shareable, AllocationKind::Pinned, AllocationKind::HostFile];
    kinds.into_iter().find(|kind| format!("{kind:?}") == text.trim())
}

fn spawn(mut command: Command, task: &str) -> std::io::Result<Child> {
    command.env(CHILD, task).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// A kernel that writes where it may not is an error that names kernel and device.
pub fn fault(program: fn() -> Command) -> Said {
    let output = spawn(program(), "fault")?.wait_with_output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let said = text.lines().find_map(|line| line.strip_prefix("fault="));
    let said = said.ok_or_else(|| text.clone().into_owned())?;
    ensure!(said.contains("kernel put faulted") && said.contains("GPU 0"), "{said}");
    Ok(said.to_owned())
}

/// Does what this process was started for by another check, and says how it went in a line that its parent reads; false if
/// it is nobody's child.
pub fn run_child(say: impl Fn(String)) -> bool {
    let Ok(task) = std::env::var(CHILD) else { return false };
    let words: Vec<&str> = task.split(' ').collect();
    let said = match words[..] {
        ["fault"] => fault_here().map_err(Into::into),
        ["arena", way, first, ranks, nranks, id] => {
            arena_here(way, first.parse(), ranks.parse(), nranks.parse(), id)
        }
        _ => Err(format!("no such task: {task}").into()),
    };
    say(said.unwrap_or_else(|error| format!("error: {error}")));
    true
}

type Number = Result<u32, std::num::ParseIntError>;

fn arena_here(way: &str, first: Number, ranks: Number, nranks: Number, id: &str) -> Said {
    let way = Way::ALL.into_iter().find(|known| format!("{known:?}") == way).ok_or("no such way")?;
    let bytes = (0..id.len() / 2).map(|i| u8::from_str_radix(&id[2 * i..2 * i + 2], 16));
    let bytes: Vec<u8> = bytes.collect::<Result<_, _>>()?;
    let id = UniqueId::from_bytes(bytes[..].try_into()?)?;
    let first = first?;
    let kinds =
        run_ranks(way, first..first + ranks?, nranks?, &id).into_iter().collect::<Result<Vec<_>, _>>()?;
    ensure!(kinds.iter().all(|kind| *kind == kinds[0]), "threads differ: {kinds:?}");
    Ok(format!("kind={:?}", kinds[0]))
}

fn fault_here() -> Result<String, CudaError> {
    let bench = Bench::new(0)?;
    bench.launch("put", bench.stream.by_ref(), 0x10_0000, 1)?;
    let result = bench.stream.synchronize();
    // Destructors find the context broken; they must neither panic nor hang.
    drop(bench);
    Ok(match result {
        Err(error) => format!("fault={}", error.in_kernel("put")),
        Ok(()) => "a write to nowhere went unseen".to_owned(),
    })
}
