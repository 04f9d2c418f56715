//! Asking the processes of this host, and one of another by its RAS port, for tools.

use super::allowance::{self, Allowance};
use super::flight::FlightFile;
use super::name::{Peer, all, peer};
use super::question::Question;
use super::report::{ProcessReport, REPORT_FORMAT};
use super::server::would_block;
use crate::os::{connect_any, look_up_at};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr as SocketAddress;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The longest answer: 64 communicators with 4,096 operations each are some 50 MB.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Why a process was not asked, or gave no answer.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum AskError {
    /// The kernel's list of sockets cannot be read.
    #[error("/proc/net/unix, where the kernel lists sockets: {0}")]
    List(String),
    /// It did not answer in time.
    #[error("process {pid} does not answer within {:.1} s: it is stopped or frozen", .waited.as_secs_f64())]
    Silent {
        /// The process.
        pid: u32,
        /// The time waited.
        waited: Duration,
    },
    /// The processes of another user have taken all the time that root has for them.
    #[error(
        "process {pid} of user {uid} was not asked: the processes of this user take too long; oxccl status as user {uid} asks them all"
    )]
    NotAsked {
        /// The process.
        pid: u32,
        /// Its user.
        uid: u32,
    },
    /// The connection failed.
    #[error("process {pid}: {why}")]
    Io {
        /// The process.
        pid: u32,
        /// Why.
        why: String,
    },
    /// The address of a RAS port is none.
    #[error(
        "{address}: {why}; HOST:PORT was expected, such as localhost:28028, of a host that has an address"
    )]
    Address {
        /// What was given.
        address: String,
        /// Why.
        why: String,
    },
    /// Nobody answers at the address of a RAS port.
    #[error(
        "{address}: {why}; the job listens on its loopback unless NCCL_RAS_ADDR has an address of its host, and not at all with NCCL_RAS_ENABLE=0"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// Why.
        why: String,
    },
    /// Another program answers there, or another version.
    #[error("{address} answers something else than this version ({REPORT_FORMAT}) of OxCCL: {why}")]
    Stranger {
        /// The address.
        address: String,
        /// Why.
        why: String,
    },
    /// Its answer cannot be read.
    #[error("process {pid} answers something that this version ({REPORT_FORMAT}) cannot read: {why}")]
    Answer {
        /// The process.
        pid: u32,
        /// Why.
        why: String,
    },
}

/// A process that can be asked.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    address: SocketAddr,
    /// Of another user's.
    allowance: Option<Arc<Allowance>>,
}

/// The processes of this host (and network namespace) that can be asked: this user's, for root everybody's. By number. Processes of other
/// users that have taken such a name are left out. What root asks, the processes of each other user may take 30 s and 64 MiB for together, and each 8 MiB:
/// for later questions list them again.
///
/// # Errors
/// [`AskError::List`].
pub fn processes() -> Result<Vec<Process>, AskError> {
    let names = all().map_err(|error| AskError::List(error.to_string()))?;
    let me = rustix::process::geteuid().as_raw();
    let mut allowances = BTreeMap::new();
    let mut found: Vec<Process> = names
        .into_iter()
        .filter_map(|name| identify(name, me))
        .map(|(uid, process)| {
            let allowed = || allowances.entry(uid).or_insert_with(|| Arc::new(Allowance::of(uid))).clone();
            Process { allowance: (uid != me && uid != 0).then(allowed), ..process }
        })
        .collect();
    found.sort_by_key(|process| process.pid);
    Ok(found)
}

/// Who listens there, by the kernel: not what the name says.
fn identify(address: SocketAddr, me: u32) -> Option<(u32, Process)> {
    let stream = connect(&address).ok()?;
    let Peer { uid, pid } = peer(&stream).ok()?;
    // The listener's end may have been inherited by a child that lives on.
    let runs_as = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    // Root's answer nobody else; but one that listened as root may be this user's by now.
    let answers = me == 0 || uid == me || uid == 0 && runs_as == me;
    answers.then_some((uid, Process { pid, address, allowance: None }))
}

/// Connects without waiting: a full queue of somebody who is stopped is an error.
fn connect(address: &SocketAddr) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    use std::os::linux::net::SocketAddrExt;
    let name = address.as_abstract_name().ok_or(io::ErrorKind::InvalidInput)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The RAS port of a process, of this host or another.
#[derive(Clone, Debug)]
pub struct Remote {
    address: String,
}

impl Remote {
    /// That at `HOST:PORT`.
    pub fn new(address: &str) -> Remote {
        Remote { address: address.to_owned() }
    }

    fn resolve(&self, patience: Duration) -> Result<Vec<SocketAddress>, AskError> {
        look_up_at(&self.address, patience).map_err(|error| {
            let (address, why) = (self.address.clone(), error.to_string());
            match error.kind() {
                io::ErrorKind::TimedOut => AskError::Unreachable { address, why },
                _ => AskError::Address { address, why },
            }
        })
    }

    /// As [`Process::status`], of one of the processes that share the port.
    ///
    /// # Errors
    /// [`AskError::Address`], [`AskError::Unreachable`], [`AskError::Stranger`].
    pub fn status(
        &self,
        recent_max: usize,
        others: Duration,
        patience: Duration,
    ) -> Result<ProcessReport, AskError> {
        let address = &self.address;
        let io = |error: io::Error| {
            let why = match would_block(&error) {
                true => "no answer: it is stopped or frozen, or a firewall is between".to_owned(),
                false => error.to_string(),
            };
            AskError::Unreachable { address: address.clone(), why }
        };
        let mut stream = connect_any(&self.resolve(patience)?, patience).map_err(io)?;
        stream.set_write_timeout(Some(patience)).map_err(io)?;
        let until = Instant::now() + others + patience;
        let question = Question::Status { recent_max, timeout: others };
        stream.write_all(question.to_string().as_bytes()).map_err(io)?;
        // NCCL's server refuses the line and waits for the next.
        stream.shutdown(std::net::Shutdown::Write).map_err(io)?;
        let text = read_until(until, ANSWER_BYTES_MAX, |buffer, left| {
            stream.set_read_timeout(Some(left))?;
            (&stream).read(buffer)
        });
        let text = text.map_err(io)?;
        let stranger = |why: String| AskError::Stranger { address: address.clone(), why };
        match text.starts_with(b"ERROR") || text.is_empty() {
            true => Err(stranger("NCCL's RAS, or an older OxCCL: ncclras can ask it".to_owned())),
            false => parse(&text).map_err(stranger),
        }
    }
}

impl Process {
    /// What its communicators do, with so many of their latest operations. The other ranks have `others` to say what they do; they are
    /// not asked if that is zero. The process itself has `patience` more.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn status(
        &self,
        recent_max: usize,
        others: Duration,
        patience: Duration,
    ) -> Result<ProcessReport, AskError> {
        self.ask(Question::Status { recent_max, timeout: others }, others + patience)
    }

    /// Its flight records.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn flight(&self, patience: Duration) -> Result<Vec<FlightFile>, AskError> {
        self.ask(Question::Flight, patience)
    }

    fn ask<T: serde::de::DeserializeOwned>(
        &self,
        question: Question,
        patience: Duration,
    ) -> Result<T, AskError> {
        let pid = self.pid;
        let since = Instant::now();
        let io = |error: io::Error| match would_block(&error) {
            true => AskError::Silent { pid, waited: since.elapsed() },
            false => AskError::Io { pid, why: error.to_string() },
        };
        let allowance = self.allowance.as_deref();
        let until = allowance.map_or(since + patience, |allowed| allowed.until(since).min(since + patience));
        if let Some(allowed) = allowance.filter(|_| until <= since) {
            return Err(AskError::NotAsked { pid, uid: allowed.uid });
        }
        let bytes_max = allowance.map_or(ANSWER_BYTES_MAX, |_| allowance::ANSWER_BYTES_MAX);
        let mut stream = connect(&self.address).map_err(io)?;
        stream.set_write_timeout(Some(until - since)).map_err(io)?;
        stream.write_all(question.to_string().as_bytes()).map_err(io)?;
        let text = read_until(until, bytes_max, |buffer, left| {
            stream.set_read_timeout(Some(left))?;
            let got = (&stream).read(buffer)?;
            allowance.map_or(Ok(()), |allowed| allowed.charge(got))?;
            Ok(got)
        });
        let text = text.map_err(io)?;
        let _turn = allowance.map(Allowance::reading);
        parse(&text).map_err(|why| AskError::Answer { pid, why })
    }
}

/// Reads to the end, which comes by then: who sends a byte now and then has no more time than who sends none.
fn read_until(
    until: Instant,
    bytes_max: usize,
    mut read: impl FnMut(&mut [u8], Duration) -> io::Result<usize>,
) -> io::Result<Vec<u8>> {
    let (mut text, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match read(&mut buffer, left) {
            Ok(0) => return Ok(text),
            Ok(got) => text.extend_from_slice(&buffer[..got]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if text.len() > bytes_max {
            let why = format!("the answer is longer than {bytes_max} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
    }
}

/// An answer. Its texts may be another user's, so nothing in them moves a terminal's cursor or begins a line.
fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    let mut value: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    defuse(&mut value);
    serde_json::from_value(value).map_err(|error| error.to_string())
}

fn defuse(value: &mut Value) {
    match value {
        Value::String(text) if text.contains(char::is_control) => {
            *text = text.replace(char::is_control, "\u{fffd}");
        }
        Value::Array(all) => all.iter_mut().for_each(defuse),
        Value::Object(fields) => fields.values_mut().for_each(defuse),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sends_a_byte_now_and_then_has_no_more_time() {
        let (started, patience) = (Instant::now(), Duration::from_millis(200));
        let drip = |buffer: &mut [u8], _: Duration| {
            std::thread::sleep(Duration::from_millis(20));
            buffer[0] = b' ';
            Ok(1)
        };
        let error = read_until(started + patience, ANSWER_BYTES_MAX, drip).unwrap_err();
        assert!(would_block(&error), "{error}");
        assert!(started.elapsed() >= patience);
    }

    #[test]
    fn an_answer_without_end_is_refused() {
        let until = Instant::now() + Duration::from_secs(60);
        let error = read_until(until, ANSWER_BYTES_MAX, |buffer, _| Ok(buffer.len())).unwrap_err();
        assert!(error.to_string().contains("longer than"), "{error}");
    }

    /// It was advice on where the job listens.
    #[test]
    fn an_address_that_is_none_is_said_to_be_so() {
        for address in ["nope", "localhost:port", "localhost:99999", ""] {
            let error = Remote::new(address).status(0, Duration::ZERO, Duration::ZERO).unwrap_err();
            let said = error.to_string();
            assert!(matches!(error, AskError::Address { .. }) && said.contains("HOST:PORT"), "{said}");
            assert!(!said.contains("NCCL_RAS_ADDR"), "{said}");
        }
    }

    /// As root asks: whoever it is that answers there without an end.
    #[test]
    fn what_another_users_process_sends_is_bounded_by_less() {
        let listener = super::super::name::listen().unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(false).unwrap();
        let sent = std::thread::spawn(move || {
            let mut sent = 0;
            for _ in 0..2 {
                let mut stream = listener.accept().unwrap().0;
                while stream.write_all(&[b' '; 1 << 16]).is_ok() {
                    sent += 1 << 16;
                }
            }
            sent
        });
        let ask = |allowance| {
            let process = Process { pid: 7, address: address.clone(), allowance };
            process.status(0, Duration::ZERO, Duration::from_secs(60)).unwrap_err().to_string()
        };
        let allowed = Arc::new(Allowance::of(65_534));
        let error = ask(Some(allowed.clone()));
        assert!(error.contains("longer than 8388608 bytes"), "{error}");
        allowed.charge(56 << 20).unwrap_err();
        let error = ask(Some(allowed));
        assert!(error.contains("user 65534") && error.contains("together"), "{error}");
        assert!(sent.join().unwrap() < 16 << 20);
    }

    #[test]
    fn texts_of_others_are_only_texts() {
        let answer: Vec<String> = parse(br#"["dp\u001b[2J\ncommunicator x", "plain"]"#).unwrap();
        assert_eq!(answer, ["dp\u{fffd}[2J\u{fffd}communicator x", "plain"]);
    }
}
