//! Layer: topo / machine.
//! Takes: a machine's system, paths and graphs.
//! Gives: them to every form of output, and the channels of several such machines.
//! Never: looks for devices.

use oxccl::topology::search::Graphs;
use oxccl::topology::{Agreed, Channels, HostLanes, JoinError, Paths, Summary, System};

/// A machine and its channels.
pub struct Machine {
    /// As a title.
    pub name: String,
    pub system: System,
    pub paths: Paths,
    pub graphs: Graphs,
    /// Machines of its kind.
    pub hosts: u32,
}

impl Machine {
    /// What the ranks of all such machines agree on.
    pub fn agreed(&self) -> Agreed {
        Summary::new(&self.system, &self.paths, &self.graphs).of_hosts(self.hosts)
    }

    /// The channels of all such machines, as NCCL has them.
    pub fn channels(&self) -> Result<Channels, JoinError> {
        Channels::join(&HostLanes::new(&self.graphs).repeated(self.hosts))
    }
}
