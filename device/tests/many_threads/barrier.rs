//! A barrier that carries an OR, as a GPU's do, and that complains where a GPU would hang or pair what does not belong together.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Which of a block's meetings a thread has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meeting {
    Lead,
    Close,
    /// Does not wait for threads that have ended.
    Sync,
    /// Of the threads of a team of LL128; as `Sync`.
    Team,
}

impl Meeting {
    fn is_without_ended(self) -> bool {
        matches!(self, Meeting::Sync | Meeting::Team)
    }
}

/// Where the threads of a block meet.
pub struct Barrier {
    state: Mutex<State>,
    turned: Condvar,
}

#[derive(Default)]
struct State {
    members: usize,
    arrived: usize,
    ended: usize,
    meeting: Option<Meeting>,
    any: bool,
    generation: u64,
    outcome: bool,
    is_broken: bool,
}

impl Barrier {
    pub fn new(members: usize) -> Self {
        Barrier { state: Mutex::new(State { members, ..State::default() }), turned: Condvar::new() }
    }

    /// Waits for all members; whether any of them said `mine`.
    pub fn wait(&self, meeting: Meeting, mine: bool) -> bool {
        let mut state = self.state.lock().expect("nobody panics inside");
        let expected = *state.meeting.get_or_insert(meeting);
        if expected != meeting || state.ended > 0 && !meeting.is_without_ended() {
            let ended = state.ended;
            state.is_broken = true;
            drop(state);
            self.turned.notify_all();
            panic!("one thread is at {meeting:?}, another at {expected:?}; {ended} have ended");
        }
        state.arrived += 1;
        state.any |= mine;
        let generation = state.generation;
        if state.arrived == state.members {
            state.turn();
            self.turned.notify_all();
            return state.outcome;
        }
        while state.generation == generation && !state.is_broken {
            let patience = Duration::from_secs(if cfg!(miri) { 1 << 20 } else { 60 });
            let (woken, waited) = self.turned.wait_timeout(state, patience).expect("nobody panics inside");
            state = woken;
            state.is_broken |= waited.timed_out();
        }
        let (is_broken, outcome) = (state.is_broken, state.outcome);
        drop(state);
        assert!(!is_broken, "the block fell apart while a thread was at {meeting:?}");
        outcome
    }

    /// A member ends, in a panic if it `failed`.
    pub fn end(&self, failed: bool) {
        // A poisoned lock has nobody left to tell.
        let Ok(mut state) = self.state.lock() else { return };
        state.members -= 1;
        state.ended += 1;
        state.is_broken |= failed || state.meeting.is_some_and(|meeting| !meeting.is_without_ended());
        if state.arrived > 0 && state.arrived == state.members {
            state.turn();
        }
        drop(state);
        self.turned.notify_all();
    }
}

impl State {
    fn turn(&mut self) {
        self.outcome = self.any;
        self.generation += 1;
        (self.arrived, self.any, self.meeting) = (0, false, None);
    }
}
