//! Warnings from before the log begins.

use std::sync::{Mutex, PoisonError};

static KEPT: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Warns: at once if there is a log, else when it [begins](say_kept). Settings are read before it, since its own are among them.
pub(crate) fn warn(text: String) {
    if tracing::dispatcher::has_been_set() {
        return tracing::warn!("{text}");
    }
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if !kept.contains(&text) {
        kept.push(text);
    }
}

/// The log begins, or there will be none.
pub(crate) fn say_kept() {
    let kept = std::mem::take(&mut *KEPT.lock().unwrap_or_else(PoisonError::into_inner));
    kept.iter().for_each(|text| tracing::warn!("{text}"));
}
