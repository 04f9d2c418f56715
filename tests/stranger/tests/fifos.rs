//! The schedule over the library's FIFOs under loom: every interleaving, and every value that the memory model lets a load return.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --manifest-path tests/stranger/Cargo.toml --test fifos`
#![cfg(loom)]

use loom::thread;
use oxccl_shared::abi;
use oxccl_shared::fifo::{self, StepConsumer, StepProducer};
use oxccl_shared::model::{Conn, with_shared};
use oxccl_stranger::schedule::{Peers, Place, Step};

const RANKS: usize = 3;

/// From everybody to everybody.
#[derive(Default)]
struct Mesh([[Conn; RANKS]; RANKS]);

/// A rank: its ends of the mesh, by peer.
struct Rank {
    rank: usize,
    mesh: &'static Mesh,
    send: Vec<StepProducer<'static>>,
    recv: Vec<StepConsumer<'static>>,
}

impl Rank {
    fn peers(&self, peers: Peers, place: &Place) -> Vec<usize> {
        match peers {
            Peers::Nobody => Vec::new(),
            Peers::Parent => vec![place.parent().unwrap().index()],
            Peers::Children => place.children().map(|child| child.index()).collect(),
        }
    }

    /// A slice of one word, a bit for each rank.
    fn run(&mut self, place: &Place, steps: impl Iterator<Item = Step>) -> u32 {
        let mut output = 0;
        for Step { action, from, to } in steps {
            let mut value = if action.src { 1 << self.rank } else { 0 };
            for peer in self.peers(from, place) {
                let received = self.mesh.0[peer][self.rank].consume(&mut self.recv[peer]);
                assert_eq!(value & received, 0, "nobody's input is reduced twice");
                value |= received;
            }
            for peer in self.peers(to, place) {
                self.mesh.0[self.rank][peer].produce(&mut self.send[peer], value);
            }
            output = if action.dst { value } else { output };
        }
        output
    }
}

/// So many all-reduces of `n` ranks, a thread each.
fn all_reduces(n: usize, times: usize) {
    with_shared(Mesh::default(), |mesh: &'static Mesh| {
        let mut ends: Vec<(Vec<_>, Vec<_>)> = (0..n).map(|_| (Vec::new(), Vec::new())).collect();
        for from in 0..n {
            for to in 0..n {
                let (producer, consumer) = fifo::split(&mesh.0[from][to].control);
                ends[from].0.push(producer);
                ends[to].1.push(consumer);
            }
        }
        let mut ranks: Vec<Rank> =
            ends.into_iter().zip(0..).map(|((send, recv), rank)| Rank { rank, mesh, send, recv }).collect();
        let work = move |mut rank: Rank| {
            let place = Place::new(abi::Rank(rank.rank as u32), abi::Rank(0), n as u32);
            for _ in 0..times {
                assert_eq!(rank.run(&place, place.all_reduce()), (1 << n) - 1);
            }
        };
        let root = ranks.remove(0);
        let threads: Vec<_> = ranks.into_iter().map(|rank| thread::spawn(move || work(rank))).collect();
        work(root);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

fn check(preemptions: usize, model_of: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    // Ranks that poll take many turns.
    model.max_branches = 100_000;
    model.check(model_of);
}

#[test]
fn two_ranks_use_slot_after_slot() {
    check(2, || all_reduces(2, 2));
}

#[test]
fn every_rank_gets_what_all_have_sent() {
    check(0, || all_reduces(3, 1));
}
