//! A communicator's in-network reduction.

use super::call::Call;
use super::tuning::{Crossing, Machine, NetSpeed};
use core::fmt;
use oxccl_shared::abi::{DataType, Func, RedOp};

/// Whether a communicator has in-network reduction, or why not. The same on every rank.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Collnet {
    /// The user did not ask for one.
    Disabled,
    /// All ranks are on one host.
    OneHost,
    /// The user wants it for more hosts.
    FewHosts,
    /// Ranks of one host are connected over a network only, which chains do not use.
    NoChains,
    /// Some host's head has none.
    Lacking,
    /// It has.
    There(CollnetFacts),
}

/// A function that a network has no operation for, and why calls of it do not use it.
pub type Unserved = (Func, &'static str);

/// What a network that only reduces does not do.
const NO_WINDOWS: [Unserved; 2] = [
    (Func::AllGather, "a host's network has no all-gather"),
    (Func::ReduceScatter, "a host's network has no reduce-scatter"),
];

/// The common capabilities of all heads' networks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CollnetFacts {
    /// Supported reductions.
    pub reduces: Reduces,
    /// Whether all of them gather blocks.
    pub gathers: bool,
    /// Whether all of them reduce and scatter blocks.
    pub scatters: bool,
    /// Most bytes of one operation.
    pub buffer_max_bytes: u64,
    /// Number of hosts, each of which has a head.
    pub nhosts: u32,
    /// The least of their devices' speeds, the most of their latencies.
    pub speed: NetSpeed,
}

impl CollnetFacts {
    /// Whether the networks have the operation that a function needs.
    fn has(&self, func: Func) -> bool {
        match func {
            Func::AllGather => self.gathers,
            Func::ReduceScatter => self.scatters,
            _ => true,
        }
    }

    /// Whether they carry out a call.
    fn carries(&self, call: &Call) -> bool {
        self.has(call.func) && (!call.func.is_reduction() || self.reduces.has(call.dtype, call.op))
    }

    /// Bytes that go through the network at once, of so many.
    pub fn at_most(&self, bytes: usize) -> usize {
        self.buffer_max_bytes.min(bytes as u64) as usize
    }
}

/// Types and operators that a network reduces.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Reduces([u8; Reduces::BYTES]);

impl Reduces {
    /// A byte for each type, in which each operator has a bit.
    pub const BYTES: usize = DataType::ALL.len();
    /// Everything.
    pub const ALL: Reduces = Reduces([0b1111; Reduces::BYTES]);

    /// The operators of the network; the others are built from them.
    const OPS: [RedOp; 4] = [RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min];

    /// The reductions for which `has` returns true.
    ///
    /// # Errors
    /// The first error of `has`.
    pub fn of<E>(has: impl Fn(DataType, RedOp) -> Result<bool, E>) -> Result<Reduces, E> {
        let mut reduces = Reduces([0; Reduces::BYTES]);
        for dtype in DataType::ALL {
            for op in Reduces::OPS {
                reduces.0[*dtype as usize] |= u8::from(has(*dtype, op)?) << op as u8;
            }
        }
        Ok(reduces)
    }

    /// Whether it names only operators that a network may be asked for.
    pub fn is_sound(self) -> bool {
        self.and(Reduces::ALL) == self
    }

    /// The intersection of both.
    #[must_use]
    pub fn and(self, other: Reduces) -> Reduces {
        Reduces(core::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    /// Whether elements and a user's operator are supported. An average and a pre-multiplied sum are sums to the
    /// network: inputs are multiplied before it, and results divided after it.
    pub fn has(self, dtype: DataType, op: RedOp) -> bool {
        let op = if Reduces::OPS.contains(&op) { op } else { RedOp::Sum };
        self.0[dtype as usize] >> op as u8 & 1 == 1
    }
}

impl Collnet {
    /// The network, if it carries out a call.
    pub fn serves(&self, call: &Call) -> Option<&CollnetFacts> {
        match self {
            Collnet::There(facts) if facts.carries(call) => Some(facts),
            _ => None,
        }
    }

    /// Why a communicator has none, if it has none; `found` says of a head why its search was in vain.
    pub fn lack<'a>(&self, found: &'a str) -> Option<&'a str> {
        match self {
            Collnet::There(_) => None,
            Collnet::Lacking => Some(found),
            _ => Some(self.why_none()),
        }
    }

    /// The functions that it has no operation for, if there is one.
    pub fn unserved(&self) -> &'static [Unserved] {
        match self {
            Collnet::There(CollnetFacts { gathers: false, scatters: false, .. }) => &NO_WINDOWS,
            Collnet::There(CollnetFacts { gathers: false, .. }) => &NO_WINDOWS[..1],
            Collnet::There(CollnetFacts { scatters: false, .. }) => &NO_WINDOWS[1..],
            _ => &[],
        }
    }

    /// Why a call does not use it.
    pub fn why_not(&self, func: Func) -> &'static str {
        let unserved = self.unserved().iter().find(|(of, _)| *of == func);
        unserved.map_or_else(|| self.why_none(), |(_, why)| *why)
    }

    /// Why there is none.
    pub fn why_none(&self) -> &'static str {
        match self {
            Collnet::Disabled => "NCCL_COLLNET_ENABLE is not 1",
            Collnet::OneHost => "all ranks are on one host",
            Collnet::FewHosts => "there are fewer hosts than NCCL_COLLNET_NODE_THRESHOLD",
            Collnet::NoChains => "ranks of one host reach each other over a network only",
            Collnet::Lacking => "a host has no network that reduces",
            Collnet::There(_) => "the network does not reduce this type by this operator",
        }
    }

    /// The machine for the model: hosts with this network between them, if its speed is known.
    pub(super) fn machine(&self, machine: Machine, crossings: [Crossing; 2]) -> Machine {
        match self {
            Collnet::There(facts) => Machine::nominal(machine.architecture, machine.nranks).over_network(
                facts.nhosts,
                facts.speed,
                crossings,
            ),
            _ => machine,
        }
    }
}

impl fmt::Display for Collnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Collnet::There(facts) => write!(f, "a network that reduces between {} hosts", facts.nhosts),
            _ => f.write_str(self.why_none()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_shared::abi::Rank;

    #[test]
    fn who_has_no_such_operation_says_so() {
        let facts = CollnetFacts {
            reduces: Reduces::ALL,
            gathers: false,
            scatters: true,
            buffer_max_bytes: 1 << 20,
            nhosts: 2,
            speed: NetSpeed { gbytes: 1.0, latency_us: 1.0 },
        };
        let call = |func| Call { func, dtype: DataType::F32, op: RedOp::Sum, root: Rank(0), count: 1 };
        let serves = |net: &Collnet, func| net.serves(&call(func)).is_some();
        let net = Collnet::There(facts);
        assert!(serves(&net, Func::AllReduce) && serves(&net, Func::ReduceScatter));
        assert!(!serves(&net, Func::AllGather) && net.why_not(Func::AllGather).contains("no all-gather"));
        let none = Reduces::of(|_, _| Ok::<_, ()>(false)).unwrap();
        let net = Collnet::There(CollnetFacts { gathers: true, scatters: false, reduces: none, ..facts });
        assert!(serves(&net, Func::AllGather), "it adds nothing");
        assert!(!serves(&net, Func::ReduceScatter));
        assert!(net.why_not(Func::ReduceScatter).contains("no reduce-scatter"));
        assert_eq!(Collnet::OneHost.why_not(Func::AllGather), "all ranks are on one host");
    }

    #[test]
    fn what_is_reduced_is_what_both_have() {
        let only = |wanted: DataType| {
            Reduces::of(|dtype, op| Ok::<_, ()>(dtype == wanted && op != RedOp::Prod)).unwrap()
        };
        let (floats, longs) = (only(DataType::F32), only(DataType::U64));
        assert!(floats.is_sound() && !Reduces([0xff; Reduces::BYTES]).is_sound());
        assert!(floats.has(DataType::F32, RedOp::Max) && !floats.has(DataType::F64, RedOp::Max));
        assert!(!floats.has(DataType::F32, RedOp::Prod));
        assert!(floats.has(DataType::F32, RedOp::Avg) && floats.has(DataType::F32, RedOp::PreMulSum));
        assert_eq!(floats.and(longs), Reduces([0; Reduces::BYTES]));
        assert_eq!(floats.and(Reduces::ALL), floats);
        assert_eq!(Reduces::of(|_, _| Err::<bool, _>("broken")), Err("broken"));
    }
}
