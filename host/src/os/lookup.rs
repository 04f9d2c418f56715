//! The addresses of a host that somebody has named, within a time: the system's resolver has none that a caller could set.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The addresses of `HOST:PORT`, as [`look_up`].
///
/// # Errors
/// As there; it is no such text.
pub(crate) fn look_up_at(address: &str, patience: Duration) -> io::Result<Vec<SocketAddr>> {
    if let Ok(number) = address.parse() {
        return Ok(vec![number]);
    }
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    let (host, port) = address.rsplit_once(':').ok_or_else(|| invalid("it has no port"))?;
    look_up(host, port.parse().map_err(|_| invalid("its port is no number up to 65535"))?, patience)
}

/// The addresses of a host, at this port; at least one. A name is looked up on a thread of its own, which is left alone if that takes longer than
/// `patience`: nothing ends a look-up.
///
/// # Errors
/// The name has no address, or the resolver has not answered in time.
pub(crate) fn look_up(host: &str, port: u16, patience: Duration) -> io::Result<Vec<SocketAddr>> {
    look_up_by(host, port, patience, |host, port| Ok((host, port).to_socket_addrs()?.collect()))
}

fn look_up_by(
    host: &str,
    port: u16,
    patience: Duration,
    resolve: impl FnOnce(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + 'static,
) -> io::Result<Vec<SocketAddr>> {
    if let Ok(number) = host.parse::<IpAddr>() {
        return Ok(vec![(number, port).into()]);
    }
    let (says, hears) = channel();
    let name = host.to_owned();
    // Who gave up hears nothing.
    let body = move || drop(says.send(resolve(&name, port)));
    std::thread::Builder::new().name("oxccl-lookup".into()).spawn(body)?;
    let found = hears.recv_timeout(patience).map_err(|error| match error {
        RecvTimeoutError::Timeout => io::Error::new(io::ErrorKind::TimedOut, too_slow(host, patience)),
        RecvTimeoutError::Disconnected => io::Error::other("the thread that looks it up has panicked"),
    })??;
    match found.is_empty() {
        true => Err(no_address()),
        false => Ok(found),
    }
}

/// Of a name's addresses the one that all ranks choose: resolvers differ in their order of families, so IPv4 wins everywhere.
pub(crate) fn preferred(found: Vec<SocketAddr>) -> io::Result<SocketAddr> {
    found.into_iter().min_by_key(SocketAddr::is_ipv6).ok_or_else(no_address)
}

fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name has no address")
}

fn too_slow(host: &str, patience: Duration) -> String {
    format!(
        "the resolver of this host has not found the address of {host} within {:.1} s: are the servers in /etc/resolv.conf up? Give the address \
         as a number, or write the name into /etc/hosts",
        patience.as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn numbers_and_names_are_found() {
        assert_eq!(
            look_up_at("127.0.0.1:9", Duration::ZERO).unwrap(),
            [SocketAddr::from(([127, 0, 0, 1], 9))]
        );
        assert_eq!(look_up("::1", 9, Duration::ZERO).unwrap(), ["[::1]:9".parse().unwrap()]);
        let found = look_up_at("localhost:9", SOON).unwrap();
        assert!(!found.is_empty() && found.iter().all(|addr| addr.ip().is_loopback() && addr.port() == 9));
        for wrong in ["", "localhost", "localhost:port", "localhost:99999", "no such host.invalid:9"] {
            look_up_at(wrong, SOON).unwrap_err();
        }
        assert!(look_up_by("empty", 9, SOON, |_, _| Ok(Vec::new())).is_err());
    }

    #[test]
    fn the_first_address_of_ipv4_wins() {
        let found = |addrs: &[&str]| addrs.iter().map(|addr| addr.parse().unwrap()).collect::<Vec<_>>();
        let chosen = |addrs| preferred(found(addrs)).unwrap().to_string();
        assert_eq!(chosen(&["[::1]:9", "10.0.0.2:9", "10.0.0.1:9"]), "10.0.0.2:9");
        assert_eq!(chosen(&["[::2]:9", "[::1]:9"]), "[::2]:9");
        assert_eq!(preferred(Vec::new()).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    /// A resolver whose servers do not answer takes half a minute, and one that hangs for ever held up whoever asked.
    #[test]
    fn a_resolver_that_does_not_answer_is_left_alone_and_the_name_is_said() {
        let (go, waits) = channel::<()>();
        let hangs = move |_: &str, _| {
            let _ = waits.recv();
            Ok(Vec::new())
        };
        let began = Instant::now();
        let error = look_up_by("head.cluster", 9, Duration::from_millis(50), hangs).unwrap_err();
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        let said = error.to_string();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(
            said.contains("the address of head.cluster within 0.1 s") && said.contains("/etc/hosts"),
            "{said}"
        );
        drop(go);
    }
}
