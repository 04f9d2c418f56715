//! Layer: host / api / init.
//! Takes: a bootstrap, the settings, which unit of a machine this rank gets.
//! Gives: [`Init`]: how a machine's ranks are connected and what then runs their calls.
//! Never: leaves a rank waiting for another that has failed.

mod custom;
mod cpu;
mod cuda;

use super::config::Config;
use super::error::Error;
use super::membership::{Notes, NotifyByWatch};
use super::memory::MemoryUse;
use crate::bootstrap::{Bootstrap, BootstrapError, Watch};
use crate::connect::{ConnectError, Setting};
use crate::launch::{GroupMachine, Health};
use crate::transport::PeerInfo;
use crate::tuner::{About, Plugin, Tuner, TunerError};
use oxccl_shared::abi::Rank;
use std::fmt;
use std::sync::Arc;

/// A machine whose ranks can be connected.
pub trait Init: GroupMachine {
    /// Which unit of the machine a rank gets: of GPUs the number, of CPUs nothing.
    type Unit: Copy + fmt::Debug + Default + Send + Sync;
    /// The unit, once it is open.
    type Device: Send + Sync;
    /// What a communicator keeps of its user's.
    type Kept: Default + Send;
    /// Ranks that are connected.
    type Connected;

    /// The unit of the rank of this number on its host.
    fn unit_of(local_rank: u32) -> Self::Unit;

    /// A unit as NCCL's log names it.
    fn name_of(device: &Self::Device) -> String;

    /// Whether the settings can hold for so many ranks.
    ///
    /// # Errors
    /// What is wrong; nothing has been sent.
    fn check_settings(config: &Config, nranks: u32) -> Result<(), Error>;

    /// Connects this rank with all others, which call it at the same time.
    ///
    /// # Errors
    /// The same step fails on every rank: on the guilty one with its own error, elsewhere with one that names it.
    fn connect(bootstrap: &Bootstrap, config: &Config, unit: Self::Unit) -> Result<Self::Connected, Error>;

    /// What reads the notes of other ranks about connections, if any are made later.
    fn notes(_connected: &Self::Connected) -> Option<Notes> {
        None
    }

    /// Starts the machine that runs this rank's kernels.
    ///
    /// # Errors
    /// This rank's own: the others learn that it aborted.
    fn start(connected: Self::Connected, joined: &Joined<'_>) -> Result<Started<Self>, Error>;
}

/// A rank that has joined.
pub struct Joined<'a> {
    pub(super) rank: Rank,
    pub(super) nranks: u32,
    pub(super) config: &'a Config,
    pub(super) health: &'a Arc<Health>,
    pub(super) watch: &'a Arc<Watch>,
    /// The tuner plugin that all ranks have, if they have any.
    pub(super) tuner: Option<Arc<Plugin>>,
}

/// A rank that can run calls.
pub struct Started<M: Init> {
    pub(super) machine: M,
    pub(super) device: M::Device,
    /// The rank at each position of each channel's ring.
    pub(super) rings: Vec<Vec<Rank>>,
    pub(super) memory: MemoryUse,
}

impl Joined<'_> {
    /// Reports this rank's faults to the others.
    fn teller(&self) -> NotifyByWatch {
        NotifyByWatch::new(self.watch)
    }

    /// Starts the plugin for ranks on these hosts.
    fn tuner(&self, host_of: impl Iterator<Item = u64>) -> Result<Tuner, TunerError> {
        Tuner::start(self.tuner.clone(), &About::of(self.watch.bootstrap().number(), host_of))
    }
}

/// Compares the algorithms that ranks have registered, and their tuner plugins. Every rank calls it.
///
/// # Errors
/// The same on all ranks, where they differ.
pub(super) fn agree_on_algorithms(
    bootstrap: &Bootstrap,
    config: &Config,
    tuner: Option<&Plugin>,
) -> Result<(), ConnectError> {
    custom::agree(bootstrap, &config.custom, tuner)
}

/// This process's peer info, for the other ranks.
pub(super) fn this_process(
    bootstrap: &Bootstrap,
    config: &Config,
    settings: &[Setting],
) -> Result<PeerInfo, BootstrapError> {
    let what = "ask the kernel which host this is";
    let rank = Some(bootstrap.rank());
    PeerInfo::local(config.host_id.as_deref(), Setting::digest(settings))
        .map(|info| PeerInfo { encrypts: config.net.socket.encrypt, ..info })
        .map_err(|why| BootstrapError::NoDescriptor { rank, what, why })
        .inspect_err(|error| bootstrap.abort(&error.to_string()))
}
