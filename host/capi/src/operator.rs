//! Reduction operators: NCCL's numbers, and those that callers make.

use crate::comm::{COMMS, Comm};
use crate::pointer::Out;
use crate::registry::Handle;
use crate::result::{Failure, Outcome};
use oxccl::cuda::{CUstream, StreamRef};
use oxccl::{DataType, RedOp, ReduceOp};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

/// The operators that a communicator's user has made.
#[derive(Default)]
pub struct Operators(HashMap<c_int, PreMulSum>);

/// A sum of inputs each times a scalar.
#[derive(Clone, Copy)]
struct PreMulSum {
    dtype: DataType,
    scalar: Scalar,
}

#[derive(Clone, Copy)]
enum Scalar {
    /// The low bytes.
    Known(u64),
    /// In memory of the GPU, to be read when the stream reaches the operation.
    OnDevice(u64),
}

/// `ncclScalarDevice` and `ncclScalarHostImmediate`.
const ON_DEVICE: c_int = 0;
const IMMEDIATE: c_int = 1;

/// Where numbers of made operators begin. They count up over all communicators, so that another one's is found out.
const MADE: c_int = 0x1000;
static NEXT: Mutex<c_int> = Mutex::new(MADE);

/// `ncclDataType_t`.
pub fn data_type(number: c_int) -> Outcome<DataType> {
    let known = u32::try_from(number).ok().and_then(|number| DataType::try_from(number).ok());
    known.ok_or_else(|| Failure::invalid_argument(format!("datatype is {number}; 0 to 11 was expected")))
}

/// `ncclRedOpCreatePreMulSum`.
pub fn create(
    out: Out<c_int>,
    scalar: *const c_void,
    dtype: c_int,
    residence: c_int,
    comm: Handle,
) -> Outcome {
    let comm = COMMS.get(comm, "comm")?;
    out.check("op")?;
    let dtype = data_type(dtype)?;
    if scalar.is_null() {
        return Err(Failure::null("scalar"));
    }
    let scalar = match residence {
        ON_DEVICE => Scalar::OnDevice(scalar.addr() as u64),
        IMMEDIATE => Scalar::Known(read(scalar, dtype)),
        _ => {
            let text =
                format!("residence is {residence}; ncclScalarDevice or ncclScalarHostImmediate was expected");
            return Err(Failure::invalid_argument(text));
        }
    };
    let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    let number = *next;
    *next = next.checked_add(1).unwrap_or(MADE);
    let mut operators = comm.operators.lock().unwrap_or_else(PoisonError::into_inner);
    operators.0.insert(number, PreMulSum { dtype, scalar });
    out.write(number, "op")
}

fn read(scalar: *const c_void, dtype: DataType) -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: not null, and by the function's manual a scalar of that type, of at most eight bytes.
    unsafe { std::ptr::copy_nonoverlapping(scalar.cast(), bytes.as_mut_ptr(), dtype.size_bytes()) };
    u64::from_le_bytes(bytes)
}

/// `ncclRedOpDestroy`.
pub fn destroy(number: c_int, comm: Handle) -> Outcome {
    let comm = COMMS.get(comm, "comm")?;
    if (0..=4).contains(&number) {
        return Err(Failure::invalid_argument(format!("op {number} is built in, and cannot be destroyed")));
    }
    let mut operators = comm.operators.lock().unwrap_or_else(PoisonError::into_inner);
    operators.0.remove(&number).map(drop).ok_or_else(|| unknown(number))
}

fn unknown(number: c_int) -> Failure {
    Failure::invalid_argument(format!(
        "op is {number}: neither built in (0 to 4) nor made for this communicator and still there"
    ))
}

/// The operator of a reduction of `dtype`.
pub fn find(comm: &Comm, number: c_int, dtype: DataType, stream: CUstream) -> Outcome<ReduceOp> {
    if (0..=4).contains(&number) {
        let op = RedOp::try_from(number.unsigned_abs()).map_err(|_| unknown(number))?;
        // None of these has a scalar.
        return Ok(ReduceOp::of_kind(op, dtype, 0));
    }
    let made = {
        let operators = comm.operators.lock().unwrap_or_else(PoisonError::into_inner);
        operators.0.get(&number).copied().ok_or_else(|| unknown(number))?
    };
    if made.dtype != dtype {
        let (scalar, buffers) = (made.dtype, dtype);
        let text = format!("op was made for {scalar}, and the buffers hold {buffers}");
        return Err(Failure::invalid_argument(text));
    }
    let bits = match made.scalar {
        Scalar::Known(bits) => bits,
        Scalar::OnDevice(address) => fetch(comm, address, dtype, stream)?,
    };
    Ok(ReduceOp::pre_mul_sum_bits(dtype, bits))
}

/// Reads a scalar from the GPU, after the work that the stream has already.
fn fetch(comm: &Comm, address: u64, dtype: DataType, stream: CUstream) -> Outcome<u64> {
    let engine = comm.engine()?;
    // SAFETY: (1, 2) the caller of the C function answers for its stream.
    let stream = unsafe { StreamRef::from_raw(engine.device(), stream) };
    if stream.is_capturing()? {
        return Err(Failure::invalid_usage(
            "a scalar on the GPU cannot be read while the stream is captured: make the operator with \
             ncclScalarHostImmediate",
        ));
    }
    let mut bytes = [0u8; 8];
    // SAFETY: (1, 2) the caller of the C function answers for the scalar, and the copy is waited for before `bytes` ends.
    unsafe { stream.copy_to_host(bytes.as_mut_ptr().cast(), address, dtype.size_bytes()) }?;
    stream.synchronize()?;
    Ok(u64::from_le_bytes(bytes))
}
