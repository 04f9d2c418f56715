//! Ranks reach the root in any order, with any numbers, and some of them die.

use crate::input::Input;
use oxccl::bootstrap::rendezvous::{ConnId, Jobs, Rendezvous};
use oxccl::bootstrap::rendezvous_wire::{Register, Withdrawal};
use oxccl_shared::abi::Rank;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Every connection is answered at most once, one that registered in time and lived exactly once, and the root ends.
pub fn rendezvous(data: &[u8]) {
    let mut input = Input(data);
    let mut now = Instant::now();
    let mut root = Rendezvous::new(now, Duration::from_secs(60), Duration::from_secs(10), Jobs::Any);
    let (mut owed, mut answered) = (BTreeSet::new(), BTreeSet::new());
    let mut next_conn = 0;
    while !input.is_empty() {
        match input.u8() % 5 {
            0 | 1 => {
                let (rank, nranks) = (Rank(u32::from(input.u8() % 16)), u32::from(input.u8() % 16));
                let conn = ConnId(next_conn);
                next_conn += 1;
                let before = root.is_finished();
                let how = input.u8();
                let (process, parent, wants_root) = (next_conn as u32, u32::from(how % 2), how & 6 == 0);
                // Up to half a minute, or for ever.
                let patience = match how >> 3 {
                    31 => Duration::MAX,
                    seconds => Duration::from_secs(seconds.into()),
                };
                let (listener, withdraws) = (addr(rank), None);
                let register =
                    Register { nranks, listener, process, parent, patience, wants_root, withdraws };
                root.register(now, conn, rank, addr(rank), register);
                if !before && root.deadline().is_some() {
                    owed.insert(conn);
                }
            }
            2 => {
                let conn = ConnId(u64::from(input.u8()));
                root.lost(now, conn);
                owed.remove(&conn);
            }
            4 => root.withdraw(now, ConnId(u64::from(input.u8())), Withdrawal::Aborted),
            _ => {
                now += Duration::from_millis(100 * u64::from(input.u8()));
                root.tick(now);
            }
        }
        answer(&mut root, &mut owed, &mut answered);
    }
    // At most two deadlines are left: for missing ranks, and for late ones.
    for _ in 0..2 {
        if let Some(deadline) = root.deadline() {
            root.tick(deadline);
            answer(&mut root, &mut owed, &mut answered);
        }
    }
    assert!(root.is_finished());
    assert!(owed.is_empty(), "not answered: {owed:?}");
}

fn answer(root: &mut Rendezvous, owed: &mut BTreeSet<ConnId>, answered: &mut BTreeSet<ConnId>) {
    while let Some((conn, _)) = root.next_reply() {
        assert!(answered.insert(conn), "{conn:?} was answered twice");
        owed.remove(&conn);
    }
}

fn addr(rank: Rank) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 1000 + rank.0 as u16))
}
