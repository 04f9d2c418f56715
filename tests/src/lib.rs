//! Placeholder, replaced by the test crate's helpers.
