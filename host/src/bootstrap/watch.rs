//! Layer: host / bootstrap, its top.
//! Takes: a connected [`Bootstrap`] and a callback.
//! Gives: [`Watch`]: it calls back for every rank that dies or aborts, while collectives continue to work.
//! Never: uses the CPU while nothing happens and nobody asked to be called.

use super::endpoint::Bootstrap;
use super::error::BootstrapError;
use super::ring::PeerEvent;
use super::state::OnTick;

/// A bootstrap under watch.
///
/// A rank whose process ends without goodbye, or whose host does not answer for `peer_dead_after`, is reported to
/// every other rank, once. A rank that aborts is reported as such, and its later end is not reported again. A rank
/// that closes in order is reported as having left.
pub struct Watch {
    bootstrap: Bootstrap,
}

impl Bootstrap {
    /// Calls `on_event` for every past and future event of other ranks. It runs on the bootstrap's thread, so it must
    /// not wait for other ranks; otherwise it may drop or use anything.
    pub fn watch(self, on_event: Box<dyn Fn(PeerEvent) + Send>) -> Watch {
        self.shared.lock().on_event = Some(on_event);
        self.shared.wake();
        Watch { bootstrap: self }
    }
}

impl Watch {
    /// Calls `on_tick` on the bootstrap's thread: now, after everything that happens there, and at the time that it returned last; with
    /// this rank's neighbours and whether their hosts answer. As for the other callback.
    pub fn call_back(&self, on_tick: OnTick) {
        self.bootstrap.shared.lock().on_tick = Some(on_tick);
        self.bootstrap.shared.wake();
    }

    /// Has what was given to [`Self::call_back`] called soon.
    pub fn wake(&self) {
        self.bootstrap.shared.wake();
    }

    /// The bootstrap under watch, for messages, streams and collectives.
    pub fn bootstrap(&self) -> &Bootstrap {
        &self.bootstrap
    }

    /// As [`Bootstrap::all_gather`], over the same connections that are watched.
    pub fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.bootstrap.all_gather(mine)
    }

    /// Aborts: every other rank gets [`PeerEvent::PeerAborted`].
    pub fn abort(&self, reason: &str) {
        self.bootstrap.abort(reason);
    }

    /// Sends a note of at most 256 bytes to every other rank; they get [`PeerEvent::PeerNote`].
    pub fn note(&self, note: &[u8]) {
        self.bootstrap.note(note);
    }

    /// Returns when what was said so far is written, or soon: after it this process may end.
    pub fn flush(&self) {
        self.bootstrap.shared.flush();
    }

    /// As [`Bootstrap::die`].
    #[cfg(test)]
    pub fn die(self) {
        self.bootstrap.die();
    }

    /// As [`Bootstrap::close`]: the others get [`PeerEvent::PeerLeft`]. The callback is not called after this
    /// returns.
    pub fn close(self) {
        self.bootstrap.close();
    }
}
