//! Passes file descriptors between the processes of a host.
//!
//! Every rank binds a datagram socket whose name only the ranks know; then each sends its descriptor to the ranks
//! that need it and receives those that it needs. Datagrams need no connections, so no order of connecting can
//! deadlock, and one loop does both directions, so full queues cannot either. Names are abstract: no file is left
//! behind.

use crate::bootstrap::limit_secs;
use crate::os::describe;
use oxccl_shared::abi::Rank;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Why descriptors could not be exchanged.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PassError {
    /// A system call failed.
    #[error("{operation} of the socket for memory descriptors: {}", describe(&(*.errno).into()))]
    System {
        /// The system call.
        operation: &'static str,
        /// Its error.
        errno: Errno,
    },
    /// A peer's socket does not take the descriptor.
    #[error(
        "the memory descriptor could not be sent to rank {peer}: {errno}; are both processes in one network namespace?"
    )]
    Send {
        /// The peer.
        peer: Rank,
        /// The system's error.
        errno: Errno,
    },
    /// Another rank failed or is gone: its error says more.
    #[error("given up, because another rank failed or is gone")]
    GivenUp,
    /// The timeout passed.
    #[error(
        "no memory descriptor from rank {peer} within {} s ({refused} messages of strangers were dropped)", limit_secs(.limit)
    )]
    Timeout {
        /// The first peer whose descriptor is missing, or that accepts none.
        peer: Rank,
        /// How long it may take.
        limit: Duration,
        /// Messages of false senders, or without the secret.
        refused: u32,
    },
}

/// The other end of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Party {
    /// The rank.
    pub rank: Rank,
    /// Its token: names its socket, and starts every message to it.
    pub token: u64,
    /// Its process, if both processes are in one PID namespace.
    pub pid: Option<u32>,
}

/// First bytes of a message: "OXFD", then the receiver's token and the sender's rank.
const MAGIC: [u8; 4] = *b"OXFD";
const MESSAGE_BYTES: usize = 16;

/// Longest wait for a message: a receiver's full queue wakes no sender when it drains.
const POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// A rank's socket.
#[derive(Debug)]
pub(crate) struct Mailbox {
    socket: OwnedFd,
    token: u64,
}

impl Mailbox {
    /// Binds a socket under the name of `token`. Others may send once they know that it exists.
    pub fn bind(token: u64) -> Result<Mailbox, PassError> {
        let system = |operation| move |errno| PassError::System { operation, errno };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
            .map_err(system("creation"))?;
        rustix::net::sockopt::set_socket_passcred(&socket, true).map_err(system("setting"))?;
        rustix::net::bind(&socket, &address(token)?).map_err(system("binding"))?;
        Ok(Mailbox { socket, token })
    }

    /// Sends descriptors, as rank `me`, to those in `to`, and returns the descriptors of those in `from`, in that
    /// order. Ends early if not all ranks `are_there`.
    pub fn exchange(
        &self,
        me: Rank,
        to: &[(Party, BorrowedFd<'_>)],
        from: &[Party],
        timeout: Duration,
        are_there: impl Fn() -> bool,
    ) -> Result<Vec<OwnedFd>, PassError> {
        let start = Instant::now();
        let mut unsent = to.to_vec();
        let mut got: Vec<Option<OwnedFd>> = from.iter().map(|_| None).collect();
        let mut refused = 0;
        loop {
            let mut blocked = Vec::new();
            for (party, fd) in unsent {
                if !send(&self.socket, party, me, fd)? {
                    blocked.push((party, fd));
                }
            }
            unsent = blocked;
            while let Some(message) = self.receive()? {
                match from.iter().position(|party| message.is_from(party, self.token)) {
                    Some(at) => got[at] = message.fd,
                    None => refused += 1,
                }
            }
            let missing = got.iter().position(Option::is_none).map(|at| from[at].rank);
            let Some(peer) = missing.or(unsent.first().map(|(party, _)| party.rank)) else {
                return Ok(got.into_iter().flatten().collect());
            };
            if !are_there() {
                return Err(PassError::GivenUp);
            }
            if start.elapsed() >= timeout {
                return Err(PassError::Timeout { peer, limit: timeout, refused });
            }
            let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
            // A signal ends the wait early; the loop polls again.
            let _ = rustix::event::poll(&mut ready, Some(&POLL));
        }
    }

    /// The next message, if one has arrived.
    fn receive(&self) -> Result<Option<Message>, PassError> {
        let mut message = Message::default();
        // Room for two credentials and four descriptors, more than a rank sends; aligned as control messages must be.
        let mut control = [0u64; 24];
        // SAFETY: all zeros are a valid header without buffers.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        let mut part =
            libc::iovec { iov_base: message.bytes.as_mut_ptr().cast(), iov_len: message.bytes.len() };
        header.msg_iov = &mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = std::mem::size_of_val(&control) as _;
        let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
        // SAFETY: the header's buffers are valid for their lengths and outlive the call. (Not rustix's call: it makes the
        // sender's id a number that is never 0, which it is for a process of another namespace.)
        let got = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &mut header, flags) };
        if got < 0 {
            let error = std::io::Error::last_os_error();
            return match Errno::from_io_error(&error) {
                Some(Errno::AGAIN | Errno::INTR) => Ok(None),
                errno => Err(PassError::System { operation: "reading", errno: errno.unwrap_or(Errno::IO) }),
            };
        }
        message.len = got as usize;
        // SAFETY: the call has filled the header.
        unsafe { message.read_control(&header) };
        Ok(Some(message))
    }
}

/// A received message.
#[derive(Default)]
struct Message {
    bytes: [u8; MESSAGE_BYTES],
    len: usize,
    uid: Option<u32>,
    pid: Option<u32>,
    fd: Option<OwnedFd>,
}

impl Message {
    /// Takes descriptors and credentials out of the control messages; descriptors beyond the first are closed.
    ///
    /// # Safety
    /// 1. `recvmsg` has just filled `header`, whose buffers still live, and nobody else takes its descriptors.
    unsafe fn read_control(&mut self, header: &libc::msghdr) {
        // SAFETY: (1) the header is whole.
        let mut at = unsafe { libc::CMSG_FIRSTHDR(header) };
        while !at.is_null() {
            // SAFETY: (1) the macros give null or a header within the control buffer, which is aligned for it.
            let control = unsafe { &*at };
            // SAFETY: as above.
            let data = unsafe { libc::CMSG_DATA(at) };
            // SAFETY: the length of an empty control message, which is a computation.
            let empty = unsafe { libc::CMSG_LEN(0) } as usize;
            let data_bytes = (control.cmsg_len as usize).saturating_sub(empty);
            match (control.cmsg_level, control.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for i in 0..data_bytes / size_of::<RawFd>() {
                        // SAFETY: the kernel wrote that many descriptors.
                        let raw = unsafe { data.cast::<RawFd>().add(i).read_unaligned() };
                        // SAFETY: a fresh descriptor that belongs to this process now, taken once.
                        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
                        self.fd.get_or_insert(fd);
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if data_bytes >= size_of::<libc::ucred>() => {
                    // SAFETY: the kernel wrote the credentials there.
                    let credentials = unsafe { data.cast::<libc::ucred>().read_unaligned() };
                    self.uid = Some(credentials.uid);
                    self.pid = u32::try_from(credentials.pid).ok();
                }
                _ => {}
            }
            // SAFETY: (1) as for the first.
            at = unsafe { libc::CMSG_NXTHDR(header, at) };
        }
    }

    /// Whether `party` sent it to the owner of `token`: the kernel authenticates user and process.
    fn is_from(&self, party: &Party, token: u64) -> bool {
        self.fd.is_some()
            && self.bytes[..self.len.min(MESSAGE_BYTES)] == message(token, party.rank)
            && self.uid == Some(rustix::process::geteuid().as_raw())
            && party.pid.is_none_or(|pid| self.pid == Some(pid))
    }
}

fn message(token: u64, from: Rank) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..12].copy_from_slice(&token.to_le_bytes());
    bytes[12..].copy_from_slice(&from.0.to_le_bytes());
    bytes
}

fn address(token: u64) -> Result<SocketAddrUnix, PassError> {
    SocketAddrUnix::new_abstract_name(format!("oxccl-p2p-{token:016x}").as_bytes())
        .map_err(|errno| PassError::System { operation: "naming", errno })
}

/// Sends one message; false if the receiver's queue is full.
fn send(socket: &OwnedFd, to: Party, me: Rank, fd: BorrowedFd<'_>) -> Result<bool, PassError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    let fits = control.push(SendAncillaryMessage::ScmRights(&fds));
    debug_assert!(fits, "the space was made for one descriptor");
    let bytes = message(to.token, me);
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let parts = [IoSlice::new(&bytes)];
    match rustix::net::sendmsg_addr(socket.as_fd(), &address(to.token)?, &parts, &mut control, flags) {
        Ok(_) => Ok(true),
        // Too many descriptors in flight count like a full queue: both end when the receiver reads.
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::TOOMANYREFS) => Ok(false),
        Err(errno) => Err(PassError::Send { peer: to.rank, errno }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    const TIMEOUT: Duration = Duration::from_secs(20);

    /// A file in memory that says `text`.
    fn file(text: &str) -> std::fs::File {
        let fd = rustix::fs::memfd_create("oxccl-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(fd);
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    /// Read in place: all who have the descriptor share its position.
    fn text(fd: OwnedFd) -> String {
        let mut bytes = [0; 32];
        let len = std::fs::File::from(fd).read_at(&mut bytes, 0).unwrap();
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }

    fn party(rank: Rank, token: u64) -> Party {
        Party { rank, token, pid: Some(std::process::id()) }
    }

    fn tokens<const N: usize>() -> [u64; N] {
        std::array::from_fn(|_| getrandom::u64().unwrap())
    }

    /// Twice as many as a queue of the kernel holds by default.
    #[test]
    fn everybody_gets_everybodys_descriptor() {
        let tokens: [u64; 20] = tokens();
        let mailboxes = tokens.map(|token| Mailbox::bind(token).unwrap());
        std::thread::scope(|scope| {
            for (me, mailbox) in mailboxes.iter().enumerate() {
                scope.spawn(move || {
                    let all = tokens.iter().enumerate().map(|(rank, token)| party(Rank(rank as u32), *token));
                    let others: Vec<Party> = all.filter(|party| party.rank != Rank(me as u32)).collect();
                    let mine = file(&format!("of {me}"));
                    let to: Vec<_> = others.iter().map(|party| (*party, mine.as_fd())).collect();
                    let got = mailbox.exchange(Rank(me as u32), &to, &others, TIMEOUT, || true).unwrap();
                    for (party, fd) in others.iter().zip(got) {
                        assert_eq!(text(fd), format!("of {}", party.rank));
                    }
                });
            }
        });
    }

    #[test]
    fn strangers_are_not_believed() {
        let [mine, other] = tokens();
        let (mailbox, sender) = (Mailbox::bind(mine).unwrap(), Mailbox::bind(other).unwrap());
        let spoof = file("spoof");
        // Knows the name but not the token; claims another rank; is another process than the rank it claims to be.
        let name = address(mine).unwrap();
        let bytes = message(mine ^ 1, Rank(1));
        let flags = SendFlags::empty();
        let mut none = SendAncillaryBuffer::default();
        rustix::net::sendmsg_addr(&sender.socket, &name, &[IoSlice::new(&bytes)], &mut none, flags).unwrap();
        assert!(send(&sender.socket, party(Rank(0), mine), Rank(2), spoof.as_fd()).unwrap());
        assert!(send(&sender.socket, party(Rank(0), mine), Rank(1), spoof.as_fd()).unwrap());
        let elsewhere = Party { pid: Some(1), ..party(Rank(1), other) };
        let short = Duration::from_millis(50);
        let error = mailbox.exchange(Rank(0), &[], &[elsewhere], short, || true).unwrap_err();
        assert!(matches!(error, PassError::Timeout { peer: Rank(1), refused: 3, .. }), "{error}");
        assert!(error.to_string().contains("within 0.05 s"), "{error}");
        // The real one still comes through.
        assert!(send(&sender.socket, party(Rank(0), mine), Rank(1), file("real").as_fd()).unwrap());
        let got = mailbox.exchange(Rank(0), &[], &[party(Rank(1), other)], TIMEOUT, || true).unwrap();
        assert_eq!(got.into_iter().map(text).collect::<Vec<_>>(), ["real"]);
    }

    /// A rank that cannot take part aborts; the others do not wait for its descriptor until their timeout.
    #[test]
    fn an_exchange_ends_when_a_rank_fails() {
        let [mine, other] = tokens();
        let mailbox = Mailbox::bind(mine).unwrap();
        let began = Instant::now();
        let are_there = || began.elapsed() < Duration::from_millis(20);
        let error = mailbox.exchange(Rank(0), &[], &[party(Rank(1), other)], TIMEOUT, are_there).unwrap_err();
        assert_eq!(error, PassError::GivenUp);
        assert!(began.elapsed() < TIMEOUT / 2);
    }

    #[test]
    fn a_peer_without_a_socket_is_named() {
        let [mine, other] = tokens();
        let mailbox = Mailbox::bind(mine).unwrap();
        let nothing = file("");
        let to = [(party(Rank(7), other), nothing.as_fd())];
        let error = mailbox.exchange(Rank(0), &to, &[], TIMEOUT, || true).unwrap_err();
        assert_eq!(error, PassError::Send { peer: Rank(7), errno: Errno::CONNREFUSED });
        assert!(error.to_string().contains("rank 7"), "{error}");
        assert!(error.to_string().contains("network namespace"), "{error}");
    }
}
