//! Layer: xtask, its floor.
//! Takes: jobs that may run at the same time.
//! Gives: their results, and what each of them writes as one piece, when it has ended.
//! Never: lets the lines of two jobs mix.

use std::cell::RefCell;
use std::fmt;
use std::io::Write;
use std::sync::{Mutex, MutexGuard};
use std::thread;

thread_local! {
    /// What this thread's job has written so far; none: it writes to the terminal.
    static HELD: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Writes a line to standard error, in its turn.
pub fn note(line: impl fmt::Display) {
    write(format!("{line}\n").as_bytes());
}

/// Writes to standard error, in its turn.
pub fn write(text: &[u8]) {
    let is_held =
        HELD.with_borrow_mut(|held| held.as_mut().map(|held| held.extend_from_slice(text)).is_some());
    if !is_held {
        // A closed terminal must not end the tests.
        let _ = std::io::stderr().lock().write_all(text);
    }
}

/// The last lines that this thread's job has written; empty if it is not held back, and so on the terminal already.
pub fn last_lines(count: usize) -> String {
    HELD.with_borrow(|held| {
        let text = String::from_utf8_lossy(held.as_deref().unwrap_or_default()).into_owned();
        let start = text.trim_end().rmatch_indices('\n').nth(count - 1).map_or(0, |(at, _)| at + 1);
        text[start..].to_owned()
    })
}

/// Whether what this thread writes is held back until its job has ended.
pub fn is_held() -> bool {
    HELD.with_borrow(Option::is_some)
}

/// Runs `work` on each job, at most `workers` at a time; the results are in the order of the jobs.
pub fn side_by_side<J: Send, T: Send>(jobs: Vec<J>, workers: usize, work: impl Fn(J) -> T + Sync) -> Vec<T> {
    if workers <= 1 || jobs.len() <= 1 {
        return jobs.into_iter().map(work).collect();
    }
    let is_held = is_held();
    let queue = Mutex::new(jobs.into_iter().enumerate());
    let (done, held) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let next = || lock(&queue).next();
    let worker = || {
        while let Some((i, job)) = next() {
            HELD.set(Some(Vec::new()));
            let result = work(job);
            let text = HELD.take().unwrap_or_default();
            lock(&done).push((i, result));
            if is_held {
                lock(&held).extend(text);
            } else {
                write(&text);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(worker);
        }
    });
    // Empty unless these jobs are parts of one that is itself held back.
    write(&lock(&held));
    let mut done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn jobs_run_at_the_same_time_and_results_keep_their_order() {
        let both = Barrier::new(2);
        let results = side_by_side(vec![1, 2], 2, |job| {
            both.wait();
            job * 10
        });
        assert_eq!(results, [10, 20]);
        assert_eq!(side_by_side(vec![1, 2, 3], 1, |job| job), [1, 2, 3]);
    }

    #[test]
    fn the_last_lines_are_those_of_this_job() {
        assert_eq!(last_lines(2), "");
        HELD.set(Some(Vec::new()));
        note("a");
        assert_eq!(last_lines(2), "a\n");
        note("b");
        note("c");
        assert_eq!(last_lines(2), "b\nc\n");
        HELD.take();
    }

    #[test]
    fn what_a_job_writes_is_one_piece_even_inside_another() {
        HELD.set(Some(Vec::new()));
        let both = Barrier::new(2);
        side_by_side(vec!["a", "b"], 2, |job| {
            note(job);
            both.wait();
            note(job);
        });
        let text = String::from_utf8(HELD.take().unwrap()).unwrap();
        assert!(["a\na\nb\nb\n", "b\nb\na\na\n"].contains(&text.as_str()), "{text:?}");
    }
}
