//! Layer: host / log, above the operating system.
//! Takes: `tracing` events of the library, and `NCCL_DEBUG`, `NCCL_DEBUG_SUBSYS` and `NCCL_DEBUG_FILE` as text.
//! Gives: lines as NCCL writes them (`host:pid:tid [cudadev] NCCL INFO text`), to standard output or a file; [`install`].
//! Never: writes without being asked to, or replaces the subscriber that a program has set.

mod early;
mod settings;
mod line;
mod laps;
mod subscriber;

pub(crate) use early::{say_kept, warn, warn_once};
pub(crate) use laps::Laps;
pub(crate) use line::host_name;
pub use line::on_device;
pub use settings::{Level, LogSettings, Subsystems};
pub use subscriber::install;
