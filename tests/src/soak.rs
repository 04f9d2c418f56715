//! Layer: tests.
//! Takes: a seed, a duration, and this process's resources (see [`Usage`]).
//! Gives: random collectives over networks with delays and stalls, each checked against the oracle; and whether the
//! process holds more at the end than after its warm-up.
//! Never: lets a network fail: other tests cover that.
//!
//! One world lasts for the whole run; in every round a short-lived one is set up, used and dropped beside it. Growth
//! of either shows between two rounds, when only the lasting one exists.

use crate::borders::{Borders, CLASSES};
use crate::case::{By, Case, FUNCS, Placement, applies, ops};
use crate::deadline::doing;
use crate::deck::Deck;
use crate::harness::{Settings, World};
use crate::tidy::Footprint;
use oxccl::bootstrap::InterfaceFilter;
use oxccl::net::fault::{FaultNet, FaultPlan};
use oxccl::net::loopback::Loopback;
use oxccl::net::socket::{self, SocketConfig};
use oxccl::net::{Net, NetConfig};
use oxccl::{Algorithm, DataType, Protocol, TransportKind};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Cases of a round in each of its two worlds.
const CASES: usize = 150;
/// Rounds after which the process counts as warm, at least.
const WARM_ROUNDS: usize = 4;
/// Bytes on the heap that may come and go: names of connections and addresses are not all of one length.
const HEAP_SLACK_BYTES: i64 = 256 << 10;
/// The allocator has given back what is free in whole pages; what is left of others differs from round to round.
const RESIDENT_SLACK_BYTES: i64 = 8 << 20;

/// What this process holds between two rounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Bytes on the heap, as [`crate::counting`] counts them; 0 where that is not the allocator.
    pub heap_bytes: i64,
    /// Bytes of memory that the kernel has given it.
    pub resident_bytes: i64,
    /// Open descriptors.
    pub descriptors: i64,
    /// Threads.
    pub threads: i64,
    /// Mappings of the library's files.
    pub mappings: i64,
}

/// What a soak has done.
#[derive(Clone, Debug)]
pub struct Soaked {
    /// Rounds, and calls of all ranks together that were checked.
    pub rounds: usize,
    /// As above.
    pub cases: usize,
    /// After each round.
    pub usage: Vec<Usage>,
}

/// Random choices, all from one seed.
struct Luck(Deck);

impl Luck {
    fn below(&mut self, bound: usize) -> usize {
        self.0.draw() % bound
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Delays and stalls. Each draw is another mixture, so that some links are nearly well and some hardly move.
    fn plan(&mut self) -> FaultPlan {
        FaultPlan {
            seed: self.below(1 << 16) as u64,
            late_per_mille: self.below(400) as u32,
            held_per_mille: self.below(150) as u32,
            held_max: Duration::from_micros(20 + self.below(1000) as u64),
            stall_at: Some(self.below(2000) as u64),
            stall: Duration::from_millis(self.below(60) as u64),
            ..FaultPlan::default()
        }
    }

    /// Sockets of the loopback interface, or rings of bytes, with or without data lanes.
    fn net(&mut self) -> Arc<dyn Net> {
        let lanes = self.below(4);
        if self.below(3) == 0 {
            return Arc::new(Loopback::new(lanes));
        }
        let interfaces = InterfaceFilter::parse("lo");
        let config = SocketConfig { interfaces, data_sockets: lanes as u32, ..SocketConfig::default() };
        socket::open(&config).expect("every machine has a loopback interface")
    }

    fn settings(&mut self) -> Settings {
        let named = [Algorithm::Ring, Algorithm::Tree, Algorithm::OneShot, Algorithm::Doubling];
        let algorithms = [None].into_iter().chain(named.map(Some)).collect::<Vec<_>>();
        let protocols = [None, Some(Protocol::LL), Some(Protocol::LL128), Some(Protocol::Simple)];
        let (algorithm, protocol) = (self.one_of(&algorithms), self.one_of(&protocols));
        Settings {
            algorithm,
            // It has no other.
            protocol: if algorithm == Some(Algorithm::Doubling) { Some(Protocol::Simple) } else { protocol },
            transport: Some(TransportKind::Net),
            buffer_bytes: self.one_of(&[8 << 10, 16 << 10, 64 << 10]),
            ..Settings::default()
        }
    }

    fn world(&mut self, nranks: u32, settings: Settings) -> World {
        let plan = self.plan();
        doing(|| format!("setting up {nranks} ranks with {settings:?} over {plan:?}"));
        let net: Arc<dyn Net> = Arc::new(FaultNet::new(self.net(), plan));
        World::with(nranks, settings, move |_, config| {
            config.net = NetConfig { own: Some(net.clone()), ..NetConfig::default() };
        })
    }

    fn case(&mut self, world: &World) -> Case {
        let nranks = world.size() as u32;
        let func = loop {
            let func = self.one_of(&FUNCS);
            if applies(&world.settings, func) {
                break func;
            }
        };
        let dtype = self.one_of(DataType::ALL);
        let borders = Borders::new(&world.settings.config(), func, dtype, nranks);
        Case {
            func,
            dtype,
            op: self.one_of(ops(func)),
            root: self.below(nranks as usize) as u32,
            count: self.one_of(&CLASSES).1(&borders),
            placement: self.one_of(&Placement::ALL),
            seed: self.below(1 << 16) as u64,
        }
    }

    fn work(&mut self, world: &mut World) -> Result<(), String> {
        for _ in 0..CASES {
            let case = self.case(world);
            let by = if self.below(3) == 0 { By::Fibers } else { By::Threads };
            doing(|| format!("{case:?} by {by:?}"));
            case.check(world, by)?;
        }
        Ok(())
    }
}

/// Soaks for `time`, at least one round. Calls `report` with the resources held after each.
///
/// # Errors
/// The first wrong result or failed call, with the case and the round.
pub fn soak(
    seed: u64,
    time: Duration,
    mut report: impl FnMut(&Soaked, Duration),
    heap_bytes: fn() -> i64,
) -> Result<Soaked, String> {
    let begin = Instant::now();
    let mut luck = Luck(Deck::new(1 << 16, seed));
    let lasting_settings = Settings { transport: Some(TransportKind::Net), ..Settings::default() };
    let mut lasting = luck.world(2, lasting_settings);
    let mut soaked = Soaked { rounds: 0, cases: 0, usage: Vec::new() };
    while soaked.rounds == 0 || begin.elapsed() < time {
        let failed = |what| format!("seed {seed}, round {}: {what}", soaked.rounds);
        luck.work(&mut lasting).map_err(failed)?;
        let (nranks, settings) = (luck.one_of(&[2, 2, 3, 4]), luck.settings());
        let mut passing = luck.world(nranks, settings);
        luck.work(&mut passing).map_err(failed)?;
        drop(passing);
        soaked.rounds += 1;
        soaked.cases += 2 * CASES;
        soaked.usage.push(Usage::take(heap_bytes()));
        report(&soaked, begin.elapsed());
    }
    Ok(soaked)
}

impl Soaked {
    /// Compares the resources held at the end with those after the warm-up: the least of the last rounds with the
    /// most of the warm ones.
    ///
    /// # Errors
    /// What grew, or that there were too few rounds.
    pub fn check_growth(&self) -> Result<(), String> {
        let count = self.usage.len();
        if count < 3 * WARM_ROUNDS {
            return Err(format!(
                "{count} rounds are too few to tell whether memory grows; give it more time"
            ));
        }
        let (warm, last) = (&self.usage[WARM_ROUNDS / 2..count / 3], &self.usage[count - WARM_ROUNDS..]);
        let grew = |name: &str, slack: i64, of: fn(&Usage) -> i64| {
            let most = warm.iter().map(of).max().unwrap_or(0);
            let least = last.iter().map(of).min().unwrap_or(0);
            (least > most + slack).then(|| format!("{name} grew from {most} to {least}"))
        };
        let grown = [
            grew("bytes on the heap", HEAP_SLACK_BYTES, |usage| usage.heap_bytes),
            grew("resident bytes", RESIDENT_SLACK_BYTES, |usage| usage.resident_bytes),
            grew("descriptors", 0, |usage| usage.descriptors),
            grew("threads", 0, |usage| usage.threads),
            grew("mappings", 0, |usage| usage.mappings),
        ];
        grown.into_iter().flatten().next().map_or(Ok(()), Err)
    }
}

impl Usage {
    fn take(heap_bytes: i64) -> Usage {
        give_back();
        // The second number of statm is of resident pages.
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages: i64 = statm.split_whitespace().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
        let resident_bytes = pages * rustix::param::page_size() as i64;
        let Footprint { threads, descriptors, mappings } = Footprint::take();
        let (descriptors, mappings) = (descriptors as i64, mappings as i64);
        Usage { heap_bytes, resident_bytes, descriptors, threads: threads.len() as i64, mappings }
    }
}

/// Has the allocator return what is free to the kernel: each of its arenas, one for each of the threads that come and go, else keeps as much as
/// it ever had, and they have their most at different times.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: i64| bytes as f64 / f64::from(1 << 20);
        let Usage { threads, descriptors, .. } = self;
        write!(f, "heap {:.2} MiB, resident {:.1} MiB, ", mib(self.heap_bytes), mib(self.resident_bytes))?;
        write!(f, "{descriptors} descriptors, {threads} threads")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soaked(resident_bytes: impl Fn(i64) -> i64) -> Soaked {
        let usage = |round| Usage { resident_bytes: resident_bytes(round), ..Usage::take(0) };
        Soaked { rounds: 30, cases: 0, usage: (0..30).map(usage).collect() }
    }

    #[test]
    fn growth_is_found_and_a_plateau_is_none() {
        assert_eq!(soaked(|round| round.min(5) << 20).check_growth(), Ok(()));
        assert!(soaked(|round| round << 22).check_growth().expect_err("it grew").contains("resident"));
        assert!(Soaked { usage: vec![Usage::take(0)], ..soaked(|_| 0) }.check_growth().is_err());
    }
}
