//! Layer: host / bootstrap.
//! Takes: an id whose ranks have agreed on the root's address beforehand.
//! Gives: the root, at that address; or who has it.
//! Never: waits for an address that another job has.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use oxccl_shared::abi::Rank;

use super::cancel::Cancel;
use super::channel::{Channel, DialError};
use super::config::BootstrapConfig;
use super::credentials::Credentials;
use super::error::{AuthFailure, BootstrapError, Occupant};
use super::frame;
use super::handshake::{Handshake, HandshakeError, Hello, PROTOCOL_VERSION, Purpose, ROOT};
use super::id::{RootKind, UniqueId};
use super::iface::listening;
use super::rendezvous::{Jobs, LINGER};
use super::rendezvous_wire::{Failure, KIND_REGISTER, KIND_REPLY, ROOT_PAYLOAD_MAX, Register, Reply};
use super::root;
use super::secret::Ephemeral;
use super::sock::{self, Deadline};
use crate::wire::Message;

/// How long after a failed attempt rank 0 tries again to listen.
const TRIES_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// Starts the root of an id made from an address; rank 0 calls this. The listener accepts connections on every
/// interface unless the address is the loopback: hosts often resolve their own name to an address (127.0.1.1, or one
/// that a container maps) at which the others cannot reach them.
pub(crate) fn start(
    id: &UniqueId,
    nranks: u32,
    config: &BootstrapConfig,
    cancel: &Cancel,
) -> Result<(), BootstrapError> {
    let addr = id.root_addr();
    let ip = match addr.ip() {
        ip if ip == Ipv4Addr::LOCALHOST || ip == Ipv6Addr::LOCALHOST => ip,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let jobs = match id.kind() {
        RootKind::ByRankZeroOfAnyJob => Jobs::Any,
        RootKind::Created | RootKind::ByRankZero => Jobs::One,
    };
    // The root of an earlier communicator at the same address may still be answering late ranks.
    let deadline = Deadline::after(config.timeout.min(LINGER + Duration::from_secs(1))).or_cancelled(cancel);
    let mut occupant = Occupant::Silent;
    loop {
        match sock::listen(ip, addr.port()) {
            Ok(listener) => return root::spawn(listener, *id.secret(), Credentials::Believed, config, jobs),
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                return Err(listening(ip, "listen as root at the given address", &error));
            }
            Err(_) if deadline.left().is_none() => {
                return Err(BootstrapError::RootAddrTaken { addr, occupant });
            }
            Err(_) => {}
        }
        // Strangers are asked once: they would log each attempt.
        if matches!(occupant, Occupant::Silent | Occupant::EarlierRoot) {
            occupant = claim(id, nranks, config, &deadline)?.unwrap_or(occupant);
        }
        std::thread::sleep(TRIES_AGAIN_AFTER);
    }
}

/// Registers as rank 0 with whoever has the address. A root that still gathers its ranks belongs to another job. It fails both jobs, because
/// their ranks would mix. Otherwise this says who is there, if anybody answers.
fn claim(
    id: &UniqueId,
    nranks: u32,
    config: &BootstrapConfig,
    deadline: &Deadline,
) -> Result<Option<Occupant>, BootstrapError> {
    let hello = Hello { purpose: Purpose::Register, from: Rank(0), to: ROOT, tag: 0 };
    let mut handshake = Handshake::initiator(*id.secret(), hello, Ephemeral::random()?);
    let attempt = deadline.at_most(config.handshake_timeout);
    match Channel::dial(id.root_addr(), &mut handshake, &attempt) {
        Ok(mut root) => match answer_to_claim(&mut root, nranks, &attempt) {
            Ok(Some(failure)) => Err(failure.into()),
            // It has left, or is about to.
            Ok(None) | Err(_) => Ok(Some(Occupant::EarlierRoot)),
        },
        Err(DialError::Handshake(HandshakeError::Auth(AuthFailure::WrongSecret))) => {
            Ok(Some(Occupant::OtherJob))
        }
        Err(DialError::Handshake(HandshakeError::Version { theirs, .. })) => {
            Ok(Some(Occupant::OtherVersion { theirs, ours: PROTOCOL_VERSION }))
        }
        Err(DialError::Handshake(_)) => Ok(Some(Occupant::OtherProgram)),
        Err(DialError::Io(_)) => Ok(None),
    }
}

fn answer_to_claim(root: &mut Channel, nranks: u32, deadline: &Deadline) -> io::Result<Option<Failure>> {
    let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    let claim = Register { wants_root: true, ..Register::of_this_process(nranks, nowhere, Duration::MAX) };
    let mut message = Vec::new();
    frame::push(&mut message, KIND_REGISTER, &[&claim.to_bytes()]);
    root.write_all(&message, deadline)?;
    let frame = root.read_frame(ROOT_PAYLOAD_MAX, deadline)?;
    match (frame.kind, Reply::from_bytes(&frame.payload)) {
        (KIND_REPLY, Ok(Reply::Failed(failure))) => Ok(Some(failure)),
        _ => Ok(None),
    }
}
