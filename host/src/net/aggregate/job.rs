//! One job of a server: its heads' connections, on a thread of their own.
//!
//! A head is not read while its next fragment has no room, so a head that falls behind stops its own job's heads only.
//! Once a head leaves or misbehaves the job is over: the other heads get the results that are complete, then the
//! reason.

use super::NAME;
use super::seat::{CLOSED_WITHIN, Ended, Member, Message, Seat, State, farewell};
use super::table::Table;
use super::wire::Wire;
use crate::bootstrap::{Cancel, sock};
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::time::{Duration, Instant};

/// How often a job looks whether the server ends.
const STOP_SEEN_AFTER: Duration = Duration::from_millis(50);
/// How long a head may take to fetch complete results when the job is over.
const FETCHED_WITHIN: Duration = Duration::from_secs(600);
/// How long a job sleeps between two looks at its networks, by how long nothing has moved.
const PAUSES: [(Duration, Duration); 2] = [
    (Duration::from_micros(200), Duration::from_micros(50)),
    (Duration::from_millis(100), Duration::from_millis(1)),
];

/// A job: runs until all heads have gone.
#[derive(Debug)]
pub struct Job {
    seats: Vec<Seat>,
    table: Table,
    /// Why it is over, and when even what is complete is not sent any more.
    over: Option<(String, Instant)>,
    /// What connections that poll(2) does not know have moved, and since when it is no more.
    moved: u64,
    idle_since: Instant,
}

impl Job {
    /// Of these heads: all of them, in order.
    pub fn new(members: Vec<Member>) -> Job {
        let table = Table::new(members.len() as u32);
        let seats = members.into_iter().map(Seat::new).collect();
        Job { seats, table, over: None, moved: 0, idle_since: Instant::now() }
    }

    /// Serves the heads until all have gone.
    pub fn run(mut self, stop: &Cancel) {
        let mut stopping = false;
        while self.seats.iter().any(|seat| !matches!(seat.state, State::Gone)) {
            if stop.is_called() && !stopping {
                stopping = true;
                self.end("the aggregator was stopped".to_owned(), CLOSED_WITHIN);
            }
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => return tracing::error!("{NAME}: poll: {error}"),
            };
            let now = Instant::now();
            for (index, flags) in ready.into_iter().enumerate() {
                self.serve(index, flags, now);
            }
            // What these have sent may complete the results of all.
            for index in 0..self.seats.len() {
                self.send(index, now);
            }
        }
    }

    /// The job is over, if it is not already.
    fn end(&mut self, why: String, fetched_within: Duration) {
        let by = Instant::now() + fetched_within;
        match &mut self.over {
            None => {
                tracing::info!("{NAME}: a job of {} heads is over: {why}", self.seats.len());
                self.over = Some((why, by));
            }
            Some((_, until)) => *until = by.min(*until),
        }
    }

    fn wait(&mut self) -> io::Result<Vec<PollFlags>> {
        let until = Instant::now() + self.pause();
        let mut fds = Vec::with_capacity(self.seats.len());
        let mut of = Vec::with_capacity(self.seats.len());
        for (index, seat) in self.seats.iter().enumerate() {
            if let Some(flags) = seat.awaits(&self.table, self.over.is_some()) {
                fds.push(PollFd::new(seat.member.wire.socket(), flags));
                of.push((index, seat.comes_anyway(flags)));
            }
        }
        let comes = of.iter().any(|(_, anyway)| !anyway.is_empty());
        let is_polled = self.seats.iter().any(|seat| seat.member.wire.is_polled());
        sock::poll(&mut fds, Some(if comes && !is_polled { Instant::now() } else { until }))?;
        let mut ready = vec![PollFlags::empty(); self.seats.len()];
        of.into_iter().zip(&fds).for_each(|((index, anyway), fd)| ready[index] = fd.revents() | anyway);
        Ok(ready)
    }

    /// How long poll(2) may wait. It does not know networks: they are asked again and again, less often once nothing has moved for a while.
    fn pause(&mut self) -> Duration {
        let networks = || self.seats.iter().map(|seat| &seat.member.wire).filter(|wire| wire.is_polled());
        if networks().next().is_none() {
            return STOP_SEEN_AFTER;
        }
        let moved = networks().map(Wire::moved).sum();
        if std::mem::replace(&mut self.moved, moved) != moved {
            self.idle_since = Instant::now();
        }
        let idle = self.idle_since.elapsed();
        PAUSES.iter().rfind(|(from, _)| idle >= *from).map_or(Duration::ZERO, |(_, pause)| *pause)
    }

    fn serve(&mut self, index: usize, flags: PollFlags, now: Instant) {
        let (seat, table) = (&mut self.seats[index], &mut self.table);
        let served = match &seat.state {
            State::Live => seat.serve(flags, table, self.over.is_some()),
            State::Leaving(_) => seat.leave(now),
            State::Told(until) => seat.discard(now >= *until),
            State::Gone => Ok(()),
        };
        if let Err(ended) = served {
            self.ended(index, &ended);
        }
    }

    /// Sends a head what there is, and the reason once the job is over.
    fn send(&mut self, index: usize, now: Instant) {
        let is_over = self.over.is_some();
        let (seat, table) = (&mut self.seats[index], &mut self.table);
        if matches!(seat.state, State::Live)
            && let Err(ended) = seat.send(table, is_over)
        {
            self.ended(index, &ended);
        }
        // A head hears the reason once it has all results that are complete.
        let Some((why, until)) = &self.over else { return };
        let seat = &mut self.seats[index];
        let is_owed = !seat.welcome.is_sent() || seat.is_owed(&self.table, true);
        match &seat.state {
            State::Live | State::Leaving(_) if now >= *until => seat.close(),
            State::Live if !is_owed => seat.state = State::Leaving(Message::new(farewell(why))),
            _ => {}
        }
    }

    /// A head's connection cannot go on.
    fn ended(&mut self, index: usize, ended: &Ended) {
        let seat = &mut self.seats[index];
        let was_live = matches!(seat.state, State::Live);
        let why = seat.why(ended);
        let can_be_told = matches!(ended, Ended::Wrong(_)) && seat.is_between_frames();
        match can_be_told {
            true => seat.state = State::Leaving(Message::new(farewell(&why))),
            false => seat.close(),
        }
        if was_live {
            self.end(why, FETCHED_WITHIN);
        }
    }
}
