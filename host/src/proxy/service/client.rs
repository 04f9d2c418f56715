//! A rank's end of a proxy's service.

use super::message::{OpId, PAYLOAD_MAX, Refusal, Reply, Request, Response};
use super::server::{hello, key};
use crate::bootstrap::channel::{Channel, DialError};
use crate::bootstrap::frame::Decoder;
use crate::bootstrap::handshake::Handshake;
use crate::bootstrap::secret::{Ephemeral, Secret};
use crate::bootstrap::sock::{self, Deadline};
use oxccl_shared::abi::Rank;
use rustix::event::{PollFd, PollFlags};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The proxy cannot be reached, or it or this rank does not belong to the job.
    #[error("the proxy of rank {proxy} at {addr} cannot be used: {why}")]
    Connect {
        /// Whose.
        proxy: Rank,
        /// Where it was looked for.
        addr: SocketAddr,
        /// What happened.
        why: String,
    },
    /// The proxy, or its whole process, is gone.
    #[error("the proxy of rank {proxy} is gone: {why}; see that rank's log")]
    Gone {
        /// Whose.
        proxy: Rank,
        /// What happened.
        why: String,
    },
    /// It did not answer in time.
    #[error("the proxy of rank {proxy} did not answer within {} s", waited.as_secs_f64())]
    Timeout {
        /// Whose.
        proxy: Rank,
        /// For how long it was asked.
        waited: Duration,
    },
    /// It refused.
    #[error("the proxy of rank {proxy}: {refusal}")]
    Refused {
        /// Whose.
        proxy: Rank,
        /// Why.
        refusal: Refusal,
    },
    /// It answered something else than was asked.
    #[error(
        "the proxy of rank {proxy} answered something else than was asked; install the same OxCCL everywhere"
    )]
    Nonsense {
        /// Whose.
        proxy: Rank,
    },
}

/// A connection to a proxy's service.
#[derive(Debug)]
pub struct ProxyClient {
    channel: Channel,
    proxy: Rank,
    decoder: Decoder,
    /// Sealed.
    unsent: Vec<u8>,
    next_op: u64,
    answers: BTreeMap<OpId, Result<Reply, Refusal>>,
}

impl ProxyClient {
    /// Connects rank `rank` to the service of rank `proxy` at `addr`.
    ///
    /// # Errors
    /// [`ClientError::Connect`].
    pub fn connect(
        addr: SocketAddr,
        rank: Rank,
        proxy: Rank,
        secret: &Secret,
        timeout: Duration,
    ) -> Result<ProxyClient, ClientError> {
        let failed = |why: String| ClientError::Connect { proxy, addr, why };
        let ephemeral = Ephemeral::random().map_err(|error| failed(error.to_string()))?;
        let handshake = Handshake::initiator(key(secret, proxy), hello(rank, proxy), ephemeral);
        let channel = Channel::dial(addr, handshake, &Deadline::after(timeout)).map_err(|error| {
            failed(match error {
                DialError::Io(error) => error.to_string(),
                DialError::Handshake(error) => error.to_string(),
            })
        })?;
        let decoder = Decoder::new(PAYLOAD_MAX);
        Ok(ProxyClient { channel, proxy, decoder, unsent: Vec::new(), next_op: 1, answers: BTreeMap::new() })
    }

    /// Asks; the answer comes later. Does not wait.
    ///
    /// # Errors
    /// [`ClientError::Gone`].
    pub fn ask(&mut self, request: &Request) -> Result<OpId, ClientError> {
        let op = OpId(self.next_op);
        self.next_op += 1;
        let mut message = Vec::new();
        request.encode(op, &mut message);
        self.channel.seal(&message, &mut self.unsent);
        self.flush()?;
        Ok(op)
    }

    /// The answer to a request, if it has come. Given once. Does not wait.
    ///
    /// # Errors
    /// [`ClientError::Gone`], [`ClientError::Nonsense`], [`ClientError::Refused`].
    pub fn poll(&mut self, op: OpId) -> Result<Option<Reply>, ClientError> {
        self.flush()?;
        if !self.answers.contains_key(&op) {
            self.read()?;
        }
        match self.answers.remove(&op) {
            Some(result) => {
                result.map(Some).map_err(|refusal| ClientError::Refused { proxy: self.proxy, refusal })
            }
            None => Ok(None),
        }
    }

    /// Waits for the answer to a request.
    ///
    /// # Errors
    /// As [`Self::poll`], and [`ClientError::Timeout`].
    pub fn wait(&mut self, op: OpId, timeout: Duration) -> Result<Reply, ClientError> {
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(reply) = self.poll(op)? {
                return Ok(reply);
            }
            if deadline.left().is_none() {
                return Err(ClientError::Timeout { proxy: self.proxy, waited: deadline.waited() });
            }
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, !self.unsent.is_empty());
            let polled =
                sock::poll(&mut [PollFd::new(&self.channel.stream, flags)], Some(deadline.next_look()));
            polled.map_err(|error| self.gone(&error))?;
        }
    }

    /// Asks and waits.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn call(&mut self, request: &Request, timeout: Duration) -> Result<Reply, ClientError> {
        let op = self.ask(request)?;
        self.wait(op, timeout)
    }

    /// What the service answers to these bytes until it ends the connection, for tests that say what this does not.
    #[cfg(test)]
    pub(super) fn answers_to(mut self, bytes: &[u8], timeout: Duration) -> Vec<u8> {
        let deadline = Deadline::after(timeout);
        let _ = self.channel.write_all(bytes, &deadline);
        let mut answers = Vec::new();
        loop {
            match self.channel.read(&mut [0; 4096]) {
                Ok(Some(opened)) => answers.extend(opened),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    sock::wait(&self.channel.stream, PollFlags::IN, &deadline).expect("an end, not silence");
                }
                // Its end, or a reset.
                Ok(None) | Err(_) => return answers,
            }
        }
    }

    fn gone(&self, why: &dyn std::fmt::Display) -> ClientError {
        ClientError::Gone { proxy: self.proxy, why: why.to_string() }
    }

    fn flush(&mut self) -> Result<(), ClientError> {
        while !self.unsent.is_empty() {
            match sock::write_some(&self.channel.stream, &self.unsent) {
                Ok(None) => break,
                Ok(Some(written)) => drop(self.unsent.drain(..written)),
                Err(error) => return Err(self.gone(&error)),
            }
        }
        Ok(())
    }

    /// Takes the answers that have come.
    fn read(&mut self) -> Result<(), ClientError> {
        let mut buffer = [0; 4096];
        let opened = match self.channel.read(&mut buffer) {
            Ok(Some(opened)) => opened,
            Ok(None) => return Err(self.gone(&io::Error::from(io::ErrorKind::UnexpectedEof))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(self.gone(&error)),
        };
        let mut bytes = opened.as_slice();
        let nonsense = ClientError::Nonsense { proxy: self.proxy };
        loop {
            match self.decoder.feed(&mut bytes) {
                Ok(None) => return Ok(()),
                Ok(Some(frame)) => match Response::decode(&frame) {
                    Ok(Response { op, result }) if op.0 < self.next_op => {
                        self.answers.insert(op, result);
                    }
                    _ => return Err(nonsense),
                },
                Err(_) => return Err(nonsense),
            }
        }
    }
}
