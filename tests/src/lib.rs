//! Layer: tests, beside the library and above all of it.
//! Takes: communicators, as a user makes them.
//! Gives: the oracle (the result of every collective), data with one right answer, guarded buffers, and worlds of
//! ranks in one process to run cases in.
//! Never: uses the library's schedules or arithmetic to compute the expected result.

pub mod random;
pub mod minifloat;
pub mod model;
pub mod guarded;
pub mod uneven;
pub mod oracle;
pub mod counting;
pub mod deadline;
pub mod harness;
pub mod patient;
pub mod case;
pub mod borders;
pub mod devices;
pub mod fake_driver;
pub mod deck;
pub mod tidy;
pub mod failed;
pub mod process;
pub mod flight;
pub mod hosts;
pub mod net;
pub mod gdr;
pub mod slowed;
pub mod soak;
