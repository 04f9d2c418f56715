//! What the processes of another user may take of root, who asks everybody's: any user can open as many sockets of this name as he has
//! descriptors, and answer on each of them what and as slowly as he likes.

use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The longest answer of one process: 16 operations of each of 64 communicators are 0.3 MB.
pub(super) const ANSWER_BYTES_MAX: usize = 8 << 20;
/// All answers together.
const BYTES_MAX: usize = 64 << 20;
/// From the first question to the last answer.
const TIME_MAX: Duration = Duration::from_secs(30);

/// What is left to the processes of one user together.
#[derive(Debug)]
pub(super) struct Allowance {
    pub uid: u32,
    until: OnceLock<Instant>,
    bytes: Mutex<usize>,
    reading: Mutex<()>,
}

impl Allowance {
    pub fn of(uid: u32) -> Allowance {
        Allowance { uid, until: OnceLock::new(), bytes: Mutex::new(BYTES_MAX), reading: Mutex::new(()) }
    }

    /// When the last answer must be there.
    pub fn until(&self, now: Instant) -> Instant {
        *self.until.get_or_init(|| now + TIME_MAX)
    }

    /// So much has come.
    ///
    /// # Errors
    /// It is too much.
    pub fn charge(&self, bytes: usize) -> io::Result<()> {
        let mut left = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        match left.checked_sub(bytes) {
            Some(rest) => *left = rest,
            None => {
                *left = 0;
                let why = format!(
                    "the answers of user {}'s processes are longer than {BYTES_MAX} bytes together",
                    self.uid
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
        Ok(())
    }

    /// Answers are read one after the other: a parsed one takes many times its length.
    pub fn reading(&self) -> MutexGuard<'_, ()> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_processes_of_a_user_share_bytes_and_time() {
        let (allowance, now) = (Allowance::of(7), Instant::now());
        assert_eq!(allowance.until(now), allowance.until(now + Duration::from_secs(5)));
        allowance.charge(BYTES_MAX - 1).unwrap();
        let said = allowance.charge(2).unwrap_err().to_string();
        assert!(said.contains("user 7") && said.contains("together"), "{said}");
        assert!(allowance.charge(1).is_err(), "who has sent too much has nothing left");
    }
}
