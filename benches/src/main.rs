//! The `oxccl` command.
fn main() {}
