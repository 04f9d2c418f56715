//! Issues a kernel's proxy orders: now, when the stream reaches it, or at every launch of a graph.

use super::driver::StreamRef;
use super::state::Cuda;
use crate::launch::RunError;
use crate::machine::Issue;

impl Cuda {
    /// Issues the proxy's orders for the kernel that is enqueued on `stream` next. Returns whether there are any.
    pub(super) fn issue_orders(&mut self, stream: StreamRef<'_>) -> Result<bool, RunError> {
        let Some(net) = &mut self.parts.net else { return Ok(false) };
        let capture = self.order.capture();
        match net.issue(capture.is_some()) {
            Issue::Nothing => return Ok(false),
            Issue::Done => {}
            Issue::ByStream(turn) => {
                // SAFETY: (1) `order` has just checked that it is not.
                let put = unsafe { stream.run_once(turn) };
                put.inspect_err(|_| net.withdraw())?;
            }
            Issue::ByGraph(replay) => {
                let id = capture.expect("only a capture has a graph tell");
                let capturing = stream.still_capturing(id)?;
                let put = capturing.run_each_time(replay, self.replayed.take());
                self.replayed = put.map_err(|error| self.launch_refused(error, true, stream))?;
            }
        }
        Ok(true)
    }
}
