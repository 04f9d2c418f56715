//! Plugins written against NCCL's headers, one in each version of its table.

use oxccl::net::plugin::{self, PluginConfig};
use oxccl::net::{Net, NetConfig, NetError, find};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::net::{CASES, PluginFile, Tables, VERSIONS, run, until};
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);

/// A setting that names the test's plugin, built for a version of the table; the call named `fault` fails.
fn with<R>(version: u32, fault: &str, part: impl FnOnce(&str) -> R) -> R {
    part(PluginFile::build(Tables::Net, version, fault, &[]).name())
}

fn open(version: u32, fault: &str) -> Result<Arc<dyn Net>, NetError> {
    with(version, fault, |path| plugin::find(path).expect("a plugin").open())
}

#[test]
fn every_version_keeps_the_contract() {
    let _deadline = Deadline::start("every_version_keeps_the_contract", LIMIT);
    for version in VERSIONS {
        let net = open(version, "").expect("a plugin that works");
        assert_eq!((net.name(), net.devices()), ("Plug", 2));
        // A plugin checks a handle when it connects: see below.
        let promised = CASES.iter().filter(|(what, _)| !what.contains("garbage"));
        run(promised, &format!("version {version}"), &net);
    }
}

#[test]
fn properties_are_read_as_each_version_lays_them_out() {
    let _deadline = Deadline::start("properties_are_read_as_each_version_lays_them_out", LIMIT);
    for version in VERSIONS {
        let net = open(version, "").expect("a plugin that works");
        let facts = net.properties(1).expect("the second device");
        assert_eq!((facts.name.as_str(), facts.guid, facts.port), ("plug1", 41, 1), "version {version}");
        assert_eq!(
            (facts.speed_mbps, facts.latency_us, facts.comms_max),
            (20_000, 2.5, 1000),
            "version {version}"
        );
        let max = if version == 8 { i32::MAX as usize } else { 1 << 30 };
        assert_eq!(facts.message_max_bytes, max, "version {version}");
        assert_eq!(facts.pci_path, None);
        assert!(matches!(net.properties(2), Err(NetError::NoDevice { device: 2, devices: 2, .. })));
    }
}

#[test]
fn a_handle_of_another_network_is_refused_in_the_plugins_words() {
    let _deadline = Deadline::start("a_handle_of_another_network_is_refused_in_the_plugins_words", LIMIT);
    let net = open(12, "").expect("a plugin that works");
    let mut connector = net.connect(0, &oxccl::net::NetHandle([7; 128])).expect("nobody has looked yet");
    let error = until("a refusal", || connector.poll_connect().err());
    assert!(error.to_string().contains("a handle of another network"), "{error}");
    assert_eq!(connector.poll_connect().err(), Some(error));
}

#[test]
fn failures_are_told_in_the_plugins_words() {
    let _deadline = Deadline::start("failures_are_told_in_the_plugins_words", LIMIT);
    with(10, "init", |path| {
        // The second user must not take the plugin for initialised because the first one tried.
        for _ in 0..2 {
            let found = plugin::find(path).expect("a plugin");
            let error = found.open().expect_err("it was built to fail").to_string();
            assert!(error.contains("init") && error.contains("told to fail in version 10"), "{error}");
        }
    });
    let net = open(12, "send").expect("sends fail, not the rest");
    let mut pair = oxccl_tests::net::pair(&net);
    let error = pair.send.post(&[1]).expect_err("it was built to fail");
    assert!(error.to_string().contains("isend") && error.to_string().contains("told to fail"), "{error}");
    assert_eq!(pair.send.post(&[1]), Err(error));
}

/// The order of NCCL: plugins, then the library's own; a plugin that cannot be used is passed over.
#[test]
fn plugins_come_first_and_broken_ones_are_passed_over() {
    let _deadline = Deadline::start("plugins_come_first_and_broken_ones_are_passed_over", LIMIT);
    let chosen = |plugins: &str, name: Option<&str>| {
        let config = NetConfig {
            plugins: PluginConfig::parse(plugins),
            name: name.map(str::to_owned),
            ..NetConfig::default()
        };
        find(&config).map(|net| net.name().to_owned()).map_err(|error| error.to_string())
    };
    with(11, "", |good| {
        assert_eq!(chosen(good, None).as_deref(), Ok("Plug"));
        assert_eq!(chosen(&format!("not-there,{good}"), Some("PLUG")).as_deref(), Ok("Plug"));
        assert_eq!(chosen(good, Some("socket")).as_deref(), Ok("Socket"));
        with(11, "devices", |empty| {
            assert_eq!(chosen(&format!("{empty},{good}"), None).as_deref(), Ok("Plug"));
            let error = chosen(empty, Some("Plug")).expect_err("it has no device");
            assert!(error.contains("no device") && error.contains("Plug"), "{error}");
        });
    });
    let error = chosen("not-there", Some("Plug")).expect_err("there is no such file");
    assert!(error.contains("libnccl-net-not-there.so"), "{error}");
}
