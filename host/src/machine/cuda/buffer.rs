//! Typed buffers in GPU memory.

use super::driver::{CUdeviceptr, DeviceMemory};
use cudarc::driver::{CudaSlice, DevicePtr, DevicePtrMut};
use oxccl_shared::reduce::Element;
use std::marker::PhantomData;
use std::ops::Range;

/// Elements on a GPU, for reading.
#[derive(Debug)]
pub struct DeviceSlice<'a, T> {
    address: CUdeviceptr,
    len: usize,
    memory: PhantomData<&'a [T]>,
}

/// Elements on a GPU, for writing.
#[derive(Debug)]
pub struct DeviceSliceMut<'a, T> {
    address: CUdeviceptr,
    len: usize,
    memory: PhantomData<&'a mut [T]>,
}

impl<T> Clone for DeviceSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DeviceSlice<'_, T> {}

/// Address of the elements `range` of `memory`.
fn address_of<T>(memory: &DeviceMemory, range: &Range<usize>) -> CUdeviceptr {
    let elems = memory.len() / size_of::<T>();
    assert!(
        range.start <= range.end && range.end <= elems,
        "elements {range:?} of memory that has {elems} of them"
    );
    memory.address() + (range.start * size_of::<T>()) as u64
}

macro_rules! views {
    ($($view:ident, $memory:ty, $slice:ty, $trait:ident::$address:ident;)+) => { $(
        impl<'a, T: Element> $view<'a, T> {
            /// The elements `range` of memory that holds elements of this type.
            ///
            /// # Panics
            /// If the memory has fewer.
            pub fn new(memory: $memory, range: Range<usize>) -> Self {
                $view { address: address_of::<T>(memory, &range), len: range.len(), memory: PhantomData }
            }

            /// Elements at an address, for example another library's.
            ///
            /// # Safety
            /// 1. They lie in memory that the GPU of the call can access, as long as the view lives.
            pub unsafe fn from_raw(address: CUdeviceptr, len: usize) -> Self {
                $view { address, len, memory: PhantomData }
            }

            /// Number of elements.
            pub fn len(&self) -> usize {
                self.len
            }

            /// Whether it has no elements.
            pub fn is_empty(&self) -> bool {
                self.len == 0
            }
        }

        impl<'a, T: Element> From<$slice> for $view<'a, T> {
            /// cudarc's own tracking does not see the operations: the caller must order streams before it uses the
            /// slice on another one.
            fn from(slice: $slice) -> Self {
                let (len, stream) = (slice.len(), slice.stream().clone());
                let (address, _synchronised) = slice.$address(&stream);
                $view { address, len, memory: PhantomData }
            }
        }
    )+ };
}

views! {
    DeviceSlice, &'a DeviceMemory, &'a CudaSlice<T>, DevicePtr::device_ptr;
    DeviceSliceMut, &'a mut DeviceMemory, &'a mut CudaSlice<T>, DevicePtrMut::device_ptr_mut;
}

impl<T> DeviceSlice<'_, T> {
    /// The address for calls; the host never dereferences it.
    pub(crate) fn as_ptr(&self) -> *const T {
        std::ptr::without_provenance(self.address as usize)
    }
}

impl<T> DeviceSliceMut<'_, T> {
    /// The address for calls; the host never dereferences it.
    pub(crate) fn as_mut_ptr(&self) -> *mut T {
        std::ptr::without_provenance_mut(self.address as usize)
    }
}
