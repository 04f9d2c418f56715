//! The requests of a communicator that are under way: a ring, in the order in which they were made.

use crate::net::{REQUESTS_MAX, Request};

/// Requests with what the owner knows of each. A request's number is that of its message; its low half is what the owner
/// of the communicator holds.
pub(super) struct Requests<T> {
    entries: [Entry<T>; REQUESTS_MAX],
    /// Of the next request.
    next: u64,
}

#[derive(Clone, Copy)]
struct Entry<T> {
    what: T,
    number: u64,
    /// Parts that have not been moved.
    parts_left: u32,
    /// Whether somebody will still ask for it.
    is_open: bool,
}

impl<T: Copy> Requests<T> {
    /// No request; `filler` stands where none has been.
    pub(super) fn new(filler: T) -> Self {
        let entry = Entry { what: filler, number: 0, parts_left: 0, is_open: false };
        Requests { entries: [entry; REQUESTS_MAX], next: 0 }
    }

    /// The number of the next request.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Whether the next request has to wait: the one that is [`REQUESTS_MAX`] older has not been heard of yet.
    pub(super) fn are_exhausted(&self) -> bool {
        self.entries[index(self.next)].is_open
    }

    /// Adds a request of so many parts. There must be room.
    pub(super) fn add(&mut self, what: T, parts: u32) -> Request {
        debug_assert!(!self.are_exhausted());
        self.entries[index(self.next)] = Entry { what, number: self.next, parts_left: parts, is_open: true };
        self.next += 1;
        Request((self.next - 1) as u32)
    }

    /// What is known of a request. The latest [`REQUESTS_MAX`] are known, and every one that is under way is among them.
    pub(super) fn at(&mut self, number: u64) -> &mut T {
        debug_assert!(number < self.next && number + REQUESTS_MAX as u64 >= self.next);
        &mut self.entries[index(number)].what
    }

    /// What is known of a request that is under way and not done.
    pub(super) fn moving(&mut self, request: Request) -> Option<&mut T> {
        let entry = &mut self.entries[index(u64::from(request.0))];
        let is_moving = entry.is_open && entry.number as u32 == request.0 && entry.parts_left > 0;
        is_moving.then_some(&mut entry.what)
    }

    /// Sets how many parts of a request are to be moved.
    pub(super) fn set_parts(&mut self, number: u64, parts: u32) {
        self.entries[index(number)].parts_left = parts;
    }

    /// One part of a request has been moved.
    pub(super) fn part_done(&mut self, number: u64) {
        self.entries[index(number)].parts_left -= 1;
    }

    /// Whether all of a request has been moved.
    pub(super) fn is_done(&self, number: u64) -> bool {
        self.entries[index(number)].parts_left == 0
    }

    /// What is known of a request that is done, which is then forgotten; `Ok(None)` while it is not; an error if it is not
    /// under way.
    pub(super) fn take_done(&mut self, request: Request) -> Result<Option<T>, NotUnderWay> {
        let entry = &mut self.entries[index(u64::from(request.0))];
        if !entry.is_open || entry.number as u32 != request.0 {
            return Err(NotUnderWay);
        }
        if entry.parts_left > 0 {
            return Ok(None);
        }
        entry.is_open = false;
        Ok(Some(entry.what))
    }
}

/// Somebody asks for a request that was never made, or that was said to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NotUnderWay;

fn index(number: u64) -> usize {
    (number % REQUESTS_MAX as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_heard_of_once_and_makes_room() {
        let mut requests = Requests::new('-');
        let first = requests.add('a', 2);
        (1..REQUESTS_MAX).for_each(|_| _ = requests.add('b', 1));
        assert!(requests.are_exhausted());
        requests.part_done(0);
        assert_eq!(requests.take_done(first), Ok(None));
        requests.part_done(0);
        assert_eq!(requests.take_done(first), Ok(Some('a')));
        assert_eq!(requests.take_done(first), Err(NotUnderWay));
        assert!(!requests.are_exhausted());
        assert_eq!(requests.add('c', 1), Request(REQUESTS_MAX as u32));
        assert_eq!(requests.take_done(Request(0)), Err(NotUnderWay));
        assert_eq!(requests.take_done(Request(77)), Err(NotUnderWay));
    }
}
