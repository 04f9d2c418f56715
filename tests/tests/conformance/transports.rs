//! Every transport, by threads and by fibers, and buffers too large for the caches.

use super::dims::{FUNCS, applies, ops, settings};
use oxccl::{Algorithm, Cma, Config, DataType, Func, RedOp, SlotStores, TransportKind};
use oxccl_tests::borders::{Borders, CLASSES};
use oxccl_tests::case::{By, Case, Placement};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::deck::Deck;
use oxccl_tests::harness::{Settings, World};
use std::time::Duration;

/// Cases of each function and setting.
const DRAWS: usize = 18;

fn over(name: &'static str, transport: TransportKind, nranks: u32) {
    over_with(name, transport, nranks, |_, _| {});
}

/// The same; `adapt` changes a rank's settings as the library has them.
pub fn over_with(
    name: &'static str,
    transport: TransportKind,
    nranks: u32,
    adapt: impl Fn(u32, &mut Config) + Sync,
) {
    let _deadline = Deadline::start(name, Duration::from_secs(240));
    let mut random = Deck::new(1 << 16, u64::from(nranks));
    for setting in settings() {
        doing(|| format!("setting up {nranks} ranks over {transport} with {setting:?}"));
        let mut world = World::with(nranks, Settings { transport: Some(transport), ..setting }, &adapt);
        for func in FUNCS.into_iter().filter(|func| applies(&setting, *func)) {
            for draw in 0..DRAWS {
                let dtype = DataType::ALL[random.draw() % DataType::ALL.len()];
                let op = ops(func)[random.draw() % ops(func).len()];
                let borders = Borders::new(&world.settings.config(), func, dtype, nranks);
                let case = Case {
                    func,
                    dtype,
                    op,
                    root: random.draw() as u32 % nranks,
                    count: CLASSES[draw % CLASSES.len()].1(&borders),
                    placement: Placement::ALL[random.draw() % Placement::ALL.len()],
                    seed: random.draw() as u64,
                };
                let by = if draw % 3 == 0 { By::Fibers } else { By::Threads };
                doing(|| format!("{case:?} by {by:?} over {transport}"));
                case.check(&mut world, by).unwrap();
            }
        }
        world.each(|rank| rank.barrier().unwrap());
    }
}

macro_rules! transports {
    ($($name:ident: $transport:ident x $nranks:literal;)+) => { $(
        #[test]
        fn $name() {
            over(stringify!($name), TransportKind::$transport, $nranks);
        }
    )+ };
}

transports! {
    in_process_2: InProcess x 2;
    in_process_3: InProcess x 3;
    shm_2: Shm x 2;
    shm_3: Shm x 3;
    shm_4: Shm x 4;
    tcp_2: Tcp x 2;
    tcp_3: Tcp x 3;
    net_2: Net x 2;
    net_3: Net x 3;
}

/// Streams take long slices from the caller's memory: fan-out, chains, in-place buffers that change while they are waiting.
#[test]
fn tcp_long_slices() {
    let _deadline = Deadline::start("tcp_long_slices", Duration::from_secs(240));
    let transport = Some(TransportKind::Tcp);
    for (nranks, by) in [(2, By::Threads), (3, By::Threads), (3, By::Fibers)] {
        for algorithm in [None, Some(Algorithm::OneShot), Some(Algorithm::Ring), Some(Algorithm::Tree)] {
            let settings = Settings { algorithm, transport, buffer_bytes: 128 << 10, ..Settings::default() };
            let mut world = World::new(nranks, settings);
            for func in FUNCS.into_iter().filter(|func| applies(&settings, *func)) {
                for (k, placement) in Placement::ALL.into_iter().enumerate() {
                    let op = ops(func)[k % ops(func).len()];
                    let (dtype, root, count, seed) = (DataType::F32, nranks - 1, 150_011, k as u64);
                    let case = Case { func, dtype, op, root, count, placement, seed };
                    doing(|| format!("{case:?} by {by:?} with {settings:?}"));
                    case.check(&mut world, by).unwrap();
                }
            }
        }
    }
}

/// Slots that are filled past the caches, as for readers that are far: by copies, by reductions, several at once, and from buffers that are
/// not aligned. No test machine has its ranks far apart for sure.
#[test]
fn streamed_slots() {
    use Algorithm::{Doubling, OneShot, Ring, Tree};
    let _deadline = Deadline::start("streamed_slots", Duration::from_secs(240));
    let transport = Some(TransportKind::Shm);
    let several = [(3, OneShot), (4, Tree), (4, Ring), (5, Doubling)].map(|(nranks, by)| (nranks, Some(by)));
    for (nranks, algorithm) in [(2, None), (3, None)].into_iter().chain(several) {
        let settings = Settings { algorithm, transport, buffer_bytes: 128 << 10, ..Settings::default() };
        let streamed = |_, config: &mut Config| {
            config.slot_stores = SlotStores::Streamed;
            // What goes in buffers goes through the caches.
            config.ping_pong = false;
            config.outbox = None;
            // Long reductions of two ranks would not go through slots.
            config.cma = Cma::Off;
        };
        let mut world = World::with(nranks, settings, streamed);
        for func in FUNCS.into_iter().filter(|func| applies(&settings, *func)) {
            for (k, placement) in Placement::ALL.into_iter().enumerate() {
                let op = ops(func)[k % ops(func).len()];
                let dtype = [DataType::F32, DataType::BF16, DataType::U8][k % 3];
                let (root, count, seed) = (nranks - 1, 150_011 + k, k as u64);
                let case = Case { func, dtype, op, root, count, placement, seed };
                doing(|| format!("{case:?} with {settings:?}"));
                case.check(&mut world, By::Threads).unwrap();
            }
        }
    }
}

/// Every message is read from its sender's memory, and none is: as far as the kernel allows, which does here.
#[test]
fn messages_from_the_senders_memory() {
    let by_length = |_, config: &mut Config| config.cma_min_bytes = Some(1);
    over_with("messages_from_the_senders_memory: shm", TransportKind::Shm, 3, by_length);
    over_with("messages_from_the_senders_memory: process", TransportKind::InProcess, 4, by_length);
    over_with("messages through slots", TransportKind::Shm, 3, |_, config| config.cma = Cma::Off);
}

/// Messages of the lengths around which other code carries them: in one call, spread over slots, read; also where one rank of two reads and is
/// read and the other is not.
#[test]
fn lengths_at_which_messages_go_another_way() {
    let _deadline = Deadline::start("lengths_at_which_messages_go_another_way", Duration::from_secs(240));
    let lengths = [
        2047,
        2048,
        4095,
        4096,
        4097,
        8191,
        8192,
        8193,
        20_000,
        (32 << 10) + 5,
        (64 << 10) - 1,
        64 << 10,
        (64 << 10) + 1,
    ];
    use TransportKind::{InProcess, Shm};
    // How many ranks there are, read, and send in buffers that change hands.
    for (transport, nranks, reads, uses) in
        [(Shm, 2, 0, 2), (Shm, 2, 0, 1), (Shm, 2, 1, 2), (InProcess, 3, 0, 3), (Shm, 4, 0, 4)]
    {
        let settings = Settings { transport: Some(transport), ..Settings::default() };
        let by_rank = |rank: u32, config: &mut Config| {
            config.cma = if rank < reads { Cma::Permit } else { Cma::Off };
            config.ping_pong = rank < uses;
            // Of few ranks, as by default.
            config.outbox = (nranks == 3).then_some(true);
        };
        let mut world = World::with(nranks, settings, by_rank);
        for (k, count) in lengths.into_iter().enumerate() {
            for func in FUNCS.into_iter().filter(|func| applies(&settings, *func)) {
                for (j, placement) in Placement::ALL.into_iter().enumerate() {
                    let op = ops(func)[(j + k) % ops(func).len()];
                    let (root, seed) = (nranks - 1, (j + k) as u64);
                    let case = Case { func, dtype: DataType::U8, op, root, count, placement, seed };
                    let by = if (j + k) % 2 == 0 { By::Threads } else { By::Fibers };
                    doing(|| {
                        format!("{case:?} by {by:?} over {transport}, {reads} read, {uses} use buffers")
                    });
                    case.check(&mut world, by).unwrap();
                }
            }
        }
    }
}

/// Two ranks reduce what they read of each other, whatever the type and the operator, from the lengths on at which they begin to. Some ranks
/// are in place, whose all-reduces are not read.
#[test]
fn reductions_of_what_is_read() {
    let _deadline = Deadline::start("reductions_of_what_is_read", Duration::from_secs(240));
    for (transport, by) in [(TransportKind::Shm, By::Threads), (TransportKind::InProcess, By::Fibers)] {
        let settings = Settings { transport: Some(transport), ..Settings::default() };
        let mut world = World::new(2, settings);
        for (k, dtype) in DataType::ALL.iter().copied().enumerate() {
            for (func, bytes) in [(Func::AllReduce, 64 << 10), (Func::ReduceScatter, 16 << 10)] {
                for (j, op) in ops(func).iter().copied().enumerate() {
                    let count = bytes / dtype.size_bytes() + [0, 1, 77_003][(j + k) % 3];
                    let placement = Placement::ALL[(j + k) % Placement::ALL.len()];
                    let case = Case { func, dtype, op, root: 0, count, placement, seed: (j + k) as u64 };
                    doing(|| format!("{case:?} by {by:?} over {transport}"));
                    case.check(&mut world, by).unwrap();
                }
            }
        }
    }
}

/// Outputs of 32 MiB bypass the caches, broadcasts' sooner: another way to write, with its own ragged ends.
#[test]
fn outputs_that_bypass_the_caches() {
    let _deadline = Deadline::start("outputs_that_bypass_the_caches", Duration::from_secs(240));
    let mut world = World::new(3, Settings::default());
    for func in [Func::Broadcast, Func::AllReduce] {
        for placement in Placement::ALL {
            let count = (32 << 20) + 60_013;
            let case = Case { func, dtype: DataType::U8, op: RedOp::Sum, root: 1, count, placement, seed: 5 };
            doing(|| format!("{case:?}"));
            case.check(&mut world, By::Threads).unwrap();
        }
    }
}

/// Longer than all slots of a connection.
#[test]
fn large_buffers() {
    let _deadline = Deadline::start("large_buffers", Duration::from_secs(240));
    for (nranks, by) in [(2, By::Threads), (3, By::Fibers)] {
        let mut world = World::new(nranks, Settings { buffer_bytes: 1 << 20, ..Settings::default() });
        for (k, dtype) in [DataType::F32, DataType::BF16, DataType::I8].into_iter().enumerate() {
            for func in [Func::AllReduce, Func::Broadcast, Func::AllGather, Func::ReduceScatter, Func::Send] {
                for placement in Placement::ALL {
                    let count = (4 << 20) / dtype.size_bytes() + 60_013;
                    let (op, root, seed) = (RedOp::Sum, nranks - 1, k as u64);
                    let case = Case { func, dtype, op, root, count, placement, seed };
                    doing(|| format!("{case:?} by {by:?}"));
                    case.check(&mut world, by).unwrap();
                }
            }
        }
    }
}
