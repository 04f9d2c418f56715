//! Begins the connections to ranks of other hosts that calls need and that are not there.

use super::far::{FarEnds, FarNeed, FarRefused, NOT_MADE};
use super::state::{Cpu, CpuParts};
use crate::launch::{Fault, LinkError, RawCall, RunError, messages_of};
use crate::plan::{CallPlan, Plan};
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::algo::spec::Connections;

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
