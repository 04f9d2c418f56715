//! Element types, reduction operators, functions, algorithms and protocols, with the numbers `nccl.h` gives them
//! (NCCL 2.28; `ncclDataType_t`, `ncclRedOp_t`) so that a C caller's value converts without a table.

/// A number that names no known value of an enumeration: the argument of a C caller, or a word from a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownValue(pub u32);

impl core::fmt::Display for UnknownValue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "no value has the number {}", self.0)
    }
}

macro_rules! numbered {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $value:literal => $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[repr(u8)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(into = "u8", try_from = "u8"))]
        pub enum $name { $($(#[$vmeta])* $variant = $value),+ }

        impl $name {
            /// Every value, in numeric order.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The name used in tables, environment variables and messages.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }

            /// The value with this name (as [`Self::name`] spells it, letter case ignored).
            pub fn from_name(name: &str) -> Option<$name> {
                Self::ALL.iter().copied().find(|v| v.name().eq_ignore_ascii_case(name))
            }
        }

        impl From<$name> for u8 {
            fn from(value: $name) -> u8 {
                value as u8
            }
        }

        impl TryFrom<u8> for $name {
            type Error = UnknownValue;
            fn try_from(value: u8) -> Result<Self, UnknownValue> {
                u32::from(value).try_into()
            }
        }

        impl TryFrom<u32> for $name {
            type Error = UnknownValue;
            fn try_from(value: u32) -> Result<Self, UnknownValue> {
                match value { $($value => Ok($name::$variant),)+ other => Err(UnknownValue(other)) }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

numbered! {
    /// The type of one element. Names are those of nccl-tests.
    DataType {
        /// Signed 8-bit integer.
        I8 = 0 => "int8",
        /// Unsigned 8-bit integer; also the type of plain bytes.
        U8 = 1 => "uint8",
        /// Signed 32-bit integer.
        I32 = 2 => "int32",
        /// Unsigned 32-bit integer.
        U32 = 3 => "uint32",
        /// Signed 64-bit integer.
        I64 = 4 => "int64",
        /// Unsigned 64-bit integer.
        U64 = 5 => "uint64",
        /// IEEE 754 binary16.
        F16 = 6 => "half",
        /// IEEE 754 binary32.
        F32 = 7 => "float",
        /// IEEE 754 binary64.
        F64 = 8 => "double",
        /// bfloat16: the upper half of a binary32.
        BF16 = 9 => "bfloat16",
        /// OCP 8-bit float, 4 exponent bits, 3 mantissa bits, no infinities (OFP8 E4M3, "e4m3fn").
        F8E4M3 = 10 => "fp8_e4m3",
        /// OCP 8-bit float, 5 exponent bits, 2 mantissa bits.
        F8E5M2 = 11 => "fp8_e5m2",
    }
}

impl DataType {
    /// The size of one element in bytes: 1, 2, 4 or 8.
    pub const fn size_bytes(self) -> usize {
        match self {
            DataType::I8 | DataType::U8 | DataType::F8E4M3 | DataType::F8E5M2 => 1,
            DataType::F16 | DataType::BF16 => 2,
            DataType::I32 | DataType::U32 | DataType::F32 => 4,
            DataType::I64 | DataType::U64 | DataType::F64 => 8,
        }
    }
}

numbered! {
    /// A reduction operator. The first five carry NCCL's numbers; a pre-multiplied sum is a handle there.
    RedOp {
        /// x + y
        Sum = 0 => "sum",
        /// x * y
        Prod = 1 => "prod",
        /// The greater of both.
        Max = 2 => "max",
        /// The lesser of both.
        Min = 3 => "min",
        /// Sum over all ranks divided by the number of ranks.
        Avg = 4 => "avg",
        /// Each rank's input times that rank's own scalar, then summed.
        PreMulSum = 5 => "mulsum",
    }
}

numbered! {
    /// What a call does. Numbers up to `SendRecv` are NCCL's `ncclFunc_t`.
    Func {
        /// One rank's buffer to all.
        Broadcast = 0 => "broadcast",
        /// All ranks' buffers reduced into one rank's.
        Reduce = 1 => "reduce",
        /// Every rank's block to all, in rank order.
        AllGather = 2 => "all_gather",
        /// All ranks' buffers reduced, block i kept by rank i.
        ReduceScatter = 3 => "reduce_scatter",
        /// All ranks' buffers reduced, result at all.
        AllReduce = 4 => "all_reduce",
        /// To one peer.
        Send = 6 => "send",
        /// From one peer.
        Recv = 7 => "recv",
        /// Block j of rank i becomes block i of rank j.
        AllToAll = 8 => "all_to_all",
        /// One rank's blocks to all, block i to rank i.
        Scatter = 9 => "scatter",
        /// Every rank's block to one rank, in rank order.
        Gather = 10 => "gather",
        /// Returns when every rank has called it.
        Barrier = 15 => "barrier",
    }
}

numbered! {
    /// Who sends which part to whom. Numbers are NCCL's where it has the algorithm.
    Algorithm {
        /// Double binary tree.
        Tree = 0 => "tree",
        /// Neighbours in a ring.
        Ring = 1 => "ring",
        /// Each host's ranks to a head, and heads to a network that reduces.
        CollnetDirect = 2 => "collnetdirect",
        /// A chain of each host's ranks to a network that reduces.
        CollnetChain = 3 => "collnetchain",
        /// One hop: every rank to every rank.
        OneShot = 16 => "oneshot",
        /// Two hops: a reduce-scatter and an all-gather, every rank to every rank in each.
        TwoShot = 17 => "twoshot",
        /// Between the ranks of each host, between hosts, and inside them again.
        TwoLevel = 18 => "twolevel",
        /// Pairs of ranks, then pairs of pairs, and so on.
        Doubling = 19 => "doubling",
    }
}

numbered! {
    /// How one step lies in memory and how its arrival is seen. Numbers are NCCL's.
    Protocol {
        /// 8 bytes of data and two 4-byte flags in each 16-byte line.
        LL = 0 => "ll",
        /// 120 bytes of data and one 8-byte flag in each 128-byte line.
        LL128 = 1 => "ll128",
        /// Plain bytes; a counter says how many slots are full.
        Simple = 2 => "simple",
    }
}
