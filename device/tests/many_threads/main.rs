//! The primitives and algorithms under blocks of many threads, on a CPU: one OS thread for each thread of a GPU's block.
//!
//! [`block::ThreadBlock`] is a backend of the kernel DSL made like the GPU's: barriers that carry an OR, words taken singly,
//! lines of LL128 moved by several threads, a poster under Simple, connections shared by the block in plain cells, control blocks
//! apart. It is stricter than a GPU where that finds mistakes: threads that meet at different barriers, or that wait for one that
//! has ended, panic; bulk operations are divided among the threads differently each time. What the threads of a block share they
//! share without atomics, so under miri a missing barrier is a data race that is reported, whatever the interleaving:
//!
//! ```text
//! cargo test -p oxccl-device --test many_threads                            a few seconds
//! cargo +nightly miri test -p oxccl-device --test many_threads -- tiny::     about a minute
//! ```
//!
//! # What is known to be found
//! Each of these was put into the code and the tests run; N is the plain run (a hang counts as found), M is miri.
//!
//! | mistake | found by |
//! |---|---|
//! | `run_slice`, line protocols: no barrier before, or none after, the steps are counted | N M |
//! | `run_slice`, Simple: the first worker waits and the others do not wait for it | N M |
//! | `run_slice`, Simple: slots are announced before all threads have closed | N M |
//! | `exchange`: no barrier before, or none after, the steps are counted | N M |
//! | `exchange_lines`: no barrier before, or none after, the steps are counted; the second hop over the first; no wait for credits; a thread that stops without its team | N |
//! | every worker, not only the first, remembers the credits it saw | M |
//! | every worker gives LL's slots back | N M |
//! | the poster reads the first worker's count instead of its own | N M |
//! | Simple: no meeting between two passes of a reduction, or before further copies | N M |
//! | LL: slots are cleaned while the first worker counts steps | N M |
//! | LL: slots are never cleaned, or from one line too late | N |
//! | bulk copies: one count of turns for pieces that are moved and that are combined | N |
//! | line protocols leave the poster's count behind | N |
//! | no wait for credits, in a slice or in an exchange | N |
//! | the header of a slot is not compared | N |
//! | two hops: the result of the first is pre-multiplied again | N |
//! | one hop: our own operand is reduced out of turn; a peer's length is another's | N |

mod arith;
mod barrier;
mod block;
mod buffer;
mod case;
mod world;

mod collectives;
mod ends;
mod messages;
mod steps;
mod tiny;
