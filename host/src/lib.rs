//! OxCCL: collective communication between the GPUs and CPUs of one or many hosts.

pub mod mem;
pub mod bootstrap;
