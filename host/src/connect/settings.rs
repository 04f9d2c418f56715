//! Settings that must be equal on all ranks: compared by one digest, and where that differs, one by one.
//!
//! A digest is all that ranks say of themselves while they agree, which is 8 bytes at any number of ranks. Where it differs every rank sees the same
//! two ranks differ, and those two say what they have, in a round of their own before all end with the same error.

use super::error::ConnectError;
use crate::bootstrap::Bootstrap;
use crate::net::{NetConfig, names_nothing};
use crate::transport::PeerInfo;
use crate::wire::{Message, cut, digest};
use oxccl_shared::abi::Rank;
use serde::{Deserialize, Serialize};

/// A setting that must be equal on all ranks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Setting {
    /// The variables that set it.
    pub name: &'static str,
    /// Its value, as a user would write it.
    pub value: String,
}

impl Setting {
    /// The one that names a network.
    pub const NETWORK: &str = "NCCL_NET";

    /// The digest of all of them, which ranks compare.
    pub fn digest(all: &[Setting]) -> u64 {
        digest(all)
    }
}

/// Most settings, and most of a value that is shown.
const SETTINGS_MAX: usize = 32;
const VALUE_BYTES_MAX: usize = 96;

/// What one of two ranks that differ has, in the order of the names, which all ranks know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Values(Vec<Value>);

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Value {
    /// Of the whole value.
    digest: u64,
    /// Its beginning.
    text: String,
    /// Whether it names something that the rank does not have.
    is_unknown: bool,
}

impl Values {
    fn of(settings: &[Setting], net: &NetConfig) -> Values {
        let value = |setting: &Setting| Value {
            digest: digest(&setting.value),
            text: cut(&setting.value, VALUE_BYTES_MAX).to_owned(),
            is_unknown: setting.name == Setting::NETWORK && names_nothing(net),
        };
        Values(settings.iter().map(value).collect())
    }
}

impl Message for Values {
    const VERSION: u8 = 2;
    const BYTES_MAX: usize = 2 + SETTINGS_MAX * (10 + 1 + VALUE_BYTES_MAX + 1);

    /// Texts end in an error message and in a log.
    fn is_sound(&self) -> bool {
        let is_plain =
            |value: &Value| value.text.len() <= VALUE_BYTES_MAX && !value.text.contains(char::is_control);
        self.0.len() <= SETTINGS_MAX && self.0.iter().all(is_plain)
    }
}

/// Whether all ranks have the same settings as `mine`, of which one names the network of `net`. Every rank calls it.
///
/// # Errors
/// The first rank that differs from rank 0, and in what: the same on all ranks.
pub(super) fn compare(
    bootstrap: &Bootstrap,
    peers: &[PeerInfo],
    mine: &[Setting],
    net: &NetConfig,
) -> Result<(), ConnectError> {
    let differs = |peer: &PeerInfo| peer.encrypts != peers[0].encrypts;
    if let Some(peer) = peers.iter().position(differs) {
        return Err(ConnectError::Encryption { peer: Rank(peer as u32), there: peers[peer].encrypts });
    }
    let Some(peer) = peers.iter().position(|peer| peer.settings != peers[0].settings) else { return Ok(()) };
    let peer = Rank(peer as u32);
    let is_asked = [Rank(0), peer].contains(&bootstrap.rank());
    let said = if is_asked { Values::of(mine, net).to_bytes() } else { Vec::new() };
    let blocks = bootstrap.all_gather(&said)?;
    let of = |rank: Rank| {
        Values::from_bytes(&blocks[rank.index()]).map_err(|_| ConnectError::Malformed { peer: rank })
    };
    Err(difference(mine, peer, &of(Rank(0))?, &of(peer)?))
}

fn difference(names: &[Setting], peer: Rank, first: &Values, theirs: &Values) -> ConnectError {
    if first.0.len() != names.len() || theirs.0.len() != names.len() {
        return ConnectError::Malformed { peer };
    }
    let pairs = names.iter().zip(first.0.iter().zip(&theirs.0));
    // Ranks that have the same plugin may have it on one host only.
    let pairs = pairs.filter(|(_, (here, there))| here.digest != there.digest);
    let said = pairs.map(|(setting, (here, there))| {
        let unknown = unknown(Rank(0), here) + &unknown(peer, there);
        format!("{}: '{}' where rank 0 has '{}'{unknown}", setting.name, there.text, here.text)
    });
    let settings = said.collect::<Vec<_>>().join("; ");
    if settings.is_empty() {
        ConnectError::Malformed { peer }
    } else {
        ConnectError::Settings { peer, settings }
    }
}

fn unknown(rank: Rank, value: &Value) -> String {
    match value.is_unknown {
        true => format!(", but rank {rank} has no network of the name '{}'", value.text),
        false => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(values: [&str; 3]) -> Vec<Setting> {
        let names = ["NCCL_BUFFSIZE", "NCCL_ALGO", "NCCL_RINGS"];
        names.into_iter().zip(values).map(|(name, value)| Setting { name, value: value.into() }).collect()
    }

    #[test]
    fn the_settings_that_differ_are_named_with_both_values_and_no_others() {
        let long = "0 1 ".repeat(100);
        let [a, b, c] =
            [["1048576", "unset", &long], ["65536", "ring", &long], ["65536", "unset", "0 1 "]].map(settings);
        let of = |settings: &[Setting]| Values::of(settings, &NetConfig::default());
        let say = |a: &[Setting], b: &[Setting]| difference(a, Rank(3), &of(a), &of(b)).to_string();
        assert_eq!(
            say(&a, &b),
            "rank 3 has other settings than rank 0: NCCL_BUFFSIZE: '65536' where rank 0 has '1048576'; NCCL_ALGO: 'ring' where rank 0 has 'unset'; set them alike on all ranks"
        );
        assert!(say(&b, &c).contains("NCCL_RINGS") && !say(&b, &c).contains("NCCL_BUFFSIZE"));
        assert_ne!(Setting::digest(&a), Setting::digest(&b));
        // They differ beyond what is shown.
        let longer = settings(["1048576", "unset", &format!("{long}2")]);
        assert!(say(&a, &longer).contains("NCCL_RINGS"), "{}", say(&a, &longer));
        assert_eq!(
            difference(&a, Rank(3), &of(&a), &Values(Vec::new())),
            ConnectError::Malformed { peer: Rank(3) }
        );
    }

    /// It was reported as any other difference, behind that of the transports that follows from it.
    #[test]
    fn a_network_that_one_of_two_ranks_does_not_have_is_said_to_be_none() {
        let setting = |value: &str| vec![Setting { name: Setting::NETWORK, value: value.into() }];
        let named = |name: &str| NetConfig { name: Some(name.to_owned()), ..NetConfig::default() };
        let (unset, nosuch) = (setting("unset"), setting("nosuch"));
        let [right, wrong] =
            [Values::of(&unset, &NetConfig::default()), Values::of(&nosuch, &named("nosuch"))];
        let text = difference(&unset, Rank(3), &right, &wrong).to_string();
        let said =
            "NCCL_NET: 'nosuch' where rank 0 has 'unset', but rank 3 has no network of the name 'nosuch'";
        assert!(text.contains(said), "{text}");
        let text = difference(&unset, Rank(3), &wrong, &right).to_string();
        assert!(text.contains("but rank 0 has no network of the name 'nosuch'"), "{text}");
        let there = Values::of(&setting("socket"), &named("Socket"));
        let text = difference(&unset, Rank(3), &right, &there).to_string();
        assert!(text.contains("'socket'") && !text.contains("no network"), "{text}");
    }

    #[test]
    fn values_round_trip_and_show_no_control_characters() {
        let all = vec![Setting { name: "X", value: "y".repeat(1000) }; SETTINGS_MAX];
        let said = Values::of(&all, &NetConfig::default());
        assert_eq!(Values::from_bytes(&said.to_bytes()), Ok(said));
        let bad = Values(vec![Value { digest: 0, text: "a\nb".into(), is_unknown: false }]);
        assert!(Values::from_bytes(&bad.to_bytes()).is_err());
    }
}
