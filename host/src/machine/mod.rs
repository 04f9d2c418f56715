//! Layer: host / machine, what runs kernels.
//! Takes: calls with their buffers, connections and facts that were agreed on at init.
//! Gives: one folder for each kind of machine. [`cuda`]: GPUs of NVIDIA.
//! Never: chooses algorithms (`plan` did), makes connections (`channel` did).

pub mod cuda;
