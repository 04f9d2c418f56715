//! Operations among heads that are all there.

use super::heads::{End, What, all_output, heads};
use crate::deck::Deck;
use crate::guarded::bytes_of;
use crate::model::Model;
use crate::net::until;
use crate::with_type;
use oxccl::net::coll::{CollNet, Reduction, Window};
use oxccl::net::{MemoryKinds, NetError, NetMemory, NetMemoryKind, REQUESTS_MAX, Request};
use oxccl::{DataType, Func, RedOp};
use std::sync::Arc;

pub fn devices(net: &Arc<dyn CollNet>) {
    assert!(net.devices() > 0 && !net.name().is_empty());
    for device in 0..net.devices() {
        let facts = net.properties(device).expect("it is one of them");
        assert!(!facts.name.is_empty() && facts.memory.contains(MemoryKinds::HOST), "{facts:?}");
        assert!(facts.message_max_bytes >= 1 << 20, "{facts:?}");
    }
    let beyond = net.devices();
    assert!(matches!(net.properties(beyond), Err(NetError::NoDevice { .. })));
    assert!(matches!(net.listen(beyond).err(), Some(NetError::NoDevice { .. })));
    for dtype in DataType::ALL {
        for op in [RedOp::Avg, RedOp::PreMulSum] {
            assert_eq!(net.reduces(*dtype, op), Ok(false), "{dtype} {op}");
        }
    }
}

/// Elements of operations whose lengths are at borders.
const COUNTS: [usize; 6] = [0, 1, 7, 1000, 4096, 70_001];

pub fn reductions(net: &Arc<dyn CollNet>) {
    let mut seed = 0;
    let mut reduced = 0;
    for nheads in 1..=4 {
        let mut ends = heads(net, nheads);
        for dtype in DataType::ALL {
            for op in [RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min] {
                if !net.reduces(*dtype, op).expect("it says so of every type and operator") {
                    continue;
                }
                seed += 1;
                let what = What::all_reduce(COUNTS[seed as usize % COUNTS.len()], *dtype, op);
                let what = What { in_place: seed % 2 == 0, ..what };
                with_type!(*dtype, T => run::<T>(&mut ends, &what, seed));
                reduced += 1;
            }
        }
    }
    assert!(reduced >= 4, "a network that reduces next to nothing");
}

/// One operation of all heads, checked.
fn run<T: Model>(ends: &mut [End], what: &What, seed: u64) {
    let parts = all_output::<T>(what, ends.len() as u32, seed);
    let outputs = until_done(ends, what, &parts);
    for (head, (output, (_, expected))) in outputs.iter().zip(&parts).enumerate() {
        assert!(output == bytes_of(expected), "head {head} of {}: {what:?}", ends.len());
    }
}

fn until_done<T: Model>(ends: &mut [End], what: &What, parts: &[(Vec<T>, Vec<T>)]) -> Vec<Vec<u8>> {
    for (end, (input, output)) in ends.iter_mut().zip(parts) {
        let post = || {
            let posted = end.post(what, bytes_of(input), size_of_val(&output[..]));
            posted.expect("all heads are there").then_some(())
        };
        until("room for an operation", post);
    }
    let mut outputs: Vec<Option<Vec<u8>>> = ends.iter().map(|_| None).collect();
    until("an operation", || {
        for (end, output) in ends.iter_mut().zip(&mut outputs).filter(|(_, output)| output.is_none()) {
            *output = end.oldest().expect("all heads are there");
        }
        outputs.iter().all(Option::is_some).then_some(())
    });
    outputs.into_iter().flatten().collect()
}

/// What a network surely reduces, if it is to be used.
const CERTAIN: (DataType, RedOp) = (DataType::U64, RedOp::Sum);

/// Every head begins all operations, as many at once as are taken, and ends them in order.
fn pipeline(ends: &mut [End], counts: &[usize]) {
    let (dtype, op) = CERTAIN;
    let nheads = ends.len() as u64;
    let input = |head: u64, k: usize| vec![head * 1_000_003 + k as u64; counts[k]];
    let mut posted = vec![0; ends.len()];
    let mut got = vec![0; ends.len()];
    until("a pipeline", || {
        for (head, end) in ends.iter_mut().enumerate() {
            let k = posted[head];
            if k < counts.len() {
                let (what, input) = (What::all_reduce(counts[k], dtype, op), input(head as u64, k));
                let bytes = bytes_of(&input);
                posted[head] += usize::from(end.post(&what, bytes, bytes.len()).expect("all are there"));
            }
            while let Some(output) = end.oldest().expect("all are there") {
                let k = got[head];
                let sum = (0..nheads).map(|head| head * 1_000_003 + k as u64).sum::<u64>();
                assert!(output == bytes_of(&vec![sum; counts[k]]), "head {head}, operation {k}");
                got[head] += 1;
            }
        }
        got.iter().all(|got| *got == counts.len()).then_some(())
    });
}

pub fn order(net: &Arc<dyn CollNet>) {
    let counts: Vec<usize> = (0..200).map(|k| [1, 300, 16, 9000][k % 4] + k).collect();
    pipeline(&mut heads(net, 3), &counts);
}

pub fn exhausted(net: &Arc<dyn CollNet>) {
    let mut ends = heads(net, 2);
    let (dtype, op) = CERTAIN;
    let what = What::all_reduce(1, dtype, op);
    // Without the other head nothing ends.
    let mut taken = 0;
    while ends[0].post(&what, &[1; 8], 8).expect("all are there") {
        taken += 1;
        assert!(taken <= REQUESTS_MAX, "more than {REQUESTS_MAX} operations were taken");
    }
    assert!(taken > 0 && ends[0].under_way() == taken);
    assert_eq!(ends[0].oldest(), Ok(None));
    let mut got = [0; 2];
    let mut posted = 0;
    until("all operations", || {
        if posted < taken {
            posted += usize::from(ends[1].post(&what, &[2; 8], 8).expect("all are there"));
        }
        for (end, got) in ends.iter_mut().zip(&mut got) {
            while let Some(output) = end.oldest().expect("all are there") {
                assert_eq!(output, [3; 8]);
                *got += 1;
            }
        }
        (got == [taken; 2]).then_some(())
    });
}

pub fn others(net: &Arc<dyn CollNet>) {
    for nheads in 1..=3 {
        let mut ends = heads(net, nheads);
        for func in [Func::AllGather, Func::ReduceScatter] {
            for (count, dtype) in [(1, DataType::U64), (3001, DataType::I32), (17, DataType::F32)] {
                let what =
                    What { func, reduction: Reduction { count, dtype, op: RedOp::Sum }, in_place: false };
                with_type!(dtype, T => {
                    let parts = all_output::<T>(&what, nheads, 5);
                    let input = bytes_of(&parts[0].0).to_vec();
                    let refused = match ends[0].post(&what, &input, size_of_val(&parts[0].1[..])) {
                        Err(NetError::Unsupported { device, .. }) => !device.is_empty(),
                        other => {
                            assert_eq!(other, Ok(true));
                            rest_of::<T>(&mut ends, &what, &parts);
                            false
                        }
                    };
                    // What it refused breaks nothing.
                    if refused {
                        run::<u64>(&mut ends, &What::all_reduce(10, DataType::U64, RedOp::Sum), 3);
                    }
                });
            }
        }
    }
}

/// Windows of gathers and scatters of blocks of up to several fragments, which begin and end anywhere; the k-th of one head belongs to the k-th
/// of the others. For networks that have both.
pub fn windows(net: &Arc<dyn CollNet>, rounds: u64, seed: u64) {
    let mut deck = Deck::new(1 << 20, seed);
    for nheads in [1, 2, 3, 5] {
        let mut ends = heads(net, nheads);
        for seed in 0..rounds {
            let dtype = DataType::ALL[deck.draw() % DataType::ALL.len()];
            let op = [RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min][deck.draw() % 4];
            let func = [Func::AllGather, Func::ReduceScatter][deck.draw() % 2];
            let count = 1 + deck.draw() % [7, 1000, 200_000][deck.draw() % 3];
            if func == Func::ReduceScatter && net.reduces(dtype, op) != Ok(true) {
                continue;
            }
            let what = What { func, reduction: Reduction { count, dtype, op }, in_place: false };
            let whole = count * nheads as usize;
            let start = deck.draw() % whole;
            let len = deck.draw() % (whole - start + 1);
            let size = dtype.size_bytes();
            let window = Window { head_bytes: count * size, start: start * size, len_bytes: len * size };
            with_type!(dtype, T => window_of::<T>(&mut ends, &what, window, seed));
        }
    }
}

/// One window of all heads, checked.
fn window_of<T: Model>(ends: &mut [End], what: &What, window: Window, seed: u64) {
    let parts = all_output::<T>(what, ends.len() as u32, seed);
    let mut expected = Vec::new();
    for (head, (end, (input, output))) in (0..).zip(ends.iter_mut().zip(&parts)) {
        let share = window.share(head);
        let of_block = |bytes: &[u8]| -> Vec<u8> {
            let before = (window.start + share.start).saturating_sub(head as usize * window.head_bytes);
            if share.is_empty() { Vec::new() } else { bytes[before..before + share.len()].to_vec() }
        };
        let of_whole = |bytes: &[u8]| bytes[window.start..window.end()].to_vec();
        let (input, output) = match what.func {
            Func::AllGather => (of_block(bytes_of(input)), of_whole(bytes_of(output))),
            _ => (of_whole(bytes_of(input)), of_block(bytes_of(output))),
        };
        let posted = end.post_window(what, window, &input, output.len());
        assert_eq!(posted, Ok(true), "{what:?} {window:?}");
        expected.push(output);
    }
    let mut left: Vec<usize> = (0..ends.len()).collect();
    until("a window", || {
        left.retain(|head| {
            let Some(output) = ends[*head].oldest().expect("all are there") else { return true };
            assert!(output == expected[*head], "head {head} of {}: {what:?} {window:?}", expected.len());
            false
        });
        left.is_empty().then_some(())
    });
}

/// What no window of blocks is, is refused, and breaks nothing.
pub fn bad_windows(net: &Arc<dyn CollNet>) {
    let mut ends = heads(net, 1);
    let what = |func, dtype| What {
        func,
        reduction: Reduction { count: 4, dtype, op: RedOp::Sum },
        in_place: false,
    };
    let window = |head_bytes, start, len_bytes| Window { head_bytes, start, len_bytes };
    let gather = what(Func::AllGather, DataType::U8);
    let scatter = what(Func::ReduceScatter, DataType::F32);
    let average = What { reduction: Reduction { op: RedOp::Avg, ..scatter.reduction }, ..scatter };
    for (what, window) in [
        (gather, window(16, 0, 17)),
        (gather, window(16, 17, 0)),
        (gather, window(16, usize::MAX, 2)),
        (gather, window(usize::MAX, 0, usize::MAX)),
        (scatter, window(16, 2, 4)),
        (scatter, window(16, 0, 6)),
        (scatter, window(18, 0, 16)),
        (average, window(16, 0, 16)),
    ] {
        // Whatever would be done with them, that many bytes are there.
        let length = |bytes: usize| bytes.min(64);
        let posted = ends[0].post_window(&what, window, &[0; 64], length(window.len_bytes));
        assert!(posted.is_err(), "{what:?} {window:?}: {posted:?}");
    }
    run::<u64>(&mut ends, &What::all_reduce(10, DataType::U64, RedOp::Sum), 3);
}

/// Head 0 has begun; the others begin, and all end.
fn rest_of<T: Model>(ends: &mut [End], what: &What, parts: &[(Vec<T>, Vec<T>)]) {
    for (end, (input, output)) in ends.iter_mut().zip(parts).skip(1) {
        assert_eq!(end.post(what, bytes_of(input), size_of_val(&output[..])), Ok(true));
    }
    let mut left: Vec<usize> = (0..ends.len()).collect();
    until("a gather or scatter", || {
        left.retain(|head| {
            let Some(output) = ends[*head].oldest().expect("all are there") else { return true };
            assert!(output == bytes_of(&parts[*head].1), "head {head}: {what:?}");
            false
        });
        left.is_empty().then_some(())
    });
}

pub fn threads(net: &Arc<dyn CollNet>) {
    let mut ends = heads(net, 3);
    std::thread::scope(|scope| {
        for end in &mut ends {
            scope.spawn(move || {
                for k in 0..50u64 {
                    let input = vec![k; 1 + k as usize * 31];
                    let (dtype, op) = CERTAIN;
                    let what = What::all_reduce(input.len(), dtype, op);
                    let bytes = bytes_of(&input);
                    until("room", || {
                        end.post(&what, bytes, bytes.len()).expect("all are there").then_some(())
                    });
                    let output = until("a result", || end.oldest().expect("all are there"));
                    assert!(output == bytes_of(&vec![3 * k; input.len()]), "operation {k}");
                }
            });
        }
    });
}

pub fn registration(net: &Arc<dyn CollNet>) {
    let facts = net.properties(0).expect("device 0");
    let mut ends = heads(net, 2);
    let mut memory = vec![0u8; 1 << 16];
    let mut host = |start: usize, len_bytes: usize| NetMemory {
        start: memory[start..].as_mut_ptr().cast(),
        len_bytes,
        kind: NetMemoryKind::Host,
    };
    // SAFETY: the memory outlives the communicators, and no operation uses it.
    let registered: Vec<_> =
        (0..64).map(|i| unsafe { ends[0].comm.register(host(i * 1000, 1000)) }.expect("memory")).collect();
    for registration in registered.iter().rev() {
        ends[0].comm.deregister(*registration).expect("it was registered");
    }
    let again = ends[0].comm.deregister(registered[0]).expect_err("it is not registered any more");
    assert!(again.to_string().contains("not registered"), "{again}");
    if !facts.memory.contains(MemoryKinds::CUDA) {
        let cuda = NetMemory { kind: NetMemoryKind::Cuda, ..host(0, 100) };
        // SAFETY: refused, so that nothing happens.
        let refused = unsafe { ends[1].comm.register(cuda) };
        assert!(matches!(refused, Err(NetError::Unsupported { .. })), "{refused:?}");
    }
    pipeline(&mut ends, &[1, 2, 3]);
}

pub fn not_under_way(net: &Arc<dyn CollNet>) {
    let mut ends = heads(net, 2);
    assert!(ends[0].comm.test(Request(7)).is_err());
    let (dtype, op) = CERTAIN;
    for end in &mut ends {
        assert_eq!(end.post(&What::all_reduce(1, dtype, op), &[4; 8], 8), Ok(true));
    }
    let [request] = ends[0].requests()[..] else { panic!("one operation is under way") };
    let mut left = 2;
    until("the operation", || {
        left -= ends.iter_mut().filter_map(|end| end.oldest().expect("all are there")).count();
        (left == 0).then_some(())
    });
    assert!(ends[0].comm.test(request).is_err());
    pipeline(&mut ends, &[10; 50]);
}
