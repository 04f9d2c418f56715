//! Ends and whole proxies, with real kernels on the CPU.

mod network;
mod ends;
mod ranks;
mod late;
mod coll;
