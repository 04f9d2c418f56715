//! A network that carries nothing for a while, as when a switch fails over.

use super::cases::call;
use super::*;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// The network of this thread and of those that it starts. It has an interface `lo` and no other.
struct OwnNetwork;

impl OwnNetwork {
    /// One that carries everything, or why this machine does not let a test have it.
    fn new() -> Result<OwnNetwork, String> {
        // SAFETY: no table of descriptors is unshared.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|error| error.to_string())?;
        run("ip link set lo up")?;
        // Local addresses are looked up after a rule of ours, if there is one, and not first of all.
        run("ip rule add pref 100 lookup local")?;
        run("ip rule del pref 0")?;
        Ok(OwnNetwork)
    }

    /// No address is reached. TCP takes that for lost packets: it tries again and again, less and less often. (A queue that drops packets
    /// would not do: TCP gives a connection up whose own host takes none of its probes for 7.5 s.)
    fn fall_silent(&self) -> Result<(), String> {
        run("ip rule add pref 50 blackhole")
    }

    fn recover(&self) -> Result<(), String> {
        run("ip rule del pref 50")
    }
}

fn run(line: &str) -> Result<(), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Whether ranks go on with another round: the first that asks decides for all.
#[derive(Default)]
struct Rounds {
    decided: Mutex<Vec<bool>>,
    over: AtomicBool,
    done: AtomicUsize,
}

impl Rounds {
    fn goes_on(&self, round: usize) -> bool {
        let mut decided = self.decided.lock().unwrap_or_else(PoisonError::into_inner);
        if decided.len() == round {
            decided.push(!self.over.load(SeqCst));
        }
        decided[round]
    }

    fn play(&self, player: &mut Player) {
        let mut tag = 0;
        for round in (0..).take_while(|round| self.goes_on(*round)) {
            for func in [Func::AllReduce, Func::ReduceScatter, Func::Broadcast] {
                tag += 1;
                let done = player.collective(&call(func, 20_001), tag);
                assert!(done.is_ok(), "round {round}: {:?}", player.health.fault());
            }
            tag += 1;
            let done = player.exchange(100_000, tag);
            assert!(done.is_ok(), "round {round}: {:?}", player.health.fault());
            self.done.fetch_max(round, SeqCst);
        }
        player.finish();
    }

    /// Waits until ranks have done more, and returns how much they have done.
    fn go_on(&self) -> usize {
        let (done, since) = (self.done.load(SeqCst), Instant::now());
        while self.done.load(SeqCst) < done + 3 {
            assert!(since.elapsed() < PATIENCE / 2, "nothing moves");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.done.load(SeqCst)
    }

    /// An outage in the midst of calls. Returns how long after it calls came on.
    fn interrupt(&self, network: &OwnNetwork, outage: Duration) -> Duration {
        self.go_on();
        network.fall_silent().unwrap();
        // What has already arrived is still used.
        std::thread::sleep(Duration::from_millis(300));
        let done = self.done.load(SeqCst);
        std::thread::sleep(outage - Duration::from_millis(300));
        assert!(self.done.load(SeqCst) <= done + 1, "the network carried something");
        network.recover().unwrap();
        let since = Instant::now();
        self.go_on();
        since.elapsed()
    }
}

/// Ends the rounds when it goes, however that comes.
struct Ends<'a>(&'a Rounds);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, SeqCst);
    }
}

/// Calls under way complete with right results, and no rank fails.
fn survive(hosts: &[u64], outage: Duration) {
    let network = match OwnNetwork::new() {
        Ok(network) => network,
        Err(why) => return eprintln!("skipped: no network of a test's own: {why}"),
    };
    let rounds = Rounds::default();
    std::thread::scope(|scope| {
        let interrupts = scope.spawn(|| {
            let _ends = Ends(&rounds);
            rounds.interrupt(&network, outage)
        });
        Scene::new(hosts).play(|player| rounds.play(player));
        let after = interrupts.join().unwrap();
        println!("{hosts:?}: silent for {outage:?}, going on after {after:?}");
    });
}

#[test]
fn proxies_survive_an_outage() {
    survive(&[1, 2], Duration::from_secs(1));
    survive(&[1, 1, 2, 3], Duration::from_secs(4));
}

/// `cargo nextest run -p oxccl --run-ignored only long_outages --no-capture`.
#[test]
#[ignore = "takes minutes"]
fn proxies_survive_long_outages() {
    for seconds in [1, 4, 10, 25] {
        survive(&[1, 2], Duration::from_secs(seconds));
        survive(&[1, 2, 3], Duration::from_secs(seconds));
        survive(&[1, 1, 2, 3], Duration::from_secs(seconds));
    }
}
