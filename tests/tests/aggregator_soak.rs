//! Random operations through aggregators, for any time: `OXCCL_TEST_SECONDS=240 cargo test -p oxccl-tests --test suite aggregator_soak -- --ignored --nocapture`.
//!
//! Two communicators of five ranks on three hosts last for the whole run, one through one server, the other through three. In every round
//! heads of new jobs gather and scatter on the same servers, and end. Servers are processes, the ranks are threads of this one.

use crate::mp_aggregate::{Aggregator, SECRET};
use oxccl::net::NetConfig;
use oxccl::net::coll::{CollNet, find};
use oxccl::{Algorithm, Config, DataType, Func, RedOp};
use oxccl_tests::case::{By, Case, Placement};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::deck::Deck;
use oxccl_tests::harness::{Settings, World};
use oxccl_tests::net::coll::windows;
use oxccl_tests::soak::give_back;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Unless `OXCCL_TEST_SECONDS` says otherwise.
const SECONDS: u64 = 60;
/// All-reduces of a round through each communicator.
const CASES: usize = 30;
/// Windows of a round, for each number of heads and each network.
const WINDOWS: u64 = 4;
/// Jobs of `windows`: one for each number of heads.
const JOBS: usize = 4;
/// What resident memory may differ by: allocators give back whole pages only.
const RESIDENT_SLACK_BYTES: u64 = 8 << 20;
/// Which host a rank is on.
const HOSTS: [u32; 5] = [0, 0, 1, 2, 2];

/// What a process holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    resident_bytes: u64,
    descriptors: usize,
}

impl Held {
    fn of(process: &str) -> Held {
        // The second number of statm is of resident pages.
        let statm = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap();
        let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
        let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
        Held { resident_bytes: pages * rustix::param::page_size() as u64, descriptors }
    }

    fn most(self, other: Held) -> Held {
        let Held { resident_bytes, descriptors } = other;
        Held {
            resident_bytes: self.resident_bytes.max(resident_bytes),
            descriptors: self.descriptors.max(descriptors),
        }
    }

    fn least(self, other: Held) -> Held {
        let Held { resident_bytes, descriptors } = other;
        Held {
            resident_bytes: self.resident_bytes.min(resident_bytes),
            descriptors: self.descriptors.min(descriptors),
        }
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} MiB, {} descriptors",
            self.resident_bytes as f64 / f64::from(1 << 20),
            self.descriptors
        )
    }
}

/// What all processes hold after a round: the ranks', then the servers.
struct Sample {
    at: Duration,
    held: Vec<Held>,
}

/// Through these servers: the settings of ranks, and the network of heads. `OXCCL_ENCRYPT=1` encrypts.
fn through(servers: &[Aggregator]) -> (NetConfig, Arc<dyn CollNet>) {
    let addrs: Vec<&str> = servers.iter().map(|server| server.addr.as_str()).collect();
    let lookup = |name: &str| match name {
        "OXCCL_COMM_SECRET" => Some(SECRET.to_owned()),
        "OXCCL_AGGREGATOR" => Some(addrs.join(",")),
        "NCCL_COLLNET_ENABLE" => Some("1".to_owned()),
        "NCCL_NET_PLUGIN" => Some("none".to_owned()),
        "OXCCL_ENCRYPT" => Config::variable(name),
        _ => None,
    };
    let config = Config::from_lookup(&lookup).unwrap().net;
    let net = find(&config).unwrap();
    (config, net)
}

fn world(net: &NetConfig) -> World {
    let settings = Settings { algorithm: Some(Algorithm::CollnetChain), ..Settings::default() };
    World::with(HOSTS.len() as u32, settings, |rank, config| {
        config.host_id = Some(format!("host {}", HOSTS[rank as usize]));
        config.net = net.clone();
    })
}

fn collectives(world: &mut World, deck: &mut Deck) {
    for _ in 0..CASES {
        let mut below = |bound: usize| deck.draw() % bound;
        let func = [Func::AllReduce, Func::ReduceScatter, Func::AllGather][below(3)];
        let count_max = [16, 5_000, if func == Func::AllReduce { 300_000 } else { 60_000 }][below(3)];
        let op = RedOp::ALL[below(RedOp::ALL.len())];
        let case = Case {
            func,
            dtype: DataType::ALL[below(DataType::ALL.len())],
            op: if func == Func::AllGather { RedOp::Sum } else { op },
            root: 0,
            count: below(count_max),
            placement: Placement::ALL[below(Placement::ALL.len())],
            seed: below(1 << 16) as u64,
        };
        let by = if below(3) == 0 { By::Fibers } else { By::Threads };
        doing(|| format!("{case:?} by {by:?}"));
        case.check(world, by).unwrap();
    }
}

/// The most of the first tenth against the least of the last: a server may not have closed the connections of a round's last job yet when it is asked.
fn check_growth(samples: &[Sample]) {
    let total = samples.last().expect("a round").at;
    let first: Vec<&Sample> = samples.iter().filter(|sample| sample.at <= total / 10).collect();
    let last: Vec<&Sample> = samples.iter().filter(|sample| sample.at >= total * 9 / 10).collect();
    assert!(first.len() >= 3 && last.len() >= 3, "{} rounds are too few; give it more time", samples.len());
    for process in 0..samples[0].held.len() {
        let before = first.iter().map(|sample| sample.held[process]).reduce(Held::most).unwrap();
        let after = last.iter().map(|sample| sample.held[process]).reduce(Held::least).unwrap();
        let name = if process == 0 { "the ranks".to_owned() } else { format!("server {process}") };
        println!("{name}: at most {before} in the first tenth, at least {after} in the last");
        let is_grown = after.resident_bytes > before.resident_bytes + RESIDENT_SLACK_BYTES;
        assert!(!is_grown && after.descriptors <= before.descriptors, "{name} grew");
    }
}

#[test]
#[ignore = "takes as long as it is told to"]
fn random_operations_over_one_and_three_servers() {
    let seconds =
        std::env::var("OXCCL_TEST_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SECONDS);
    let seed = std::env::var("OXCCL_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    println!("OXCCL_TEST_SECONDS={seconds} OXCCL_TEST_SEED={seed}");
    let _deadline =
        Deadline::start("random_operations_over_one_and_three_servers", Duration::from_secs(seconds + 120));
    let servers: Vec<Aggregator> = (0..4).map(|_| Aggregator::start("0", 256)).collect();
    let (one, three) = (through(&servers[..1]), through(&servers[1..]));
    let mut worlds = [world(&one.0), world(&three.0)];
    let mut deck = Deck::new(1 << 16, seed);
    let (begin, mut samples, mut operations) = (Instant::now(), Vec::new(), 0);
    while begin.elapsed() < Duration::from_secs(seconds) {
        worlds.iter_mut().for_each(|world| collectives(world, &mut deck));
        for net in [&one.1, &three.1] {
            windows(net, WINDOWS, deck.draw() as u64);
        }
        operations += 2 * (CASES + JOBS * WINDOWS as usize);
        give_back();
        let pids = servers.iter().map(|server| server.process.pid().to_string());
        let held = std::iter::once("self".to_owned()).chain(pids).map(|process| Held::of(&process)).collect();
        samples.push(Sample { at: begin.elapsed(), held });
    }
    println!("{operations} operations of 1 to 5 heads in {} rounds: every result is right", samples.len());
    check_growth(&samples);
}
