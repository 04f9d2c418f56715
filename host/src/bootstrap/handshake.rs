//! Layer: host / bootstrap.
//! Takes: the first bytes of a connection, the job's secret, a fresh nonce.
//! Gives: [`Handshake`]: each side's proof that it holds the secret, bound to the ranks and the purpose of the
//! connection. Sans-IO: bytes in, bytes out.
//! Never: allocates, reads a byte past its own messages, or reveals anything about the secret to an unauthenticated
//! peer.
//!
//! ```text
//! initiator                                   acceptor
//!   HELLO  magic version purpose from to tag nonce  ->
//!                        <-  CHALLENGE  magic version status nonce
//!   PROOF  HMAC(initiator, HELLO, CHALLENGE)  ->
//!                        <-  VERDICT  status HMAC(acceptor, HELLO, CHALLENGE, PROOF)
//! ```
//! The initiator authenticates first, so that a port scanner never gets a code to guess seeds against. The two codes
//! have different labels, so neither can be reflected. The rest of the connection is neither encrypted nor
//! authenticated: this keeps strangers and other jobs out, not an attacker who rewrites packets on the path.

use oxccl_shared::abi::Rank;

use super::error::AuthFailure;
use super::secret::{Code, KEY_BYTES, Nonce, Secret};
use crate::wire::fixed::{Malformed, Reader};

/// The version of the bootstrap protocol; both sides must speak the same.
pub const PROTOCOL_VERSION: u16 = 1;
/// Number of the root in the place of a rank.
pub const ROOT: Rank = Rank(u32::MAX);

const MAGIC: [u8; 4] = *b"OxBs";
const PREFIX_BYTES: usize = 6;
const HELLO_BYTES: usize = 28 + KEY_BYTES;
const CHALLENGE_BYTES: usize = 8 + KEY_BYTES;
const VERDICT_BYTES: usize = 1 + KEY_BYTES;
const LARGEST_BYTES: usize = HELLO_BYTES;

/// Purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A rank registers with the root.
    Register,
    /// A neighbour in the ring.
    Ring,
    /// One message between two ranks.
    Message,
    /// A stream for a caller, with the caller's own number.
    Stream(u32),
}

/// The ranks and the purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// What the connection is for.
    pub purpose: Purpose,
    /// The initiator's rank.
    pub from: Rank,
    /// The acceptor's rank, or [`ROOT`].
    pub to: Rank,
    /// Distinguishes connections of the same purpose between the same ranks.
    pub tag: u64,
}

/// Why a handshake failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The other side speaks this other version.
    #[error("it speaks version {0} of the bootstrap protocol")]
    Version(u16),
    /// The other side is not authenticated.
    #[error(transparent)]
    Auth(#[from] AuthFailure),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    AwaitHello,
    AwaitChallenge,
    AwaitProof,
    AwaitVerdict,
    Done,
    Failed(HandshakeError),
}

/// The status byte of CHALLENGE and VERDICT.
const STATUS_OK: u8 = 0;
const STATUS_VERSION: u8 = 1;
const STATUS_SECRET: u8 = 2;
const STATUS_PEER: u8 = 3;

/// One side of the handshake.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    secret: Secret,
    nonce: Nonce,
    me: Rank,
    hello: Hello,
    hello_bytes: [u8; HELLO_BYTES],
    challenge_bytes: [u8; CHALLENGE_BYTES],
    proof: Code,
    input: [u8; LARGEST_BYTES],
    input_len: usize,
    output: [u8; LARGEST_BYTES],
    output_len: usize,
    output_sent: usize,
}

impl Handshake {
    /// The connecting side. Its HELLO is ready in [`output`](Self::output).
    pub fn initiator(secret: Secret, hello: Hello, nonce: Nonce) -> Handshake {
        let mut this = Handshake::new(State::AwaitChallenge, secret, hello.from, hello, nonce);
        this.hello_bytes = hello.to_bytes(&nonce);
        let bytes = this.hello_bytes;
        this.say(&bytes);
        this
    }

    /// The accepting side: rank `me`, or [`ROOT`].
    pub fn acceptor(secret: Secret, me: Rank, nonce: Nonce) -> Handshake {
        let nobody = Hello { purpose: Purpose::Register, from: ROOT, to: me, tag: 0 };
        Handshake::new(State::AwaitHello, secret, me, nobody, nonce)
    }

    fn new(state: State, secret: Secret, me: Rank, hello: Hello, nonce: Nonce) -> Handshake {
        Handshake {
            state,
            secret,
            nonce,
            me,
            hello,
            hello_bytes: [0; HELLO_BYTES],
            challenge_bytes: [0; CHALLENGE_BYTES],
            proof: [0; KEY_BYTES],
            input: [0; LARGEST_BYTES],
            input_len: 0,
            output: [0; LARGEST_BYTES],
            output_len: 0,
            output_sent: 0,
        }
    }

    /// Bytes that the next step still needs. Read no more from the socket: bytes after the handshake belong to the
    /// connection's user.
    pub fn wanted_bytes(&self) -> usize {
        let whole = match self.state {
            State::AwaitHello => HELLO_BYTES,
            State::AwaitChallenge => CHALLENGE_BYTES,
            State::AwaitProof => KEY_BYTES,
            State::AwaitVerdict => VERDICT_BYTES,
            State::Done | State::Failed(_) => 0,
        };
        whole.saturating_sub(self.input_len)
    }

    /// Consumes bytes from the other side; returns their number. Bytes beyond the handshake are not consumed.
    pub fn feed(&mut self, mut bytes: &[u8]) -> usize {
        let before = bytes.len();
        while self.wanted_bytes() > 0 && !bytes.is_empty() {
            let take = self.wanted_bytes().min(bytes.len());
            self.input[self.input_len..self.input_len + take].copy_from_slice(&bytes[..take]);
            self.input_len += take;
            bytes = &bytes[take..];
            self.refuse_strangers();
            if self.wanted_bytes() == 0 && !matches!(self.state, State::Failed(_)) {
                self.step();
            }
        }
        before - bytes.len()
    }

    /// Bytes to write to the other side now.
    pub fn output(&self) -> &[u8] {
        &self.output[self.output_sent..self.output_len]
    }

    /// Records that `len_bytes` of [`output`](Self::output) were written.
    pub fn sent(&mut self, len_bytes: usize) {
        self.output_sent = (self.output_sent + len_bytes).min(self.output_len);
    }

    /// `None` while it continues, then the peer's HELLO, or an error. The last message may still be in
    /// [`output`](Self::output): write it before using the connection.
    pub fn outcome(&self) -> Option<Result<Hello, HandshakeError>> {
        match self.state {
            State::Done => Some(Ok(self.hello)),
            State::Failed(error) => Some(Err(error)),
            _ => None,
        }
    }

    /// A wrong magic or version is refused as soon as its bytes arrive, before the whole message does.
    fn refuse_strangers(&mut self) {
        if !matches!(self.state, State::AwaitHello | State::AwaitChallenge) {
            return;
        }
        let magic_len = self.input_len.min(MAGIC.len());
        if self.input[..magic_len] != MAGIC[..magic_len] {
            self.state = State::Failed(AuthFailure::NotOxccl.into());
        } else if self.input_len >= PREFIX_BYTES {
            let version = u16::from_le_bytes([self.input[4], self.input[5]]);
            if version != PROTOCOL_VERSION {
                if self.state == State::AwaitHello {
                    self.challenge(STATUS_VERSION);
                }
                self.state = State::Failed(HandshakeError::Version(version));
            }
        }
    }

    fn step(&mut self) {
        let input = self.input;
        self.input_len = 0;
        match self.state {
            State::AwaitHello => self.on_hello(&input),
            State::AwaitChallenge => self.on_challenge(&input[..CHALLENGE_BYTES]),
            State::AwaitProof => self.on_proof(&input[..KEY_BYTES]),
            State::AwaitVerdict => self.on_verdict(&input[..VERDICT_BYTES]),
            State::Done | State::Failed(_) => {}
        }
    }

    fn on_hello(&mut self, bytes: &[u8; HELLO_BYTES]) {
        match Hello::from_bytes(bytes) {
            Ok(hello) => {
                self.hello = hello;
                self.hello_bytes = *bytes;
                self.challenge(STATUS_OK);
                self.state = State::AwaitProof;
            }
            Err(Malformed) => self.state = State::Failed(AuthFailure::NotOxccl.into()),
        }
    }

    fn challenge(&mut self, status: u8) {
        let mut bytes = [0; CHALLENGE_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        bytes[6] = status;
        bytes[8..].copy_from_slice(&self.nonce.0);
        self.challenge_bytes = bytes;
        self.say(&bytes);
    }

    fn on_challenge(&mut self, bytes: &[u8]) {
        // The version was checked on arrival; another status than OK comes from something else.
        if bytes[6] != STATUS_OK {
            self.state = State::Failed(AuthFailure::NotOxccl.into());
            return;
        }
        self.challenge_bytes.copy_from_slice(bytes);
        self.proof = self.secret.code(&[b"initiator", &self.hello_bytes, &self.challenge_bytes]);
        let proof = self.proof;
        self.say(&proof);
        self.state = State::AwaitVerdict;
    }

    fn on_proof(&mut self, bytes: &[u8]) {
        let right = self.secret.verify(&[b"initiator", &self.hello_bytes, &self.challenge_bytes], bytes);
        let mut verdict = [0; VERDICT_BYTES];
        if !right {
            verdict[0] = STATUS_SECRET;
            self.state = State::Failed(AuthFailure::WrongSecret.into());
        } else {
            self.proof.copy_from_slice(bytes);
            verdict[0] = if self.hello.to == self.me { STATUS_OK } else { STATUS_PEER };
            let status = [verdict[0]];
            verdict[1..].copy_from_slice(&self.acceptor_code(&status));
            self.state = match verdict[0] {
                STATUS_OK => State::Done,
                _ => State::Failed(AuthFailure::WrongPeer.into()),
            };
        }
        self.say(&verdict);
    }

    fn on_verdict(&mut self, bytes: &[u8]) {
        let (status, code) = bytes.split_at(1);
        let proved: bool = self
            .secret
            .verify(&[b"acceptor", &self.hello_bytes, &self.challenge_bytes, &self.proof, status], code);
        self.state = match (proved, status) {
            (true, [STATUS_OK]) => State::Done,
            (true, _) => State::Failed(AuthFailure::WrongPeer.into()),
            (false, _) => State::Failed(AuthFailure::WrongSecret.into()),
        };
    }

    fn acceptor_code(&self, status: &[u8]) -> Code {
        self.secret.code(&[b"acceptor", &self.hello_bytes, &self.challenge_bytes, &self.proof, status])
    }

    /// Every message is answered before the next is sent, so the buffer is always empty here.
    fn say(&mut self, bytes: &[u8]) {
        self.output[..bytes.len()].copy_from_slice(bytes);
        self.output_len = bytes.len();
        self.output_sent = 0;
    }
}

impl Hello {
    fn to_bytes(self, nonce: &Nonce) -> [u8; HELLO_BYTES] {
        let (kind, number) = match self.purpose {
            Purpose::Register => (0u8, 0),
            Purpose::Ring => (1, 0),
            Purpose::Message => (2, 0),
            Purpose::Stream(number) => (3, number),
        };
        let mut bytes = [0; HELLO_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        bytes[6] = kind;
        bytes[8..12].copy_from_slice(&number.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.from.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.to.0.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.tag.to_le_bytes());
        bytes[28..].copy_from_slice(&nonce.0);
        bytes
    }

    fn from_bytes(bytes: &[u8; HELLO_BYTES]) -> Result<Hello, Malformed> {
        let mut reader = Reader::new(bytes);
        let _prefix: [u8; PREFIX_BYTES] = reader.array()?;
        let (kind, zero, number) = (reader.u8()?, reader.u8()?, reader.u32()?);
        let purpose = match (kind, zero, number) {
            (0, 0, 0) => Purpose::Register,
            (1, 0, 0) => Purpose::Ring,
            (2, 0, 0) => Purpose::Message,
            (3, 0, number) => Purpose::Stream(number),
            _ => return Err(Malformed),
        };
        Ok(Hello { purpose, from: Rank(reader.u32()?), to: Rank(reader.u32()?), tag: reader.u64()? })
    }
}

#[cfg(test)]
#[path = "tests/handshake.rs"]
mod tests;
