//! The digest of the memory layouts that kernels and the host share. Kernels and a library built from different
//! layouts would read each other's fields at wrong offsets.

use super::fnv1a;
use super::kernel::{DIRECT_BLOCKS, DIRECT_BLOCKS_LONG, DIRECT_LONG_BYTES};
use super::{
    ASK_MIN_BYTES, Answer, CollArgs, ConnControl, ConnEnd, ConnLayout, KERNEL_MESSAGE_GRAIN_BYTES,
    KernelColl, KernelLaunch, KernelMessage, KernelMonitor, KernelStop, KernelTree, MessageArgs, RankBuffers,
    SlotHeader, SlotLine, SymmetricArgs,
};
use crate::algo::chunk::ChannelCut;
use crate::fifo::{ConsumerCursor, ProducerCursor};
use crate::reduce::OpArg;
use core::mem::{align_of, offset_of, size_of};

/// Raise it when the meaning of a field changes and its layout does not, or what the host expects kernels to do.
const REVISION: usize = 6;

/// The layout: size, alignment and field offsets of each type.
macro_rules! layouts {
    ($($type:ident { $($field:ident),* }),* $(,)?) => {
        &[$(size_of::<$type>(), align_of::<$type>() $(, offset_of!($type, $field))*),*]
    };
}

const LAYOUTS: &[usize] = layouts! {
    SlotHeader { tag, len_bytes },
    ConnControl { tail, head, headers, lines, answer },
    SlotLine { tail, header, payload },
    Answer { low, high, tag },
    ConnLayout { ll_slot_bytes, ll128_slot_bytes, simple_slot_bytes },
    ConnEnd { producer_side, consumer_side, counted, layout, peer },
    ProducerCursor {},
    ConsumerCursor {},
    KernelTree { children, has_parent },
    KernelLaunch {
        send, recv, send_cursors, recv_cursors, rings, trees, monitor, number, nconns, nchannels, rank, nranks, nmessages, tile_bytes
    },
    OpArg { scalar_bits, divisor },
    ChannelCut { count, grain_elems, each, longer },
    KernelColl { src, dst, cut, chunk_elems, slice_elems, arg, kind, flags, func, root, tag },
    CollArgs { launch, coll },
    KernelMessage { buffer, len_bytes, reached, conn, flags, tag, lane },
    MessageArgs { launch, messages },
    RankBuffers { src, dst },
    SymmetricArgs { launch, coll, ranks, own_blocks },
    KernelMonitor { abort, timeout_ns, stopped, stands },
    KernelStop { reason },
};

/// What kernels and the host must take for the same besides.
const NUMBERS: &[usize] = &[
    ASK_MIN_BYTES as usize,
    DIRECT_LONG_BYTES as usize,
    DIRECT_BLOCKS as usize,
    DIRECT_BLOCKS_LONG as usize,
    KERNEL_MESSAGE_GRAIN_BYTES,
];

/// The digest (64-bit FNV-1a). A bundle of kernels carries the digest of its build; the library refuses a bundle with
/// another one.
pub const ABI_DIGEST: u64 = mix_all(mix_all(mix(fnv1a::BASIS, REVISION), LAYOUTS), NUMBERS);

const fn mix_all(mut digest: u64, numbers: &[usize]) -> u64 {
    let mut i = 0;
    while i < numbers.len() {
        digest = mix(digest, numbers[i]);
        i += 1;
    }
    digest
}

const fn mix(digest: u64, number: usize) -> u64 {
    fnv1a::extend(digest, &(number as u64).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_counts() {
        let digest = |numbers: &[usize]| numbers.iter().fold(0, |digest, number| mix(digest, *number));
        assert_ne!(digest(&[1, 2]), digest(&[2, 1]));
        assert_ne!(digest(&[8, 16]), digest(&[8, 24]));
        assert_ne!(ABI_DIGEST, mix(fnv1a::BASIS, REVISION));
    }
}
