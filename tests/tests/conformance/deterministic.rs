//! Deterministic communicators: every element has the bits of a reduction by rank, however the call is carried out.

use oxccl::{
    Algorithm, Blocks, Communicator, ConnectError, DataType, Element, Error, F8E4M3, F8E5M2, Func, Protocol,
    RedOp, ReduceOp, TransportKind, UniqueId, bf16, f16,
};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::guarded::bytes_of;
use oxccl_tests::harness::{Settings, World, on_threads};
use oxccl_tests::model::{Model, mix};
use oxccl_tests::oracle::{by_rank, noise};
use std::time::Duration;

const FLOATS: [DataType; 6] =
    [DataType::F16, DataType::F32, DataType::F64, DataType::BF16, DataType::F8E4M3, DataType::F8E5M2];
const FUNCS: [Func; 3] = [Func::AllReduce, Func::ReduceScatter, Func::Reduce];
/// Calls of each world.
const CALLS: usize = 24;

fn world(nranks: u32, settings: Settings) -> World {
    World::with(nranks, settings, |_, config| config.deterministic = true)
}

/// A call and how it is cut.
#[derive(Clone, Copy, Debug)]
struct Drawn {
    func: Func,
    dtype: DataType,
    op: RedOp,
    root: usize,
    count: usize,
    /// Elements of the buffers before those of the call.
    offset: usize,
    /// Elements of each call of several, the last one shorter.
    part: usize,
    seed: u64,
}

/// A generator of calls that are the same on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = mix(self.0);
        (self.0 >> 33) as usize % bound
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn call(&mut self, nranks: usize) -> Drawn {
        // Short enough for one hop, and long enough for two.
        let most = self.pick(&[3, 70, 1_000, 30_000]);
        let count = 1 + self.below(most);
        Drawn {
            func: self.pick(&FUNCS),
            dtype: self.pick(&FLOATS),
            op: self.pick(RedOp::ALL),
            root: self.below(nranks),
            count,
            offset: self.below(9),
            part: 1 + count / (1 + self.below(4)),
            seed: self.0,
        }
    }
}

fn operator<T: Element>(op: RedOp, scalar: T) -> ReduceOp {
    ReduceOp::of_kind(op, T::DTYPE, scalar.to_low_bits())
}

/// What each rank receives of one call of these inputs; nothing if it is no root.
fn carry_out<T: Model<Wide = f64>>(
    world: &World,
    drawn: &Drawn,
    sends: &[&[T]],
    count: usize,
) -> Vec<Vec<T>> {
    let op = operator(drawn.op, scalar::<T>());
    let mut outs = vec![vec![T::narrow(0.0); drawn.offset + count]; world.size()];
    let done = oxccl::group(|group| {
        world.ranks.iter().zip(sends).zip(&mut outs).try_for_each(|((comm, send), out)| {
            let recv = &mut out[drawn.offset..];
            match drawn.func {
                Func::AllReduce => group.all_reduce(comm, send, recv, op),
                Func::ReduceScatter => group.reduce_scatter(comm, send, recv, op),
                _ => group.reduce(comm, send, recv, op, drawn.root as u32),
            }
        })
    });
    done.unwrap_or_else(|error| panic!("{error} in {drawn:?}"));
    outs.iter().map(|out| out[drawn.offset..].to_vec()).collect()
}

fn scalar<T: Model<Wide = f64>>() -> T {
    T::narrow(1.37)
}

/// One call, and the same in several calls, beside the oracle.
fn check<T: Model<Wide = f64>>(world: &World, drawn: &Drawn) {
    let (n, Drawn { func, op, root, count, offset, part, seed, .. }) = (world.size(), *drawn);
    let blocks = if func == Func::ReduceScatter { n } else { 1 };
    let inputs: Vec<Vec<T>> = (0..n).map(|rank| noise(seed, rank, offset + blocks * count)).collect();
    let sends: Vec<&[T]> = inputs.iter().map(|input| &input[offset..]).collect();
    let expected = by_rank(op, &sends, scalar::<T>());
    let of_rank = |rank: usize| if blocks == 1 { 0 } else { rank * count };
    let is_given = |rank: usize| func != Func::Reduce || rank == root;
    let compare = |rank: usize, found: &[T], at: usize| {
        let expected = &expected[of_rank(rank) + at..][..found.len()];
        let wrong = (0..found.len()).find(|i| found[*i].to_low_bits() != expected[*i].to_low_bits());
        let context = || format!("rank {rank} from {at} of {drawn:?}, {n} ranks, {:?}", world.settings);
        assert_eq!(wrong, None, "{}", context());
        assert!(bytes_of(found) == bytes_of(expected), "{}", context());
    };
    for (rank, found) in
        carry_out(world, drawn, &sends, count).iter().enumerate().filter(|(rank, _)| is_given(*rank))
    {
        compare(rank, found, 0);
    }
    for at in (0..count).step_by(part) {
        let len = part.min(count - at);
        let cut = |send: &&[T]| {
            (0..blocks).flat_map(|b| send[b * count + at..][..len].to_vec()).collect::<Vec<T>>()
        };
        let cut: Vec<Vec<T>> = sends.iter().map(cut).collect();
        let parts: Vec<&[T]> = cut.iter().map(Vec::as_slice).collect();
        for (rank, found) in
            carry_out(world, drawn, &parts, len).iter().enumerate().filter(|(rank, _)| is_given(*rank))
        {
            compare(rank, found, at);
        }
    }
}

fn check_any(world: &World, drawn: &Drawn) {
    doing(|| format!("{drawn:?} by {} ranks with {:?}", world.size(), world.settings));
    match drawn.dtype {
        DataType::F16 => check::<f16>(world, drawn),
        DataType::F32 => check::<f32>(world, drawn),
        DataType::F64 => check::<f64>(world, drawn),
        DataType::BF16 => check::<bf16>(world, drawn),
        DataType::F8E4M3 => check::<F8E4M3>(world, drawn),
        _ => check::<F8E5M2>(world, drawn),
    }
}

fn settings() -> Vec<(u32, Settings)> {
    let over = |transport| Settings { transport: Some(transport), ..Settings::default() };
    let mut all = vec![
        (1, Settings::default()),
        (2, Settings::default()),
        (3, Settings::default()),
        (6, Settings { buffer_bytes: 64 << 10, ..Settings::default() }),
        (11, Settings::default()),
        (3, over(TransportKind::Shm)),
        (4, over(TransportKind::Tcp)),
        (3, over(TransportKind::Net)),
    ];
    for protocol in Protocol::ALL {
        all.push((5, Settings { protocol: Some(*protocol), ..Settings::default() }));
        all.push((4, Settings::forced(Algorithm::TwoShot, *protocol)));
        all.push((
            3,
            Settings {
                transport: Some(TransportKind::Tcp),
                ..Settings::forced(Algorithm::TwoShot, *protocol)
            },
        ));
    }
    all.push((4, Settings::forced(Algorithm::OneShot, Protocol::Simple)));
    all
}

#[test]
fn every_element_has_the_bits_of_a_reduction_by_rank() {
    let _deadline =
        Deadline::start("every_element_has_the_bits_of_a_reduction_by_rank", Duration::from_secs(400));
    let mut random = Random(15);
    for (nranks, settings) in settings() {
        let world = world(nranks, settings);
        for _ in 0..CALLS {
            check_any(&world, &random.call(nranks as usize));
        }
    }
}

/// Otherwise the test above would prove nothing: without the setting a ring gives other bits, of the same calls.
#[test]
fn without_the_setting_the_bits_are_others() {
    let _deadline = Deadline::start("without_the_setting_the_bits_are_others", Duration::from_secs(100));
    let world = World::new(5, Settings::forced(Algorithm::Ring, Protocol::Simple));
    let drawn = Drawn {
        func: Func::AllReduce,
        dtype: DataType::F32,
        op: RedOp::Sum,
        root: 0,
        count: 1000,
        offset: 0,
        part: 1000,
        seed: 3,
    };
    let inputs: Vec<Vec<f32>> = (0..5).map(|rank| noise(3, rank, 1000)).collect();
    let sends: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
    let found = carry_out(&world, &drawn, &sends, 1000);
    assert!(bytes_of(&found[0]) != bytes_of(&by_rank(RedOp::Sum, &sends, 1.0)));
}

#[test]
fn blocks_of_any_length_have_them_too() {
    let _deadline = Deadline::start("blocks_of_any_length_have_them_too", Duration::from_secs(100));
    let (counts, displs) = ([5, 0, 3000, 17], [3000, 0, 0, 3005]);
    let inputs: Vec<Vec<f32>> = (0..4).map(|rank| noise(8, rank, 3022)).collect();
    let sends: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
    let expected = by_rank(RedOp::Sum, &sends, 1.0);
    world(4, Settings::default()).each(|comm| {
        let me = comm.rank() as usize;
        let mut mine = vec![0.0; counts[me]];
        let blocks = Blocks { counts: &counts, displs: &displs };
        comm.reduce_scatter_v(&inputs[me], &mut mine, blocks, ReduceOp::SUM).unwrap();
        assert!(bytes_of(&mine) == bytes_of(&expected[displs[me]..][..counts[me]]), "rank {me}");
    });
}

/// Children have the setting of their parent.
#[test]
fn a_split_is_deterministic_too() {
    let _deadline = Deadline::start("a_split_is_deterministic_too", Duration::from_secs(100));
    let inputs: Vec<Vec<f32>> = (0..4).map(|rank| noise(9, rank, 40_000)).collect();
    let backwards: Vec<&[f32]> = inputs.iter().rev().map(Vec::as_slice).collect();
    let expected = by_rank(RedOp::Sum, &backwards, 1.0);
    world(4, Settings::default()).each(|comm| {
        let child = comm.split(Some(0), -(comm.rank() as i32)).unwrap().unwrap();
        let mut sum = inputs[comm.rank() as usize].clone();
        child.all_reduce_in_place(&mut sum, ReduceOp::SUM).unwrap();
        assert!(bytes_of(&sum) == bytes_of(&expected));
    });
}

#[test]
fn a_rank_with_another_setting_is_named() {
    let _deadline = Deadline::start("a_rank_with_another_setting_is_named", Duration::from_secs(100));
    let config = Settings::default().config();
    let id = UniqueId::create_by(&config.bootstrap).unwrap();
    let joined = on_threads(0..3u32, |rank| {
        let builder = Communicator::builder().unique_id(id).rank(rank).ranks(3).config(config.clone());
        builder.deterministic(rank == 1).build().map(drop)
    });
    for error in joined.into_iter().map(Result::unwrap_err) {
        assert!(matches!(error, Error::Connect(ConnectError::Settings { .. })), "{error}");
        assert!(error.to_string().contains("OXCCL_DETERMINISTIC"), "{error}");
    }
}

#[test]
fn what_reduces_in_another_order_is_refused_where_it_is_ordered() {
    let config = Settings::forced(Algorithm::Ring, Protocol::Simple).config();
    let builder = Communicator::builder().rank(0).ranks(3).config(config).deterministic(true);
    let error = builder.build().unwrap_err();
    assert!(matches!(error, Error::Impossible(_)), "{error}");
    assert!(error.to_string().contains("in rank order"), "{error}");
}
