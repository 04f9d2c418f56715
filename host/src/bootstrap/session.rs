//! Layer: host / bootstrap.
//! Takes: the keys of a finished handshake; bytes to send, bytes that came.
//! Gives: [`Session`]: what is sent, encrypted and authenticated in records; what came, opened. Sans-IO. [`DataKeys`]: keys for data.
//! Never: gives out a byte that was changed, left out, repeated or moved on the way, or reserves memory for an announced length.
//!
//! ```text
//! record   sealed length (2 bytes LE + 16 of its code)   sealed content (length + 16)
//! ```
//! Noise's transport messages, two for each record and direction, numbered by the count of messages before: the length has a code of its
//! own so that a changed one is noticed where it stands, not where a longer record would have ended.

use std::fmt;

use snow::{HandshakeState, TransportState};

use super::secret::Secret;

/// The size of an authentication code.
pub const TAG_BYTES: usize = 16;
const HEAD_BYTES: usize = 2 + TAG_BYTES;
/// Most content of one record.
const CONTENT_MAX: usize = u16::MAX as usize - TAG_BYTES;

/// Bytes were changed on the way, or are not the other side's next ones. The connection is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("bytes that were changed on the way")]
pub struct Altered;

/// One side's keys for what travels on a connection when its session is over: data of operations, where that is encrypted. They follow
/// from the keys of the session, which only these two sides have and which are forgotten with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataKeys {
    /// Of what this side sends.
    pub sends: Secret,
    /// Of what it receives.
    pub receives: Secret,
}

impl DataKeys {
    /// Those of a handshake that is complete.
    pub(super) fn of(noise: &mut HandshakeState) -> DataKeys {
        // From the initiator to the responder, and back.
        let (there, back) = noise.dangerously_get_raw_split();
        let [there, back] = [there, back].map(|key| Secret::from_bytes(key).derive(&[b"data key"]));
        let (sends, receives) = if noise.is_initiator() { (there, back) } else { (back, there) };
        DataKeys { sends, receives }
    }
}

/// One side's keys of a connection, and the part of a record that has come.
pub struct Session {
    keys: TransportState,
    data: DataKeys,
    /// Bytes of records that are not opened yet.
    sealed: Vec<u8>,
    /// Length of the content that follows, once its head has come.
    content: Option<usize>,
    opened: Vec<u8>,
    is_broken: bool,
}

impl Session {
    pub(super) fn new(keys: TransportState, data: DataKeys) -> Session {
        Session { keys, data, sealed: Vec::new(), content: None, opened: Vec::new(), is_broken: false }
    }

    /// The keys for what follows the session.
    pub fn data_keys(&self) -> DataKeys {
        self.data
    }

    /// Appends `plain` to `out`, sealed.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        for content in plain.chunks(CONTENT_MAX) {
            let at = out.len();
            out.resize(at + HEAD_BYTES + content.len() + TAG_BYTES, 0);
            let (head, body) = out[at..].split_at_mut(HEAD_BYTES);
            let length = (content.len() as u16).to_le_bytes();
            for (part, place) in [(&length[..], head), (content, body)] {
                let sealed = self.keys.write_message(part, place);
                // Of 2^64 messages no connection comes to the end.
                assert_eq!(sealed.ok(), Some(place.len()), "a message that fits its place");
            }
        }
    }

    /// Takes bytes that came, and opens the records that are complete.
    ///
    /// # Errors
    /// From the first changed byte on: nothing is opened any more.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Altered> {
        self.sealed.extend_from_slice(bytes);
        let mut at = 0;
        while !self.is_broken {
            let wanted = self.content.map_or(HEAD_BYTES, |content| content + TAG_BYTES);
            let Some(message) = self.sealed.get(at..at + wanted) else { break };
            let opened = match self.content {
                None => open_head(&mut self.keys, message).map(Some),
                Some(_) => open_content(&mut self.keys, message, &mut self.opened).map(|()| None),
            };
            at += wanted;
            match opened {
                Ok(content) => self.content = content,
                Err(Altered) => self.is_broken = true,
            }
        }
        self.sealed.drain(..at);
        if self.is_broken { Err(Altered) } else { Ok(()) }
    }

    /// Takes what has been opened.
    pub fn take_opened(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.opened)
    }
}

fn open_head(keys: &mut TransportState, message: &[u8]) -> Result<usize, Altered> {
    let mut length = [0; 2];
    let opened = keys.read_message(message, &mut length).map_err(|_| Altered)?;
    let content = usize::from(u16::from_le_bytes(length));
    let is_sound = opened == length.len() && (1..=CONTENT_MAX).contains(&content);
    is_sound.then_some(content).ok_or(Altered)
}

fn open_content(keys: &mut TransportState, message: &[u8], opened: &mut Vec<u8>) -> Result<(), Altered> {
    let at = opened.len();
    opened.resize(at + message.len() - TAG_BYTES, 0);
    keys.read_message(message, &mut opened[at..]).map(drop).map_err(|_| {
        opened.truncate(at);
        Altered
    })
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session(..)")
    }
}

#[cfg(test)]
#[path = "tests/session.rs"]
mod tests;
