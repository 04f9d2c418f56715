//! One connection of somebody who asks: what has come, what is to go, until when.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long a question, and how long taking the answer, may take.
const STEP_MAX: Duration = Duration::from_secs(5);

/// What is spoken over a connection: lines, and a long answer at the end.
pub(super) trait Dialect {
    /// What is asked for at last.
    type Ask;
    /// The longest line, its end included.
    const LINE_BYTES_MAX: usize;

    /// A line has come, without its end.
    fn line(&mut self, line: &[u8]) -> Said<Self::Ask>;
}

/// What a line leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Said<A> {
    /// The answer, and the end.
    Ask(A),
    /// These words, and the next line.
    Say(String),
    /// The end.
    End,
}

/// A connection.
pub(super) struct Session<S, D: Dialect> {
    pub stream: S,
    pub dialect: D,
    pub stage: Stage<D::Ask>,
    /// It is closed then.
    pub until: Instant,
    input: Vec<u8>,
}

/// Where it is.
pub(super) enum Stage<A> {
    Reading,
    /// Other ranks are asked until then.
    Gathering {
        ask: A,
        number: u64,
        since: Instant,
        until: Instant,
    },
    Writing {
        out: Vec<u8>,
        sent: usize,
    },
    Over,
}

impl<S: Read + Write + AsFd, D: Dialect> Session<S, D> {
    pub fn new(stream: S, dialect: D, now: Instant) -> Session<S, D> {
        Session { stream, dialect, stage: Stage::Reading, until: now + STEP_MAX, input: Vec::new() }
    }

    /// Whether it waits to read, and to write.
    pub fn wants(&self) -> (bool, bool) {
        (matches!(self.stage, Stage::Reading), matches!(self.stage, Stage::Writing { .. }))
    }

    /// Reads and writes what can be without waiting. Returns what is asked for.
    pub fn advance(&mut self, now: Instant) -> Option<D::Ask> {
        if now >= self.until {
            self.stage = Stage::Over;
        }
        match &mut self.stage {
            Stage::Reading => return self.read(),
            Stage::Writing { .. } => self.write(),
            // Nobody waits for the answer, and the poll of the thread that serves would return at once as long as this one is there.
            Stage::Gathering { .. } if has_gone(&self.stream) => self.stage = Stage::Over,
            Stage::Gathering { .. } | Stage::Over => {}
        }
        None
    }

    fn read(&mut self) -> Option<D::Ask> {
        let mut bytes = [0; 512];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.stage = Stage::Over,
            Ok(got) => self.input.extend_from_slice(&bytes[..got]),
            Err(error) if is_passing(&error) => return None,
            Err(_) => self.stage = Stage::Over,
        }
        let mut rest = &self.input[..];
        let asked = loop {
            let Some(end) = rest.iter().take(D::LINE_BYTES_MAX).position(|byte| *byte == b'\n') else {
                if rest.len() >= D::LINE_BYTES_MAX {
                    self.stage = Stage::Over;
                }
                break None;
            };
            let line = &rest[..end];
            rest = &rest[end + 1..];
            match self.dialect.line(line) {
                Said::Ask(ask) => break Some(ask),
                // A few bytes: who does not take even them has the queue full of them.
                Said::Say(words) if self.stream.write_all(words.as_bytes()).is_ok() => {}
                Said::Say(_) | Said::End => {
                    self.stage = Stage::Over;
                    break None;
                }
            }
        };
        self.input = rest.to_vec();
        asked
    }

    /// Other ranks are asked first.
    pub fn gather(&mut self, ask: D::Ask, number: u64, timeout: Duration, now: Instant) {
        self.until = now + timeout + STEP_MAX;
        self.stage = Stage::Gathering { ask, number, since: now, until: now + timeout };
    }

    /// This is the answer; it is the last.
    pub fn answer(&mut self, out: Vec<u8>, now: Instant) {
        self.until = now + STEP_MAX;
        self.stage = Stage::Writing { out, sent: 0 };
        self.write();
    }

    fn write(&mut self) {
        let Stage::Writing { out, sent } = &mut self.stage else { return };
        while *sent < out.len() {
            match self.stream.write(&out[*sent..]) {
                Ok(0) => break,
                Ok(more) => *sent += more,
                Err(error) if is_passing(&error) => return,
                Err(_) => break,
            }
        }
        self.stage = Stage::Over;
    }
}

/// Whether the other end is closed, and not only done with its question.
fn has_gone(stream: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::empty())];
    let looked = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    looked.is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::super::question::Question;
    use super::super::ras::RasClient;
    use super::super::server::Plain;
    use super::*;
    use std::os::unix::net::UnixStream;

    fn session<D: Dialect>(dialect: D) -> (UnixStream, Session<UnixStream, D>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (theirs, Session::new(ours, dialect, Instant::now()))
    }

    #[test]
    fn a_question_in_two_parts_is_answered_and_the_connection_ends() {
        let (mut theirs, mut session) = session(Plain);
        let line = Question::Flight.to_string();
        theirs.write_all(&line.as_bytes()[..5]).unwrap();
        assert_eq!(session.advance(Instant::now()), None);
        assert_eq!(session.wants(), (true, false));
        theirs.write_all(&line.as_bytes()[5..]).unwrap();
        assert_eq!(session.advance(Instant::now()), Some(Question::Flight));
        session.answer(b"{}".to_vec(), Instant::now());
        assert!(matches!(session.stage, Stage::Over));
        drop(session);
        let mut text = String::new();
        theirs.read_to_string(&mut text).unwrap();
        assert_eq!(text, "{}");
    }

    #[test]
    fn several_commands_in_one_piece_are_answered_in_order() {
        let (mut theirs, mut session) = session(RasClient::default());
        theirs.write_all(b"CLIENT PROTOCOL 2\nTIMEOUT 3\nwhat\nVERBOSE STATUS\nrest").unwrap();
        assert_eq!(session.advance(Instant::now()), Some(()));
        assert_eq!((session.dialect.timeout, session.dialect.is_verbose), (Duration::from_secs(3), true));
        session.answer(b"report".to_vec(), Instant::now());
        drop(session);
        let mut text = String::new();
        theirs.read_to_string(&mut text).unwrap();
        assert_eq!(text, "SERVER PROTOCOL 2\nOK\nERROR: Unknown command what\nreport");
    }

    #[test]
    fn garbage_endless_lines_and_silence_end_it() {
        for bytes in [b"GET / HTTP/1.1\r\n".to_vec(), vec![0; 4096], vec![b'\n'; 9]] {
            let (mut theirs, mut session) = session(Plain);
            theirs.write_all(&bytes).unwrap();
            assert_eq!(session.advance(Instant::now()), None);
            assert!(matches!(session.stage, Stage::Over));
        }
        let (_theirs, mut session) = session(Plain);
        session.advance(Instant::now() + STEP_MAX);
        assert!(matches!(session.stage, Stage::Over));
    }

    #[test]
    fn who_goes_while_others_are_asked_is_forgotten() {
        for half in [true, false] {
            let (mut theirs, mut session) = session(Plain);
            theirs.write_all(Question::Flight.to_string().as_bytes()).unwrap();
            let ask = session.advance(Instant::now()).unwrap();
            session.gather(ask, 1, Duration::from_secs(30), Instant::now());
            if half {
                theirs.shutdown(std::net::Shutdown::Write).unwrap();
            } else {
                drop(theirs);
            }
            session.advance(Instant::now());
            assert_eq!(matches!(session.stage, Stage::Over), !half);
        }
    }

    #[test]
    fn who_does_not_take_the_answer_is_left_in_time() {
        let (_theirs, mut session) = session(Plain);
        session.answer(vec![b' '; 64 << 20], Instant::now());
        assert_eq!(session.wants(), (false, true));
        session.advance(Instant::now() + STEP_MAX * 2);
        assert!(matches!(session.stage, Stage::Over));
    }
}
