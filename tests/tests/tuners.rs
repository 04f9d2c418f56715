//! A tuner plugin of a user's, written against NCCL's headers, in each version of its table.

use oxccl::plan::tuning::Reason;
use oxccl::{
    Algorithm, Communicator, Config, DataType, Error, Func, PluginName, Protocol, ReduceOp, UniqueId,
};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::harness::{Settings, on_threads};
use oxccl_tests::net::{PluginFile, PluginNumbers, Tables};
use std::time::Duration;

const VERSIONS: [u32; 5] = [2, 3, 4, 5, 6];
const LIMIT: Duration = Duration::from_secs(240);

fn with(name: &str) -> Config {
    Config { tuner: PluginName::parse(name), ..Settings::default().config() }
}

/// All ranks of a communicator, each with its settings and its host.
fn build(configs: &[Config]) -> Vec<Result<Communicator, Error>> {
    let id = UniqueId::create_by(&configs[0].bootstrap).unwrap();
    let nranks = configs.len() as u32;
    on_threads(configs.iter().enumerate(), |(rank, config)| {
        let builder = Communicator::builder().unique_id(id).rank(rank as u32).ranks(nranks);
        builder.config(config.clone()).build()
    })
}

fn built(configs: &[Config]) -> Vec<Communicator> {
    build(configs).into_iter().map(Result::unwrap).collect()
}

fn choice(communicator: &Communicator, func: Func, count: u64) -> (Algorithm, Protocol, Reason) {
    let explanation = communicator.explain(func, DataType::F32, count).unwrap().expect("a collective");
    let chosen = explanation.choice.candidate;
    (chosen.algorithm, chosen.protocol, explanation.choice.reason)
}

fn sums_are_right(ranks: &mut [Communicator], counts: [usize; 5]) {
    let expected = (1..=ranks.len()).sum::<usize>() as f32;
    let right = on_threads(ranks.iter_mut(), |communicator| {
        counts.map(|count| {
            let send = vec![communicator.rank() as f32 + 1.0; count];
            let mut recv = vec![0.0f32; count];
            communicator.all_reduce(&send, &mut recv, ReduceOp::SUM).unwrap();
            recv.iter().all(|sum| *sum == expected)
        })
    });
    assert!(right.into_iter().flatten().all(|right| right));
}

#[test]
fn every_version_chooses_and_the_results_are_right() {
    let _deadline = Deadline::start("every_version_chooses_and_the_results_are_right", LIMIT);
    for version in VERSIONS {
        let file = PluginFile::build(Tables::Tuner, version, "", &[]);
        let numbers = PluginNumbers::of(&file);
        let mut ranks = built(&vec![with(file.name()); 3]);
        assert_eq!((numbers.get("tuner_nranks"), numbers.get("tuner_nnodes")), (3, 1));
        if version >= 5 {
            assert_eq!((numbers.get("tuner_least"), numbers.get("tuner_most")), (3, 3));
        }
        assert_eq!(numbers.get("tuner_contexts"), 3, "each rank's communicator has its own");
        for communicator in &ranks {
            let tree = (Algorithm::Tree, Protocol::Simple, Reason::Advised);
            assert_eq!(choice(communicator, Func::AllReduce, 1024), tree, "version {version}");
            let ring = (Algorithm::Ring, Protocol::Simple, Reason::Advised);
            assert_eq!(choice(communicator, Func::AllReduce, 1025), ring);
            assert_eq!(choice(communicator, Func::AllReduce, 1 << 18), ring);
            // Nothing is wanted, or what nobody has.
            assert_ne!(choice(communicator, Func::AllReduce, (1 << 18) + 1).2, Reason::Advised);
            assert_ne!(choice(communicator, Func::AllGather, 1024).2, Reason::Advised);
            let said = communicator.explain(Func::AllReduce, DataType::F32, 8).unwrap().unwrap().to_string();
            assert!(said.contains("because the tuner plugin wants it"), "{said}");
        }
        let asked = numbers.get("tuner_calls");
        sums_are_right(&mut ranks, [1, 1024, 1025, 1 << 18, (1 << 18) + 1]);
        assert!(numbers.get("tuner_calls") >= asked + 3 * 5, "calls are planned with it");
        drop(ranks);
        assert_eq!(numbers.get("tuner_contexts"), 0, "version {version}");
    }
}

#[test]
fn what_the_user_restricts_goes_before_the_plugin() {
    let _deadline = Deadline::start("what_the_user_restricts_goes_before_the_plugin", LIMIT);
    for version in [2, 6] {
        let file = PluginFile::build(Tables::Tuner, version, "", &[]);
        let mut config = with(file.name());
        config.forced = config.forced.with_algorithms("^tree").unwrap();
        for communicator in &built(&[config.clone(), config.clone()]) {
            assert_ne!(choice(communicator, Func::AllReduce, 16).0, Algorithm::Tree);
            let ring = (Algorithm::Ring, Protocol::Simple, Reason::Advised);
            assert_eq!(choice(communicator, Func::AllReduce, 1025), ring);
        }
    }
}

#[test]
fn a_plugin_that_fails_to_answer_leaves_the_choice_to_the_library() {
    let _deadline = Deadline::start("a_plugin_that_fails_to_answer_leaves_the_choice_to_the_library", LIMIT);
    for version in [2, 3, 6] {
        let file = PluginFile::build(Tables::Tuner, version, "coll_info", &[]);
        let mut ranks = built(&vec![with(file.name()); 2]);
        assert_ne!(choice(&ranks[0], Func::AllReduce, 16).2, Reason::Advised);
        sums_are_right(&mut ranks, [1, 2, 3, 4, 5]);
    }
}

#[test]
fn a_plugin_that_cannot_begin_is_an_error_in_its_words() {
    let _deadline = Deadline::start("a_plugin_that_cannot_begin_is_an_error_in_its_words", LIMIT);
    for version in [2, 5] {
        let file = PluginFile::build(Tables::Tuner, version, "init", &[]);
        // The other rank may hear that this one aborted before it fails itself.
        let failed = build(&vec![with(file.name()); 2]).into_iter().filter_map(Result::err);
        let said: Vec<String> = failed.map(|error| error.to_string()).collect();
        let words = [
            format!("tuner plugin Sizes (ncclTunerPlugin_v{version}): init"),
            format!("told to fail in version {version}"),
        ];
        let is_in_its_words = |error: &String| words.iter().all(|words| error.contains(words));
        assert!(said.len() == 2 && said.iter().any(is_in_its_words), "{said:?}");
    }
}

#[test]
fn ranks_with_different_plugins_are_refused_by_name() {
    let _deadline = Deadline::start("ranks_with_different_plugins_are_refused_by_name", LIMIT);
    let [old, new] = [2, 6].map(|version| PluginFile::build(Tables::Tuner, version, "", &[]));
    for others in [with(new.name()), with("none"), with("/does/not/exist.so")] {
        for failed in build(&[with(old.name()), with(old.name()), others.clone()]) {
            let said = failed.expect_err("refused").to_string();
            assert!(
                said.contains("rank 2 has other settings") && said.contains("NCCL_TUNER_PLUGIN"),
                "{said}"
            );
        }
    }
}

#[test]
fn a_plugin_that_cannot_be_used_is_none() {
    let _deadline = Deadline::start("a_plugin_that_cannot_be_used_is_none", LIMIT);
    let lacks = PluginFile::build(Tables::Tuner, 4, "", &["-DLACKS"]);
    let net = PluginFile::build(Tables::Net, 12, "", &[]);
    for name in [lacks.name(), net.name(), "/does/not/exist.so", "none", ""] {
        let mut ranks = built(&vec![with(name); 2]);
        assert_ne!(choice(&ranks[0], Func::AllReduce, 16).2, Reason::Advised);
        sums_are_right(&mut ranks, [1, 2, 3, 4, 5]);
    }
}
