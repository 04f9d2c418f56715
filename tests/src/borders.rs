//! Element counts at which something begins or ends: a line, a slot, a chunk, a loop, all credits.

use oxccl::plan::tuning::{Architecture, Forced, NetSpeed};
use oxccl::plan::{Call, Collnet, CollnetFacts, Facts, Plan, Reduces, plan};
use oxccl::transport::{Allowed, stream_layout};
use oxccl::{Algorithm, Config, DataType, Func, RedOp, TransportKind};
use oxccl_shared::abi::Rank;
use oxccl_shared::proto;

/// Lengths in elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Borders {
    grain: usize,
    slice: usize,
    chunk: usize,
    /// Chunks of a loop.
    blocks: usize,
    /// A prime that needs many loops, yet not much memory.
    prime: usize,
}

/// A count, by name.
pub type Class = (&'static str, fn(&Borders) -> usize);

/// Every class of counts.
pub const CLASSES: [Class; 18] = [
    ("zero", |_| 0),
    ("one", |_| 1),
    ("seven", |_| 7),
    ("grain - 1", |b| b.grain.max(1) - 1),
    ("grain", |b| b.grain),
    ("grain + 1", |b| b.grain + 1),
    ("slice - 1", |b| b.slice - 1),
    ("slice", |b| b.slice),
    ("slice + 1", |b| b.slice + 1),
    ("chunk - 1", |b| b.chunk - 1),
    ("chunk + 1", |b| b.chunk + 1),
    ("two slices + 1", |b| 2 * b.slice + 1),
    ("loop - 1", |b| b.blocks * b.chunk - 1),
    ("loop", |b| b.blocks * b.chunk),
    ("loop + 1", |b| b.blocks * b.chunk + 1),
    ("all slots", |b| oxccl_shared::fifo::STEPS * b.slice),
    ("all slots + 1", |b| oxccl_shared::fifo::STEPS * b.slice + 1),
    ("prime", |b| b.prime),
];

/// Primes for functions whose buffers are a count, and a count for each rank.
const PRIMES: [usize; 2] = [70_001, 8_009];

/// A network between two hosts that reduces everything.
const EVERYTHING: Collnet = Collnet::There(CollnetFacts {
    reduces: Reduces::ALL,
    gathers: true,
    scatters: true,
    buffer_max_bytes: 1 << 30,
    nhosts: 2,
    speed: NetSpeed { gbytes: 1.25, latency_us: 2.5 },
});

/// Channels of rings and of trees, as `connect` makes them on CPUs.
const CHANNELS: [u32; 2] = [1, 2];

/// Those that ranks have, as `init` counts them.
fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u32)
}

impl Borders {
    /// For `func` on elements of `dtype` under `config`.
    pub fn new(config: &Config, func: Func, dtype: DataType, nranks: u32) -> Borders {
        let has_streams =
            [TransportKind::Tcp, TransportKind::Net].map(Allowed::only).contains(&config.transports);
        let layout = |memory| if has_streams { stream_layout(memory) } else { memory };
        let (ring_layout, mesh_layout) = (layout(config.ring_layout()), layout(config.mesh_layout(nranks)));
        let architecture = if has_streams { Architecture::CpuStreams } else { Architecture::Cpu };
        // A rank that names it gets it.
        let collnet = match config.forced.names_algorithm(func, Algorithm::CollnetChain) {
            true => EVERYTHING,
            false => Collnet::Disabled,
        };
        let facts = Facts::of_cpus(nranks, architecture, config.forced, [ring_layout, mesh_layout], CHANNELS)
            .with_collnet(collnet)
            .sharing_processors(processors() < nranks);
        // So does one on two hosts that names this.
        let facts = match config.forced.names_algorithm(func, Algorithm::TwoLevel) {
            true => facts.on_hosts((0..nranks).map(|rank| u64::from(2 * rank / nranks))),
            false => facts,
        };
        let plan = |count| plan(&Call { func, dtype, op: RedOp::Sum, root: Rank(0), count }, &facts);
        let Plan { protocol, slice_elems, chunk_elems, grain_elems, .. } = plan(1);
        let [mut slice_elems, mut chunk, grain] =
            [slice_elems, chunk_elems, grain_elems].map(|elems| elems as usize);
        if matches!(func, Func::Send | Func::AllToAll | Func::Gather | Func::Scatter) {
            slice_elems = proto::payload_bytes(protocol, &mesh_layout) / dtype.size_bytes();
            chunk = slice_elems;
        }
        if config.forced == Forced::default() {
            // Where another algorithm or protocol takes over, if one does before buffers become large.
            let choice = |count| (plan(count).algorithm, plan(count).protocol);
            chunk =
                (1..1u64 << 17).step_by(64).find(|count| choice(*count) != choice(1)).map_or(chunk, |near| {
                    let first =
                        (near.saturating_sub(64).max(1)..near).find(|count| choice(*count) != choice(1));
                    first.unwrap_or(near) as usize
                });
        }
        let has_blocks = matches!(
            func,
            Func::AllGather | Func::ReduceScatter | Func::AllToAll | Func::Gather | Func::Scatter
        );
        Borders {
            grain,
            slice: slice_elems,
            chunk,
            blocks: if func == Func::AllReduce { nranks as usize } else { 1 },
            prime: PRIMES[usize::from(has_blocks)],
        }
    }
}
