//! What can be asked: one line.

use std::fmt;
use std::time::Duration;

/// The longest line, its end included.
pub const LINE_BYTES_MAX: usize = 128;
/// The longest time that the other ranks may have to answer.
const TIMEOUT_MAX: Duration = Duration::from_secs(30);
const WORD: &str = "oxccl-status";

/// A question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// What this process's communicators do, with so many of the latest operations of each; of the other ranks what they answer
    /// within `timeout`, if it is not zero.
    Status {
        /// The latest operations.
        recent_max: usize,
        /// How long to wait for other ranks.
        timeout: Duration,
    },
    /// The flight records.
    Flight,
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Question::Status { recent_max, timeout } => {
                writeln!(f, "{WORD} 1 status {recent_max} {}", timeout.as_millis())
            }
            Question::Flight => writeln!(f, "{WORD} 1 flight"),
        }
    }
}

impl Question {
    /// Reads a line without its end. `None`: it is no question.
    pub fn parse(line: &[u8]) -> Option<Question> {
        let mut words = std::str::from_utf8(line).ok()?.split(' ');
        if words.next()? != WORD || words.next()? != "1" {
            return None;
        }
        let question = match words.next()? {
            "status" => {
                let recent_max = words.next()?.parse::<u32>().ok()? as usize;
                let timeout = Duration::from_millis(u64::from(words.next()?.parse::<u32>().ok()?));
                Question::Status { recent_max, timeout: timeout.min(TIMEOUT_MAX) }
            }
            "flight" => Question::Flight,
            _ => return None,
        };
        words.next().is_none().then_some(question)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_as_they_were_written() {
        let second = Duration::from_secs(1);
        for question in [Question::Status { recent_max: 8, timeout: second }, Question::Flight] {
            let line = question.to_string();
            assert!(line.len() <= LINE_BYTES_MAX);
            assert_eq!(Question::parse(line.trim_end().as_bytes()), Some(question));
        }
    }

    #[test]
    fn anything_else_is_none() {
        for line in [
            "",
            "status",
            "oxccl-status 2 flight",
            "oxccl-status 1 flight now",
            "oxccl-status 1 status 1",
            "GET / HTTP/1.1",
        ] {
            assert_eq!(Question::parse(line.as_bytes()), None, "{line}");
        }
        assert_eq!(Question::parse(b"oxccl-status 1 fl\xff"), None);
        let long = Question::parse(b"oxccl-status 1 status 1 4000000000");
        assert_eq!(long, Some(Question::Status { recent_max: 1, timeout: TIMEOUT_MAX }));
    }
}
