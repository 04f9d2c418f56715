//! Every collective against the oracle: every type, operator, protocol, algorithm, placement and border of a length, for 1
//! to 9 ranks and 16.
//!
//! The full product is `cargo test -p oxccl-tests --test suite conformance:: -- --ignored`. What runs by default draws from it so
//! that any two choices meet in some case, and proves that they did.

mod dims;
mod matrix;
mod transports;
mod all_to_all_v;
mod v;
mod networks;
mod relayed;
mod bits;
mod deterministic;
mod rings;
mod collnet;
mod levels;
mod drawn;
