//! What of a communicator's connections launches need.

use super::state::Cuda;
use crate::launch::{Fault, LinkError, RawCall, RunError, messages_of};
use crate::machine::{ConnKind, Need};
use crate::plan::{CallPlan, CallRecord, message_connections};
use oxccl_shared::abi::{Protocol, Rank};
use oxccl_shared::algo::registry::spec_of;
use std::io;

impl Cuda {
    /// Makes the connections that these calls need.
    pub(super) fn connect_calls(&mut self, calls: &[RawCall], plans: &[CallPlan]) -> Result<(), RunError> {
        for (raw, plan) in calls.iter().zip(plans) {
            match plan {
                CallPlan::Local | CallPlan::CopyEngines(_) => {}
                CallPlan::Symmetric(plan) => {
                    let (kind, protocol) = (ConnKind::Mesh, Protocol::LL);
                    self.connected.want(Need { kind, protocol, channels: plan.channels, peer: None });
                }
                CallPlan::Messages => self.want_messages(raw),
                CallPlan::Collective(plan) => {
                    let by_custom = self.custom(raw, 0).map(|launch| (launch.protocol, launch.channels));
                    let need = match by_custom {
                        Some((protocol, channels)) => {
                            Need { kind: ConnKind::Mesh, protocol, channels, peer: None }
                        }
                        None => {
                            let kind = ConnKind::of(spec_of(plan.algorithm).connections);
                            Need { kind, protocol: plan.protocol, channels: plan.channels, peer: None }
                        }
                    };
                    self.connected.want(need);
                }
            }
        }
        self.make_needed(self.next_collective(calls))
    }

    /// The first collective among the calls, with its number: it is recorded once it is enqueued.
    fn next_collective(&self, calls: &[RawCall]) -> Option<CallRecord> {
        let call = calls.iter().map(|raw| raw.call).find(|call| !call.func.is_message())?;
        let seq = self.parts.health.latest().map_or(0, |latest| latest.seq + 1);
        Some(CallRecord { seq, call })
    }

    /// Makes all connections that any call may need.
    pub(crate) fn connect_all(&mut self) -> Result<(), RunError> {
        let needs = Need::all(&self.parts.facts, self.parts.rank);
        needs.into_iter().for_each(|need| self.connected.want(need));
        self.make_needed(None)
    }

    fn want_messages(&mut self, raw: &RawCall) {
        let (facts, rank, connected) = (&self.parts.facts, self.parts.rank, &mut self.connected);
        let net = self.parts.net.as_ref();
        messages_of(raw, rank, facts.nranks, |message| {
            if message.peer != rank {
                let want = message.want(net.is_some_and(|net| net.is_far(message.peer)));
                let (protocol, channels) = message_connections(&want, facts);
                connected.want(Need { kind: ConnKind::Pair, protocol, channels, peer: Some(message.peer) });
            }
        });
    }

    fn make_needed(&mut self, during: Option<CallRecord>) -> Result<(), RunError> {
        if self.connected.needs.is_empty() {
            return Ok(());
        }
        let made = self.parts.connector.connect(&self.connected.needs, during);
        let made = made.and_then(|made| match &mut self.parts.net {
            Some(net) => net.add(made).map_err(|error| no_thread(self.parts.rank, &error)),
            None => Ok(()),
        });
        let mut needs = std::mem::take(&mut self.connected.needs);
        let made = made.map_err(|fault| RunError::Stopped(self.fail(fault)));
        if made.is_ok() {
            needs.iter().for_each(|need| *self.connected.known(need) = need.channels);
        }
        needs.clear();
        self.connected.needs = needs;
        made
    }
}

/// The text is kept for the rest of the process: a communicator fails only once.
fn no_thread(rank: Rank, error: &io::Error) -> Fault {
    let why = format!("no thread for the proxy: {}", crate::os::describe(error));
    Fault::Link { error: LinkError::Connect { rank, reason: Box::leak(why.into_boxed_str()) } }
}
