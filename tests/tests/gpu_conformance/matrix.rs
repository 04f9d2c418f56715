//! Every function, type and operator over every kernel, at the counts where something begins or ends.

use oxccl::plan::{Call, ChannelLimits, Facts, plan};
use oxccl::{Algorithm, DataType, Func, Protocol, Rank, RedOp};
use oxccl_shared::proto;
use oxccl_tests::case::{Case, FUNCS, Placement};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::deck::Deck;
use oxccl_tests::devices::{DeviceWorld, Launch, places_max, ranks_max};
use oxccl_tests::harness::Settings;
use std::time::{Duration, Instant};

/// Small slots and few channels wrap often; the library's own sizes come with their own thresholds.
const CHANNELS: [Option<u32>; 2] = [Some(2), None];

fn settings() -> Vec<Settings> {
    let buffer_bytes = 64 << 10;
    let mut all = vec![Settings { buffer_bytes, ..Settings::default() }];
    // Networks that reduce have a module of their own: `collnet`.
    for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::OneShot, Algorithm::TwoShot] {
        let forced = |protocol| Settings { buffer_bytes, ..Settings::forced(algorithm, protocol) };
        all.extend(Protocol::ALL.iter().map(|protocol| forced(*protocol)));
    }
    all
}

/// Counts around every threshold of a plan.
fn counts(
    settings: &Settings,
    channels: Option<u32>,
    func: Func,
    dtype: DataType,
    nranks: u32,
) -> Vec<usize> {
    let forced = settings.lists();
    let limits = ChannelLimits { max: channels, ..ChannelLimits::default() };
    let buffer = Some(settings.buffer_bytes).filter(|_| channels.is_some());
    let facts = Facts::of_gpus(nranks, (90, 132), forced, limits, buffer);
    let known = if matches!(func, Func::Send | Func::AllToAll | Func::Gather | Func::Scatter) {
        let slot = proto::payload_bytes(Protocol::Simple, &facts.mesh_layout) / dtype.size_bytes();
        [slot, 2 * slot, 8 * slot, (256 << 10) / dtype.size_bytes()]
    } else {
        let plan = plan(&Call { func, dtype, op: RedOp::Sum, root: Rank(0), count: 1 << 30 }, &facts);
        let elem_bytes = if plan.dtype.is_none() { dtype.size_bytes() } else { 1 };
        let in_elems = |length: u64| (length as usize).div_ceil(elem_bytes);
        let (slice, chunk) = (in_elems(plan.slice_elems), in_elems(plan.chunk_elems));
        [in_elems(plan.grain_elems), slice, chunk * nranks as usize, 8 * slice]
    };
    let around = known.iter().flat_map(|count| [count - 1, *count, count + 1]);
    let mut counts: Vec<usize> = [0, 1, 7, 1000, 70_001].into_iter().chain(around).collect();
    // Inputs and outputs of all ranks are made and compared on this machine's processors.
    counts.iter_mut().for_each(|count| *count %= 600_000);
    counts
}

struct Matrix {
    failures: Vec<String>,
    cases: u64,
}

impl Matrix {
    fn world(&mut self, nranks: u32, settings: Settings, channels: Option<u32>, draws: usize) {
        doing(|| format!("setting up {nranks} GPUs with {settings:?}"));
        let (start, before) = (Instant::now(), self.cases);
        let mut world = DeviceWorld::new(nranks, settings, channels);
        let mut deck = Deck::new(17 * Placement::ALL.len(), u64::from(nranks));
        for (func, &dtype) in FUNCS.iter().flat_map(|f| DataType::ALL.iter().map(move |d| (*f, d))) {
            let counts = counts(&settings, channels, func, dtype, nranks);
            let reduces = matches!(func, Func::AllReduce | Func::Reduce | Func::ReduceScatter);
            let ops = if reduces { RedOp::ALL } else { &[RedOp::Sum] };
            for (op, _) in ops.iter().flat_map(|op| (0..draws).map(move |draw| (*op, draw))) {
                let card = deck.draw();
                let case = Case {
                    func,
                    dtype,
                    op,
                    root: self.cases as u32 % nranks,
                    count: counts[card % counts.len()],
                    placement: Placement::ALL[card / counts.len()],
                    seed: self.cases,
                };
                let launch = Launch::ALL[self.cases as usize % Launch::ALL.len()];
                doing(|| format!("{case:?} by {launch:?} of {nranks} GPUs, {settings:?}, {channels:?}"));
                self.cases += 1;
                if let Err(failure) = world.check(&case, launch) {
                    self.failures.push(failure);
                    assert!(self.failures.len() < 10, "{}", self.failures.join("\n"));
                }
            }
        }
        let cases = self.cases - before;
        println!("{cases} cases in {:.1?} of {nranks} GPUs, {settings:?}, {channels:?}", start.elapsed());
    }

    fn run(name: &'static str, nranks: u32, draws: usize) {
        if nranks > places_max() {
            println!("{name}: skipped, this machine has places for {} ranks", places_max());
            return;
        }
        let _deadline = Deadline::start(name, Duration::from_secs(500));
        let mut matrix = Matrix { failures: Vec::new(), cases: 0 };
        for settings in settings() {
            for channels in CHANNELS {
                matrix.world(nranks, settings, channels, draws);
            }
        }
        assert!(matrix.failures.is_empty(), "{}", matrix.failures.join("\n"));
        println!("{name}: {} cases", matrix.cases);
    }
}

macro_rules! matrices {
    ($($name:ident: $nranks:literal x $draws:literal;)+) => { $(
        #[test]
        #[ignore = "needs GPUs"]
        fn $name() {
            Matrix::run(stringify!($name), $nranks, $draws);
        }
    )+ };
}

matrices! {
    needs_gpu_conformance_1: 1 x 1;
    needs_gpu_conformance_2: 2 x 1;
    needs_gpu_conformance_3: 3 x 1;
    needs_gpu_conformance_4: 4 x 1;
    needs_gpu_conformance_8: 8 x 1;
}

/// A smoke test: whether anything works at all.
#[test]
#[ignore = "needs a GPU"]
fn needs_gpu_all_reduce() {
    let _deadline = Deadline::start("needs_gpu_all_reduce", Duration::from_secs(120));
    for nranks in 1..=ranks_max().min(4) {
        let mut world = DeviceWorld::new(nranks, Settings::default(), None);
        for (seed, count) in [1usize, 1000, 100_000, 3_000_000].into_iter().enumerate() {
            for launch in Launch::ALL {
                let case = Case {
                    func: Func::AllReduce,
                    dtype: DataType::F32,
                    op: RedOp::Sum,
                    root: 0,
                    count,
                    placement: Placement::Apart,
                    seed: seed as u64,
                };
                doing(|| format!("{case:?} by {launch:?} of {nranks} GPUs"));
                world.check(&case, launch).unwrap_or_else(|failure| panic!("{failure}"));
            }
        }
    }
}
