//! Several calls as one: sends and receives in any order, several communicators on a thread, splits, and anything at random.

mod messages;
mod several;
mod splits;
pub(crate) mod program;
mod random;
