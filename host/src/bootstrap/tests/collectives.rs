//! Collectives of ranks that have all connected.

use std::io::{Read, Write};
use std::time::Instant;

use super::super::Cancel;
use super::super::gather::GATHER_BYTES_MAX;
use super::super::handshake::{Hello, Purpose};
use super::super::split::meeting_tag;
use super::*;

#[test]
fn all_gather_gives_everyone_everything() {
    for nranks in [1, 2, 3, 4, 7, 32] {
        with_ranks(nranks, |boot| {
            for round in 0..3u32 {
                let block = |rank: u32| vec![rank as u8; (rank * round) as usize];
                let want: Vec<_> = (0..nranks).map(block).collect();
                assert_eq!(boot.all_gather(&block(boot.rank().0)), Ok(want));
            }
            boot.close();
        });
    }
}

#[test]
fn large_blocks_up_to_the_limit_pass_and_more_is_the_same_error_for_all() {
    let block = GATHER_BYTES_MAX / 4;
    with_ranks(4, |boot| {
        let table = boot.all_gather(&vec![boot.rank().0 as u8; block]).expect("just fits");
        assert!(table.iter().enumerate().all(|(rank, bytes)| *bytes == vec![rank as u8; block]));
        let error = boot.all_gather(&vec![0; block + 1]).expect_err("too much");
        assert_eq!(error, BootstrapError::TooLarge { len_bytes: 4 * block + 4, max_bytes: GATHER_BYTES_MAX });
        boot.barrier().expect("the ring is still good");
        boot.close();
    });
}

#[test]
fn ipv6_works_as_well() {
    let localhost = std::net::Ipv6Addr::LOCALHOST.into();
    if std::net::TcpListener::bind((localhost, 0)).is_err() {
        return eprintln!("skipped: this host has no IPv6");
    }
    let config = BootstrapConfig { bind_addr: Some(localhost), ..config() };
    let id = UniqueId::create_by(&config).expect("a root on the loopback");
    in_parallel(3, |rank| {
        let boot = Bootstrap::connect(&id, Rank(rank), 3, &config).expect("all ranks come");
        assert!(boot.listener_addr(Rank(0)).is_ok_and(|addr| addr.is_ipv6()));
        boot.send(Rank((rank + 1) % 3), 0, &[rank as u8]).expect("the peer listens");
        assert_eq!(boot.recv(Rank((rank + 2) % 3), 0), Ok(vec![((rank + 2) % 3) as u8]));
        boot.barrier().expect("all are there");
        boot.close();
    });
}

#[test]
fn broadcast_gives_the_roots_bytes() {
    with_ranks(3, |boot| {
        let mine = [boot.rank().0 as u8];
        assert_eq!(boot.broadcast(Rank(1), &mine), Ok(vec![1]));
        let out_of_range = BootstrapError::RankOutOfRange { rank: Rank(3), nranks: 3 };
        assert_eq!(boot.broadcast(Rank(3), &mine), Err(out_of_range));
        boot.close();
    });
}

#[test]
fn messages_keep_their_order_per_tag_and_may_come_unexpected() {
    with_ranks(3, |boot| {
        let me = boot.rank().0;
        for peer in (0..3).map(Rank) {
            for tag in [7, 8] {
                for number in 0..3u8 {
                    boot.send(peer, tag, &[me as u8, tag as u8, number]).expect("the peer listens");
                }
            }
        }
        for peer in (0..3).rev().map(Rank) {
            for tag in [8, 7] {
                for number in 0..3u8 {
                    assert_eq!(boot.recv(peer, tag), Ok(vec![peer.0 as u8, tag as u8, number]));
                }
            }
        }
        boot.barrier().expect("all are there");
        boot.close();
    });
}

#[test]
fn streams_are_told_apart_by_purpose_and_tag() {
    with_ranks(2, |boot| {
        let peer = Rank(1 - boot.rank().0);
        let names = [(1, 5), (2, 5), (1, 6)];
        let mine = names
            .map(|(purpose, tag)| boot.connect_stream(peer, purpose, tag).expect("the peer listens").socket);
        for (mut stream, (purpose, tag)) in mine.iter().zip(names) {
            stream.write_all(&[purpose as u8, tag as u8]).expect("written");
        }
        for (purpose, tag) in names.into_iter().rev() {
            let mut stream = boot.accept_stream(peer, purpose, tag).expect("the peer connects").socket;
            assert!(stream.nodelay().expect("an option of TCP"));
            let mut bytes = [0; 2];
            stream.read_exact(&mut bytes).expect("read");
            assert_eq!(bytes, [purpose as u8, tag as u8]);
        }
        boot.barrier().expect("all are there");
        boot.close();
    });
}

#[test]
fn children_of_a_split_are_independent_of_the_parent() {
    with_ranks(5, |boot| {
        let members: &[u32] = match boot.rank().0 {
            0 | 2 => &[2, 0],
            1 | 3 => &[1, 3],
            _ => &[],
        };
        let members: Vec<Rank> = members.iter().copied().map(Rank).collect();
        let child = boot.split(&members, 1, &Cancel::default()).expect("everyone splits");
        let me = boot.rank();
        boot.close();
        let Some(child) = child else { return assert_eq!(me, Rank(4)) };
        assert_eq!(members[child.rank().index()], me);
        let want: Vec<Vec<u8>> = members.iter().map(|rank| vec![rank.0 as u8]).collect();
        assert_eq!(child.all_gather(&[me.0 as u8]), Ok(want));
        child.close();
    });
}

#[test]
fn some_ranks_split_without_the_others() {
    with_ranks(5, |boot| {
        let members: Vec<Rank> = [3, 0, 1].map(Rank).to_vec();
        let me = boot.rank();
        if !members.contains(&me) {
            let error = boot.split_among(&members, 1, &Cancel::default()).err();
            assert_eq!(error, Some(BootstrapError::BadMember { rank: me, nranks: 5 }));
            return boot.close();
        }
        // Again with the next number: nothing of the first is taken for the second.
        for number in [1, 2] {
            let child = boot.split_among(&members, number, &Cancel::default()).expect("the members come");
            assert_eq!(members[child.rank().index()], me);
            assert_eq!(child.all_gather(&[me.0 as u8]), Ok(vec![vec![3], vec![0], vec![1]]));
            child.close();
        }
        boot.close();
    });
}

/// That they all have given up says nothing of whether they can meet again.
#[test]
fn survivors_of_a_death_split_without_the_dead() {
    // A rank that dies while another still joins ends that one's join.
    let joined = Meeting::default();
    with_ranks(5, |boot| {
        joined.wait(5);
        if boot.rank() == Rank(2) {
            return boot.die();
        }
        let lost = boot.all_gather(&[]).expect_err("a rank has died");
        assert_eq!(lost, BootstrapError::PeerLost { rank: Rank(2) });
        boot.abort(&lost.to_string());
        let with_the_dead = [0, 1, 2, 3, 4].map(Rank);
        let error = boot.split_among(&with_the_dead, 1, &Cancel::default()).err();
        assert_eq!(error, Some(lost));
        let members = [0, 1, 3, 4].map(Rank);
        let child = boot.split_among(&members, 1, &Cancel::default()).expect("the members come");
        assert_eq!(boot.gone(), [Rank(2)]);
        let want: Vec<Vec<u8>> = members.iter().map(|rank| vec![rank.0 as u8]).collect();
        assert_eq!(child.all_gather(&[boot.rank().0 as u8]), Ok(want));
        child.close();
        boot.close();
    });
}

/// A rank dies when some have finished a meeting and one has not: that one does not wait for them in the next until the timeout.
#[test]
fn who_fails_in_a_meeting_does_not_wait_for_those_that_finished_it() {
    let done = Meeting::default();
    with_ranks(4, |boot| {
        let (me, all, left) = (boot.rank(), [0, 1, 2, 3].map(Rank), [0, 1, 3].map(Rank));
        let child = boot.split_among(&all, 1, &Cancel::default()).expect("the members come");
        boot.barrier().expect("all are there");
        if me == Rank(2) {
            // The others may need what it forwards of the barrier.
            std::thread::sleep(Duration::from_millis(200));
            child.die();
            return boot.die();
        }
        boot.conclude(&all, 1, me != Rank(3));
        assert_eq!(child.all_gather(&[]).map(drop), Err(BootstrapError::PeerLost { rank: Rank(2) }));
        let begun = Instant::now();
        while boot.gone().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(5), "the death is not seen");
            std::thread::yield_now();
        }
        if me == Rank(3) {
            let begun = Instant::now();
            let error = boot.split_among(&left, 1, &Cancel::default()).err();
            assert_eq!(error, Some(BootstrapError::PeerWentOn { rank: Rank(0) }));
            assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        }
        done.wait(3);
        drop(child);
        boot.close();
    });
}

/// The same, but those that finished find their communicator broken at once, and come.
#[test]
fn who_fails_in_a_meeting_meets_those_that_finished_it_and_come_back() {
    with_ranks(3, |boot| {
        let (me, all, left) = (boot.rank(), [0, 1, 2].map(Rank), [0, 2].map(Rank));
        boot.split_among(&all, 1, &Cancel::default()).expect("the members come").close();
        boot.barrier().expect("all are there");
        if me == Rank(1) {
            // The others may need what it forwards of the barrier.
            std::thread::sleep(Duration::from_millis(200));
            return boot.die();
        }
        boot.conclude(&all, 1, me == Rank(0));
        let child = boot.split_among(&left, 1, &Cancel::default()).expect("the members come");
        child.barrier().expect("both are there");
        child.close();
        boot.close();
    });
}

/// A member that was stopped in the handshake by which another told it of the meeting found the end of that connection first, and took
/// the other, which had given up and told it again, for dead.
#[test]
fn a_member_that_was_too_slow_to_be_told_is_told_again() {
    with_ranks(2, |boot| {
        let members = [0, 1].map(Rank);
        if boot.rank() == Rank(0) {
            let tag = meeting_tag(&members, 1);
            let hello = Hello { purpose: Purpose::Message, from: Rank(0), to: Rank(1), tag };
            let addr = boot.listener_addr(Rank(1)).expect("they have met");
            drop(boot.reach().dial_at(hello, addr, &boot.deadline()).expect("a listener"));
        }
        let child = boot.split_among(&members, 1, &Cancel::default()).expect("both live, and come");
        child.barrier().expect("both are there");
        child.close();
        boot.close();
    });
}

#[test]
fn a_split_with_wrong_members_names_the_first_offender() {
    with_ranks(1, |boot| {
        for (members, offender) in [(vec![0, 0], 0), (vec![0, 1], 1)] {
            let members: Vec<Rank> = members.into_iter().map(Rank).collect();
            let error = boot.split(&members, 1, &Cancel::default()).err();
            assert_eq!(error, Some(BootstrapError::BadMember { rank: Rank(offender), nranks: 1 }));
        }
        boot.close();
    });
}

#[test]
fn ranks_that_agree_on_an_address_need_no_id() {
    // A port that was free a moment ago, outside the range that other tests' connections are given.
    let port = (20_000..30_000)
        .find(|&port| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok())
        .expect("a free port");
    let addr = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let sums = in_parallel(4, |rank| {
        // The others connect first and have to wait for rank 0.
        std::thread::sleep(Duration::from_millis(if rank == 0 { 100 } else { 0 }));
        let id = UniqueId::from_address(addr, b"job 17");
        let boot = join(&id, rank, 4).expect("all ranks come");
        let sum: u8 = boot.all_gather(&[rank as u8]).expect("all are there").iter().flatten().sum();
        boot.close();
        sum
    });
    assert_eq!(sums, [6; 4]);
}

#[test]
fn three_hundred_ranks_meet_within_seconds() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("up to the hard limit");
    let began = Instant::now();
    let times = with_ranks(300, |boot| {
        let met = began.elapsed();
        let table = boot.all_gather(&boot.rank().0.to_le_bytes()).expect("all are there");
        assert!(table.iter().enumerate().all(|(rank, bytes)| *bytes == (rank as u32).to_le_bytes()));
        let gathered = began.elapsed();
        boot.barrier().expect("all are there");
        boot.close();
        (met, gathered)
    });
    let last = times.iter().max().expect("300 times");
    eprintln!(
        "300 ranks: met after {:?}, one more all-gather by {:?}, closed by {:?}",
        last.0,
        last.1,
        began.elapsed()
    );
    assert!(last.0 < Duration::from_secs(15), "{last:?}");
}
