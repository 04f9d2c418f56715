//! What runs ranks: in threads and in processes, over every transport that needs no special hardware.
//!
//! One program, because each links the whole library. Programs of their own are tests that count allocations or system calls,
//! and those for a machine or a guest that has what they need: see `Cargo.toml`.

mod conformance;
mod by_need;
mod errors;
mod groups;
mod requests;
mod handles;
mod dropped;
mod stream_order;
mod profilers;
mod tuners;
mod kernels_by_need;
mod marks;
mod gpu_traffic;
mod refused_launches;
mod net;
mod mp_collectives;
mod mp_hosts;
mod mp_init;
mod mp_two_jobs;
mod mp_launch;
mod mp_launch_hosts;
mod mp_end;
mod mp_stall;
mod mp_campaign;
mod mp_status;
mod mp_flight;
mod mp_kill;
mod mp_aggregate;
mod aggregator_soak;
mod mp_scale;
mod mp_shrink;
mod mp_train;
mod mp_attack;
mod mp_descriptors;
mod soak;
