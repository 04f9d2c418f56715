//! Invalid arguments are refused before anything is sent, and the communicator stays usable.

use oxccl::{
    ArgumentError, Blocks, BlocksError, Communicator, DataType, Error, Func, Rank, ReduceOp, Untyped,
    UntypedV,
};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::harness::{Settings, World};
use std::time::Duration;

/// A call with an invalid argument, and the expected error.
type Refused = (fn(&Communicator) -> Result<(), Error>, ArgumentError);

fn length(func: Func, which: &'static str, actual: usize, expected: usize) -> ArgumentError {
    ArgumentError::BufferLength { func, which, actual, expected }
}

const fn no_rank(func: Func, rank: u32) -> ArgumentError {
    ArgumentError::NoSuchRank { func, rank: Rank(rank), nranks: 2 }
}

fn untyped(rank: &Communicator, call: Untyped) -> Result<(), Error> {
    // SAFETY: every call here is refused by its arguments, before a pointer is used.
    unsafe { rank.run_untyped(&call) }
}

fn lengths() -> Vec<Refused> {
    vec![
        (
            |rank| rank.all_reduce(&[0u8; 3], &mut [0u8; 4], ReduceOp::SUM),
            length(Func::AllReduce, "receive", 4, 3),
        ),
        (|rank| rank.all_gather(&[0u8; 3], &mut [0u8; 3]), length(Func::AllGather, "receive", 3, 6)),
        (
            |rank| rank.reduce_scatter(&[0u8; 3], &mut [0u8; 3], ReduceOp::SUM),
            length(Func::ReduceScatter, "send", 3, 6),
        ),
        (|rank| rank.broadcast(&[0u8; 3], &mut [0u8; 4], rank.rank()), length(Func::Broadcast, "send", 3, 4)),
        (
            |rank| rank.reduce(&[0u8; 3], &mut [0u8; 0], ReduceOp::SUM, rank.rank()),
            length(Func::Reduce, "receive", 0, 3),
        ),
        (|rank| rank.all_to_all(&[0u8; 4], &mut [0u8; 6]), length(Func::AllToAll, "receive", 6, 4)),
        (|rank| rank.gather(&[0u8; 3], &mut [0u8; 5], rank.rank()), length(Func::Gather, "receive", 5, 6)),
        (|rank| rank.scatter(&[0u8; 7], &mut [0u8; 3], rank.rank()), length(Func::Scatter, "send", 7, 6)),
        (
            |rank| rank.all_to_all(&[0u8; 5], &mut [0u8; 5]),
            ArgumentError::NotDivisible { func: Func::AllToAll, which: "send", actual: 5, nranks: 2 },
        ),
        (
            |rank| rank.all_gather_in_place(&mut [0u8; 5]),
            ArgumentError::NotDivisible { func: Func::AllGather, which: "receive", actual: 5, nranks: 2 },
        ),
    ]
}

fn blocks() -> Vec<Refused> {
    const TWO: Blocks<'_> = Blocks { counts: &[1, 2], displs: &[0, 1] };
    fn v(rank: &Communicator, sent: Blocks<'_>, received: Blocks<'_>) -> Result<(), Error> {
        rank.all_to_all_v(&[0u8; 3], sent, &mut [0u8; 3], received)
    }
    let ranks = |which, counts, displs| BlocksError::Ranks { which, counts, displs, nranks: 2 };
    vec![
        (|rank| v(rank, Blocks { counts: &[3], ..TWO }, TWO), ranks("send", 1, 2).into()),
        (|rank| v(rank, TWO, Blocks { displs: &[0, 1, 2], ..TWO }), ranks("receive", 2, 3).into()),
        (
            |rank| v(rank, Blocks { displs: &[0, 2], ..TWO }, TWO),
            BlocksError::Range { which: "send", rank: Rank(1), count: 2, displ: 2, actual: 3 }.into(),
        ),
        (
            |rank| v(rank, TWO, Blocks { counts: &[usize::MAX, 0], displs: &[1, usize::MAX] }),
            BlocksError::Range { which: "receive", rank: Rank(0), count: usize::MAX, displ: 1, actual: 3 }
                .into(),
        ),
        (
            |rank| v(rank, TWO, Blocks { displs: &[1, 0], ..TWO }),
            BlocksError::Overlap { rank: Rank(0), other: Rank(1) }.into(),
        ),
        (
            |rank| {
                let null = UntypedV {
                    send: std::ptr::null(),
                    send_blocks: Blocks { counts: &[0, 2], displs: &[9, 9] },
                    recv: std::ptr::null_mut(),
                    recv_blocks: TWO,
                    dtype: DataType::F64,
                };
                // SAFETY: refused by its arguments, before a pointer is used.
                unsafe { rank.run_untyped_v(&null) }
            },
            BlocksError::Null { which: "send", rank: Rank(1), count: 2 }.into(),
        ),
    ]
}

/// The two lengths of a rank's block to itself differ: the error says which rank's.
#[test]
fn a_block_to_oneself_has_one_length() {
    let _deadline = Deadline::start("a_block_to_oneself_has_one_length", Duration::from_secs(60));
    World::new(2, Settings::default()).each(|rank| {
        let me = rank.rank() as usize;
        let (mut sent, received) = ([1, 1], [1, 1]);
        sent[me] = 2;
        let sent = Blocks { counts: &sent, displs: &[0, 2] };
        let received = Blocks { counts: &received, displs: &[0, 1] };
        let refused = rank.all_to_all_v(&[0u8; 4], sent, &mut [0u8; 2], received);
        let expected = BlocksError::Own { rank: Rank(me as u32), sent: 2, received: 1 };
        assert_eq!(refused, Err(Error::Argument(expected.into())));
        assert!(refused.unwrap_err().to_string().contains(&format!("rank {me} sends 2 elements to itself")));
        // A group gets none of its messages.
        let mut untouched = [0u8; 2];
        oxccl::group(|group| {
            group.all_to_all_v(rank, &[0u8; 4], sent, &mut untouched, received).unwrap_err();
            group.barrier(rank)
        })
        .unwrap();
    });
}

fn ranks() -> Vec<Refused> {
    vec![
        (|rank| rank.broadcast(&[0u8], &mut [0u8], 2), no_rank(Func::Broadcast, 2)),
        (|rank| rank.reduce(&[0u8], &mut [0u8], ReduceOp::SUM, 9), no_rank(Func::Reduce, 9)),
        (|rank| rank.gather(&[0u8], &mut [0u8], u32::MAX), no_rank(Func::Gather, u32::MAX)),
        (|rank| rank.scatter(&[0u8], &mut [0u8], 2), no_rank(Func::Scatter, 2)),
        (|rank| rank.send(&[0u8], 2), no_rank(Func::Send, 2)),
        (|rank| rank.recv(&mut [0u8], 2), no_rank(Func::Recv, 2)),
    ]
}

fn others() -> Vec<Refused> {
    let null = |func, which| ArgumentError::NullBuffer { func, which, count: 3 };
    vec![
        (
            |rank| untyped(rank, Untyped { count: 3, ..Untyped::new(Func::AllReduce, DataType::F32) }),
            null(Func::AllReduce, "send"),
        ),
        (
            |rank| {
                let send = [0u8; 3].as_ptr();
                untyped(rank, Untyped { send, count: 3, ..Untyped::new(Func::AllGather, DataType::U8) })
            },
            null(Func::AllGather, "receive"),
        ),
        (
            |rank| untyped(rank, Untyped { count: 3, peer: 1, ..Untyped::new(Func::Recv, DataType::U8) }),
            null(Func::Recv, "receive"),
        ),
        (
            |rank| rank.all_reduce_in_place(&mut [0f32], ReduceOp::pre_mul_sum(2f64)),
            ArgumentError::ScalarType {
                func: Func::AllReduce,
                scalar: DataType::F64,
                buffers: DataType::F32,
            },
        ),
        (
            |rank| {
                let count = usize::MAX / 8;
                untyped(rank, Untyped { count, ..Untyped::new(Func::AllReduce, DataType::F64) })
            },
            ArgumentError::TooLarge { func: Func::AllReduce, count: usize::MAX / 8, dtype: DataType::F64 },
        ),
    ]
}

#[test]
fn bad_arguments_are_refused_and_the_communicator_goes_on() {
    let _deadline = Deadline::start("bad_arguments", Duration::from_secs(60));
    let mut world = World::new(2, Settings::default());
    for (call, expected) in lengths().into_iter().chain(blocks()).chain(ranks()).chain(others()) {
        world.each(|rank| {
            assert_eq!(call(rank), Err(Error::Argument(expected)), "{expected}");
            assert_eq!(rank.async_error(), None);
            let mut sum = [1u32; 5];
            rank.all_reduce_in_place(&mut sum, ReduceOp::SUM).unwrap();
            assert_eq!(sum, [2; 5]);
        });
    }
}

/// Pointers that a function does not use may be null, and all may be where there are no elements.
#[test]
fn null_is_accepted_where_nothing_is_read_or_written() {
    let _deadline = Deadline::start("null_is_accepted", Duration::from_secs(60));
    World::new(2, Settings::default()).each(|rank| {
        for func in [Func::AllReduce, Func::AllGather, Func::Broadcast, Func::AllToAll, Func::Reduce] {
            untyped(rank, Untyped::new(func, DataType::F64)).unwrap();
        }
        let mut buffer = [rank.rank() as u8 + 3; 4];
        let (send, recv) = (buffer.as_ptr(), buffer.as_mut_ptr());
        let broadcast = Untyped { count: 4, peer: 1, ..Untyped::new(Func::Broadcast, DataType::U8) };
        let call = match rank.rank() {
            0 => Untyped { recv, ..broadcast },
            _ => Untyped { send, recv, ..broadcast },
        };
        // SAFETY: four elements, input and output the same; rank 0 has no input.
        unsafe { rank.run_untyped(&call) }.unwrap();
        assert_eq!(buffer, [4; 4]);
    });
}
