//! Communicators of one NCCL, one for each rank of this thread.

use super::symbols::{
    Code, Comm, CudaStream, DataTypeCode, HOST_IMMEDIATE, IN_PROGRESS, OpCode, SYMMETRIC, UniqueId,
};
use super::{Nccl, NcclError};
use crate::collective::{Collective, Transfer};
use crate::engine::{Call, EngineError, SetupError};
use crate::gpu::engine::{Extent, GpuEngine, Registration, Seat, SeatCall};
use crate::team::{Record, Team, bytes_of_record, record_of_bytes};
use oxccl_shared::abi::{DataType, RedOp};
use std::ffi::{c_int, c_void};
use std::rc::Rc;

/// Collectives of NCCL.
pub struct NcclEngine {
    nccl: Rc<Nccl>,
    name: String,
    ranks: u32,
    comms: Vec<RankComm>,
    aborted: bool,
}

struct RankComm {
    rank: u32,
    raw: Comm,
    /// Operators made for pre-multiplied sums: of this type and scalar.
    scaled: Vec<(DataType, u64, OpCode)>,
    /// Registered buffers.
    known: Vec<(Registration, *mut c_void)>,
}

impl NcclEngine {
    /// A communicator over the ranks of all threads of `team`, each of which has as many seats.
    pub fn new(
        nccl: &Rc<Nccl>,
        name: String,
        team: &mut dyn Team,
        seats: &[Seat],
    ) -> Result<NcclEngine, SetupError> {
        let id = agree_on_id(nccl, team)?;
        let ranks = team.size() * seats.len() as u32;
        let mut engine = NcclEngine { nccl: nccl.clone(), name, ranks, comms: Vec::new(), aborted: false };
        engine.init(id, seats)?;
        Ok(engine)
    }

    fn init(&mut self, id: UniqueId, seats: &[Seat]) -> Result<(), EngineError> {
        let nccl = self.nccl.clone();
        let mut raw: Vec<Comm> = vec![std::ptr::null_mut(); seats.len()];
        self.group_start()?;
        for (seat, comm) in seats.iter().zip(&mut raw) {
            let _bound = seat.bind()?;
            // SAFETY: `comm` stays where it is until the group has ended; the GPU of this rank is current.
            let code =
                unsafe { (nccl.symbols().comm_init_rank)(comm, self.ranks as c_int, id, seat.rank as c_int) };
            nccl.check("ncclCommInitRank", code, None)?;
        }
        self.group_end("ncclCommInitRank (at the group's end)")?;
        let made = seats.iter().zip(raw);
        let made =
            made.map(|(seat, raw)| RankComm { rank: seat.rank, raw, scaled: Vec::new(), known: Vec::new() });
        self.comms = made.collect();
        Ok(())
    }

    fn group_start(&self) -> Result<(), NcclError> {
        // SAFETY: always allowed.
        self.nccl.check("ncclGroupStart", unsafe { (self.nccl.symbols().group_start)() }, None)
    }

    fn group_end(&self, function: &'static str) -> Result<(), NcclError> {
        // SAFETY: a group has been started.
        let code = unsafe { (self.nccl.symbols().group_end)() };
        self.nccl.check(function, code, self.comms.first().map(|comm| comm.raw))
    }

    /// The operator of a call.
    fn op(&mut self, seat: usize, call: &Call) -> Result<OpCode, NcclError> {
        if !call.collective.reduces() || call.op != RedOp::PreMulSum {
            return Ok(op_code(call.op));
        }
        let comm = &mut self.comms[seat];
        let made =
            comm.scaled.iter().find(|(dtype, bits, _)| (*dtype, *bits) == (call.dtype, call.scalar_bits));
        if let Some((_, _, op)) = made {
            return Ok(*op);
        }
        // Calls without it have been refused.
        let Some(create) = self.nccl.symbols().red_op_create_pre_mul_sum else {
            return Ok(op_code(RedOp::Sum));
        };
        let (mut op, scalar) = (0, call.scalar_bits.to_le_bytes());
        let dtype = dtype_code(call.dtype);
        // SAFETY: the scalar's bytes are read during the call, and are as many as the largest type has.
        let code = unsafe { create(&mut op, scalar.as_ptr().cast(), dtype, HOST_IMMEDIATE, comm.raw) };
        self.nccl.check("ncclRedOpCreatePreMulSum", code, Some(comm.raw))?;
        comm.scaled.push((call.dtype, call.scalar_bits, op));
        Ok(op)
    }

    /// # Safety
    /// 1. As [`GpuEngine::register`]. 2. `handle` is valid until the group has ended.
    unsafe fn announce(
        &self,
        comm: Comm,
        Extent { address, bytes }: Extent,
        kind: Registration,
        handle: *mut *mut c_void,
    ) -> Result<(), NcclError> {
        let (nccl, symbols) = (&self.nccl, self.nccl.symbols());
        let buffer = std::ptr::without_provenance_mut(address as usize);
        let lacks = |symbol, since| NcclError::Lacks { path: nccl.path().into(), symbol, since };
        match kind {
            Registration::Local => {
                let name = "ncclCommRegister";
                let register = symbols.comm_register.ok_or_else(|| lacks(name, "2.19"))?;
                // SAFETY: both obligations.
                nccl.check(name, unsafe { register(comm, buffer, bytes, handle) }, Some(comm))
            }
            Registration::Symmetric => {
                let name = "ncclCommWindowRegister";
                let register = symbols.window_register.ok_or_else(|| lacks(name, "2.27"))?;
                // SAFETY: both obligations.
                let code = unsafe { register(comm, buffer, bytes, handle, SYMMETRIC) };
                nccl.check(name, code, Some(comm))
            }
        }
    }

    /// # Safety
    /// 1. As [`GpuEngine::enqueue`]. 2. In a group, if the call is several of NCCL's.
    unsafe fn one(&mut self, seat: usize, call: &Call, stream: CudaStream) -> Result<(), NcclError> {
        let op = self.op(seat, call)?;
        let (comm, nccl) = (self.comms[seat].raw, &self.nccl);
        let s = nccl.symbols();
        let (send, recv): (*const c_void, *mut c_void) = (call.send.cast_const().cast(), call.recv.cast());
        let (count, dtype, root) = (call.count, dtype_code(call.dtype), call.root as c_int);
        let (name, code) = match call.collective {
            Collective::AllReduce => {
                // SAFETY: obligation 1, in the argument order of nccl.h.
                ("ncclAllReduce", unsafe { (s.all_reduce)(send, recv, count, dtype, op, comm, stream) })
            }
            Collective::ReduceScatter => {
                // SAFETY: as above.
                let code = unsafe { (s.reduce_scatter)(send, recv, count, dtype, op, comm, stream) };
                ("ncclReduceScatter", code)
            }
            Collective::Reduce => {
                // SAFETY: as above.
                ("ncclReduce", unsafe { (s.reduce)(send, recv, count, dtype, op, root, comm, stream) })
            }
            Collective::Broadcast => {
                // SAFETY: as above.
                ("ncclBroadcast", unsafe { (s.broadcast)(send, recv, count, dtype, root, comm, stream) })
            }
            Collective::AllGather => {
                // SAFETY: as above.
                ("ncclAllGather", unsafe { (s.all_gather)(send, recv, count, dtype, comm, stream) })
            }
            _ => {
                // SAFETY: both obligations.
                let whole = unsafe { self.with_windows(seat, call, stream) };
                // SAFETY: both obligations.
                return whole.unwrap_or_else(|| unsafe { self.exchange(seat, call, stream) });
            }
        };
        nccl.check(name, code, Some(comm))
    }

    /// Functions of NCCL's own, since 2.28, that may use windows; sends and receives do not.
    ///
    /// # Safety
    /// 1. As [`GpuEngine::enqueue`].
    unsafe fn with_windows(
        &self,
        seat: usize,
        call: &Call,
        stream: CudaStream,
    ) -> Option<Result<(), NcclError>> {
        let (comm, symbols) = (&self.comms[seat], self.nccl.symbols());
        if comm.known.iter().all(|(kind, _)| *kind != Registration::Symmetric) {
            return None;
        }
        let (send, recv): (*const c_void, *mut c_void) = (call.send.cast_const().cast(), call.recv.cast());
        let (count, dtype, root) = (call.count, dtype_code(call.dtype), call.root as c_int);
        let (name, code) = match call.collective {
            Collective::AllToAll => {
                let run = symbols.all_to_all?;
                // SAFETY: obligation 1, in the argument order of nccl.h.
                ("ncclAlltoAll", unsafe { run(send, recv, count, dtype, comm.raw, stream) })
            }
            Collective::Gather => {
                let run = symbols.gather?;
                // SAFETY: as above.
                ("ncclGather", unsafe { run(send, recv, count, dtype, root, comm.raw, stream) })
            }
            Collective::Scatter => {
                let run = symbols.scatter?;
                // SAFETY: as above.
                ("ncclScatter", unsafe { run(send, recv, count, dtype, root, comm.raw, stream) })
            }
            _ => return None,
        };
        Some(self.nccl.check(name, code, Some(comm.raw)))
    }

    /// What NCCL makes of sends and receives.
    ///
    /// # Safety
    /// 1. As [`GpuEngine::enqueue`]. 2. In a group.
    unsafe fn exchange(&self, seat: usize, call: &Call, stream: CudaStream) -> Result<(), NcclError> {
        let (comm, nccl) = (&self.comms[seat], &self.nccl);
        let dtype = dtype_code(call.dtype);
        for transfer in call.collective.transfers(call.count, comm.rank, self.ranks, call.root) {
            let Transfer { is_send, peer, first, count } = transfer;
            let (peer, offset) = (peer as c_int, first * call.dtype.size_bytes());
            let (name, code): (_, Code) = if is_send {
                let from = call.send.wrapping_add(offset).cast_const();
                // SAFETY: obligation 1: the part lies in the send buffer.
                let code =
                    unsafe { (nccl.symbols().send)(from.cast(), count, dtype, peer, comm.raw, stream) };
                ("ncclSend", code)
            } else {
                let to = call.recv.wrapping_add(offset);
                // SAFETY: obligation 1: the part lies in the receive buffer.
                let code = unsafe { (nccl.symbols().recv)(to.cast(), count, dtype, peer, comm.raw, stream) };
                ("ncclRecv", code)
            };
            nccl.check(name, code, Some(comm.raw))?;
        }
        Ok(())
    }
}

impl GpuEngine for NcclEngine {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn describe(&self) -> String {
        let (major, minor, patch) = self.nccl.version();
        let mut set: Vec<String> = std::env::vars()
            .filter(|(name, _)| name.starts_with("NCCL_"))
            .map(|(name, value)| format!(", {name}={value}"))
            .collect();
        set.sort_unstable();
        format!("{major}.{minor}.{patch}, {}{}", self.nccl.path().display(), set.concat())
    }

    unsafe fn register(
        &mut self,
        seats: &[Seat],
        buffers: &[[Extent; 2]],
        kind: Registration,
    ) -> Result<(), EngineError> {
        for which in [0, 1] {
            let mut handles = vec![std::ptr::null_mut(); seats.len()];
            // Windows are registered by all ranks together, and this thread may have several.
            self.group_start()?;
            for (at, seat) in seats.iter().enumerate() {
                let _bound = seat.bind()?;
                let comm = self.comms[at].raw;
                // SAFETY: obligation 1; the handle's place stays where it is until the group has ended.
                unsafe { self.announce(comm, buffers[at][which], kind, &mut handles[at])? };
            }
            self.group_end("registering buffers (at the group's end)")?;
            for (comm, handle) in self.comms.iter_mut().zip(handles) {
                comm.known.push((kind, handle));
            }
        }
        Ok(())
    }

    fn refuses(&self, call: &Call) -> Option<&'static str> {
        let (major, minor, _) = self.nccl.version();
        let has = |of: (c_int, c_int)| (major, minor) >= of;
        match (call.collective, call.dtype) {
            (Collective::Barrier, _) => return Some("NCCL has no barrier"),
            (Collective::ReduceScatterV, _) => return Some("NCCL has no reduce-scatter-v"),
            (_, DataType::BF16) if !has((2, 10)) => return Some("bfloat16 came with NCCL 2.10"),
            (_, DataType::F8E4M3 | DataType::F8E5M2) if !has((2, 24)) => {
                return Some("fp8 came with NCCL 2.24");
            }
            _ => {}
        }
        match call.op {
            RedOp::Avg if !has((2, 10)) => Some("averages came with NCCL 2.10"),
            RedOp::PreMulSum if self.nccl.symbols().red_op_create_pre_mul_sum.is_none() => {
                Some("pre-multiplied sums came with NCCL 2.11")
            }
            _ => None,
        }
    }

    unsafe fn enqueue(&mut self, seats: &[Seat], calls: &[SeatCall]) -> Result<(), EngineError> {
        let several = |call: &SeatCall| {
            let SeatCall { seat, call } = call;
            !call.collective.transfers(call.count, self.comms[*seat].rank, self.ranks, call.root).is_empty()
        };
        let grouped = calls.len() > 1 || calls.iter().any(several);
        if grouped {
            self.group_start()?;
        }
        for SeatCall { seat, call } in calls {
            let _bound = seats[*seat].bind()?;
            // SAFETY: obligation 1 is the caller's; several calls are in the group started above.
            unsafe { self.one(*seat, call, seats[*seat].stream().raw().cast())? };
        }
        if grouped {
            self.group_end("ncclGroupEnd")?;
        }
        Ok(())
    }

    fn health(&mut self) -> Result<(), EngineError> {
        for comm in &self.comms {
            let mut code = 0;
            // SAFETY: a live communicator; writes one code.
            let asked = unsafe { (self.nccl.symbols().comm_get_async_error)(comm.raw, &mut code) };
            self.nccl.check("ncclCommGetAsyncError", asked, Some(comm.raw))?;
            if code != IN_PROGRESS {
                self.nccl.check("an operation", code, Some(comm.raw))?;
            }
        }
        Ok(())
    }

    fn abort(&mut self) {
        self.aborted = true;
        for comm in self.comms.drain(..) {
            // SAFETY: a live communicator, not used again. An error of the end has no remedy.
            unsafe { (self.nccl.symbols().comm_abort)(comm.raw) };
        }
    }
}

impl Drop for NcclEngine {
    fn drop(&mut self) {
        for comm in self.comms.drain(..) {
            for (kind, handle) in comm.known.iter().filter(|(_, handle)| !handle.is_null()) {
                let forget = match kind {
                    Registration::Local => self.nccl.symbols().comm_deregister,
                    Registration::Symmetric => self.nccl.symbols().window_deregister,
                };
                if let Some(forget) = forget {
                    // SAFETY: a handle of this communicator, not used again. An error of the end has no remedy.
                    unsafe { forget(comm.raw, *handle) };
                }
            }
            if let Some(destroy) = self.nccl.symbols().red_op_destroy {
                for (_, _, op) in &comm.scaled {
                    // SAFETY: made by this communicator, not used again. An error of the end has no remedy.
                    unsafe { destroy(*op, comm.raw) };
                }
            }
            // SAFETY: a live communicator whose streams have been waited for. An error of the end has no remedy.
            unsafe { (self.nccl.symbols().comm_destroy)(comm.raw) };
        }
    }
}

fn agree_on_id(nccl: &Nccl, team: &mut dyn Team) -> Result<UniqueId, SetupError> {
    let mut mine = Record::default();
    if team.rank() == 0 {
        let id = nccl.unique_id().map_err(EngineError::from)?;
        mine = record_of_bytes(&id.internal.map(|c| c as u8));
    }
    let records = team.exchange(&mine)?;
    Ok(UniqueId { internal: bytes_of_record(&records[0]).map(|byte| byte as _) })
}

/// ncclDataType_t.
fn dtype_code(dtype: DataType) -> DataTypeCode {
    match dtype {
        DataType::I8 => 0,
        DataType::U8 => 1,
        DataType::I32 => 2,
        DataType::U32 => 3,
        DataType::I64 => 4,
        DataType::U64 => 5,
        DataType::F16 => 6,
        DataType::F32 => 7,
        DataType::F64 => 8,
        DataType::BF16 => 9,
        DataType::F8E4M3 => 10,
        DataType::F8E5M2 => 11,
    }
}

/// ncclRedOp_t; pre-multiplied sums have operators of their own.
fn op_code(op: RedOp) -> OpCode {
    match op {
        RedOp::Sum | RedOp::PreMulSum => 0,
        RedOp::Prod => 1,
        RedOp::Max => 2,
        RedOp::Min => 3,
        RedOp::Avg => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The library's own numbering was taken from nccl.h; so were these.
    #[test]
    fn codes_are_those_of_the_library_too() {
        for &dtype in DataType::ALL {
            assert_eq!(dtype_code(dtype), dtype as c_int, "{dtype}");
        }
        for op in [RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min, RedOp::Avg] {
            assert_eq!(op_code(op), op as c_int, "{op}");
        }
    }
}
