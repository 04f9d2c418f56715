//! What comes over the sockets at which a live process is asked: questions of `oxccl status`, commands of `ncclras`.

use oxccl::status::{LINE_BYTES_MAX, Question, RasClient, RasReply};
use std::time::Duration;

/// Any line is refused or is a question that is written as it was read; any commands leave a client within its limits.
pub fn status(data: &[u8]) {
    let mut client = RasClient::default();
    for line in data.split(|byte| *byte == b'\n') {
        if let Some(question) = Question::parse(line) {
            let text = question.to_string();
            assert!(text.len() <= LINE_BYTES_MAX);
            assert_eq!(Question::parse(text.trim_end().as_bytes()), Some(question));
        }
        match client.command(line) {
            RasReply::Line(words) => assert!(words.ends_with('\n') && words.matches('\n').count() == 1),
            RasReply::Status => {}
        }
        assert!(client.timeout <= Duration::from_secs(30));
    }
}
