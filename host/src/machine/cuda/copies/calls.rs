//! Which of a machine's calls go by copy engines.

use super::choices::{Choice, Differs};
use super::engines::CopyEngines;
use crate::launch::{Fault, RawCall, RunError};
use crate::machine::cuda::driver::StreamRef;
use crate::machine::cuda::state::Cuda;
use crate::plan::{CallPlan, Placement};
use crate::transport::p2p::{SignalTable, Window};

impl Cuda {
    /// Whether a call goes by copy engines if its buffers are placed for that: the same on every rank.
    fn may_copy(&self, raw: &RawCall) -> bool {
        self.copies.is_some()
            && self.parts.custom.is_empty()
            && self.parts.facts.takes_copy_engines(&raw.call, raw.forced)
    }

    /// The plan of a call on its buffers.
    pub(in crate::machine::cuda) fn placed(&self, raw: &RawCall, plan: CallPlan) -> CallPlan {
        let copies = self.copies.as_ref().filter(|_| self.may_copy(raw));
        let by_copies = copies.and_then(|copies| copies.place(raw));
        let by_kernel = || self.may_be_symmetric(raw).then(|| self.symmetric_plan(raw)).flatten();
        by_copies.map(CallPlan::CopyEngines).or_else(by_kernel).unwrap_or(plan)
    }

    /// Compares this rank's choices with the others', as far as they have made theirs.
    pub(in crate::machine::cuda) fn compare_choices(
        &mut self,
        calls: &[RawCall],
        plans: &[CallPlan],
    ) -> Result<(), RunError> {
        self.copies.iter_mut().for_each(|copies| copies.choices.begin());
        for (raw, plan) in calls.iter().zip(plans) {
            if !self.may_copy(raw) && !self.may_be_symmetric(raw) {
                continue;
            }
            let Some(copies) = &mut self.copies else { continue };
            let Some(differs) = copies.choices.make(&raw.call, Choice::of(plan)) else { continue };
            return Err(RunError::Stopped(match differs {
                Differs::Call(rank) => self.verdict().mismatch(rank),
                Differs::Placement(rank) => self.fail(Fault::Placement { rank }),
            }));
        }
        Ok(())
    }

    /// The calls that were compared last were not made.
    pub(in crate::machine::cuda) fn take_back_choices(&mut self) {
        self.copies.iter_mut().for_each(|copies| copies.choices.take_back());
    }

    /// # Safety
    /// 1. As [`Machine::copies`](crate::launch::Machine::copies).
    pub(in crate::machine::cuda) unsafe fn enqueue_copies(
        &mut self,
        raw: &RawCall,
        placement: Placement,
        stream: StreamRef<'_>,
    ) -> Result<(), RunError> {
        let Cuda { copies: Some(copies), parts, beside, .. } = self else { return Ok(()) };
        // SAFETY: obligation 1; `within` has made the context current.
        Ok(unsafe { copies.enqueue(raw, placement, (parts, beside), stream) }?)
    }

    /// Whether a symmetric window was registered before.
    pub(crate) fn has_copy_engines(&self) -> bool {
        self.copies.is_some()
    }

    /// Gives it the words for collectives by copy engines.
    pub(crate) fn connect_copy_engines(&mut self, table: SignalTable) -> Result<(), RunError> {
        let _bound = self.parts.device.bind()?;
        self.copies = Some(CopyEngines::new(&self.parts, table));
        self.load_symmetric();
        Ok(())
    }

    /// Lets operations use a symmetric window that every rank has mapped. By rank, where that one's GPU reaches this rank's part.
    pub(crate) fn add_symmetric_window(&mut self, window: &Window, reached: Box<[u64]>) {
        let rank = self.parts.rank;
        if let Some(copies) = &mut self.copies {
            copies.windows.add(window, rank, reached);
        }
    }
}
