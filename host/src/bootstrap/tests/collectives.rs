use super::super::*;
use oxccl_shared::abi::Rank;
use std::time::Duration;

pub fn config() -> BootstrapConfig {
    BootstrapConfig {
        timeout: Duration::from_secs(20),
        bind_addr: Some("127.0.0.1".parse().expect("an address")),
        ..Default::default()
    }
}

/// Runs `body` as every rank of a communicator and gives the results in the order of ranks.
pub fn with_ranks<T: Send>(nranks: u32, body: impl Fn(Bootstrap) -> T + Sync) -> Vec<T> {
    let id = UniqueId::create(&config()).expect("a root on the loopback");
    let one = &|rank| body(Bootstrap::connect(&id, Rank(rank), nranks, &config()).expect("all ranks come"));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..nranks).map(|rank| scope.spawn(move || one(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn all_gather_gives_everyone_everything() {
    for nranks in [1, 2, 3, 4, 7, 32] {
        with_ranks(nranks, |boot| {
            let me = boot.rank().0;
            for round in 0..3u32 {
                let mine = vec![me as u8; (me * round) as usize];
                let want: Vec<_> =
                    (0..nranks).map(|rank| vec![rank as u8; (rank * round) as usize]).collect();
                assert_eq!(boot.all_gather(&mine), Ok(want));
            }
            boot.close();
        });
    }
}
