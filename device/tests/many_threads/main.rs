//! The primitives and algorithms under blocks of many threads, on a CPU: one OS thread for each thread of a GPU's block.
//!
//! [`block::ThreadBlock`] is a backend of the kernel DSL made like the GPU's: barriers that carry an OR, words taken singly, a
//! poster under Simple, connections shared by the block in plain cells, control blocks apart. It is stricter than a GPU where
//! that finds mistakes: threads that meet at different barriers, or that wait for one that has ended, panic; bulk operations
//! are divided among the threads differently each time. What the block's threads share they share without atomics, so under
//! miri (module `tiny`) a missing barrier is a data race that is reported, whatever the interleaving.

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
