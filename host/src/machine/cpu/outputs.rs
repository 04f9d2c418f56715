//! Which outputs bypass the caches.

use crate::launch::RawCall;
use crate::plan::Plan;
use oxccl_shared::abi::{Func, Rank};
use std::fs;
use std::sync::OnceLock;

/// A broadcast's output bypasses the caches from this share of the last-level cache on. Its root's input then stays there, which it reads
/// again for the next one (docs/measurements/2026-11-28-cpu-ping-pong.md).
const SHARE_OF_CACHE: (u64, u64) = (5, 16);
/// Where the cache is unknown, or so large.
const AT_MOST_BYTES: u64 = 32 << 20;

/// Whether the output of this rank does.
#[inline]
pub(super) fn bypasses_caches(plan: &Plan, raw: &RawCall, rank: Rank) -> bool {
    let is_in_place = || raw.is_in_place(rank);
    match plan.func {
        // What it receives is no input, wherever that is.
        Func::Broadcast if rank != raw.call.root || !is_in_place() => is_long_broadcast(raw.call.bytes()),
        _ => plan.stream && !is_in_place(),
    }
}

fn is_long_broadcast(bytes: u64) -> bool {
    static LEAST: OnceLock<u64> = OnceLock::new();
    const ASKED_FROM: u64 = 1 << 20;
    bytes >= ASKED_FROM && bytes >= *LEAST.get_or_init(|| least_broadcast(last_level_cache()))
}

fn least_broadcast(cache_bytes: Option<u64>) -> u64 {
    let (share, of) = SHARE_OF_CACHE;
    cache_bytes.map_or(AT_MOST_BYTES, |bytes| (bytes / of * share).min(AT_MOST_BYTES))
}

/// Of the first processor, as Linux has it.
fn last_level_cache() -> Option<u64> {
    let of_level = |index: u32| {
        let text =
            fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
        in_bytes(text.trim())
    };
    // The levels' numbers rise; the first has two.
    (2..8).map_while(of_level).last()
}

fn in_bytes(text: &str) -> Option<u64> {
    let (number, unit) = match text.strip_suffix('K') {
        Some(number) => (number, 1 << 10),
        None => (text.strip_suffix('M')?, 1 << 20),
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_cache_and_no_more_than_before() {
        assert_eq!(least_broadcast(Some(32 << 20)), 10 << 20);
        assert_eq!(least_broadcast(Some(260 << 20)), AT_MOST_BYTES);
        assert_eq!(least_broadcast(None), AT_MOST_BYTES);
    }

    #[test]
    fn sizes_are_read_as_linux_writes_them() {
        assert_eq!(in_bytes("32768K"), Some(32 << 20));
        assert_eq!(in_bytes("2M"), Some(2 << 20));
        assert_eq!(
            [in_bytes(""), in_bytes("12"), in_bytes("xK"), in_bytes("99999999999999999999K")],
            [None; 4]
        );
    }
}
