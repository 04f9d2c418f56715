//! The schedules of `oxccl_shared::algo`, checked without moving real data: structure exhaustively where that is cheap,
//! behaviour in a discrete simulation of `n` ranks whose connections have as many slots as real ones (`sim`).

mod sim;
mod params;
mod chunk;
mod ring;
mod tree;
mod collnet;
mod mesh;
mod twolevel;
mod pairwise;
