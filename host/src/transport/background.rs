//! Results of work that waits, done on a thread and asked for by another that must not wait.

use super::contract::{Asking, Opening, TransportError};
use crate::net::NetError;
use std::sync::{Arc, Mutex, PoisonError};

type Outcome<T> = Mutex<Option<Result<T, TransportError>>>;

/// What a thread makes for a rank, connection by connection.
pub(super) struct Background;

impl Background {
    /// Does `work` for each of `conns`, in this order, on one thread. It ends early when nobody asks any more.
    ///
    /// # Errors
    /// There is no thread.
    pub fn start<T: Send + 'static>(
        conns: Vec<Asking>,
        work: impl Fn(&Asking) -> Result<T, TransportError> + Send + 'static,
    ) -> Result<Vec<Opening<T>>, TransportError> {
        if conns.is_empty() {
            return Ok(Vec::new());
        }
        let outcomes: Arc<[Outcome<T>]> = conns.iter().map(|_| Mutex::new(None)).collect();
        let asks = |at: usize| -> Opening<T> {
            let outcomes = outcomes.clone();
            Box::new(move || outcomes[at].lock().unwrap_or_else(PoisonError::into_inner).take().transpose())
        };
        let openings = (0..conns.len()).map(asks).collect();
        let peer = conns.first().map(|conn| conn.peer);
        let run = move || {
            for (conn, outcome) in conns.iter().zip(&outcomes[..]) {
                if Arc::strong_count(&outcomes) == 1 {
                    return;
                }
                let done = work(conn);
                *outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            }
        };
        let started = std::thread::Builder::new().name("oxccl-connect".to_owned()).spawn(run);
        started.map_err(|error| {
            let reason = format!("no thread for it: {}", crate::os::describe(&error));
            TransportError::of_net(peer, NetError::of_call("network", "connect", reason))
        })?;
        Ok(openings)
    }
}
