//! Asynchronous events of a device: ports that go down, queue pairs that fail.
//!
//! One thread per open device waits on the library's descriptor for them. Only the event of a dead device breaks
//! connections: a port that goes down may come back before the retries run out. The others are kept to explain a
//! failure.

use super::abi::{AsyncEvent, Context, Qp};
use super::library::Verbs;
use oxccl_shared::sync::{Sys, Word};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use std::collections::VecDeque;
use std::fmt::Write;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Number of events kept; older ones are dropped.
const KEPT: usize = 16;

/// `enum ibv_event_type`, in its order, with the object of each event.
const KINDS: [(&str, Subject); 19] = [
    ("a completion queue overran", Subject::Device),
    ("a queue pair failed", Subject::QueuePair),
    ("a queue pair got an invalid request", Subject::QueuePair),
    ("the peer accessed memory that it may not", Subject::QueuePair),
    ("a queue pair got its first packet", Subject::QueuePair),
    ("a send queue drained", Subject::QueuePair),
    ("a path migrated", Subject::QueuePair),
    ("a path could not migrate", Subject::QueuePair),
    ("the device failed", Subject::Device),
    ("the port came up", Subject::Port),
    ("the port went down", Subject::Port),
    ("the port's LID changed", Subject::Port),
    ("the port's partition keys changed", Subject::Port),
    ("the port's subnet manager changed", Subject::Port),
    ("a shared receive queue failed", Subject::Device),
    ("a shared receive queue ran low", Subject::Device),
    ("a queue pair's last receive was used", Subject::QueuePair),
    ("the port's subnet manager wants a new registration", Subject::Port),
    ("the port's GIDs changed", Subject::Port),
];
const DEVICE_FATAL: u32 = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Device,
    Port,
    QueuePair,
}

/// The object of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Concern {
    Device,
    Port(u8),
    QueuePair(u32),
}

struct Event {
    kind: &'static str,
    concern: Concern,
    at: Instant,
}

/// The latest events of a device.
pub struct Events {
    recent: Mutex<VecDeque<Event>>,
    /// 1 once the device is dead. Writer: the watcher.
    dead: Word<u32, Sys>,
}

impl Default for Events {
    fn default() -> Events {
        Events { recent: Mutex::default(), dead: Word::new(0) }
    }
}

impl Events {
    /// Whether the device has failed for good.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead.load_relaxed() != 0
    }

    /// The text of the events since `since` about the port or one of the queue pairs; empty if there are none.
    pub fn about(&self, port: u8, qp_nums: &[u32], since: Instant) -> String {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        for event in recent.iter().filter(|event| event.at >= since) {
            let concerns = match event.concern {
                Concern::Device => true,
                Concern::Port(other) => other == port,
                Concern::QueuePair(qp_num) => qp_nums.contains(&qp_num),
            };
            if concerns {
                let ago = event.at.elapsed().as_secs_f64();
                // Writing to a string does not fail.
                let _ = write!(text, "; {ago:.1} s ago {}", event.kind);
            }
        }
        text
    }

    fn add(&self, kind: u32, concern: Concern, device: &str) {
        let text = KINDS.get(kind as usize).map_or("an event of an unknown kind", |(text, _)| text);
        tracing::info!(%device, ?concern, "{text}");
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == KEPT {
            recent.pop_front();
        }
        recent.push_back(Event { kind: text, concern, at: Instant::now() });
        drop(recent);
        if kind == DEVICE_FATAL {
            self.dead.store_release(1);
        }
    }
}

/// The thread that waits for events. Dropping it ends the thread.
pub struct Watcher {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// The library objects that the thread uses.
struct Source {
    verbs: &'static Verbs,
    context: *mut Context,
}

// SAFETY: libibverbs's functions may be called from any thread.
unsafe impl Send for Source {}

impl Watcher {
    /// # Safety
    /// 1. `context` stays open until the watcher is dropped.
    pub unsafe fn start(
        verbs: &'static Verbs,
        context: *mut Context,
        device: &str,
        events: &Arc<Events>,
    ) -> io::Result<Watcher> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let source = Source { verbs, context };
        // SAFETY: obligation 1.
        rustix::io::ioctl_fionbio(unsafe { source.descriptor() }, true)?;
        let (name, events, stopped) = (device.to_owned(), events.clone(), stop.clone());
        let thread = std::thread::Builder::new().name(format!("ib-{device}")).spawn(move || {
            // SAFETY: (1) the context is open until this thread has ended: the watcher's drop waits for it.
            unsafe { source.watch(&stopped, &events, &name) }
        })?;
        Ok(Watcher { stop, thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let written = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let (Ok(_), Some(thread)) = (written, self.thread.take()) {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

impl Source {
    /// # Safety
    /// 1. The context is open for as long as the descriptor is used.
    unsafe fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: obligation 1.
        let fd = unsafe { (*self.context).async_fd };
        // SAFETY: the descriptor is the open context's.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// # Safety
    /// 1. The context is open until this returns.
    unsafe fn watch(&self, stop: &OwnedFd, events: &Events, device: &str) {
        loop {
            // SAFETY: obligation 1.
            let descriptor = unsafe { self.descriptor() };
            let mut fds = [
                PollFd::new(&descriptor, PollFlags::IN),
                PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
            ];
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::warn!(%device, %error, "its events cannot be watched any more");
                    return;
                }
            }
            if !fds[1].revents().is_empty() {
                return;
            }
            // SAFETY: obligation 1.
            unsafe { self.take(events, device) };
        }
    }

    /// Takes one event.
    ///
    /// # Safety
    /// 1. The context is open.
    unsafe fn take(&self, events: &Events, device: &str) {
        loop {
            let mut event = MaybeUninit::<AsyncEvent>::zeroed();
            // SAFETY: obligation 1; `event` is valid for writes; the descriptor does not block.
            if unsafe { (self.verbs.ibv_get_async_event)(self.context, event.as_mut_ptr()) } != 0 {
                return;
            }
            // SAFETY: zeroed and then filled; any bytes are a valid value.
            let mut event = unsafe { event.assume_init() };
            let concern = match KINDS.get(event.event_type as usize).map(|(_, subject)| *subject) {
                Some(Subject::Port) => Concern::Port(event.element.addr() as u8),
                Some(Subject::QueuePair) => {
                    // SAFETY: the library keeps the queue pair of an event until the event is acknowledged.
                    let number = unsafe { (*event.element.cast::<Qp>()).qp_num };
                    Concern::QueuePair(number)
                }
                _ => Concern::Device,
            };
            events.add(event.event_type, concern, device);
            // SAFETY: the event came from ibv_get_async_event and is acknowledged once.
            unsafe { (self.verbs.ibv_ack_async_event)(&mut event) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_explained_by_what_concerns_it() {
        let (events, start) = (Events::default(), Instant::now());
        events.add(10, Concern::Port(1), "mlx5_0");
        events.add(3, Concern::QueuePair(17), "mlx5_0");
        assert!(events.about(1, &[], start).contains("the port went down"));
        assert_eq!(events.about(2, &[18], start), "");
        assert!(events.about(2, &[18, 17], start).contains("memory that it may not"));
        assert_eq!(
            events.about(1, &[17], Instant::now()),
            "",
            "what happened before the connection is left out"
        );
        assert!(!events.is_dead());
    }

    #[test]
    fn only_the_latest_are_kept_and_a_dead_device_stays_dead() {
        let (events, start) = (Events::default(), Instant::now());
        events.add(DEVICE_FATAL, Concern::Device, "mlx5_0");
        (0..KEPT).for_each(|_| events.add(9, Concern::Port(1), "mlx5_0"));
        assert!(events.is_dead());
        let about = events.about(1, &[], start);
        assert_eq!(about.matches("came up").count(), KEPT);
        assert!(!about.contains("failed"), "{about}");
    }
}
