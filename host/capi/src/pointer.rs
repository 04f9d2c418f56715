//! Pointers as C callers pass them, each good for one thing.
//!
//! Only C code makes these values, as arguments of the exported functions. Its part of the contract: a pointer that is not null is
//! valid for what its type here does with it, until the call returns.

use crate::result::{Failure, Outcome};
use std::ffi::{CStr, c_char};

/// Where one result is written.
#[repr(transparent)]
pub struct Out<T>(*mut T);

/// One or more values that are read.
#[repr(transparent)]
pub struct In<T>(*const T);

/// A text that ends with a zero byte, or null.
#[repr(transparent)]
pub struct Text(*const c_char);

impl<T> Out<T> {
    /// An argument that is both read and written.
    pub fn new(pointer: *mut T) -> Out<T> {
        Out(pointer)
    }

    /// Refuses null, before a call does anything whose result it could not return.
    pub fn check(&self, name: &str) -> Outcome {
        if self.0.is_null() { Err(Failure::null(name)) } else { Ok(()) }
    }

    /// Writes the result; `name` is the argument's in NCCL's header.
    pub fn write(&self, value: T, name: &str) -> Outcome {
        self.check(name)?;
        // SAFETY: not null, and so valid for a write by the contract of this module.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Writes one of several results.
    pub fn write_at(&self, index: usize, value: T, name: &str) -> Outcome {
        self.check(name)?;
        // SAFETY: not null, and the function's manual says that the array is longer than `index`.
        let place = unsafe { self.0.add(index) };
        // SAFETY: as above.
        unsafe { place.write(value) };
        Ok(())
    }
}

impl<T> In<T> {
    pub const NULL: In<T> = In(std::ptr::null());

    /// An argument that is both read and written.
    pub fn new(pointer: *mut T) -> In<T> {
        In(pointer)
    }
}

impl<T: Copy> In<T> {
    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }

    pub fn read(&self, name: &str) -> Outcome<T> {
        if self.0.is_null() {
            return Err(Failure::null(name));
        }
        // SAFETY: not null, and so valid for a read by the contract of this module.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// All of `len` values; none of them need a pointer if there are none.
    pub fn read_all(&self, len: usize, name: &str) -> Outcome<Vec<T>> {
        if len > 0 && self.0.is_null() {
            return Err(Failure::null(name));
        }
        // SAFETY: valid for `len` values by the contract of this module; without any nothing is read.
        Ok((0..len).map(|at| unsafe { self.0.add(at).read_unaligned() }).collect())
    }

    /// The first `len` bytes, of values that may be longer here than at the caller.
    pub fn bytes(&self, len: usize, name: &str) -> Outcome<Vec<u8>> {
        In(self.0.cast::<u8>()).read_all(len, name)
    }
}

impl Text {
    /// A pointer out of a structure that the caller filled.
    pub fn of_field(pointer: *const c_char) -> Text {
        Text(pointer)
    }

    /// The text, with a replacement character for what is no UTF-8.
    pub fn get(&self) -> Option<String> {
        self.bytes().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Its bytes, without the zero at the end.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null, and so a terminated text by the contract of this module.
        let text = unsafe { CStr::from_ptr(self.0) };
        Some(text.to_bytes().to_vec())
    }
}
