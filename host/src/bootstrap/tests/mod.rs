//! The bootstrap over real sockets of the loopback, with ranks as threads of one process.

mod attacks;
mod collectives;
mod failures;
mod liveness;
mod relay;
mod scale;
mod simulated;

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use oxccl_shared::abi::Rank;

use super::secret::Secret;
use super::{Bootstrap, BootstrapConfig, BootstrapError, UniqueId};

/// Bounds that fit a test on a busy machine.
fn config() -> BootstrapConfig {
    let bind_addr = Some("127.0.0.1".parse().expect("an address"));
    BootstrapConfig { timeout: Duration::from_secs(20), bind_addr, ..BootstrapConfig::default() }
}

const SOON: Duration = Duration::from_secs(30);

/// A barrier with a time limit, since a rank may have failed.
#[derive(Default)]
struct Meeting {
    here: Mutex<u32>,
    came: Condvar,
}

impl Meeting {
    fn wait(&self, count: u32) {
        let mut here = self.here.lock().expect("no panic");
        *here += 1;
        self.came.notify_all();
        drop(self.came.wait_timeout_while(here, SOON, |here| *here < count).expect("no panic"));
    }
}

/// Runs `body` on one thread per number and gives the results in order.
fn in_parallel<T: Send>(count: u32, body: impl Fn(u32) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = (0..count).map(|i| scope.spawn(move || body(i))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Runs `body` as every rank of a communicator and gives the results in the order of ranks.
fn with_ranks<T: Send>(nranks: u32, body: impl Fn(Bootstrap) -> T + Sync) -> Vec<T> {
    let id = UniqueId::create_by(&config()).expect("a root on the loopback");
    in_parallel(nranks, |rank| body(join(&id, rank, nranks).expect("all ranks come")))
}

fn join(id: &UniqueId, rank: u32, nranks: u32) -> Result<Bootstrap, BootstrapError> {
    Bootstrap::connect(id, Rank(rank), nranks, &config())
}
