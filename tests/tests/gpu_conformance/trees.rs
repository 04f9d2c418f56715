//! All-reduce along trees, which are connected only where the user insists on them, at the counts where credits run out and where a
//! channel or a slice begins or ends.

use oxccl::plan::{Call, ChannelLimits, Facts, Forced, Plan, plan};
use oxccl::{Algorithm, DataType, Func, Protocol, Rank, RedOp};
use oxccl_shared::abi::ConnControl;
use oxccl_shared::fifo::STEPS;
use oxccl_tests::case::{Case, Placement};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::devices::{DeviceWorld, Launch, ranks_max};
use oxccl_tests::harness::Settings;
use std::time::Duration;

/// One tree, both, and all channels with small slots that wrap often; then the library's own sizes.
const CHANNELS: [Option<u32>; 4] = [Some(1), Some(2), Some(100), None];

/// Elements of one, two, four and eight bytes; the wide ones fill slots with fewer elements.
const DTYPES: [DataType; 4] = [DataType::F8E4M3, DataType::BF16, DataType::F32, DataType::I64];

/// Inputs and outputs of all ranks are made and compared on this machine's processors.
const COUNT_MAX: usize = 600_000;

fn settings(protocol: Protocol) -> Settings {
    Settings { buffer_bytes: 64 << 10, ..Settings::forced(Algorithm::Tree, protocol) }
}

/// The plan of a call that fills every channel: along a tree, or the test would test something else.
fn full_plan(nranks: u32, settings: &Settings, channels: Option<u32>, dtype: DataType) -> Plan {
    let forced = Forced::only(settings.algorithm, settings.protocol);
    let limits = ChannelLimits { max: channels, ..ChannelLimits::default() };
    let buffer = Some(settings.buffer_bytes).filter(|_| channels.is_some());
    let facts = Facts::of_gpus(nranks, (90, 132), forced, limits, buffer);
    let call = Call { func: Func::AllReduce, dtype, op: RedOp::Sum, root: Rank(0), count: 1 << 30 };
    let plan = plan(&call, &facts);
    assert_eq!(plan.algorithm, Algorithm::Tree, "{plan:?}");
    plan
}

/// Counts around a grain, a slice, all channels' slices, and as many as there are credits, once and three times.
fn counts(plan: &Plan) -> Vec<usize> {
    let (grain, chunk) = (plan.grain_elems as usize, plan.chunk_elems as usize);
    let all = chunk * plan.channels as usize;
    let known = [grain, 2 * grain, chunk, all, STEPS * chunk, STEPS * all, 3 * STEPS * all];
    let around = known.iter().flat_map(|count| [count - 1, *count, count + 1]);
    [0, 1, 1000].into_iter().chain(around).filter(|count| *count <= COUNT_MAX).collect()
}

fn world(nranks: u32, protocol: Protocol, channels: Option<u32>) {
    let settings = settings(protocol);
    let mut world = DeviceWorld::new(nranks, settings, channels);
    let mut seed = 0;
    for dtype in DTYPES {
        let plan = full_plan(nranks, &settings, channels, dtype);
        for count in counts(&plan) {
            let op = RedOp::ALL[seed % RedOp::ALL.len()];
            let placement = Placement::ALL[seed / 2 % Placement::ALL.len()];
            let launch = Launch::ALL[seed / 5 % Launch::ALL.len()];
            let along_tree =
                Case { func: Func::AllReduce, dtype, op, root: 0, count, placement, seed: seed as u64 };
            // Operations along rings in between find their own connections as they left them.
            let along_ring =
                Case { func: Func::AllGather, op: RedOp::Sum, count: count % 10_000, ..along_tree };
            for case in [Some(along_tree), seed.is_multiple_of(4).then_some(along_ring)].into_iter().flatten()
            {
                doing(|| format!("{case:?} by {launch:?} of {nranks} GPUs, {settings:?}, {channels:?}"));
                world.check(&case, launch).unwrap_or_else(|failure| panic!("{failure}, {channels:?}"));
            }
            seed += 1;
        }
    }
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_trees() {
    let _deadline = Deadline::start("needs_gpu_trees", Duration::from_secs(500));
    for nranks in 2..=ranks_max().min(8) {
        for &protocol in Protocol::ALL {
            for channels in CHANNELS {
                world(nranks, protocol, channels);
            }
        }
    }
}

/// Trees cost memory only where they are asked for.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_trees_are_connected_only_if_asked_for() {
    let _deadline =
        Deadline::start("needs_gpu_trees_are_connected_only_if_asked_for", Duration::from_secs(120));
    if ranks_max() < 2 {
        return println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    let reserved = |algorithm| {
        let settings = Settings { algorithm, ..Settings::default() };
        let world = DeviceWorld::with(2, settings, None, |config| config.runtime_connect = false);
        let peers = &world.ranks[0].comm.memory().peers;
        peers.iter().map(|peer| peer.inbound_bytes).sum::<usize>()
    };
    let (without, with) = (reserved(None), reserved(Some(Algorithm::Tree)));
    assert_eq!(reserved(Some(Algorithm::Ring)), without);
    let facts = Facts::of_gpus(
        2,
        (90, 132),
        Forced::only(Some(Algorithm::Tree), None),
        ChannelLimits::default(),
        None,
    );
    // Of two ranks each has one neighbour on every channel, by each of three protocols.
    let each = facts.tree_layout.total_bytes() + 2 * size_of::<ConnControl>();
    assert_eq!(with - without, facts.tree_channels as usize * each);
}
