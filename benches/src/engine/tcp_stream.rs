//! No library at all: every rank writes to a plain TCP stream to the next rank and reads from one from the previous, in a loop,
//! with the kernel's own buffer sizes. What a library gains or loses over TCP is seen beside it.

use super::{Call, Engine, EngineError, SetupError};
use crate::collective::Collective;
use crate::team::{Team, bytes_of_record, record_of_bytes};
use std::io::{ErrorKind, Read, Result, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

/// Streams over the loopback interface.
pub struct TcpStreamEngine {
    next: TcpStream,
    previous: TcpStream,
}

impl TcpStreamEngine {
    /// Streams between the ranks of `team`, all of this host.
    pub fn new(team: &mut dyn Team) -> std::result::Result<TcpStreamEngine, SetupError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(EngineError::from)?;
        let here = listener.local_addr().map_err(EngineError::from)?;
        let records = team.exchange(&record_of_bytes(here.to_string().as_bytes()))?;
        let next_rank = (team.rank() as usize + 1) % records.len();
        let text = bytes_of_record(&records[next_rank]);
        let text = String::from_utf8_lossy(&text);
        Ok(TcpStreamEngine::connect(&listener, text.trim_end_matches('\0')).map_err(EngineError::from)?)
    }

    fn connect(listener: &TcpListener, next: &str) -> Result<TcpStreamEngine> {
        let next: SocketAddr = next.parse().map_err(std::io::Error::other)?;
        let (next, previous) = (TcpStream::connect(next)?, listener.accept()?.0);
        for stream in [&next, &previous] {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
        }
        Ok(TcpStreamEngine { next, previous })
    }
}

/// How many bytes a call moved; none if it would have had to wait.
fn moved(result: Result<usize>) -> Result<usize> {
    match result {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        other => other,
    }
}

/// Sends and receives as many bytes as the buffers have.
fn exchange(mut next: &TcpStream, mut previous: &TcpStream, send: &[u8], recv: &mut [u8]) -> Result<()> {
    let (mut sent, mut got) = (0, 0);
    while sent < send.len() || got < recv.len() {
        let mut any = 0;
        if sent < send.len() {
            any += moved(next.write(&send[sent..])).inspect(|bytes| sent += bytes)?;
        }
        if got < recv.len() {
            any += moved(previous.read(&mut recv[got..])).inspect(|bytes| got += bytes)?;
        }
        if any == 0 {
            std::thread::yield_now();
        }
    }
    Ok(())
}

impl Engine for TcpStreamEngine {
    fn name(&self) -> &'static str {
        "tcp-stream"
    }

    fn describe(&self) -> String {
        "plain TCP streams, write and read in a loop".into()
    }

    fn refuses(&self, call: &Call) -> Option<&'static str> {
        (call.collective != Collective::SendRecv).then_some("streams only send and receive")
    }

    unsafe fn run(&mut self, calls: &[Call]) -> std::result::Result<(), EngineError> {
        for call in calls {
            let bytes = call.count * call.dtype.size_bytes();
            // SAFETY: obligation 1: what is sent is readable and nobody's else meanwhile.
            let send = unsafe { std::slice::from_raw_parts(call.send, bytes) };
            // SAFETY: obligation 1: what is received is writable, nobody's else and apart from what is sent.
            let recv = unsafe { std::slice::from_raw_parts_mut(call.recv, bytes) };
            exchange(&self.next, &self.previous, send, recv)?;
        }
        Ok(())
    }
}
