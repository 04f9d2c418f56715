//! Layer: host / api.
//! Takes: a [`UniqueId`] or its text; the launcher's environment.
//! Gives: the id as 256 hexadecimal digits and back, for files and environment variables; the id that each rank of a
//! launched job derives.
//! Never: prints the id unasked: it contains the job's secret.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use super::config::Config;
use super::error::Error;
use super::launcher::{LaunchEnv, LaunchError, Pmi};
use crate::bootstrap::{
    Bootstrap, BootstrapConfig, BootstrapError, UNIQUE_ID_BYTES, UniqueId, UniqueIdError,
};
use crate::os::{look_up, preferred};

/// Hexadecimal digits. They contain the secret: give them to the job's ranks only.
impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for UniqueId {
    type Err = UniqueIdError;

    fn from_str(text: &str) -> Result<UniqueId, UniqueIdError> {
        let digits = text.trim().as_bytes();
        if digits.len() != 2 * UNIQUE_ID_BYTES {
            return Err(UniqueIdError::NotHex);
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).ok_or(UniqueIdError::NotHex);
        let mut bytes = [0; UNIQUE_ID_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        UniqueId::from_bytes(&bytes)
    }
}

impl UniqueId {
    /// An id for one communicator, whose root runs in this process: on one rank, which gives it to all. The network interface is that
    /// of the environment (`NCCL_SOCKET_IFNAME`), as for communicators.
    ///
    /// # Errors
    /// [`Error::Config`](super::Error::Config), [`Error::Bootstrap`](super::Error::Bootstrap).
    pub fn create() -> Result<UniqueId, Error> {
        on_any_interface(UniqueId::create_by)
    }

    /// As [`create`](Self::create), with an id for each of `nranks` ranks, to be handed to that rank alone. Each contains a key of its own: who
    /// has one joins as that rank, and as no other, connects to the others as that rank only, and so in the communicators that it splits and
    /// shrinks into. The ids become equal on no two ranks, so that programs which broadcast one need [`create`](Self::create).
    ///
    /// # Errors
    /// As [`create`](Self::create); more ranks than a communicator can have.
    pub fn create_each(nranks: u32) -> Result<Vec<UniqueId>, Error> {
        on_any_interface(|config| UniqueId::create_each_by(config, nranks))
    }

    /// An id with a random secret, whose root rank 0, here, will run whenever ranks join.
    fn of_rank_zero(is_on_one_host: bool) -> Result<UniqueId, Error> {
        let mut config = Config::from_env()?.bootstrap;
        if is_on_one_host {
            config.bind_addr.get_or_insert(Ipv4Addr::LOCALHOST.into());
        }
        Ok(UniqueId::by_rank_zero(&config)?)
    }
}

/// Makes ids by the environment's settings.
fn on_any_interface<T>(create: impl Fn(&BootstrapConfig) -> Result<T, BootstrapError>) -> Result<T, Error> {
    let mut config = Config::from_env()?.bootstrap;
    match create(&config) {
        // The threads and processes of a host without a network meet all the same.
        Err(none @ BootstrapError::NoInterface { .. }) if config.interfaces.is_none() => {
            config.bind_addr = Some(Ipv4Addr::LOCALHOST.into());
            Ok(create(&config).map_err(|_| none)?)
        }
        created => Ok(created?),
    }
}

/// What the launcher's key-value space gave: one process has one conversation with it.
static BY_PMI: OnceLock<Result<UniqueId, LaunchError>> = OnceLock::new();
/// How long the launcher may take to have heard all ranks.
const PMI_TIMEOUT: Duration = Duration::from_secs(120);

impl LaunchEnv {
    /// The id of this job's first communicator, the same on every rank; rank 0 runs the root. Where it comes from the launcher's key-value
    /// space, all ranks call it, and it may be called again.
    ///
    /// # Errors
    /// [`LaunchError::Unresolved`] if the rendezvous host has no address; [`LaunchError::Pmi`].
    pub fn unique_id(&self) -> Result<UniqueId, LaunchError> {
        if let Some(pmi) = self.pmi.as_ref().filter(|pmi| self.rendezvous.is_none() || pmi.can_be_used()) {
            return BY_PMI.get_or_init(|| self.unique_id_by(pmi)).clone();
        }
        let Some(meeting) = &self.rendezvous else {
            // A single rank has no peers; an ephemeral port cannot collide with another job's.
            let loopback = Some(std::net::Ipv4Addr::LOCALHOST.into());
            let config = BootstrapConfig { bind_addr: loopback, ..BootstrapConfig::default() };
            return UniqueId::create_by(&config)
                .map_err(|error| LaunchError::Alone { why: error.to_string() });
        };
        let unresolved = |why: String| LaunchError::Unresolved { host: meeting.host.clone(), why };
        let patience = Config::from_env().map_or(PMI_TIMEOUT, |config| config.bootstrap.timeout);
        let chosen = look_up(&meeting.host, meeting.port, patience).and_then(preferred);
        let addr = chosen.map_err(|error| unresolved(error.to_string()))?;
        let id = UniqueId::from_address(addr, &self.secret_seed(addr.ip())?);
        Ok(if self.launcher.names_jobs() { id } else { id.of_any_job() })
    }

    /// Tells the other ranks of this process's job, if its environment says where they meet, that it cannot take part because of this error in
    /// what its launcher set: their joins fail. For programs that read the environment themselves;
    /// [`Communicator::from_env`](crate::Communicator::from_env) does it.
    pub fn decline(error: &LaunchError) {
        let Some((job, placed)) = LaunchEnv::of_unusable(&Config::variable) else { return };
        // Without the secret nobody would believe it.
        let Ok(id) = job.unique_id() else { return };
        match placed {
            Some(place) => Bootstrap::decline(&id, place, &error.to_string()),
            None => Bootstrap::decline_unplaced(&id, &error.to_string()),
        }
    }

    fn unique_id_by(&self, pmi: &Pmi) -> Result<UniqueId, LaunchError> {
        let why = |error: String| LaunchError::Pmi { why: error };
        let make = || {
            let id = UniqueId::of_rank_zero(self.local_nranks == Some(self.nranks));
            id.map(|id| id.to_string()).map_err(|error| why(error.to_string()))
        };
        let text = pmi.broadcast(self.rank, PMI_TIMEOUT, make)?;
        text.parse().map_err(|error: UniqueIdError| why(format!("what rank 0 put there is no id: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    #[test]
    fn an_id_survives_being_written_as_text() {
        let id = UniqueId::from_address(SocketAddr::from(([10, 0, 0, 1], 4711)), b"seed");
        let text = id.to_string();
        assert_eq!(text.len(), 256);
        assert_eq!(text.parse(), Ok(id));
        assert_eq!(format!(" {}\n", text.to_uppercase()).parse(), Ok(id));
    }

    #[test]
    fn text_that_is_no_id_is_refused() {
        let good = UniqueId::from_address(SocketAddr::from(([10, 0, 0, 1], 4711)), b"seed").to_string();
        for bad in ["", "00", &good[1..], &good.replace('0', "g"), &"ä".repeat(128)] {
            assert_eq!(bad.parse::<UniqueId>(), Err(UniqueIdError::NotHex), "{bad}");
        }
        assert_eq!("0".repeat(256).parse::<UniqueId>(), Err(UniqueIdError::NotAnId));
    }

    /// Whoever knows the job's name and address, as its environment shows them to all, is no rank of it.
    #[test]
    fn what_everybody_knows_is_no_secret() {
        let env = |more: &[(&str, &str)]| {
            let known = [("OXCCL_RANK", "1"), ("OXCCL_NRANKS", "2")];
            let lookup = |name: &str| {
                known
                    .iter()
                    .chain(more)
                    .find(|(known, _)| *known == name)
                    .map(|(_, value)| (*value).to_owned())
            };
            LaunchEnv::detect(&lookup).expect("good values").expect("a launcher")
        };
        let is_guessed = |env: &LaunchEnv, id: &UniqueId| {
            let guess = UniqueId::from_address(id.root_addr(), &env.seed);
            [guess, guess.of_any_job()].contains(id)
        };
        let local = env(&[("NCCL_COMM_ID", "127.0.0.1:4711")]);
        let id = local.unique_id().unwrap();
        assert!(!is_guessed(&local, &id));
        assert_eq!(id, local.unique_id().unwrap());
        let remote = ("NCCL_COMM_ID", "10.0.0.1:4711");
        let with_secret = env(&[remote, ("OXCCL_COMM_SECRET", "hunter2")]);
        let id = with_secret.unique_id().unwrap();
        assert!(!is_guessed(&with_secret, &id));
        let mut guessed = with_secret.seed.clone();
        guessed.extend_from_slice(b";key=hunter2");
        assert_ne!(id, UniqueId::from_address(id.root_addr(), &guessed), "a short text is stretched");
        let required = env(&[remote, ("OXCCL_REQUIRE_SECRET", "1")]);
        assert!(matches!(required.unique_id(), Err(LaunchError::NoSecret { .. })));
        let without = env(&[remote, ("OXCCL_REQUIRE_SECRET", "0")]);
        let id = without.unique_id().unwrap();
        assert!(is_guessed(&without, &id), "and rank 0 warns of it");
    }

    #[test]
    fn all_ranks_of_a_launch_make_the_same_id() {
        let id = |rank: &str| {
            let lookup = |name: &str| match name {
                "OXCCL_RANK" => Some(rank.to_owned()),
                "OXCCL_NRANKS" => Some("2".to_owned()),
                "NCCL_COMM_ID" => Some("127.0.0.1:4711".to_owned()),
                _ => None,
            };
            LaunchEnv::detect(&lookup).expect("good values").expect("a launcher").unique_id()
        };
        assert_eq!(id("0"), id("1"));
        assert_eq!(id("0").map(|id| id.root_addr()), Ok(SocketAddr::from(([127, 0, 0, 1], 4711))));
    }
}
