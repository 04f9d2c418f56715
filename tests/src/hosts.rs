//! Layer: tests.
//! Takes: root's privileges and `ip` of iproute2.
//! Gives: [`Hosts`]: network namespaces that act as hosts, each with an interface `eth0` on one bridge. A host can be
//! cut off.
//! Never: touches an interface or a namespace that it did not make.
//!
//! ```text
//! host 0 [eth0 10.77.0.1]--+
//! host 1 [eth0 10.77.0.2]--+-- bridge, in a namespace of its own
//! host 2 [eth0 10.77.0.3]--+
//! ```

use std::process::{Command, Output};

/// Every host's interface.
pub const INTERFACE: &str = "eth0";
/// The second one, where there is one.
pub const SECOND_INTERFACE: &str = "eth1";
/// The routing table for what leaves with the second interface's address.
const SECOND_TABLE: u32 = 101;
/// What the names of namespaces begin with, before the number of the process that made them.
const PREFIX: &str = "oxccl-test-";

/// Some hosts. Gone when dropped.
#[derive(Debug)]
pub struct Hosts {
    name: String,
    count: u32,
}

impl Hosts {
    /// So many hosts, or why this machine does not let a test make any. Several sets in one process need other `tag`s.
    pub fn new(tag: &str, count: u32) -> Result<Hosts, String> {
        sweep();
        let hosts = Hosts { name: format!("{PREFIX}{}-{tag}", std::process::id()), count };
        let hub = hosts.hub();
        ip(&format!("netns add {hub}"))?;
        ip(&format!("-n {hub} link add bridge0 type bridge"))?;
        ip(&format!("-n {hub} link set bridge0 up"))?;
        for host in 0..count {
            let namespace = hosts.namespace(host);
            ip(&format!("netns add {namespace}"))?;
            ip(&format!("-n {hub} link add port{host} type veth peer name {INTERFACE} netns {namespace}"))?;
            ip(&format!("-n {hub} link set port{host} master bridge0 up"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
            ip(&format!("-n {namespace} address add {}/24 dev {INTERFACE}", hosts.address(host)))?;
            ip(&format!("-n {namespace} address add fd77::{}/64 dev {INTERFACE} nodad", host + 1))?;
            ip(&format!("-n {namespace} link set {INTERFACE} up"))?;
        }
        Ok(hosts)
    }

    /// Gives every host a second interface into the same network, as `eth1`: what has its address leaves by it, what has no address
    /// of its own by the first.
    pub fn with_second_interface(self) -> Result<Hosts, String> {
        let hub = self.hub();
        for host in 0..self.count {
            let (namespace, address) = (self.namespace(host), self.second_address(host));
            let network = "10.77.0.0/24";
            ip(&format!(
                "-n {hub} link add second{host} type veth peer name {SECOND_INTERFACE} netns {namespace}"
            ))?;
            ip(&format!("-n {hub} link set second{host} master bridge0 up"))?;
            // An interface does not answer for the other's address, and accepts all packets.
            for setting in ["arp_ignore=1", "arp_announce=2", "rp_filter=0"] {
                let (name, value) = setting.split_once('=').unwrap_or_default();
                for at in ["all", INTERFACE, SECOND_INTERFACE] {
                    let set = format!("echo {value} > /proc/sys/net/ipv4/conf/{at}/{name}");
                    run(Command::new("ip").args(["netns", "exec", &namespace, "sh", "-c", &set]))?;
                }
            }
            ip(&format!("-n {namespace} address add {address}/24 dev {SECOND_INTERFACE} noprefixroute"))?;
            ip(&format!("-n {namespace} link set {SECOND_INTERFACE} up"))?;
            ip(&format!("-n {namespace} route add {network} dev {SECOND_INTERFACE} table {SECOND_TABLE}"))?;
            ip(&format!("-n {namespace} rule add from {address} table {SECOND_TABLE}"))?;
        }
        Ok(self)
    }

    /// How many.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// A host's IPv4 address.
    pub fn address(&self, host: u32) -> String {
        format!("10.77.0.{}", host + 1)
    }

    fn second_address(&self, host: u32) -> String {
        format!("10.77.0.{}", host + 101)
    }

    /// Bytes that have left a host by one of its interfaces.
    pub fn sent_bytes(&self, host: u32, interface: &str) -> u64 {
        let file = format!("/sys/class/net/{interface}/statistics/tx_bytes");
        let text = run(Command::new("ip").args(["netns", "exec", &self.namespace(host), "cat", &file]));
        text.expect("the interface is ours").trim().parse().expect("a number")
    }

    /// The command that runs what follows it on a host.
    pub fn on(&self, host: u32) -> [String; 4] {
        ["ip".to_owned(), "netns".to_owned(), "exec".to_owned(), self.namespace(host)]
    }

    /// The same with a host name of its own, as real machines have: without `NCCL_HOSTID` no rank takes two hosts for
    /// one.
    pub fn on_machine(&self, host: u32) -> Vec<String> {
        let named = format!("hostname {} && exec \"$@\"", self.namespace(host));
        let rest = ["unshare", "--uts", "sh", "-c", &named, "sh"].map(str::to_owned);
        self.on(host).into_iter().chain(rest).collect()
    }

    /// Cuts a host off, without a notification: its peers receive nothing more, nor does it.
    pub fn cut_off(&self, host: u32) {
        ip(&format!("-n {} link set port{host} nomaster", self.hub())).expect("the port is ours");
    }

    /// Ends what [`Self::cut_off`] began.
    pub fn reconnect(&self, host: u32) {
        ip(&format!("-n {} link set port{host} master bridge0", self.hub())).expect("the port is ours");
    }

    /// Takes a host's interface down, or up again: the host knows no way to the others meanwhile.
    pub fn set_interface(&self, host: u32, is_up: bool) {
        let state = if is_up { "up" } else { "down" };
        ip(&format!("-n {} link set {INTERFACE} {state}", self.namespace(host))).expect("the host is ours");
    }

    /// Has a host forget where its peers are in its network: it asks anew, and while nobody answers the kernel says that it has no way to
    /// them.
    pub fn forget_neighbours(&self, host: u32) {
        ip(&format!("-n {} neighbour flush dev {INTERFACE}", self.namespace(host)))
            .expect("the host is ours");
    }

    /// Has a host send no faster than so many Mbit/s from now on.
    ///
    /// # Errors
    /// What `tc` says, or that it is not there.
    pub fn slow_down(&self, host: u32, mbit: u32) -> Result<(), String> {
        self.tc(host, &format!("replace dev {INTERFACE} root tbf rate {mbit}mbit burst 64k latency 50ms"))
    }

    /// Ends what [`Self::slow_down`] began.
    ///
    /// # Errors
    /// As there.
    pub fn speed_up(&self, host: u32) -> Result<(), String> {
        self.tc(host, &format!("delete dev {INTERFACE} root"))
    }

    fn tc(&self, host: u32, arguments: &str) -> Result<(), String> {
        let inside = ["netns".to_owned(), "exec".to_owned(), self.namespace(host)];
        let arguments = arguments.split_whitespace();
        run(Command::new("ip").args(inside).args(["tc", "qdisc"]).args(arguments)).map(drop)
    }

    fn hub(&self) -> String {
        format!("{}-hub", self.name)
    }

    fn namespace(&self, host: u32) -> String {
        format!("{}-{host}", self.name)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let namespaces = (0..self.count).map(|host| self.namespace(host)).chain([self.hub()]);
        // One that was never made is no loss.
        namespaces.for_each(|namespace| drop(ip(&format!("netns delete {namespace}"))));
    }
}

/// Removes what tests that were killed have left.
fn sweep() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let Some(pid) = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()) else { continue };
        if !std::path::Path::new("/proc").join(pid).exists() {
            // Another test may be cleaning up too.
            let _ = ip(&format!("netns delete {name}"));
        }
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    run(Command::new("ip").args(arguments.split_whitespace())).map(drop)
}

/// What the command wrote, or what went wrong.
fn run(command: &mut Command) -> Result<String, String> {
    match command.output() {
        Err(error) => Err(format!("ip (of iproute2): {error}")),
        Ok(Output { status, stdout, .. }) if status.success() => {
            Ok(String::from_utf8_lossy(&stdout).into_owned())
        }
        Ok(Output { stderr, .. }) => Err(format!("{command:?}: {}", String::from_utf8_lossy(&stderr).trim())),
    }
}
