//! What an operation in flight is made of.

use crate::api::error::{ArgumentError, Error};
use crate::launch::RawCall;
use oxccl_shared::abi::Rank;
use std::marker::PhantomData;

/// The calls of one communicator that start as one operation: its collectives run in the order in which they were added, then its
/// sends and receives all at once, as in a [`Group`](crate::Group).
///
/// Buffers are borrowed for `'env`, which lasts until the operation is over.
pub struct Calls<'env> {
    me: Rank,
    nranks: u32,
    raw: Vec<RawCall>,
    /// Neither longer nor shorter.
    env: PhantomData<fn(&'env ()) -> &'env ()>,
}

impl Calls<'_> {
    /// None yet, of rank `me` among `nranks`.
    pub(super) fn new((me, nranks): (Rank, u32), raw: Vec<RawCall>) -> Self {
        Calls { me, nranks, raw, env: PhantomData }
    }

    /// All of them.
    pub(super) fn into_raw(self) -> Vec<RawCall> {
        self.raw
    }

    /// Whose calls they are, and among how many ranks.
    pub(in crate::api) fn place(&self) -> (Rank, u32) {
        (self.me, self.nranks)
    }

    /// Adds a call whose arguments have been checked, for whose buffers the caller answers until the operation is over.
    pub(in crate::api) fn add(&mut self, call: RawCall) {
        self.raw.push(call);
    }

    /// Adds all of them, or none if one is refused.
    pub(in crate::api) fn extend(
        &mut self,
        calls: impl Iterator<Item = Result<RawCall, ArgumentError>> + Clone,
    ) -> Result<(), Error> {
        calls.clone().try_for_each(|call| call.map(drop))?;
        for call in calls {
            self.raw.push(call?);
        }
        Ok(())
    }
}
