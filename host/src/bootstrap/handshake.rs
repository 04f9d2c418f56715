//! Layer: host / bootstrap.
//! Takes: the first bytes of a connection, the job's secret, a fresh private key; how ranks show which they are.
//! Gives: [`Handshake`]: each side's proof that it holds the secret, bound to the ranks and the purpose of the
//! connection, and a [`Session`] whose keys only these two have. Sans-IO: bytes in, bytes out.
//! Never: reads a byte past its own messages, computes a key for a peer that has not shown the secret, or reveals anything about the
//! secret to one.
//!
//! ```text
//! initiator                                       acceptor
//!   HELLO  magic version 0 0  noise 1 (purpose from to tag)  ->
//!                     <-  CHALLENGE  magic version status 0  noise 2 ()
//!   PROOF  transport (proof)  ->
//!                                     <-  VERDICT  transport (status answer)
//! ```
//! `noise 1`, `noise 2` and `transport` are messages of the Noise protocol (module `noise`). The secret alone seals the content of HELLO;
//! the secret and both private keys seal everything after it. The initiator shows the secret first, so that a port scanner never gets
//! anything to guess secrets against. A replayed HELLO can be read, but the handshake then fails at PROOF, which needs the private key
//! that belonged to that HELLO. Where ranks have keys of their own, proof and answer show which ranks these are (module `credentials`); they are
//! empty where all ranks share one key. Magic and version travel in the clear, and a handshake fails
//! if they were changed (Noise's prologue); HELLO's content carries the purpose.

use oxccl_shared::abi::Rank;
use snow::{HandshakeState, TransportState};

use super::credentials::{Binding, Credentials, SHOWN_MAX};
pub use super::credentials::{NO_RANK, ROOT};
use super::error::AuthFailure;
use super::noise::{self, PUBLIC_BYTES};
use super::secret::{Ephemeral, Secret};
use super::session::{DataKeys, Session, TAG_BYTES};
use crate::wire::fixed::{Malformed, Reader};

/// The version of the bootstrap protocol, with all messages that travel by it until the ranks have met; both sides must speak the same.
pub const PROTOCOL_VERSION: u16 = 16;

const MAGIC: [u8; 4] = *b"OxBs";
const VERSION_BYTES: usize = 6;
const PREFIX_BYTES: usize = 8;
const CONTENT_BYTES: usize = 24;
const HELLO_BYTES: usize = PREFIX_BYTES + PUBLIC_BYTES + CONTENT_BYTES + TAG_BYTES;
const CHALLENGE_BYTES: usize = PREFIX_BYTES + PUBLIC_BYTES + TAG_BYTES;
/// Without what shows which rank speaks.
const PROOF_BYTES: usize = TAG_BYTES;
const VERDICT_BYTES: usize = 1 + TAG_BYTES;
const LARGEST_BYTES: usize = VERDICT_BYTES + SHOWN_MAX;
const _: () = assert!(HELLO_BYTES <= LARGEST_BYTES && CHALLENGE_BYTES <= LARGEST_BYTES);

/// Purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A rank registers with the root.
    Register,
    /// A neighbour in the ring.
    Ring,
    /// A child in the tree, to its parent.
    Tree,
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
    #[error(
        "it speaks version {theirs} of the bootstrap protocol, this library version {PROTOCOL_VERSION}: all processes of a job need the same OxCCL"
    )]
    Version {
        /// Its version.
        theirs: u16,
        /// The rank that it says to be, if its HELLO shows that it has the job's secret.
        proved: Option<Rank>,
    },
    /// The other side is not authenticated.
    #[error(transparent)]
    Auth(#[from] AuthFailure),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    AwaitHello,
    /// The rest of a HELLO of this other version, which has been refused already.
    AwaitOtherHello(u16),
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
const STATUS_RANK: u8 = 4;

/// The keys of one side, as far as it has come.
#[derive(Debug)]
enum Keys {
    /// The acceptor's, before HELLO: a connection that says nothing costs nothing.
    Fresh(Secret, Ephemeral),
    Shaking(Box<HandshakeState>),
    Agreed(Box<TransportState>, DataKeys, Binding),
    Gone,
}

/// One side of the handshake.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    keys: Keys,
    credentials: Credentials,
    me: Rank,
    hello: Hello,
    input: [u8; LARGEST_BYTES],
    input_len: usize,
    output: [u8; LARGEST_BYTES],
    output_len: usize,
    output_sent: usize,
}

impl Handshake {
    /// The connecting side. Its HELLO is ready in [`output`](Self::output).
    pub fn initiator(secret: Secret, hello: Hello, ephemeral: Ephemeral) -> Handshake {
        Handshake::initiator_of(PROTOCOL_VERSION, secret, hello, ephemeral)
    }

    /// As one of this version says HELLO.
    pub(super) fn initiator_of(
        version: u16,
        secret: Secret,
        hello: Hello,
        ephemeral: Ephemeral,
    ) -> Handshake {
        let mut said = prefix(STATUS_OK);
        said[MAGIC.len()..VERSION_BYTES].copy_from_slice(&version.to_le_bytes());
        let mut noise = noise::handshake(&secret, &prologue(said), ephemeral, true);
        let mut bytes = [0; HELLO_BYTES];
        bytes[..PREFIX_BYTES].copy_from_slice(&said);
        let written = noise.write_message(&hello.to_bytes(), &mut bytes[PREFIX_BYTES..]);
        assert_eq!(written.ok(), Some(HELLO_BYTES - PREFIX_BYTES), "a first message that fits its place");
        let mut this =
            Handshake::new(State::AwaitChallenge, Keys::Shaking(Box::new(noise)), hello.from, hello);
        this.say(&bytes);
        this
    }

    /// The accepting side: rank `me`, or [`ROOT`].
    pub fn acceptor(secret: Secret, me: Rank, ephemeral: Ephemeral) -> Handshake {
        let nobody = Hello { purpose: Purpose::Register, from: ROOT, to: me, tag: 0 };
        Handshake::new(State::AwaitHello, Keys::Fresh(secret, ephemeral), me, nobody)
    }

    fn new(state: State, keys: Keys, me: Rank, hello: Hello) -> Handshake {
        Handshake {
            state,
            keys,
            credentials: Credentials::Believed,
            me,
            hello,
            input: [0; LARGEST_BYTES],
            input_len: 0,
            output: [0; LARGEST_BYTES],
            output_len: 0,
            output_sent: 0,
        }
    }

    /// The same, by these credentials: before the first byte.
    #[must_use]
    pub fn by(self, credentials: Credentials) -> Handshake {
        Handshake { credentials, ..self }
    }

    /// Of a connecting side that has come to a good end: how it shows from now on which rank it is.
    pub fn credentials(&self) -> Credentials {
        self.credentials.clone()
    }

    /// Bytes that the next step still needs. Read no more from the socket: bytes after the handshake belong to the
    /// connection's user.
    pub fn wanted_bytes(&self) -> usize {
        let whole = match self.state {
            State::AwaitHello | State::AwaitOtherHello(_) => HELLO_BYTES,
            State::AwaitChallenge => CHALLENGE_BYTES,
            State::AwaitProof => PROOF_BYTES + self.credentials.proof_bytes(),
            State::AwaitVerdict => VERDICT_BYTES + self.credentials.answer_bytes(),
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

    /// The keys of the connection, once [`outcome`](Self::outcome) is good. Given once.
    pub fn take_session(&mut self) -> Option<Session> {
        if self.state != State::Done {
            return None;
        }
        match std::mem::replace(&mut self.keys, Keys::Gone) {
            Keys::Agreed(keys, data, _) => Some(Session::new(*keys, data)),
            _ => None,
        }
    }

    /// A wrong magic, version or status is refused as soon as its bytes arrive, before the whole message does.
    fn refuse_strangers(&mut self) {
        let accepts = self.state == State::AwaitHello;
        if !accepts && self.state != State::AwaitChallenge {
            return;
        }
        let magic_len = self.input_len.min(MAGIC.len());
        if self.input[..magic_len] != MAGIC[..magic_len] {
            return self.fail(AuthFailure::NotOxccl);
        }
        let version = u16::from_le_bytes([self.input[4], self.input[5]]);
        if self.input_len >= VERSION_BYTES && version != PROTOCOL_VERSION {
            self.state = State::Failed(HandshakeError::Version { theirs: version, proved: None });
            if accepts {
                self.say(&prefix(STATUS_VERSION));
                // Whether it is of this job shows when its HELLO is complete.
                self.state = State::AwaitOtherHello(version);
            }
        } else if self.input_len >= PREFIX_BYTES {
            match (self.input[6], self.input[7]) {
                // The prologue authenticates these two bytes of a HELLO.
                _ if accepts => {}
                (STATUS_OK, 0) => {}
                (STATUS_SECRET, 0) => self.fail(AuthFailure::WrongSecret),
                _ => self.fail(AuthFailure::NotOxccl),
            }
        }
    }

    fn step(&mut self) {
        let input = self.input;
        self.input_len = 0;
        let outcome = match self.state {
            State::AwaitHello => self.on_hello(&input[..HELLO_BYTES]),
            State::AwaitOtherHello(theirs) => {
                // Which rank it is a HELLO does not show where ranks have keys of their own.
                let opened =
                    self.open_hello(&input[..HELLO_BYTES]).ok().filter(|_| self.credentials.are_none());
                let proved = opened.map(|(_, hello)| hello.from);
                self.state = State::Failed(HandshakeError::Version { theirs, proved });
                return;
            }
            State::AwaitChallenge => self.on_challenge(&input[PREFIX_BYTES..CHALLENGE_BYTES]),
            State::AwaitProof => self.on_proof(&input[..PROOF_BYTES + self.credentials.proof_bytes()]),
            State::AwaitVerdict => self.on_verdict(&input[..VERDICT_BYTES + self.credentials.answer_bytes()]),
            State::Done | State::Failed(_) => return,
        };
        match outcome {
            Ok(next) => self.state = next,
            Err(why) => self.fail(why),
        }
    }

    fn fail(&mut self, why: AuthFailure) {
        self.state = State::Failed(why.into());
        self.keys = Keys::Gone;
    }

    /// What is known of a side that speaks another version, if its HELLO is not complete.
    pub fn other_version(&self) -> Option<HandshakeError> {
        match self.state {
            State::AwaitOtherHello(theirs) => Some(HandshakeError::Version { theirs, proved: None }),
            _ => None,
        }
    }

    /// Opens a HELLO of any version that has the form of this one's.
    fn open_hello(&mut self, bytes: &[u8]) -> Result<(HandshakeState, Hello), AuthFailure> {
        let Keys::Fresh(secret, ephemeral) = std::mem::replace(&mut self.keys, Keys::Gone) else {
            return Err(AuthFailure::NotOxccl);
        };
        let (prefix, sealed) = bytes.split_first_chunk().ok_or(AuthFailure::NotOxccl)?;
        let mut noise = noise::handshake(&secret, &prologue(*prefix), ephemeral, false);
        let mut content = [0; CONTENT_BYTES];
        noise.read_message(sealed, &mut content).map_err(|_| AuthFailure::WrongSecret)?;
        let hello = Hello::from_bytes(&content).map_err(|Malformed| AuthFailure::NotOxccl)?;
        Ok((noise, hello))
    }

    fn on_hello(&mut self, bytes: &[u8]) -> Result<State, AuthFailure> {
        let opened = self.open_hello(bytes).inspect_err(|why| {
            if *why == AuthFailure::WrongSecret {
                self.say(&prefix(STATUS_SECRET));
            }
        });
        let (mut noise, hello) = opened?;
        self.hello = hello;
        let mut bytes = [0; CHALLENGE_BYTES];
        bytes[..PREFIX_BYTES].copy_from_slice(&prefix(STATUS_OK));
        // Fails for a public key of low order, which no rank of the job sends.
        noise.write_message(&[], &mut bytes[PREFIX_BYTES..]).map_err(|_| AuthFailure::Altered)?;
        self.agree(noise)?;
        self.say(&bytes);
        Ok(State::AwaitProof)
    }

    fn on_challenge(&mut self, message: &[u8]) -> Result<State, AuthFailure> {
        let Keys::Shaking(mut noise) = std::mem::replace(&mut self.keys, Keys::Gone) else {
            return Err(AuthFailure::NotOxccl);
        };
        noise.read_message(message, &mut []).map_err(|_| AuthFailure::Altered)?;
        self.agree(*noise)?;
        let credentials = self.credentials.clone();
        let (keys, binding) = self.agreed()?;
        let shown = credentials.prove(binding);
        let mut proof = [0; PROOF_BYTES + SHOWN_MAX];
        let written = keys.write_message(&shown, &mut proof).map_err(|_| AuthFailure::Altered)?;
        self.say(&proof[..written]);
        Ok(State::AwaitVerdict)
    }

    fn on_proof(&mut self, message: &[u8]) -> Result<State, AuthFailure> {
        let (credentials, from) = (self.credentials.clone(), self.hello.from);
        let is_for_me = self.hello.to == self.me;
        let (keys, binding) = self.agreed()?;
        let mut shown = [0; SHOWN_MAX];
        let proved = keys.read_message(message, &mut shown).ok();
        let is_rank = proved.map(|len| credentials.is_proof(from, binding, &shown[..len]));
        // A peer without a proof gets zeros, which no key opens.
        let mut verdict = [0; VERDICT_BYTES + SHOWN_MAX];
        let status = match is_rank {
            Some(false) => STATUS_RANK,
            _ if !is_for_me => STATUS_PEER,
            _ => STATUS_OK,
        };
        if proved.is_some() {
            let mut said = vec![status];
            match status {
                STATUS_OK => said.extend(credentials.answer(from, binding)),
                _ => said.resize(1 + credentials.answer_bytes(), 0),
            }
            keys.write_message(&said, &mut verdict).map_err(|_| AuthFailure::Altered)?;
        }
        self.say(&verdict[..VERDICT_BYTES + credentials.answer_bytes()]);
        match (proved, status) {
            (None, _) => Err(AuthFailure::Altered),
            (_, STATUS_OK) => Ok(State::Done),
            (_, STATUS_RANK) => Err(AuthFailure::NotThatRank),
            _ => Err(AuthFailure::WrongPeer),
        }
    }

    fn on_verdict(&mut self, message: &[u8]) -> Result<State, AuthFailure> {
        let (credentials, ranks) = (self.credentials.clone(), (self.hello.from, self.hello.to));
        let (keys, binding) = self.agreed()?;
        let mut said = [u8::MAX; 1 + SHOWN_MAX];
        let len = keys.read_message(message, &mut said).map_err(|_| AuthFailure::Altered)?;
        match said[0] {
            STATUS_OK => {}
            STATUS_RANK => return Err(AuthFailure::NotThatRank),
            _ => return Err(AuthFailure::WrongPeer),
        }
        self.credentials = credentials.learn(ranks, binding, &said[1..len]).ok_or(AuthFailure::WrongPeer)?;
        Ok(State::Done)
    }

    fn agree(&mut self, mut noise: HandshakeState) -> Result<(), AuthFailure> {
        let data = DataKeys::of(&mut noise);
        let binding = noise.get_handshake_hash().try_into().map_err(|_| AuthFailure::Altered)?;
        let keys = noise.into_transport_mode().map_err(|_| AuthFailure::Altered)?;
        self.keys = Keys::Agreed(Box::new(keys), data, binding);
        Ok(())
    }

    fn agreed(&mut self) -> Result<(&mut TransportState, &Binding), AuthFailure> {
        match &mut self.keys {
            Keys::Agreed(keys, _, binding) => Ok((keys, binding)),
            _ => Err(AuthFailure::NotOxccl),
        }
    }

    /// Every message is answered before the next is sent, so the buffer is always empty here.
    fn say(&mut self, bytes: &[u8]) {
        self.output[..bytes.len()].copy_from_slice(bytes);
        self.output_len = bytes.len();
        self.output_sent = 0;
    }
}

/// The first bytes of HELLO and CHALLENGE, readable by every version.
fn prefix(status: u8) -> [u8; PREFIX_BYTES] {
    let mut bytes = [0; PREFIX_BYTES];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes[MAGIC.len()..VERSION_BYTES].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    bytes[VERSION_BYTES] = status;
    bytes
}

/// Bytes that both sides hash before the first message: a constant, then HELLO's prefix as sent or received.
fn prologue(prefix: [u8; PREFIX_BYTES]) -> [u8; 24] {
    let mut bytes = *b"OxCCL bootstrap 00000000";
    bytes[24 - PREFIX_BYTES..].copy_from_slice(&prefix);
    bytes
}

impl Hello {
    fn to_bytes(self) -> [u8; CONTENT_BYTES] {
        let (kind, number) = match self.purpose {
            Purpose::Register => (0u8, 0),
            Purpose::Ring => (1, 0),
            Purpose::Message => (2, 0),
            Purpose::Stream(number) => (3, number),
            Purpose::Tree => (4, 0),
        };
        let mut bytes = [0; CONTENT_BYTES];
        bytes[0] = kind;
        bytes[4..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.from.0.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.to.0.to_le_bytes());
        bytes[16..].copy_from_slice(&self.tag.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; CONTENT_BYTES]) -> Result<Hello, Malformed> {
        let mut reader = Reader::new(bytes);
        let (kind, zeros, number) = (reader.u8()?, reader.array::<3>()?, reader.u32()?);
        let purpose = match (kind, zeros, number) {
            (0, [0, 0, 0], 0) => Purpose::Register,
            (1, [0, 0, 0], 0) => Purpose::Ring,
            (4, [0, 0, 0], 0) => Purpose::Tree,
            (2, [0, 0, 0], 0) => Purpose::Message,
            (3, [0, 0, 0], number) => Purpose::Stream(number),
            _ => return Err(Malformed),
        };
        Ok(Hello { purpose, from: Rank(reader.u32()?), to: Rank(reader.u32()?), tag: reader.u64()? })
    }
}

#[cfg(test)]
#[path = "tests/handshake.rs"]
mod tests;
