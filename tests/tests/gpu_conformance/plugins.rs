//! Tuner and profiler plugins of a user's, in each version of their tables.

use oxccl::plan::tuning::Reason;
use oxccl::{Algorithm, DataType, Func, PluginName, Protocol, RedOp};
use oxccl_tests::case::{Case, Placement};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::devices::{DeviceWorld, Launch, ranks_max};
use oxccl_tests::harness::Settings;
use oxccl_tests::net::{PluginFile, PluginNumbers, Tables};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

fn case(func: Func, count: usize) -> Case {
    Case { func, dtype: DataType::F32, op: RedOp::Sum, root: 0, count, placement: Placement::Apart, seed: 3 }
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_a_profiler_hears_of_every_call_and_events_nest() {
    let _deadline = Deadline::start("needs_gpu_a_profiler_hears_of_every_call_and_events_nest", LIMIT);
    let nranks = ranks_max().clamp(2, 4);
    for version in [4, 5, 6] {
        let file = PluginFile::build(Tables::Profiler, version, "", &[]);
        let numbers = PluginNumbers::of(&file);
        let mut world = DeviceWorld::with(nranks, Settings::default(), None, |config| {
            config.profiler = PluginName::parse(file.name());
            config.name = Some("work".into());
        });
        let n = nranks as i32;
        assert_eq!((numbers.get("profiler_contexts"), numbers.get("profiler_named")), (n, n));
        for launch in Launch::ALL {
            world.check(&case(Func::AllReduce, 100), launch).unwrap();
        }
        let two = [case(Func::AllReduce, 100), case(Func::AllGather, 100)];
        world.check_group(&two, Launch::Group).unwrap();
        world.check(&case(Func::Send, 100), Launch::Threads).unwrap();
        // Of each rank: three calls alone, a group of two, a group of two messages.
        let started = |places: [usize; 3]| places.map(|place| numbers.at("profiler_started", place));
        assert_eq!(started([0, 1, 2]), [n * 5, n * 5, n * 2], "version {version}");
        let calls = if version == 4 { [0; 3] } else { [n * 5, n * 5, n * 2] };
        assert_eq!(started([8, 9, 10]), calls, "version {version}");
        assert_eq!(numbers.get("profiler_elements"), n * 700, "version {version}");
        let live_and_wrong = || (numbers.get("profiler_live"), numbers.get("profiler_wrong"));
        assert_eq!(live_and_wrong(), (0, 0), "version {version}");
        drop(world);
        assert_eq!((numbers.get("profiler_contexts"), live_and_wrong()), (0, (0, 0)), "version {version}");
    }
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_a_tuner_chooses_and_the_results_are_right() {
    let _deadline = Deadline::start("needs_gpu_a_tuner_chooses_and_the_results_are_right", LIMIT);
    let nranks = ranks_max().clamp(2, 4);
    for version in [2, 3, 4, 5, 6] {
        let file = PluginFile::build(Tables::Tuner, version, "", &[]);
        let numbers = PluginNumbers::of(&file);
        let mut world = DeviceWorld::with(nranks, Settings::default(), None, |config| {
            config.tuner = PluginName::parse(file.name());
        });
        assert_eq!(numbers.get("tuner_contexts"), nranks as i32, "each rank's communicator has its own");
        let ranks_and_hosts = (numbers.get("tuner_nranks"), numbers.get("tuner_nnodes"));
        assert_eq!(ranks_and_hosts, (nranks as i32, 1));
        let choice = |count| {
            let explained = world.ranks[0].comm.explain(Func::AllReduce, DataType::F32, count).unwrap();
            let choice = explained.expect("a collective").choice;
            (choice.candidate.algorithm, choice.candidate.protocol, choice.reason)
        };
        // It wants trees up to 4 KiB, which GPUs of a host have not, rings up to 1 MiB, and nothing above.
        assert_ne!(choice(1024).0, Algorithm::Tree);
        for count in [1025, 1 << 18] {
            assert_eq!(
                choice(count),
                (Algorithm::Ring, Protocol::Simple, Reason::Advised),
                "version {version}"
            );
        }
        assert_ne!(choice((1 << 18) + 1).2, Reason::Advised);
        let asked = numbers.get("tuner_calls");
        for (count, launch) in
            [1, 1024, 1025, 1 << 18, (1 << 18) + 1].into_iter().zip(Launch::ALL.into_iter().cycle())
        {
            world.check(&case(Func::AllReduce, count), launch).unwrap();
        }
        assert!(numbers.get("tuner_calls") >= asked + 5 * nranks as i32, "calls are planned with it");
        drop(world);
        assert_eq!(numbers.get("tuner_contexts"), 0, "version {version}");
    }
}
