//! Layer: host / bootstrap.
//! Takes: the key that the maker of an id gave one rank; what the maker certifies.
//! Gives: [`Credentials`]: how the sides of a connection show which ranks they are, where ranks have keys of their own.
//! Never: lets who holds one rank's key pass for another rank, or shows a key in `Debug`.
//!
//! The maker keeps one key, from which each rank's follows ([`Maker`]); a rank has its own and the maker's public one ([`OwnKey`]). Before the
//! root a rank proves its key by a code over it, and gets a certificate: the maker's signature (Ed25519) over the rank and the public key that
//! follows from the rank's. From then on each side of a connection shows its certificate and signs. All of it is bound to the connection by the
//! handshake's hash, so that nobody can pass it on.

use std::fmt;
use std::sync::Arc;

use oxccl_shared::abi::Rank;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use super::secret::{KEY_BYTES, Secret};

/// Number of the root in the place of a rank.
pub const ROOT: Rank = Rank(u32::MAX);
/// A process of the job that does not know which rank it is, and only says so.
pub const NO_RANK: Rank = Rank(u32::MAX - 1);

const PUBLIC_BYTES: usize = 32;
const SIGNATURE_BYTES: usize = 64;
/// A public key, its certificate, and a signature by it.
const SHOWN_BYTES: usize = PUBLIC_BYTES + 2 * SIGNATURE_BYTES;
/// Most bytes by which one side shows who it is.
pub const SHOWN_MAX: usize = SHOWN_BYTES;

type Public = [u8; PUBLIC_BYTES];
type Certificate = [u8; SIGNATURE_BYTES];
/// The hash of a handshake, which no other connection has.
pub type Binding = [u8; 32];

/// One rank's key, and the public key of who gave it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OwnKey {
    key: Secret,
    maker: Public,
}

/// The key from which those of all ranks of an id follow.
#[derive(Clone, Copy)]
pub struct Maker(Secret);

/// A rank that the maker has certified, among others.
#[derive(Clone)]
pub struct Identity {
    pair: Arc<Ed25519KeyPair>,
    certificate: Certificate,
    maker: Public,
    /// Where the communicator is a child: the numbers by which its ranks are certified.
    numbers: Option<Vec<Rank>>,
}

/// How a side shows which rank it is, beyond that it belongs to the job, and learns it of the other side.
#[derive(Clone, Debug, Default)]
pub enum Credentials {
    /// It is believed: ranks have no keys of their own.
    #[default]
    Believed,
    /// A rank with a key, to the root of who made the keys.
    Own(OwnKey),
    /// That root.
    Maker(Maker),
    /// A rank, or the root of a child, whose key is certified.
    Certified(Arc<Identity>),
}

/// Which side speaks: what one says is no answer of the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Speaks {
    Initiator,
    Acceptor,
}

impl Speaks {
    fn name(self) -> &'static [u8] {
        match self {
            Speaks::Initiator => b"initiator",
            Speaks::Acceptor => b"acceptor",
        }
    }
}

impl Maker {
    /// That of this secret.
    pub fn new(secret: Secret) -> Maker {
        Maker(secret)
    }

    /// What all ranks of the id share.
    pub fn shared(&self) -> Secret {
        self.0.derive(&[b"oxccl ranks with keys of their own"])
    }

    /// The key of a rank.
    pub fn key_of(&self, rank: Rank) -> OwnKey {
        OwnKey { key: self.rank_key(rank), maker: public(&self.pair()) }
    }

    fn rank_key(&self, rank: Rank) -> Secret {
        self.0.derive(&[b"oxccl rank's own key", &rank.0.to_le_bytes()])
    }

    fn pair(&self) -> Ed25519KeyPair {
        pair(&self.0.derive(&[b"oxccl certificates"]))
    }

    fn certify(&self, rank: Rank) -> Certificate {
        let public = public(&self.rank_key(rank).signs());
        sign(&self.pair(), &certified(rank, &public))
    }
}

impl Secret {
    /// What a rank signs by. Another key than the one that proves it to the root.
    fn signs(&self) -> Ed25519KeyPair {
        pair(&self.derive(&[b"signs"]))
    }

    /// By which a rank and the root prove the rank's key to each other.
    fn shown_to_root(&self, speaks: Speaks, binding: &Binding) -> Secret {
        self.derive(&[b"proves", speaks.name(), binding])
    }
}

impl OwnKey {
    /// The size of its bytes.
    pub const BYTES: usize = KEY_BYTES + PUBLIC_BYTES;

    /// As bytes, which contain the key.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..KEY_BYTES].copy_from_slice(self.key.bytes());
        bytes[KEY_BYTES..].copy_from_slice(&self.maker);
        bytes
    }

    /// The inverse of [`Self::to_bytes`]. A key that is none proves nothing.
    pub fn from_parts(key: [u8; KEY_BYTES], maker: [u8; PUBLIC_BYTES]) -> OwnKey {
        OwnKey { key: Secret::from_bytes(key), maker }
    }
}

impl Identity {
    fn new(own: &OwnKey, certificate: Certificate) -> Identity {
        Identity { pair: Arc::new(own.key.signs()), certificate, maker: own.maker, numbers: None }
    }

    /// The same in a child communicator of these ranks.
    pub fn among(&self, members: &[Rank]) -> Identity {
        // No rank is certified as the root.
        let numbers = members.iter().map(|member| self.number(*member).unwrap_or(ROOT)).collect();
        Identity { numbers: Some(numbers), ..self.clone() }
    }

    /// The number by which a rank of this communicator is certified. A child's root is its first rank's.
    fn number(&self, rank: Rank) -> Option<Rank> {
        let rank = if rank == ROOT { Rank(0) } else { rank };
        match &self.numbers {
            None => Some(rank),
            Some(numbers) => numbers.get(rank.index()).copied(),
        }
    }

    fn show(&self, speaks: Speaks, binding: &Binding) -> Vec<u8> {
        let signature = sign(&self.pair, &signed(speaks, binding));
        [&public(&self.pair)[..], &self.certificate, &signature].concat()
    }

    fn is_shown(&self, rank: Rank, speaks: Speaks, binding: &Binding, shown: &[u8]) -> bool {
        let Some((public, rest)) = shown.split_first_chunk::<PUBLIC_BYTES>() else { return false };
        let Some((certificate, signature)) = rest.split_first_chunk::<SIGNATURE_BYTES>() else {
            return false;
        };
        let Some(number) = self.number(rank) else { return false };
        is_signed(&self.maker, &certified(number, public), certificate)
            && signature
                .try_into()
                .is_ok_and(|signature| is_signed(public, &signed(speaks, binding), signature))
    }
}

impl Credentials {
    /// Bytes by which the connecting side shows who it is.
    pub fn proof_bytes(&self) -> usize {
        match self {
            Credentials::Believed => 0,
            Credentials::Own(_) | Credentials::Maker(_) => KEY_BYTES,
            Credentials::Certified(_) => SHOWN_BYTES,
        }
    }

    /// Bytes of the accepting side's answer.
    pub fn answer_bytes(&self) -> usize {
        match self {
            Credentials::Believed => 0,
            Credentials::Own(_) | Credentials::Maker(_) => KEY_BYTES + SIGNATURE_BYTES,
            Credentials::Certified(_) => SHOWN_BYTES,
        }
    }

    /// Whether a peer is believed to be the rank that it says to be.
    pub fn are_none(&self) -> bool {
        matches!(self, Credentials::Believed)
    }

    /// What the connecting side says, [`Self::proof_bytes`].
    pub(super) fn prove(&self, binding: &Binding) -> Vec<u8> {
        match self {
            Credentials::Believed | Credentials::Maker(_) => vec![0; self.proof_bytes()],
            Credentials::Own(own) => own.key.shown_to_root(Speaks::Initiator, binding).bytes().to_vec(),
            Credentials::Certified(identity) => identity.show(Speaks::Initiator, binding),
        }
    }

    /// Whether that is what `from` says.
    pub(super) fn is_proof(&self, from: Rank, binding: &Binding, proof: &[u8]) -> bool {
        match self {
            Credentials::Believed => true,
            Credentials::Own(_) => false,
            Credentials::Maker(maker) => {
                let said = proof.first_chunk::<KEY_BYTES>().map(|code| Secret::from_bytes(*code));
                said == Some(maker.rank_key(from).shown_to_root(Speaks::Initiator, binding))
            }
            Credentials::Certified(identity) => identity.is_shown(from, Speaks::Initiator, binding, proof),
        }
    }

    /// The accepting side's answer to `from`, which has shown who it is, [`Self::answer_bytes`].
    pub(super) fn answer(&self, from: Rank, binding: &Binding) -> Vec<u8> {
        match self {
            Credentials::Believed | Credentials::Own(_) => vec![0; self.answer_bytes()],
            Credentials::Maker(maker) => {
                let code = maker.rank_key(from).shown_to_root(Speaks::Acceptor, binding);
                [&code.bytes()[..], &maker.certify(from)].concat()
            }
            Credentials::Certified(identity) => identity.show(Speaks::Acceptor, binding),
        }
    }

    /// What rank `me` learns from the answer of `to`: how it shows who it is from now on. `None`: the answer is not that rank's.
    pub(super) fn learn(
        &self,
        (me, to): (Rank, Rank),
        binding: &Binding,
        answer: &[u8],
    ) -> Option<Credentials> {
        match self {
            Credentials::Believed => Some(Credentials::Believed),
            Credentials::Maker(_) => None,
            Credentials::Own(own) => {
                let (code, certificate) = answer.split_first_chunk::<KEY_BYTES>()?;
                let is_root = Secret::from_bytes(*code) == own.key.shown_to_root(Speaks::Acceptor, binding);
                let identity = Identity::new(own, *certificate.first_chunk()?);
                let is_mine =
                    is_signed(&own.maker, &certified(me, &public(&identity.pair)), &identity.certificate);
                (is_root && is_mine).then(|| Credentials::Certified(Arc::new(identity)))
            }
            Credentials::Certified(identity) => {
                identity.is_shown(to, Speaks::Acceptor, binding, answer).then(|| self.clone())
            }
        }
    }

    /// Those of a child communicator of these ranks.
    pub fn among(&self, members: &[Rank]) -> Credentials {
        match self {
            Credentials::Certified(identity) => Credentials::Certified(Arc::new(identity.among(members))),
            other => other.clone(),
        }
    }
}

fn pair(seed: &Secret) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(seed.bytes()).expect("a seed of the right size")
}

fn public(pair: &Ed25519KeyPair) -> Public {
    pair.public_key().as_ref().try_into().expect("the size of a public key")
}

fn sign(pair: &Ed25519KeyPair, what: &[u8]) -> Certificate {
    pair.sign(what).as_ref().try_into().expect("the size of a signature")
}

fn is_signed(by: &Public, what: &[u8], signature: &Certificate) -> bool {
    UnparsedPublicKey::new(&ED25519, by).verify(what, signature).is_ok()
}

/// What a certificate says.
fn certified(rank: Rank, public: &Public) -> Vec<u8> {
    [&b"oxccl rank "[..], &rank.0.to_le_bytes(), public].concat()
}

/// What a side of a connection signs.
fn signed(speaks: Speaks, binding: &Binding) -> Vec<u8> {
    [&b"oxccl connection "[..], speaks.name(), binding].concat()
}

impl fmt::Debug for OwnKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnKey(..)")
    }
}

impl fmt::Debug for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Maker(..)")
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("numbers", &self.numbers).finish_non_exhaustive()
    }
}
