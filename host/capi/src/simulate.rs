//! `ncclGroupSimulateEnd`: how long a group would take, by the planner's model.

use crate::group::{Queued, abandon, member};
use crate::pointer::{In, Out};
use crate::result::{Failure, Outcome};
use crate::types::{SIM_INFO_MAGIC, SimInfo};
use std::collections::BTreeMap;

/// Ends the group without running it. The time is that of the communicator which takes longest; messages count nothing.
pub fn end(info: In<SimInfo>, out: Out<SimInfo>) -> Outcome {
    let queued = abandon()?;
    let Some(queued) = queued else { return Ok(()) };
    member(|| {
        if info.is_null() {
            return Ok(());
        }
        let given = info.read("simInfo")?;
        if given.magic != SIM_INFO_MAGIC || given.size < size_of::<SimInfo>() {
            return Err(Failure::invalid_argument(
                "simInfo was not initialised: start from NCCL_SIM_INFO_INITIALIZER (its size or its magic number is wrong)",
            ));
        }
        let mut times: BTreeMap<usize, f64> = BTreeMap::new();
        for queued in &queued {
            *times.entry(queued.comm.handle.0).or_default() += microseconds(queued)?;
        }
        let longest = times.into_values().fold(0.0, f64::max);
        out.write(SimInfo { estimated_time: longest as f32, ..given }, "simInfo")
    })
}

fn microseconds(queued: &Queued) -> Outcome<f64> {
    let call = &queued.call;
    let engine = queued.comm.engine()?;
    let explained = engine.explain(call.func, call.dtype, call.count as u64)?;
    let chosen = explained.and_then(|explained| {
        let line = explained.lines.into_iter().find(|line| line.candidate == explained.choice.candidate);
        line?.estimate
    });
    Ok(chosen.map_or(0.0, |estimate| estimate.time_us))
}
