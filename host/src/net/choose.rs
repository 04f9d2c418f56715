//! Selection of a communicator's network.

use super::{Net, NetConfig, NetError, ib, plugin, socket};
use std::sync::{Arc, Once};

/// Opens a built-in network.
type Open = fn(&NetConfig) -> Result<Arc<dyn Net>, NetError>;

/// The built-in networks, best first. A missing one ([`NetError::Absent`]) is skipped.
const BUILT_IN: &[(&str, Open)] = &[
    ("IB", |config| ib::open(&config.ib, &config.socket)),
    ("Socket", |config| socket::open(&config.socket)),
];

/// Somebody has looked for a network in this process, and has said which names are wrong.
static LOOKED: Once = Once::new();

/// Warns, once, of names in `config` that no network has, where ranks need no network and so nobody has looked for one: the same settings
/// would fail over several hosts.
pub fn warn_of_names(config: &NetConfig) {
    LOOKED.call_once(|| wrong_names(config).iter().for_each(|wrong| tracing::warn!("{wrong}")));
}

/// Whether `config` names a network that neither this library nor a plugin here has. Plugins are loaded, and not initialised.
pub fn names_nothing(config: &NetConfig) -> bool {
    let is_built_in = || BUILT_IN.iter().any(|(name, _)| config.admits(name));
    let of_plugins = || {
        config
            .plugins
            .names()
            .iter()
            .any(|name| plugin::find(name).is_ok_and(|net| config.admits(net.name())))
    };
    config.name.is_some() && config.own.is_none() && !is_built_in() && !of_plugins()
}

/// What is wrong with the names of networks and of their plugins. Plugins are loaded, and not initialised.
fn wrong_names(config: &NetConfig) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut is_known = config.own.is_some() || BUILT_IN.iter().any(|(name, _)| config.admits(name));
    if config.own.is_some() || (is_known && !config.plugins.is_explicit()) {
        return wrong;
    }
    for name in config.plugins.names() {
        match plugin::find(name) {
            Ok(found) => is_known |= config.admits(found.name()),
            Err(error) if config.plugins.is_explicit() => {
                wrong.push(format!("NCCL_NET_PLUGIN: {error}; ranks that need a network use another"));
            }
            Err(_) => {}
        }
    }
    if let Some(name) = config.name.as_ref().filter(|_| !is_known) {
        let there_are = names_there_are();
        wrong.push(format!(
            "NCCL_NET={name}: no network has this name, and ranks that need one fail; {there_are}"
        ));
    }
    wrong
}

/// The network that `config` names, or the best one with devices.
///
/// # Errors
/// [`NetError::Absent`]: why each network tried is unusable. An error of an existing network ends the search:
/// otherwise the user would learn only from the speed that another was used.
/// [`NetError::InTheClear`]: the one found cannot encrypt, which `config` asks for.
pub fn find(config: &NetConfig) -> Result<Arc<dyn Net>, NetError> {
    let found = search(config)?;
    match config.socket.encrypt && !found.encrypts() {
        true => Err(NetError::InTheClear { net: found.name().to_owned() }),
        false => Ok(found),
    }
}

fn search(config: &NetConfig) -> Result<Arc<dyn Net>, NetError> {
    if let Some(own) = &config.own {
        return Ok(own.clone());
    }
    LOOKED.call_once(|| ());
    let mut lacking = Vec::new();
    for name in config.plugins.names() {
        match plugin(name, config) {
            Ok(Some(net)) => return Ok(net),
            Ok(None) => {}
            Err(error) if config.plugins.is_explicit() => {
                // As in NCCL the next network is used, since one setting often serves many machines; but with a
                // warning.
                tracing::warn!("NCCL_NET_PLUGIN: {error}; looking further");
                lacking.push(error.to_string());
            }
            Err(error) => tracing::debug!("{error}"),
        }
    }
    for (name, open) in BUILT_IN.iter().filter(|(name, _)| config.admits(name)) {
        let why = match open(config) {
            Ok(net) if net.devices() > 0 => return Ok(net),
            Ok(_) => "no device".to_owned(),
            Err(NetError::Absent { reason, .. }) => reason,
            Err(error) => return Err(error),
        };
        lacking.push(format!("{name}: {why}"));
    }
    let net = config.name.clone().unwrap_or_else(|| "of any kind".to_owned());
    let reason = if lacking.is_empty() { names_there_are() } else { lacking.join(", ") };
    Err(NetError::Absent { net, reason })
}

/// The plugin of that name, unless its network is not the one wanted.
fn plugin(name: &str, config: &NetConfig) -> Result<Option<Arc<dyn Net>>, NetError> {
    let found = plugin::find(name)?;
    if !config.admits(found.name()) {
        return Ok(None);
    }
    let net = found.open()?;
    if net.devices() > 0 {
        return Ok(Some(net));
    }
    Err(NetError::Absent { net: format!("plugin {name}"), reason: "it has no device".to_owned() })
}

fn names_there_are() -> String {
    let names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
    format!("there are {}, and those of plugins", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::loopback::Loopback;
    use crate::net::socket::SocketConfig;

    fn named(name: &str) -> NetConfig {
        NetConfig { name: Some(name.to_owned()), ..NetConfig::default() }
    }

    #[test]
    fn a_network_is_found_by_its_name_in_any_case() {
        assert_eq!(find(&named("sOCKET")).map(|net| net.name().to_owned()), Ok("Socket".to_owned()));
    }

    /// Whichever way it was found: a plugin's, the program's own.
    #[test]
    fn a_network_that_cannot_encrypt_is_refused_where_encryption_is_asked_for() {
        let socket = SocketConfig { encrypt: true, ..SocketConfig::default() };
        let sealed = NetConfig { socket, ..named("Socket") };
        assert_eq!(find(&sealed).map(|net| net.name().to_owned()), Ok("Socket".to_owned()));
        let own = Arc::new(Loopback::new(0)) as Arc<dyn Net>;
        let clear = NetConfig { own: Some(own.clone()), ..sealed };
        assert_eq!(find(&clear).err(), Some(NetError::InTheClear { net: own.name().to_owned() }));
    }

    #[test]
    fn names_are_looked_at_where_no_network_is_needed() {
        assert!(wrong_names(&NetConfig::default()).is_empty() && wrong_names(&named("ib")).is_empty());
        let pigeon = wrong_names(&named("carrier pigeon")).join("\n");
        assert!(pigeon.contains("NCCL_NET=carrier pigeon") && pigeon.contains("Socket"), "{pigeon}");
        let plugins = |text: &str| crate::net::plugin::PluginConfig::parse(text);
        assert!(wrong_names(&NetConfig { plugins: plugins("none"), ..NetConfig::default() }).is_empty());
        let none = wrong_names(&NetConfig { plugins: plugins("surely-not-there"), ..named("socket") });
        let said = none.join("\n");
        assert!(none.len() == 1 && said.contains("plugin surely-not-there: "), "{said}");
        let own = Some(Arc::new(Loopback::new(0)) as Arc<dyn Net>);
        assert!(wrong_names(&NetConfig { own, ..named("carrier pigeon") }).is_empty());
    }

    #[test]
    fn a_name_that_is_nobodys_is_known() {
        assert!(names_nothing(&named("carrier pigeon")));
        assert!(!names_nothing(&named("sOCKET")) && !names_nothing(&NetConfig::default()));
        let own = Some(Arc::new(Loopback::new(0)) as Arc<dyn Net>);
        assert!(!names_nothing(&NetConfig { own, ..named("carrier pigeon") }));
    }

    #[test]
    fn a_name_that_no_network_has_is_refused_with_those_that_some_have() {
        let error = find(&named("carrier pigeon")).expect_err("there is no such network").to_string();
        assert!(error.contains("carrier pigeon") && error.contains("Socket"), "{error}");
    }
}
