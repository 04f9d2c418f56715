//! Layer: host / net / seal.
//! Takes: a fresh byte stream, and the keys that its handshake gave (`DataKeys`).
//! Gives: [`SealedWriter`] and [`SealedReader`], the two ends of the same stream with all bytes encrypted and authenticated.
//! Never: gives out a byte that was changed, left out, repeated or moved on the way, uses a nonce twice, allocates after construction.
//!
//! ```text
//! record   sealed length (4 bytes LE + 16 of its tag)   sealed content (length + 16 of its tag)
//! ```
//! AES-256-GCM of `ring`, which uses the processor's instructions for it (AES-NI, VAES). Each direction of each stream has a key of its own.
//! A nonce counts the messages before, two for each record, and is not sent: a record at another place does not open. The length has a
//! tag of its own, so that a changed length is noticed at once, and not when a longer record would have ended. After
//! 2^20 records both ends derive the next key from the present one.
//!
//! A write is accepted once its record has left: the owner's bytes are copied and sealed, and the ends of messages stay where they were
//! for the layer above. Records that the stream does not take at once are kept sealed, and sent first.

mod record;
mod writer;
mod reader;

pub(crate) use reader::SealedReader;
pub(crate) use writer::SealedWriter;

#[cfg(test)]
mod tests;
