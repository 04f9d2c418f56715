//! The library's conformance cases, on communicators that have the algorithm: on CPUs, and where there are GPUs on those.
#![cfg(not(loom))]

use oxccl::{CustomAlgorithm, DataType, Error, Func, Protocol, UniqueId};
use oxccl_device::coll::CollWork;
use oxccl_device::conn::Conns;
use oxccl_device::custom::{Mesh, Walk};
use oxccl_device::gpu::{Block, Stop};
use oxccl_device::prims::Proto;
use oxccl_stranger::{Binomial, SPEC};
use oxccl_tests::borders::{Borders, CLASSES};
use oxccl_tests::case::{By, Case, Placement, ops};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::deck::Deck;
use oxccl_tests::devices::{DeviceWorld, Launch, gpus};
use oxccl_tests::harness::{Settings, World, on_threads};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const FUNCS: [Func; 2] = [Func::AllReduce, Func::Broadcast];

/// The walk, and how often it was taken.
struct Counted;

static WALKS: AtomicUsize = AtomicUsize::new(0);

impl Walk for Counted {
    unsafe fn run<B: Block, P: Proto<B>>(
        block: &B,
        conns: Conns<'_>,
        mesh: &Mesh<'_>,
        work: &CollWork,
    ) -> Result<(), Stop> {
        WALKS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's obligations.
        unsafe { Binomial::run::<B, P>(block, conns, mesh, work) }
    }
}

/// Every function, type and operator, each with some counts and placements.
fn cases(settings: &Settings, nranks: u32, draws: usize) -> Vec<Case> {
    let (mut cases, mut deck) =
        (Vec::new(), Deck::new(CLASSES.len() * Placement::ALL.len(), u64::from(nranks)));
    for func in FUNCS {
        for &dtype in DataType::ALL {
            let borders = Borders::new(&settings.config(), func, dtype, nranks);
            for &op in ops(func) {
                for _ in 0..draws {
                    let card = deck.draw();
                    let count = CLASSES[card % CLASSES.len()].1(&borders);
                    let placement = Placement::ALL[card / CLASSES.len()];
                    let seed = cases.len() as u64;
                    cases.push(Case { func, dtype, op, root: seed as u32 % nranks, count, placement, seed });
                }
            }
        }
    }
    cases
}

fn settings(protocol: Option<Protocol>) -> Settings {
    Settings { protocol, ..Settings::default() }
}

#[test]
fn cpu_ranks_get_the_oracles_results() {
    let _deadline = Deadline::start("a stranger's algorithm on CPUs", Duration::from_secs(300));
    for nranks in [2, 3, 5, 8] {
        for protocol in [None, Some(Protocol::LL), Some(Protocol::Simple)] {
            let settings = settings(protocol);
            let mut world = World::with(nranks, settings, |_, config| {
                config.custom.push(CustomAlgorithm::new::<Counted>(&SPEC));
            });
            let before = WALKS.load(Ordering::Relaxed);
            let (mut calls, cases) = (0, cases(&settings, nranks, 2));
            for (i, case) in cases.iter().enumerate() {
                let by = if i % 32 == 0 { By::Threads } else { By::Fibers };
                case.check(&mut world, by).unwrap_or_else(|failure| panic!("{failure}"));
                calls += if case.count > 0 { nranks as usize } else { 0 };
            }
            // None of them was the library's.
            assert_eq!(WALKS.load(Ordering::Relaxed) - before, calls, "{nranks} ranks, {settings:?}");
        }
    }
}

#[test]
fn the_rank_that_lacks_it_is_named() {
    let settings = settings(None);
    let config = settings.config();
    let id = UniqueId::create_by(&config.bootstrap).unwrap();
    let join = |rank: u32| {
        let builder = oxccl::Communicator::builder().unique_id(id).rank(rank).ranks(3).config(config.clone());
        let builder =
            if rank == 1 { builder } else { builder.register(CustomAlgorithm::new::<Binomial>(&SPEC)) };
        builder.build().map(|_| ())
    };
    for result in on_threads(0..3, join) {
        let error: Error = result.unwrap_err();
        assert_eq!(
            error.to_string(),
            "rank 1 has not registered the algorithm 'binomial' (version 1) with the same kernels as rank 0"
        );
    }
}

/// The bundle that `cargo xtask build-ptx --crate tests/stranger --out DIR` wrote.
fn bundle() -> PathBuf {
    let path =
        std::env::var_os("STRANGER_PTX_PATH").expect("STRANGER_PTX_PATH: the bundle of tests/stranger");
    PathBuf::from(path)
}

/// Where there is no GPU, the bundle is read as the library reads it, and has every kernel that is listed.
#[test]
#[ignore = "needs kernels: cargo xtask test --only stranger"]
fn needs_ptx_the_bundle_is_the_librarys_kind() {
    let algorithm = CustomAlgorithm::new::<Binomial>(&SPEC).with_kernels(&bundle()).unwrap();
    let bundle = oxccl::cuda::bundle::Bundle::open(&bundle()).unwrap();
    let entries: Vec<&str> = bundle.entries().map(|(entry, _)| entry).collect();
    for (func, protocol) in FUNCS.iter().flat_map(|func| [(*func, Protocol::LL), (*func, Protocol::Simple)]) {
        let entry = algorithm.spec().kernel(func, protocol, DataType::F32).to_string();
        assert!(entries.contains(&entry.as_str()), "{entry} is not among {entries:?}");
    }
}

#[test]
#[ignore = "needs GPUs and kernels: cargo xtask test --only stranger"]
fn needs_gpu_ranks_on_gpus_get_the_oracles_results() {
    let _deadline = Deadline::start("a stranger's algorithm on GPUs", Duration::from_secs(500));
    let algorithm = CustomAlgorithm::new::<Binomial>(&SPEC).with_kernels(&bundle()).unwrap();
    let nranks = gpus().min(8);
    assert!(nranks > 1, "these tests need two GPUs");
    for protocol in [None, Some(Protocol::LL), Some(Protocol::Simple)] {
        let settings = settings(protocol);
        let mut world =
            DeviceWorld::with(nranks, settings, None, |config| config.custom.push(algorithm.clone()));
        for (i, case) in cases(&settings, nranks, 2).iter().enumerate() {
            let launch = Launch::ALL[i % Launch::ALL.len()];
            world.check(case, launch).unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
}
