//! No collective at all: each rank copies `count` elements once. No library that moves a rank's data can be faster.

use super::{Call, Engine, EngineError};

/// Copies. Its results are not those of the collective.
pub struct MemcpyEngine;

impl Engine for MemcpyEngine {
    fn name(&self) -> &'static str {
        "memcpy"
    }

    fn describe(&self) -> String {
        "one copy of count elements by each rank, a bound and not a collective".into()
    }

    fn refuses(&self, call: &Call) -> Option<&'static str> {
        call.in_place.then_some("a copy has two buffers")
    }

    fn checkable(&self) -> bool {
        false
    }

    unsafe fn run(&mut self, calls: &[Call]) -> Result<(), EngineError> {
        for call in calls {
            let bytes = call.count * call.dtype.size_bytes();
            // SAFETY: obligation 1: both buffers hold at least `count` elements in every shape, and do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(call.send, call.recv, bytes) };
        }
        Ok(())
    }
}
