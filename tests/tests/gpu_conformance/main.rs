//! Collectives between GPUs, byte for byte against the oracle. For machines with two GPUs or more, or with one that ranks share
//! (`OXCCL_DUPLICATE_GPUS=1`).

mod launch;
mod matrix;
mod processes;
mod trees;
mod levels;
mod messages;
mod first_use;
mod operations;
mod short;
mod splits;
mod faults;
mod campaign;
mod survivors;
mod net;
mod net_graphs;
mod collnet;
mod gdr;
mod cudarc;
mod deterministic;
mod one_sided;
mod copy_engines;
mod symmetric;
mod plugins;
