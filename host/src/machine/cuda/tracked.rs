//! Buffers of cudarc, whose own records of reads and writes keep them until a stream has done its work.

use super::driver::{CUcontext, CUdeviceptr, Device};
use crate::gpu::CudaError;
use cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice as _, SyncOnDrop,
};
use oxccl_shared::reduce::{Element, bf16, f16};
use std::sync::Arc;

/// A type whose values a GPU buffer of cudarc holds: the integers and floats of CUDA, [`half`]'s `f16` and `bf16` (allocated by cudarc
/// with its feature `f16`), and with the feature `float8` that crate's 8-bit floats (cudarc's feature `f8`).
pub trait GpuElement: sealed::Sealed + Copy + 'static {
    /// The type as operations compute with it; the same bits.
    type Element: Element;
}

/// A buffer that operations read: a [`CudaSlice`], a [`CudaView`] or a [`CudaViewMut`].
pub trait GpuRead<T>: sealed::Read<T> {}

/// A buffer that operations write: a [`CudaSlice`] or a [`CudaViewMut`].
pub trait GpuWrite<T>: sealed::Write<T> {}

/// A buffer about to be used by work on a stream. Dropped once that work is enqueued: until the stream has done it, cudarc neither frees
/// the memory nor lets other streams touch it.
pub struct Access<'a> {
    pub(crate) address: CUdeviceptr,
    pub(crate) len: usize,
    pub(crate) record: Record<'a>,
}

/// cudarc's record of an access, which it takes when this is dropped.
///
/// A buffer remembers its latest read alone. So the stream waits for the reads on other streams first: what waits for the latest waits for
/// all of them.
pub struct Record<'a> {
    of: SyncOnDrop<'a>,
    is_read: bool,
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        let SyncOnDrop::Record(Some((event, stream))) = &self.of else { return };
        let context = stream.context();
        if self.is_read && context.is_managing_stream_synchronization() {
            context.record_err(stream.wait(event));
        }
    }
}

/// Where a buffer or a stream belongs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub(crate) ordinal: u32,
    pub(crate) context: CUcontext,
}

impl Place {
    /// That of a stream.
    pub fn of_stream(stream: &CudaStream) -> Place {
        let context = stream.context();
        Place { ordinal: context.ordinal() as u32, context: context.cu_ctx() }
    }

    /// That of a device's communicators: its primary context.
    pub fn of_device(device: &Device) -> Place {
        Place { ordinal: device.ordinal(), context: device.context() }
    }
}

/// What went wrong in earlier calls on the stream's context, also the waits for a buffer's earlier uses.
///
/// # Errors
/// [`CudaError`].
pub fn check_stream(device: &Device, stream: &Arc<CudaStream>) -> Result<(), CudaError> {
    let recorded = stream.context().check_err();
    recorded.or_else(|error| device.check_code("use a stream of cudarc", error.0 as u32))
}

mod sealed {
    use super::{Access, Place};
    use cudarc::driver::CudaStream;
    use std::sync::Arc;

    pub trait Sealed {}

    pub trait Read<T> {
        fn place(&self) -> Place;
        /// Makes the stream wait for earlier writes.
        fn read<'a>(&'a self, stream: &'a Arc<CudaStream>) -> Access<'a>;
    }

    pub trait Write<T> {
        fn place(&self) -> Place;
        /// Makes the stream wait for earlier reads and writes.
        fn write<'a>(&'a mut self, stream: &'a Arc<CudaStream>) -> Access<'a>;
    }
}

macro_rules! buffers {
    ($($buffer:ty: $($trait:ident),+;)+) => { $( $( buffers!(@ $trait $buffer); )+ )+ };
    (@ Read $buffer:ty) => {
        impl<T> GpuRead<T> for $buffer {}
        impl<T> sealed::Read<T> for $buffer {
            fn place(&self) -> Place {
                Place::of_stream(self.stream())
            }
            fn read<'a>(&'a self, stream: &'a Arc<CudaStream>) -> Access<'a> {
                let (address, record) = self.device_ptr(stream);
                Access { address, len: self.len(), record: Record { of: record, is_read: true } }
            }
        }
    };
    (@ Write $buffer:ty) => {
        impl<T> GpuWrite<T> for $buffer {}
        impl<T> sealed::Write<T> for $buffer {
            fn place(&self) -> Place {
                Place::of_stream(self.stream())
            }
            fn write<'a>(&'a mut self, stream: &'a Arc<CudaStream>) -> Access<'a> {
                let len = self.len();
                let (address, record) = self.device_ptr_mut(stream);
                Access { address, len, record: Record { of: record, is_read: false } }
            }
        }
    };
}

buffers! {
    CudaSlice<T>: Read, Write;
    CudaView<'_, T>: Read;
    CudaViewMut<'_, T>: Read, Write;
}

macro_rules! elements {
    ($($element:ty = $of:ty),+) => { $(
        impl sealed::Sealed for $element {}
        impl GpuElement for $element {
            type Element = $of;
        }
    )+ };
}

elements! {
    i8 = i8, u8 = u8, i32 = i32, u32 = u32, i64 = i64, u64 = u64,
    f16 = f16, bf16 = bf16, f32 = f32, f64 = f64
}

#[cfg(feature = "float8")]
elements! {
    float8::F8E4M3 = oxccl_shared::reduce::F8E4M3,
    float8::F8E5M2 = oxccl_shared::reduce::F8E5M2
}
