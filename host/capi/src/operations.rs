//! Collectives, sends and receives: from a C caller's arguments to a call of the library.

use crate::comm::COMMS;
use crate::group::{member, submit_call};
use crate::operator;
use crate::registry::Handle;
use crate::result::{Failure, Outcome};
use oxccl::cuda::CUstream;
use oxccl::{Func, ReduceOp, Untyped};
use std::ffi::{c_int, c_void};

/// What is common to the arguments of all.
pub struct Call {
    pub func: Func,
    pub send: *const c_void,
    pub recv: *mut c_void,
    pub count: usize,
    pub dtype: c_int,
    pub comm: Handle,
    pub stream: CUstream,
}

impl Call {
    /// A call without root, peer or operator.
    pub fn submit(self) -> Outcome {
        self.with(None, None)
    }

    /// With a root or a peer.
    pub fn submit_to(self, peer: c_int) -> Outcome {
        self.with(None, Some(peer))
    }

    /// With an operator.
    pub fn submit_reducing(self, op: c_int) -> Outcome {
        self.with(Some(op), None)
    }

    /// With both.
    pub fn submit_reducing_to(self, op: c_int, root: c_int) -> Outcome {
        self.with(Some(op), Some(root))
    }

    fn with(self, op: Option<c_int>, peer: Option<c_int>) -> Outcome {
        member(|| {
            let comm = COMMS.get(self.comm, "comm")?;
            let dtype = operator::data_type(self.dtype)?;
            let nranks = comm.seat()?.nranks;
            let peer = match peer {
                None => 0,
                Some(peer) => u32::try_from(peer).ok().filter(|peer| *peer < nranks).ok_or_else(|| {
                    let name = if self.func.is_message() { "peer" } else { "root" };
                    let last = nranks - 1;
                    Failure::invalid_argument(format!("{name} is {peer}; 0 to {last} was expected"))
                })?,
            };
            let op = match op {
                None => ReduceOp::SUM,
                Some(number) => operator::find(&comm, number, dtype, self.stream)?,
            };
            let Call { func, send, recv, count, stream, .. } = self;
            let (send, recv) = (send.cast(), recv.cast());
            submit_call(comm, Untyped { send, recv, count, op, peer, ..Untyped::new(func, dtype) }, stream)
        })
    }
}
