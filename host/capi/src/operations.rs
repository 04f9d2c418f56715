//! Collectives, sends and receives: from a C caller's arguments to a call of the library.

use crate::coll_config::{self, Wanted};
use crate::comm::COMMS;
use crate::group::{member, submit_call};
use crate::operator;
use crate::pointer::In;
use crate::registry::Handle;
use crate::result::{Failure, Outcome};
use crate::types::CollConfig;
use oxccl::cuda::CUstream;
use oxccl::{Func, ReduceOp, Untyped};
use std::ffi::{c_int, c_void};

/// What is common to the arguments of all.
#[derive(Clone, Copy)]
pub struct Call {
    pub func: Func,
    pub send: *const c_void,
    pub recv: *mut c_void,
    pub count: usize,
    pub dtype: c_int,
    pub comm: Handle,
    pub stream: CUstream,
}

/// A call with settings of its own.
pub struct Configured {
    call: Call,
    wanted: Option<Wanted>,
}

impl Call {
    /// With settings of its own.
    pub fn with_config(self, config: In<CollConfig>) -> Outcome<Configured> {
        let wanted = member(|| coll_config::read(&config))?;
        Ok(Configured { call: self, wanted })
    }

    fn alone(self) -> Configured {
        Configured { call: self, wanted: None }
    }

    /// A call without root, peer or operator.
    pub fn submit(self) -> Outcome {
        self.alone().submit()
    }

    /// With a root or a peer.
    pub fn submit_to(self, peer: c_int) -> Outcome {
        self.alone().submit_to(peer)
    }

    /// With an operator.
    pub fn submit_reducing(self, op: c_int) -> Outcome {
        self.alone().submit_reducing(op)
    }

    /// With both.
    pub fn submit_reducing_to(self, op: c_int, root: c_int) -> Outcome {
        self.alone().submit_reducing_to(op, root)
    }
}

impl Configured {
    /// As [`Call::submit`].
    pub fn submit(self) -> Outcome {
        self.with(None, None)
    }

    /// As [`Call::submit_to`].
    pub fn submit_to(self, peer: c_int) -> Outcome {
        self.with(None, Some(peer))
    }

    /// As [`Call::submit_reducing`].
    pub fn submit_reducing(self, op: c_int) -> Outcome {
        self.with(Some(op), None)
    }

    /// As [`Call::submit_reducing_to`].
    pub fn submit_reducing_to(self, op: c_int, root: c_int) -> Outcome {
        self.with(Some(op), Some(root))
    }

    fn with(self, op: Option<c_int>, peer: Option<c_int>) -> Outcome {
        member(|| {
            let Configured { call: Call { func, send, recv, count, dtype, comm, stream }, wanted } = self;
            let comm = COMMS.get(comm, "comm")?;
            let dtype = operator::data_type(dtype)?;
            let nranks = comm.seat()?.nranks;
            let peer = match peer {
                None => 0,
                Some(peer) => u32::try_from(peer).ok().filter(|peer| *peer < nranks).ok_or_else(|| {
                    let name = if func.is_message() { "peer" } else { "root" };
                    let last = nranks - 1;
                    Failure::invalid_argument(format!("{name} is {peer}; 0 to {last} was expected"))
                })?,
            };
            let op = match op {
                None => ReduceOp::SUM,
                Some(number) => operator::find(&comm, number, dtype, stream)?,
            };
            let (send, recv) = (send.cast(), recv.cast());
            let call = Untyped { send, recv, count, op, peer, ..Untyped::new(func, dtype) };
            let call = match wanted {
                None => call,
                Some(wanted) => wanted.of(&comm, call)?,
            };
            submit_call(comm, call, stream)
        })
    }
}
