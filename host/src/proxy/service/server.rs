//! The service on a thread of its own, for the ranks of this host, which reach it over the loopback interface.

use super::message::{PAYLOAD_MAX, Response};
use super::state::{ClientId, Event, Service};
use super::transport::ProxyTransport;
use crate::bootstrap::acceptor::{Accepted, Acceptor};
use crate::bootstrap::channel::Channel;
use crate::bootstrap::frame::Decoder;
use crate::bootstrap::handshake::{Hello, Purpose};
use crate::bootstrap::secret::Secret;
use crate::bootstrap::sock;
use oxccl_shared::abi::Rank;
use rustix::event::{PollFd, PollFlags};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What connections to a proxy are for, as the handshake says it.
const PURPOSE: u32 = u32::from_le_bytes(*b"PROX");
/// How long the thread sleeps at most while the transport works.
const BACK_OFF: Duration = Duration::from_millis(1);
/// Of a rank that does not read its answers nothing more is read.
const UNREAD_MAX_BYTES: usize = 256 << 10;
/// Bytes read from a rank in one turn, so that none keeps the others waiting.
const READ_BYTES: usize = 16 << 10;

/// What a rank's handshake with a proxy says.
pub(super) fn hello(from: Rank, proxy: Rank) -> Hello {
    Hello { purpose: Purpose::Stream(PURPOSE), from, to: proxy, tag: 0 }
}

/// The key of a proxy's service: another than the communicator's other connections have.
pub(super) fn key(secret: &Secret, proxy: Rank) -> Secret {
    secret.derive(&[b"proxy service", &proxy.0.to_le_bytes()])
}

/// Who is served.
#[derive(Clone, Debug)]
pub struct ProxyServerConfig {
    /// The rank whose proxy it is.
    pub rank: Rank,
    /// The ranks of this host that may use it.
    pub ranks: Vec<Rank>,
    /// The communicator's secret.
    pub secret: Secret,
    /// How long a connection may take to prove that it belongs to the job.
    pub handshake_timeout: Duration,
}

/// A running service. Dropped, it is aborted.
#[derive(Debug)]
pub struct ProxyServer {
    addr: SocketAddr,
    waker: UnixStream,
    thread: Option<JoinHandle<()>>,
}

/// A rank's connection.
struct Client {
    id: ClientId,
    rank: Rank,
    channel: Channel,
    decoder: Decoder,
    /// What it has not taken yet, sealed.
    unread: Vec<u8>,
}

struct Loop {
    service: Service,
    transport: Box<dyn ProxyTransport>,
    acceptor: Acceptor,
    clients: Vec<Client>,
    waker: UnixStream,
}

impl ProxyServer {
    /// Starts a service, which `transport` works for.
    ///
    /// # Errors
    /// The system gives no port, or no thread.
    pub fn start(config: &ProxyServerConfig, transport: Box<dyn ProxyTransport>) -> io::Result<ProxyServer> {
        let listener = sock::listen(Ipv4Addr::LOCALHOST.into(), 0)?;
        let addr = listener.local_addr()?;
        let (waker, woken) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        let secret = key(&config.secret, config.rank);
        let mut this = Loop {
            service: Service::new(&config.ranks),
            transport,
            acceptor: Acceptor::new(listener, secret, config.rank, config.handshake_timeout),
            clients: Vec::new(),
            waker: woken,
        };
        let name = format!("oxccl-proxy-{}", config.rank);
        let thread = std::thread::Builder::new().name(name).spawn(move || this.run())?;
        Ok(ProxyServer { addr, waker, thread: Some(thread) })
    }

    /// Where it listens: told to the ranks of this host over the bootstrap.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Waits until all its ranks have ended.
    pub fn join(mut self) {
        // A panic of the thread has been told by the panic hook.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for ProxyServer {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A full pipe has woken it already.
            let _ = self.waker.write(&[1]);
            let _ = thread.join();
        }
    }
}

impl Loop {
    fn run(&mut self) {
        let mut accepted = Vec::new();
        loop {
            self.do_work();
            if self.service.has_ended() && self.clients.iter().all(|client| client.unread.is_empty()) {
                return;
            }
            let Ok(ready) = self.wait() else { return };
            let now = Instant::now();
            // The order of `wait`: the waker, the ranks, those who are still proving who they are.
            let (ours, theirs) = ready.split_at(1 + self.clients.len());
            if !ours[0].is_empty() {
                return self.transport.abort();
            }
            self.serve(&ours[1..]);
            self.acceptor.drive(now, theirs, &mut accepted);
            accepted.drain(..).for_each(|one| self.welcome(one));
        }
    }

    /// Does what the service wants done, until it wants nothing more for now.
    fn do_work(&mut self) {
        loop {
            while let Some((task, result)) = self.transport.poll() {
                self.service.finish(task, result);
            }
            let Some(event) = self.service.next_event() else { break };
            match event {
                Event::Answer(to, response) => self.answer(to, &response),
                Event::Task(task) => self.transport.begin(task),
                Event::GiveUp(task) => self.transport.give_up(task),
                Event::Aborted { rank } => {
                    tracing::warn!(%rank, "a local rank has aborted the communicator");
                    self.transport.abort();
                }
            }
        }
        for at in (0..self.clients.len()).rev() {
            self.flush(at);
        }
    }

    fn answer(&mut self, to: ClientId, response: &Response) {
        if let Some(client) = self.clients.iter_mut().find(|client| client.id == to) {
            let mut message = Vec::new();
            response.encode(&mut message);
            client.channel.seal(&message, &mut client.unread);
        }
    }

    fn wait(&mut self) -> io::Result<Vec<PollFlags>> {
        let mut fds = vec![PollFd::new(&self.waker, PollFlags::IN)];
        for client in &self.clients {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::OUT, !client.unread.is_empty());
            flags.set(PollFlags::IN, client.unread.len() < UNREAD_MAX_BYTES);
            fds.push(PollFd::new(&client.channel.stream, flags));
        }
        self.acceptor.poll_fds(&mut fds);
        let back_off = self.service.is_busy().then(|| Instant::now() + BACK_OFF);
        let until = self.acceptor.deadline().into_iter().chain(back_off).min();
        sock::poll(&mut fds, until)?;
        Ok(fds.iter().map(PollFd::revents).collect())
    }

    fn serve(&mut self, ready: &[PollFlags]) {
        for at in (0..self.clients.len()).rev() {
            if ready[at].intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                self.read(at);
            }
        }
    }

    /// Reads a rank's requests. One that sends anything else, or is gone, is dropped.
    fn read(&mut self, at: usize) {
        let mut buffer = [0; READ_BYTES];
        let client = &mut self.clients[at];
        let opened = match client.channel.read(&mut buffer) {
            Ok(Some(opened)) => opened,
            Ok(None) => return self.drop_client(at, None),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => return self.drop_client(at, Some(&error)),
        };
        let mut bytes = opened.as_slice();
        loop {
            let client = &mut self.clients[at];
            match client.decoder.feed(&mut bytes) {
                Ok(None) => return,
                Ok(Some(frame)) => {
                    if let Err(violation) = self.service.receive(client.id, &frame) {
                        return self.drop_client(at, Some(&violation));
                    }
                }
                Err(error) => return self.drop_client(at, Some(&error)),
            }
        }
    }

    fn flush(&mut self, at: usize) {
        let client = &mut self.clients[at];
        while !client.unread.is_empty() {
            match sock::write_some(&client.channel.stream, &client.unread) {
                Ok(None) => return,
                Ok(Some(written)) => drop(client.unread.drain(..written)),
                Err(error) => return self.drop_client(at, Some(&error)),
            }
        }
    }

    fn drop_client(&mut self, at: usize, why: Option<&dyn std::fmt::Display>) {
        let client = self.clients.swap_remove(at);
        if let Some(why) = why {
            tracing::warn!(rank = %client.rank, %why, "a local rank's connection to this proxy is dropped");
        }
        self.service.leave(client.id);
    }

    fn welcome(&mut self, Accepted { channel, remote, hello: said }: Accepted) {
        let is_meant = matches!(said.purpose, Purpose::Stream(PURPOSE));
        let joined = if is_meant {
            self.service.join(said.from).map_err(|error| error.to_string())
        } else {
            Err("it wants something else than a proxy".to_owned())
        };
        match joined {
            Ok(id) => {
                let decoder = Decoder::new(PAYLOAD_MAX);
                self.clients.push(Client { id, rank: said.from, channel, decoder, unread: Vec::new() });
            }
            Err(why) => tracing::warn!(%remote, %why, "a connection to this proxy is refused"),
        }
    }
}
