//! Algorithms from outside the library: what a host must know of one that it did not bring.
//!
//! They have connections of a mesh, one each way to every other rank, as one-shot has, and go over no network: a proxy knows which slots
//! come and go from the library's own schedules.

use super::kernels::type_name;
use super::spec::{Offered, Protocols};
use crate::abi::{DataType, Func, Protocol};
use core::fmt;

/// The most ranks whose GPU kernels have room for their peers.
pub const GPU_RANKS_MAX: u32 = 8;

/// One such algorithm, beside its schedule.
#[derive(Clone, Copy, Debug)]
pub struct CustomSpec {
    /// Its name in kernels and errors: small letters and digits, since `_` parts the names of kernels.
    pub name: &'static str,
    /// Changes with its schedule: ranks that have different ones would wait for each other.
    pub version: u32,
    /// What it does, and by which protocols.
    pub offered: &'static [Offered],
    /// Whether it can serve so many ranks.
    pub serves: fn(nranks: u32) -> bool,
}

impl CustomSpec {
    /// The protocols that it has a function in.
    pub fn protocols(&self, func: Func) -> Protocols {
        let offered = self.offered.iter().find(|offered| offered.func == func);
        offered.map_or(Protocols::NONE, |offered| offered.protocols)
    }

    /// The name of a GPU kernel; `dtype` counts for functions that reduce only.
    pub fn kernel(&self, func: Func, protocol: Protocol, dtype: DataType) -> impl fmt::Display {
        Name { spec: *self, func, protocol, dtype }
    }
}

struct Name {
    spec: CustomSpec,
    func: Func,
    protocol: Protocol,
    dtype: DataType,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "oxccl_{}_{}_{}", self.func.name(), self.spec.name, self.protocol.name())?;
        if self.func.is_reduction() { write!(f, "_{}", type_name(self.dtype)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn kernels_are_named_as_the_librarys() {
        const OFFERED: &[Offered] = &[Offered::new(Func::AllReduce, Protocols::LINES)];
        let spec = CustomSpec { name: "mine", version: 1, offered: OFFERED, serves: |_| true };
        let name = |func| spec.kernel(func, Protocol::LL, DataType::BF16).to_string();
        assert_eq!(name(Func::AllReduce), "oxccl_all_reduce_mine_ll_bf16");
        assert_eq!(name(Func::Broadcast), "oxccl_broadcast_mine_ll");
        assert_eq!(spec.protocols(Func::AllReduce), Protocols::LINES);
        assert_eq!(spec.protocols(Func::Reduce), Protocols::NONE);
    }
}
