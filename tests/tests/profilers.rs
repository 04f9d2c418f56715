//! A profiler plugin of a user's, written against NCCL's headers, in each version of its table.

use oxccl::plan::tuning::Forced;
use oxccl::{Communicator, Config, PluginName, ReduceOp, UniqueId, group};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::harness::{Settings, on_threads};
use oxccl_tests::net::{PluginFile, PluginNumbers, Tables};
use std::time::Duration;

const VERSIONS: [u32; 3] = [4, 5, 6];
const LIMIT: Duration = Duration::from_secs(240);
/// Places of events among the plugin's counts.
const PLAIN: [usize; 3] = [0, 1, 2];
/// Those that version 4 has not: a group's, a collective's and a message's call.
const CALLS: [usize; 3] = [8, 9, 10];

fn built(config: &Config, nranks: u32) -> Vec<Communicator> {
    let id = UniqueId::create_by(&config.bootstrap).unwrap();
    on_threads(0..nranks, |rank| {
        let builder = Communicator::builder().unique_id(id).rank(rank).ranks(nranks);
        builder.config(config.clone()).build().unwrap()
    })
}

fn with(name: &str) -> Config {
    let forced = Forced::default().with_algorithms("allreduce:ring").unwrap();
    Config {
        profiler: PluginName::parse(name),
        name: Some("work".into()),
        forced,
        ..Settings::default().config()
    }
}

/// How many events of these kinds it was told of.
fn started(numbers: &PluginNumbers, places: &[usize]) -> Vec<i32> {
    places.iter().map(|place| numbers.at("profiler_started", *place)).collect()
}

/// Two all-reduces of 100 elements, a group of two more, and messages of 7 round a ring.
fn work(communicator: &mut Communicator) {
    let (rank, nranks) = (communicator.rank(), communicator.size());
    let send = vec![1.0f32; 100];
    for _ in 0..2 {
        let mut recv = vec![0.0f32; 100];
        communicator.all_reduce(&send, &mut recv, ReduceOp::SUM).unwrap();
        assert!(recv.iter().all(|sum| *sum == nranks as f32));
    }
    let (mut first, mut second) = (vec![0.0f32; 100], vec![0.0f32; 100]);
    group(|calls| {
        calls.all_reduce(communicator, &send, &mut first, ReduceOp::SUM)?;
        calls.all_reduce(communicator, &send, &mut second, ReduceOp::MAX)
    })
    .unwrap();
    let mut came = vec![0.0f32; 7];
    group(|calls| {
        calls.send(communicator, &send[..7], (rank + 1) % nranks)?;
        calls.recv(communicator, &mut came, (rank + nranks - 1) % nranks)
    })
    .unwrap();
    assert_eq!(came, [1.0; 7]);
}

#[test]
fn every_version_hears_of_every_call_and_events_nest() {
    let _deadline = Deadline::start("every_version_hears_of_every_call_and_events_nest", LIMIT);
    for version in VERSIONS {
        let file = PluginFile::build(Tables::Profiler, version, "", &[]);
        let numbers = PluginNumbers::of(&file);
        let mut ranks = built(&with(file.name()), 3);
        assert_eq!((numbers.get("profiler_contexts"), numbers.get("profiler_named")), (3, 3));
        on_threads(ranks.iter_mut(), work);
        // Of three ranks: two calls, a group of two, a group of two messages.
        assert_eq!(started(&numbers, &PLAIN), [3 * 4, 3 * 4, 3 * 2], "version {version}");
        let api = if version == 4 { [0; 3] } else { [3 * 4, 3 * 4, 3 * 2] };
        assert_eq!(started(&numbers, &CALLS), api, "version {version}");
        assert_eq!(numbers.get("profiler_rings"), 3 * 4);
        assert_eq!(numbers.get("profiler_elements"), 3 * (4 * 100 + 2 * 7));
        assert_eq!(
            (numbers.get("profiler_live"), numbers.get("profiler_wrong")),
            (0, 0),
            "version {version}"
        );
        drop(ranks);
        assert_eq!((numbers.get("profiler_contexts"), numbers.get("profiler_wrong")), (0, 0));
    }
}

#[test]
fn what_nobody_wants_is_not_told() {
    let _deadline = Deadline::start("what_nobody_wants_is_not_told", LIMIT);
    let nothing = [0; 6];
    for (flags, expected) in [("-DMASK=0", nothing), ("-DMASK=1", [2 * 4, 0, 0, 0, 0, 0])] {
        // Version 4 lets a group be told alone.
        let file = PluginFile::build(Tables::Profiler, 4, "", &[flags]);
        let numbers = PluginNumbers::of(&file);
        let mut ranks = built(&with(file.name()), 2);
        on_threads(ranks.iter_mut(), work);
        assert_eq!([started(&numbers, &PLAIN), started(&numbers, &CALLS)].concat(), expected);
        assert_eq!((numbers.get("profiler_live"), numbers.get("profiler_wrong")), (0, 0));
    }
}

#[test]
fn a_plugin_that_cannot_be_used_is_none() {
    let _deadline = Deadline::start("a_plugin_that_cannot_be_used_is_none", LIMIT);
    let refuses = PluginFile::build(Tables::Profiler, 5, "init", &[]);
    let net = PluginFile::build(Tables::Net, 12, "", &[]);
    for name in [refuses.name(), net.name(), "/does/not/exist.so", "none", ""] {
        on_threads(built(&with(name), 2).iter_mut(), work);
    }
    assert_eq!(started(&PluginNumbers::of(&refuses), &PLAIN), [0; 3]);
}
