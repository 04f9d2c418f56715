//! What the handshake of one socket says about it: which of how many of a connection.

use super::config::DATA_SOCKETS_MAX;
use crate::bootstrap::handshake::{Hello, Purpose};
use oxccl_shared::abi::Rank;

/// The rank numbers in a handshake between networks, which know no ranks: the token says who may come.
pub(super) const NOBODY: Rank = Rank(0);

/// One socket of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lane {
    /// 0 for the control socket.
    pub index: u32,
    /// Sockets of the connection.
    pub total: u32,
    /// The connector's number for the connection.
    pub connection: u64,
}

impl Lane {
    pub(super) fn hello(&self) -> Hello {
        let purpose = Purpose::Stream(self.index | self.total << 16);
        Hello { purpose, from: NOBODY, to: NOBODY, tag: self.connection }
    }

    /// What a handshake says, if that makes sense.
    pub(super) fn of(hello: &Hello) -> Option<Lane> {
        let Purpose::Stream(number) = hello.purpose else { return None };
        let lane = Lane { index: number & 0xffff, total: number >> 16, connection: hello.tag };
        (lane.index < lane.total && lane.total <= 1 + DATA_SOCKETS_MAX).then_some(lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_says_which_it_is_and_nonsense_is_refused() {
        let lane = Lane { index: 3, total: 5, connection: 77 };
        assert_eq!(Lane::of(&lane.hello()), Some(lane));
        for wrong in
            [Lane { index: 5, ..lane }, Lane { total: 66, ..lane }, Lane { total: 0, index: 0, ..lane }]
        {
            assert_eq!(Lane::of(&wrong.hello()), None, "{wrong:?}");
        }
        assert_eq!(Lane::of(&Hello { purpose: Purpose::Ring, ..lane.hello() }), None);
    }
}
