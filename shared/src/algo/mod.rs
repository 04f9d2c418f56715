//! Layer: shared / algo, above `abi` and `fifo`, below everything that moves data.
//! Takes: a rank's place in a ring, a tree or a mesh, and how many elements there are. Never the data.
//! Gives: the schedules, as iterators: who sends which part to whom, in which order, and how a buffer is divided; and the table of
//! all algorithms (`registry`), a row of which lies beside each schedule.
//! Never: touches memory, waits, allocates, knows a protocol or a transport.
//!
//! A schedule exists once. Kernels walk it to move data, proxies to know how many steps a network must carry, the test
//! oracle and the simulators to check both. Two ends of a connection agree on the number and the size of its steps
//! only because both walk these iterators with the same arguments, so nothing here may depend on anything else.
//!
//! From large to small a buffer is divided so (`chunk`):
//!
//! ```text
//! count -> channel_part (one per channel) -> Loops -> block (one per position, or one) -> slices -> step of a FIFO
//! ```
//!
//! Words used by the deadlock arguments of each schedule: a connection has as many slots as its protocol says
//! ([`Protocol::slots`](crate::abi::Protocol::slots)), so a producer's step `k` waits until its consumer has taken step `k - slots`; one step carries one slice; an action that
//! both receives and sends holds the received slot until it has the slot to send into (the worst case for a ring).

pub mod chunk;
pub mod spec;
pub mod ring;
pub mod tree;
pub mod collnet;
pub mod mesh;
pub mod oneshot;
pub mod twoshot;
pub mod twolevel;
pub mod doubling;
pub mod pairwise;
pub mod symmetric;
pub mod custom;
pub mod registry;
pub mod kernels;

/// A rank's action on one block: `value = reduce(received if recv, user's input if src)`, and the value goes to the
/// next rank if `send`, to the user's output if `dst`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Action {
    /// Take the block from the connection (from every connection of the schedule).
    pub recv: bool,
    /// Take the block from the user's input; reduced with what was received, if both.
    pub src: bool,
    /// Pass the value on (to every connection of the schedule).
    pub send: bool,
    /// Write the value to the user's output.
    pub dst: bool,
    /// The value is the complete reduction, so the post-operation (the division of an average) applies here,
    /// before the value is sent or written.
    pub finish: bool,
}

impl Action {
    const NONE: Action = Action { recv: false, src: false, send: false, dst: false, finish: false };

    /// input -> next rank
    pub const SEND: Action = Action { src: true, send: true, ..Self::NONE };
    /// input -> output and next rank
    pub const COPY_SEND: Action = Action { src: true, dst: true, send: true, ..Self::NONE };
    /// input -> output
    pub const COPY: Action = Action { src: true, dst: true, ..Self::NONE };
    /// input -> post-operation -> output: a reduction over one rank
    pub const COPY_FINISH: Action = Action { finish: true, ..Self::COPY };
    /// received -> output
    pub const RECV: Action = Action { recv: true, dst: true, ..Self::NONE };
    /// received -> next rank
    pub const RECV_SEND: Action = Action { recv: true, send: true, ..Self::NONE };
    /// received -> output and next rank
    pub const RECV_COPY_SEND: Action = Action { recv: true, dst: true, send: true, ..Self::NONE };
    /// received + input -> next rank
    pub const RECV_REDUCE_SEND: Action = Action { recv: true, src: true, send: true, ..Self::NONE };
    /// received + input -> post-operation -> output
    pub const RECV_REDUCE_COPY: Action =
        Action { recv: true, src: true, dst: true, finish: true, ..Self::NONE };
    /// received -> nowhere
    pub const DROP: Action = Action { recv: true, ..Self::NONE };
    /// received + input -> post-operation -> output and next rank
    pub const RECV_REDUCE_COPY_SEND: Action = Action { send: true, ..Self::RECV_REDUCE_COPY };
}

/// One action on one block of the user's buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Hop {
    /// The action on the block.
    pub action: Action,
    /// The block; each schedule defines its blocks.
    pub block: u32,
}

/// `value mod n` for a value below `2 n`: a comparison instead of a division, and no division by zero to check for.
#[inline]
const fn wrap(value: u32, n: u32) -> u32 {
    if value >= n { value - n } else { value }
}
