//! Selection of the CollNet network of a communicator.

use super::CollNet;
use crate::net::aggregate::{self, AggregatorConfig, Carriage};
use crate::net::plugin::{self, PluginConfig};
use crate::net::{NetConfig, NetError};
use std::sync::Arc;

/// The aggregators that are named, or the first plugin with in-network reduction and devices, among those of
/// [`NetConfig::plugins`].
///
/// # Errors
/// [`NetError::Absent`]: why each plugin is unusable. An error of a plugin that has such a network, or of
/// aggregators, ends the search.
/// [`NetError::InTheClear`]: none of them encrypts, and `config` asks for it.
pub fn find(config: &NetConfig) -> Result<Arc<dyn CollNet>, NetError> {
    let cannot_encrypt = |net: &str| Err(NetError::InTheClear { net: net.to_owned() });
    if let Some(own) = &config.coll.own {
        return if config.socket.encrypt { cannot_encrypt(own.name()) } else { Ok(own.clone()) };
    }
    if let Some(aggregators) = &config.coll.aggregators {
        return aggregate::open(aggregators, carriage(config, aggregators)?);
    }
    if config.socket.encrypt {
        return cannot_encrypt("of in-network reduction, a plugin's,");
    }
    let mut lacking = Vec::new();
    for name in config.plugins.names() {
        match plugin::open_coll(name) {
            Ok(net) if net.devices() > 0 => return Ok(net),
            Ok(net) => lacking.push(format!("plugin {name}: {} has no device", net.name())),
            Err(NetError::Absent { net, reason }) => lacking.push(format!("{net}: {reason}")),
            Err(error) => return Err(error),
        }
    }
    let of_plugins = if lacking.is_empty() { no_plugin(&config.plugins) } else { lacking.join("; ") };
    // One rank of several may lack the setting.
    let reason = format!("{of_plugins}; and OXCCL_AGGREGATOR names no server on this rank");
    Err(NetError::Absent { net: "that reduces".to_owned(), reason })
}

/// How data go to aggregators: over TCP, encrypted or not, or by the network that is named.
///
/// # Errors
/// [`NetError::Absent`]: there is none of that name. [`NetError::InTheClear`]: it cannot encrypt, and `config` asks for it.
pub fn carriage(config: &NetConfig, aggregators: &AggregatorConfig) -> Result<Carriage, NetError> {
    let Some(name) = &aggregators.net else { return Ok(Carriage::Tcp { encrypt: config.socket.encrypt }) };
    let named =
        NetConfig { name: Some(name.clone()), plugins: PluginConfig::parse("none"), ..config.clone() };
    Ok(Carriage::Network(crate::net::find(&named)?))
}

fn no_plugin(plugins: &PluginConfig) -> String {
    let why = if plugins.is_explicit() { "NCCL_NET_PLUGIN names no plugin" } else { "there is no plugin" };
    why.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::secret::Secret;
    use crate::net::coll::CollConfig;
    use crate::net::socket::SocketConfig;
    use std::time::Duration;

    /// Plugins and the program's own. Aggregators encrypt over TCP.
    #[test]
    fn in_network_reduction_is_refused_where_encryption_is_asked_for() {
        let socket = SocketConfig { encrypt: true, ..SocketConfig::default() };
        let config = NetConfig { socket, ..NetConfig::default() };
        let error = find(&config).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("OXCCL_ENCRYPT=1") && error.contains("NCCL_COLLNET_ENABLE=0"), "{error}");
        let servers = AggregatorConfig {
            servers: vec!["127.0.0.1:1".to_owned()],
            secret: Ok(Secret::from_seed(b"a test")),
            connect_timeout: Duration::from_secs(1),
            peer_dead_after: Duration::from_secs(1),
            net: None,
        };
        assert!(matches!(carriage(&config, &servers), Ok(Carriage::Tcp { encrypt: true })));
        let coll = CollConfig { aggregators: Some(servers), ..CollConfig::default() };
        assert_eq!(find(&NetConfig { coll, ..config }).map(|net| net.devices()), Ok(1));
    }

    #[test]
    fn what_is_missing_is_said_of_every_plugin() {
        let find = |plugins: &str| {
            let config = NetConfig { plugins: PluginConfig::parse(plugins), ..NetConfig::default() };
            find(&config).err().map(|error| error.to_string()).unwrap_or_default()
        };
        let error = find("not-there,STATIC_PLUGIN");
        assert!(error.contains("not-there") && error.contains("ncclCollNetPlugin_v8"), "{error}");
        assert!(error.contains("OXCCL_AGGREGATOR names no server on this rank"), "{error}");
        assert!(find("none").contains("names no plugin"), "{}", find("none"));
    }
}
