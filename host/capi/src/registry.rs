//! Handles that callers hold, and what they stand for.
//!
//! A handle is a number that is never given out twice, so that a freed, foreign or made-up one is found out and not followed.

use crate::result::{Failure, Outcome};
use oxccl::os::Origin;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// What C callers see as a pointer, which points to nothing.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Handle(pub usize);

impl Handle {
    pub const NULL: Handle = Handle(0);

    fn of(number: u64) -> Handle {
        Handle(number as usize)
    }

    fn number(self) -> u64 {
        self.0 as u64
    }
}

/// The live objects of one kind.
pub struct Registry<T> {
    kind: &'static str,
    first_process: OnceLock<Process<T>>,
    /// Numbers of kinds are apart.
    first: u64,
}

/// Those of one process. A forked child begins anew: what it inherits is its parent's, whose threads may hold the lock there for ever.
struct Process<T> {
    origin: Origin,
    /// How many forks lie before it.
    forks: u64,
    live: RwLock<Live<T>>,
    child: OnceLock<Box<Process<T>>>,
}

struct Live<T> {
    next: u64,
    objects: HashMap<u64, Arc<T>, Spread>,
}

/// Numbers of a process and its child are apart.
const FORK_SHIFT: u32 = 48;
/// Between handles. Programs that show them as addresses show aligned ones.
const STEP: u64 = 16;

impl<T> Registry<T> {
    /// `kind` is what messages call an object; `family` makes its handles different from those of other kinds.
    pub const fn new(kind: &'static str, family: u64) -> Registry<T> {
        Registry { kind, first_process: OnceLock::new(), first: (0xcc1 << 32) + (family << 44) }
    }

    fn live(&self) -> &RwLock<Live<T>> {
        let make = |forks| {
            let live =
                Live { next: self.first + (forks << FORK_SHIFT), objects: HashMap::with_hasher(Spread) };
            Process { origin: Origin::here(), forks, live: RwLock::new(live), child: OnceLock::new() }
        };
        let mut process = self.first_process.get_or_init(|| make(0));
        while !process.origin.is_here() {
            process = process.child.get_or_init(|| Box::new(make(process.forks + 1)));
        }
        &process.live
    }

    /// The process that made what a handle stands for, if it is one from which this was forked.
    pub fn maker(&self, handle: Handle) -> Option<u32> {
        let mut process = self.first_process.get();
        while let Some(of) = process.filter(|of| !of.origin.is_here()) {
            let first = self.first + (of.forks << FORK_SHIFT);
            if (first..first + (1 << 32)).contains(&handle.number()) {
                return Some(of.origin.process());
            }
            process = of.child.get().map(Box::as_ref);
        }
        None
    }

    /// Adds what `make` makes of its handle.
    pub fn add(&self, make: impl FnOnce(Handle) -> T) -> (Handle, Arc<T>) {
        let mut live = self.live().write().unwrap_or_else(PoisonError::into_inner);
        let number = live.next;
        live.next += STEP;
        let object = Arc::new(make(Handle::of(number)));
        live.objects.insert(number, object.clone());
        (Handle::of(number), object)
    }

    pub fn get(&self, handle: Handle, name: &str) -> Outcome<Arc<T>> {
        let live = self.live().read().unwrap_or_else(PoisonError::into_inner);
        live.objects.get(&handle.number()).cloned().ok_or_else(|| self.unknown(handle, name))
    }

    /// Takes it out: from now on the handle is a freed one.
    pub fn remove(&self, handle: Handle, name: &str) -> Outcome<Arc<T>> {
        let mut live = self.live().write().unwrap_or_else(PoisonError::into_inner);
        live.objects.remove(&handle.number()).ok_or_else(|| self.unknown(handle, name))
    }

    /// Takes out all that fit, and drops them.
    pub fn remove_all(&self, fits: impl Fn(&T) -> bool) {
        let mut live = self.live().write().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<Arc<T>> =
            live.objects.extract_if(|_, object| fits(object)).map(|(_, object)| object).collect();
        drop(live);
        drop(gone);
    }

    /// How many objects fit.
    pub fn count(&self, fits: impl Fn(&T) -> bool) -> usize {
        let live = self.live().read().unwrap_or_else(PoisonError::into_inner);
        live.objects.values().filter(|object| fits(object)).count()
    }

    fn unknown(&self, handle: Handle, name: &str) -> Failure {
        if handle == Handle::NULL {
            return Failure::null(name);
        }
        let (kind, number) = (self.kind, handle.number());
        if let Some(maker) = self.maker(handle) {
            let here = std::process::id();
            return Failure::invalid_usage(format!(
                "{name} ({number:#x}) is a {kind} that was created by process {maker}, and process {here} is its forked child: create \
                 communicators after the fork, or call exec"
            ));
        }
        Failure::invalid_argument(format!(
            "{name} ({number:#x}) is no {kind} of this library: it was freed, or something else was passed"
        ))
    }
}

/// Hashes numbers that are counted up in steps: the lookup is on the path of every operation.
#[derive(Clone, Copy, Default)]
struct Spread;

/// The state of [`Spread`].
struct Spreading(u64);

impl BuildHasher for Spread {
    type Hasher = Spreading;

    fn build_hasher(&self) -> Spreading {
        Spreading(0)
    }
}

impl Hasher for Spreading {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0 ^ u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // Knuth's multiplier: the table uses the upper bits and the lower.
        let product = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_handle_stays_unknown() {
        let registry = Registry::new("thing", 1);
        let (first, _) = registry.add(|_| 1);
        assert_eq!(registry.get(first, "x").ok().as_deref(), Some(&1));
        assert!(registry.remove(first, "x").is_ok());
        for _ in 0..100 {
            assert_ne!(registry.add(|_| 2).0, first);
        }
        let failure = registry.get(first, "comm").unwrap_err();
        assert!(failure.text.contains("comm (0x") && failure.text.contains("no thing"), "{}", failure.text);
        assert!(registry.remove(first, "x").is_err());
        assert_eq!(registry.get(Handle::NULL, "comm").unwrap_err().text, "comm is null");
    }

    #[test]
    fn kinds_have_different_handles() {
        let (one, other) = (Registry::new("a", 1), Registry::new("b", 2));
        let (handle, _) = one.add(|_| ());
        other.add(|_| ());
        assert!(other.get(handle, "b").is_err());
    }
}
