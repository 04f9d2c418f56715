//! Warnings from before the log begins.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

static KEPT: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// What [`warn_once`] has said.
static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
/// More is not remembered: nobody reads so many.
const SAID_MAX: usize = 256;

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

/// Warns of what every communicator of a process meets again.
pub(crate) fn warn_once(text: String) {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.len() < SAID_MAX && said.insert(text.clone()) {
        drop(said);
        warn(text);
    }
}

/// The log begins, or there will be none.
pub(crate) fn say_kept() {
    let kept = std::mem::take(&mut *KEPT.lock().unwrap_or_else(PoisonError::into_inner));
    kept.iter().for_each(|text| tracing::warn!("{text}"));
}
