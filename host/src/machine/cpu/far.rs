//! Connections to ranks of other hosts, made when an operation first needs them.
//!
//! What an operation needs follows from its plan, so both ends of a connection need it in the same operation, and neither tells the
//! other. Its memory is there when the operation begins; what lies between its ends comes while the operation waits, and drives it.

use super::{Cpu, CpuParts};
use crate::launch::{Channel, Fault, Health, LinkError, RawCall, RunError, messages_of};
use crate::mem::Segment;
use crate::plan::{CallPlan, Plan};
use crate::proxy::ProxyEnd;
use oxccl_shared::abi::Rank;
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::algo::spec::Connections;
use std::sync::Arc;

/// The index of a connection that is not made yet.
pub const NOT_MADE: u16 = u16::MAX;

/// What an operation needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FarNeed<'a> {
    /// The neighbours in the rings of so many channels.
    Rings(u32),
    /// The neighbours in the trees of so many channels.
    Trees(u32),
    /// All other ranks, to and from.
    Mesh,
    /// These ranks: whether to send there.
    Pairs(&'a [(Rank, bool)]),
}

/// What a rank's connections are added to.
pub struct FarEnds<'a> {
    /// Channels for rings and trees.
    pub channels: &'a mut [Channel],
    /// Connections of pairs.
    pub mesh: &'a mut Channel,
    /// Index into the mesh's send connections by rank.
    pub send_to: &'a mut [u16],
    /// Index into the mesh's receive connections by rank.
    pub recv_from: &'a mut [u16],
    /// Keeps the memory of connections.
    pub memory: &'a mut Vec<Arc<Segment>>,
    /// Counts what goes over them.
    pub health: &'a Health,
    /// Takes what drives them.
    pub drive: &'a mut dyn FnMut(ProxyEnd),
}

/// Why a connection cannot even begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FarRefused(pub String);

/// What makes a rank's connections to ranks of other hosts.
pub trait FarConnector: Send {
    /// Begins those that are needed and not there. It waits for no other rank.
    ///
    /// # Errors
    /// This rank has no memory for them, or no thread.
    fn connect(&mut self, need: FarNeed<'_>, ends: FarEnds<'_>) -> Result<(), FarRefused>;
}

/// What there is by now, so that an operation like earlier ones only compares numbers.
pub struct Far {
    connector: Box<dyn FarConnector>,
    rings: u32,
    trees: u32,
    has_mesh: bool,
    /// Messages' connections that the next operation needs; the capacity is kept.
    missing: Vec<(Rank, bool)>,
}

impl Far {
    /// With the rings of so many channels connected, and nothing else.
    pub fn new(connector: Box<dyn FarConnector>, rings: u32) -> Far {
        Far { connector, rings, trees: 0, has_mesh: false, missing: Vec::new() }
    }
}

impl Cpu {
    /// Begins what these calls need and what is not there.
    pub(super) fn connect_far(&mut self, calls: &[RawCall], plans: &[CallPlan]) -> Result<(), RunError> {
        for (raw, plan) in calls.iter().zip(plans) {
            match plan {
                CallPlan::Collective(plan) => self.connect_for_plan(plan)?,
                CallPlan::Messages => self.connect_for_messages(raw)?,
                CallPlan::CopyEngines(_) | CallPlan::Symmetric(_) | CallPlan::Local => {}
            }
        }
        Ok(())
    }

    fn connect_for_plan(&mut self, plan: &Plan) -> Result<(), RunError> {
        let Some(far) = &mut self.parts.far else { return Ok(()) };
        let channels = plan.channels;
        match spec_of(plan.algorithm).connections {
            Connections::Ring if channels > far.rings => {
                far.rings = channels;
                self.begin_far(FarNeed::Rings(channels))
            }
            Connections::Tree if channels > far.trees => {
                far.trees = channels;
                self.begin_far(FarNeed::Trees(channels))
            }
            Connections::Mesh | Connections::Levels if !far.has_mesh => {
                far.has_mesh = true;
                self.begin_far(FarNeed::Mesh)
            }
            // Chains are there from init on.
            _ => Ok(()),
        }
    }

    /// Begins what the messages of a call need and what is not there.
    pub(super) fn connect_for_messages(&mut self, raw: &RawCall) -> Result<(), RunError> {
        let CpuParts { rank, facts, send_to, recv_from, far, .. } = &mut self.parts;
        let Some(far) = far.as_mut().filter(|far| !far.has_mesh) else { return Ok(()) };
        far.missing.clear();
        messages_of(raw, *rank, facts.nranks, |message| {
            let table = if message.is_send { &*send_to } else { &*recv_from };
            if message.peer != *rank && table[message.peer.index()] == NOT_MADE {
                far.missing.push((message.peer, message.is_send));
            }
        });
        if far.missing.is_empty() {
            return Ok(());
        }
        let missing = std::mem::take(&mut far.missing);
        let begun = self.begin_far(FarNeed::Pairs(&missing));
        if let Some(far) = &mut self.parts.far {
            far.missing = missing;
        }
        begun
    }

    #[cold]
    fn begin_far(&mut self, need: FarNeed<'_>) -> Result<(), RunError> {
        let CpuParts { rank, channels, mesh, send_to, recv_from, wait, memory, far, .. } = &mut self.parts;
        let Some(far) = far else { return Ok(()) };
        let health = wait.health().clone();
        let ends = FarEnds {
            channels,
            mesh,
            send_to,
            recv_from,
            memory,
            health: &health,
            drive: &mut |end| wait.drives().add_connection(end),
        };
        let begun = far.connector.connect(need, ends);
        // Messages under way, which others join, count the steps of each connection from here on.
        let known = self.recv_steps.len();
        self.recv_steps.extend(mesh.recv.iter().skip(known).map(|conn| conn.step()));
        let Err(FarRefused(why)) = begun else { return Ok(()) };
        // The text is kept for the rest of the process: a communicator fails only once.
        let error = LinkError::Connect { rank: *rank, reason: Box::leak(why.into_boxed_str()) };
        wait.fail(Fault::Link { error });
        Err(self.stopped())
    }
}
