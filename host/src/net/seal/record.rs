//! One direction of a stream: its key, its nonces, its records.

use crate::bootstrap::secret::Secret;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use std::ops::Range;

/// The size of an authentication code.
const TAG_BYTES: usize = 16;
const LENGTH_BYTES: usize = 4;
/// Before the content.
pub(super) const HEAD_BYTES: usize = LENGTH_BYTES + TAG_BYTES;
/// Most content of a record: with the processor's second cache in mind, since a record is copied, sealed and sent one after the other.
pub(super) const CONTENT_MAX: usize = 64 << 10;
/// The longest record.
pub(super) const RECORD_MAX: usize = record_bytes(CONTENT_MAX);
/// Messages by one key. 2^20 records of 2^12 blocks each: GCM's bound for telling it from random stays below 2^-60.
pub(super) const REKEY_AFTER: u64 = 1 << 21;

/// A record that does not open: changed on the way, or not the other side's next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Altered;

/// The length of a record with so much content.
pub(super) const fn record_bytes(content_bytes: usize) -> usize {
    HEAD_BYTES + body_bytes(content_bytes)
}

/// The length of what follows the head.
pub(super) const fn body_bytes(content_bytes: usize) -> usize {
    content_bytes + TAG_BYTES
}

/// The key of one direction, and how often it has been used.
pub(super) struct RecordKey {
    secret: Secret,
    key: LessSafeKey,
    used: u64,
    rekey_after: u64,
}

impl RecordKey {
    pub(super) fn new(secret: Secret) -> RecordKey {
        RecordKey { secret, key: key_of(&secret), used: 0, rekey_after: REKEY_AFTER }
    }

    /// The same, which derives the next key after so many messages, an even number.
    #[cfg(test)]
    pub(super) fn rekeying_after(self, messages: u64) -> RecordKey {
        RecordKey { rekey_after: messages, ..self }
    }

    /// Seals a record whose content is in its place, [`HEAD_BYTES`] from the start, with room for the tag behind it.
    pub(super) fn seal(&mut self, record: &mut [u8]) {
        let (head, body) = record.split_at_mut(HEAD_BYTES);
        let content_bytes = body.len() - TAG_BYTES;
        head[..LENGTH_BYTES].copy_from_slice(&(content_bytes as u32).to_le_bytes());
        self.seal_part(head);
        self.seal_part(body);
        self.rekey_if_due();
    }

    fn seal_part(&mut self, part: &mut [u8]) {
        let (plain, place) = part.split_at_mut(part.len() - TAG_BYTES);
        let nonce = self.next_nonce();
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::empty(), plain);
        place.copy_from_slice(tag.expect("a message far below GCM's limit").as_ref());
    }

    /// Opens the head of the next record: the length of its content.
    pub(super) fn open_head(&mut self, head: &mut [u8]) -> Result<usize, Altered> {
        let nonce = self.next_nonce();
        let length = self.key.open_in_place(nonce, Aad::empty(), head).map_err(|_| Altered)?;
        let length = length.first_chunk().copied().map(u32::from_le_bytes).ok_or(Altered)? as usize;
        (1..=CONTENT_MAX).contains(&length).then_some(length).ok_or(Altered)
    }

    /// Opens what follows a head, in place. Where in `body` the content is.
    pub(super) fn open_body(&mut self, body: &mut [u8]) -> Result<Range<usize>, Altered> {
        let nonce = self.next_nonce();
        let content_bytes = self.key.open_in_place(nonce, Aad::empty(), body).map_err(|_| Altered)?.len();
        self.rekey_if_due();
        Ok(0..content_bytes)
    }

    fn next_nonce(&mut self) -> Nonce {
        let mut bytes = [0; NONCE_LEN];
        bytes[NONCE_LEN - 8..].copy_from_slice(&self.used.to_le_bytes());
        self.used += 1;
        Nonce::assume_unique_for_key(bytes)
    }

    /// Between records, so that both ends change at the same one.
    fn rekey_if_due(&mut self) {
        if self.used >= self.rekey_after {
            self.secret = self.secret.derive(&[b"next data key"]);
            (self.key, self.used) = (key_of(&self.secret), 0);
        }
    }
}

fn key_of(secret: &Secret) -> LessSafeKey {
    let key = UnboundKey::new(&AES_256_GCM, secret.bytes());
    LessSafeKey::new(key.expect("a key of the cipher's length"))
}
