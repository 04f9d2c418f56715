//! Segments that threads of one process share through a table instead of a file.

use super::error::MemError;
use super::segment::Segment;
use oxccl_shared::abi::Rank;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

/// Communicator hash and rank.
type Key = (u64, Rank);

/// Weak: the table keeps no memory alive. Locked during communicator creation only.
static PUBLISHED: LazyLock<Mutex<HashMap<Key, Weak<Segment>>>> = LazyLock::new(Mutex::default);

/// Publishes this rank's segment to the other ranks of the communicator (given by its hash) in this process, for as
/// long as an `Arc` of it lives.
///
/// # Errors
/// [`MemError::PublishedTwice`] if a live segment has the same key.
pub fn publish(key: (u64, Rank), segment: &Arc<Segment>) -> Result<(), MemError> {
    let mut table = table();
    table.retain(|_, segment| segment.strong_count() > 0);
    if table.contains_key(&key) {
        return Err(MemError::PublishedTwice { comm_hash: key.0, rank: key.1 });
    }
    table.insert(key, Arc::downgrade(segment));
    Ok(())
}

/// The segment that this rank of the communicator published in this process.
pub fn lookup(key: (u64, Rank)) -> Option<Arc<Segment>> {
    table().get(&key).and_then(Weak::upgrade)
}

/// A panic under the lock leaves the map consistent, so poisoning is ignored.
fn table() -> MutexGuard<'static, HashMap<Key, Weak<Segment>>> {
    PUBLISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_found_while_it_lives() {
        let key = (0x7e57_0001, Rank(2));
        assert!(lookup(key).is_none());
        let segment = Arc::new(Segment::private(100).unwrap());
        publish(key, &segment).unwrap();
        assert_eq!(lookup(key).unwrap().base(), segment.base());
        assert!(lookup((key.0, Rank(3))).is_none());
        let twice = MemError::PublishedTwice { comm_hash: key.0, rank: key.1 };
        assert_eq!(publish(key, &segment), Err(twice));
        drop(segment);
        assert!(lookup(key).is_none());
        publish(key, &Arc::new(Segment::private(100).unwrap())).unwrap();
    }
}
