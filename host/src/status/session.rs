//! One connection of somebody who asks: what has come, what is to go, until when.

use super::question::{LINE_BYTES_MAX, Question};
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// How long a question, and how long taking the answer, may take.
const STEP_MAX: Duration = Duration::from_secs(5);

/// A connection.
pub(super) struct Session<S> {
    pub stream: S,
    pub stage: Stage,
    /// It is closed then.
    pub until: Instant,
    input: Vec<u8>,
}

/// Where it is.
pub(super) enum Stage {
    Reading,
    /// Other ranks are asked until then.
    Gathering {
        question: Question,
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

/// What there is to do for a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Nothing,
    Answer(Question),
}

impl<S: Read + Write> Session<S> {
    pub fn new(stream: S, now: Instant) -> Session<S> {
        Session { stream, stage: Stage::Reading, until: now + STEP_MAX, input: Vec::new() }
    }

    /// Whether it waits to read, and to write.
    pub fn wants(&self) -> (bool, bool) {
        (matches!(self.stage, Stage::Reading), matches!(self.stage, Stage::Writing { .. }))
    }

    /// Reads and writes what can be without waiting.
    pub fn advance(&mut self, now: Instant) -> Step {
        if now >= self.until {
            self.stage = Stage::Over;
        }
        match &mut self.stage {
            Stage::Reading => self.read(),
            Stage::Writing { .. } => {
                self.write();
                Step::Nothing
            }
            Stage::Gathering { .. } | Stage::Over => Step::Nothing,
        }
    }

    fn read(&mut self) -> Step {
        let mut bytes = [0; LINE_BYTES_MAX];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.stage = Stage::Over,
            Ok(got) => self.input.extend_from_slice(&bytes[..got]),
            Err(error) if is_passing(&error) => return Step::Nothing,
            Err(_) => self.stage = Stage::Over,
        }
        let line = self.input.iter().take(LINE_BYTES_MAX).position(|byte| *byte == b'\n');
        match line.map(|end| Question::parse(&self.input[..end])) {
            Some(Some(question)) => Step::Answer(question),
            // Neither a question nor the beginning of one: not a word.
            Some(None) => {
                self.stage = Stage::Over;
                Step::Nothing
            }
            None => {
                if self.input.len() >= LINE_BYTES_MAX {
                    self.stage = Stage::Over;
                }
                Step::Nothing
            }
        }
    }

    /// Other ranks are asked first.
    pub fn gather(&mut self, question: Question, number: u64, timeout: Duration, now: Instant) {
        self.until = now + timeout + STEP_MAX;
        self.stage = Stage::Gathering { question, number, since: now, until: now + timeout };
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

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn session() -> (UnixStream, Session<UnixStream>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (theirs, Session::new(ours, Instant::now()))
    }

    #[test]
    fn a_question_in_two_parts_is_answered_and_the_connection_ends() {
        let (mut theirs, mut session) = session();
        let line = Question::Flight.to_string();
        theirs.write_all(&line.as_bytes()[..5]).unwrap();
        assert_eq!(session.advance(Instant::now()), Step::Nothing);
        assert_eq!(session.wants(), (true, false));
        theirs.write_all(&line.as_bytes()[5..]).unwrap();
        assert_eq!(session.advance(Instant::now()), Step::Answer(Question::Flight));
        session.answer(b"{}".to_vec(), Instant::now());
        assert!(matches!(session.stage, Stage::Over));
        drop(session);
        let mut text = String::new();
        theirs.read_to_string(&mut text).unwrap();
        assert_eq!(text, "{}");
    }

    #[test]
    fn garbage_endless_lines_and_silence_end_it() {
        for bytes in [b"GET / HTTP/1.1\r\n".to_vec(), vec![0; 4096], vec![b'\n'; 9]] {
            let (mut theirs, mut session) = session();
            theirs.write_all(&bytes).unwrap();
            assert_eq!(session.advance(Instant::now()), Step::Nothing);
            assert!(matches!(session.stage, Stage::Over));
        }
        let (_theirs, mut session) = session();
        session.advance(Instant::now() + STEP_MAX);
        assert!(matches!(session.stage, Stage::Over));
    }

    #[test]
    fn who_does_not_take_the_answer_is_left_in_time() {
        let (_theirs, mut session) = session();
        session.answer(vec![b' '; 64 << 20], Instant::now());
        assert_eq!(session.wants(), (false, true));
        session.advance(Instant::now() + STEP_MAX * 2);
        assert!(matches!(session.stage, Stage::Over));
    }
}
