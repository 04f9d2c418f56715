//! What the loom models share.

/// Lends `value` to threads that `body` starts and joins, and frees it: loom has no scoped threads, and a model runs
/// too often to leak.
pub fn with_shared<T: 'static>(value: T, body: impl FnOnce(&'static T)) {
    let place = Box::into_raw(Box::new(value));
    // SAFETY: lives until the end of this function, and `body` joins every thread that it gave the reference to.
    body(unsafe { &*place });
    // SAFETY: from `into_raw` above; no reference is left.
    drop(unsafe { Box::from_raw(place) });
}
