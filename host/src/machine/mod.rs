//! Layer: host / machine, what runs kernels.
//! Takes: calls with their buffers, connections and facts that were agreed on at init.
//! Gives: one folder for each kind of [`Machine`](crate::launch::Machine). [`cpu`]: the caller's thread; [`cuda`]: GPUs of NVIDIA.
//! Never: chooses algorithms (`plan` did), makes connections (`channel` did).

pub mod cpu;
pub mod cuda;
