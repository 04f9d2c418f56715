//! Plugins whose networks reduce, written against NCCL's headers, one in each version of its CollNet table.

use oxccl::net::coll::{CollConfig, CollNet, find};
use oxccl::net::plugin::{self, PluginConfig};
use oxccl::net::{NetConfig, NetError};
use oxccl::{DataType, RedOp};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::net::coll::{What, gather, heads, run_all, windows};
use oxccl_tests::net::{PluginFile, Tables, VERSIONS, until};
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);

fn open(version: u32, fault: &str, flags: &[&str]) -> Arc<dyn CollNet> {
    let file = PluginFile::build(Tables::Coll, version, fault, flags);
    plugin::open_coll(file.name()).expect("a plugin that works")
}

#[test]
fn every_version_keeps_the_contract() {
    let _deadline = Deadline::start("every_version_keeps_the_contract", LIMIT);
    for version in VERSIONS {
        let net = open(version, "", &[]);
        assert_eq!((net.name(), net.devices()), ("Coll", 2));
        assert!(format!("{net:?}").contains(&format!("ncclCollNetPlugin_v{version}")), "{net:?}");
        run_all(&format!("version {version}"), &net);
        windows(&net, 12, version.into());
    }
}

/// Some plugins wait for the other heads where net plugins may not, and some only reduce.
#[test]
fn a_plugin_that_waits_and_only_reduces_keeps_the_contract_too() {
    let _deadline = Deadline::start("a_plugin_that_waits_and_only_reduces_keeps_the_contract_too", LIMIT);
    run_all("a plugin that waits and only reduces", &open(12, "wait", &["-DREDUCES_ONLY"]));
    run_all("the same of an older version", &open(8, "wait", &["-DREDUCES_ONLY"]));
}

#[test]
fn properties_are_read_as_each_version_lays_them_out() {
    let _deadline = Deadline::start("properties_are_read_as_each_version_lays_them_out", LIMIT);
    for version in VERSIONS {
        let facts = open(version, "", &[]).properties(1).expect("the second device");
        assert_eq!((facts.name.as_str(), facts.guid, facts.port), ("coll1", 41, 1), "version {version}");
        assert_eq!((facts.speed_mbps, facts.latency_us), (20_000, 2.5), "version {version}");
        // Of collective operations, not of messages.
        let max = if version == 8 { i32::MAX as usize } else { 1 << 29 };
        assert_eq!(facts.message_max_bytes, max, "version {version}");
    }
}

#[test]
fn what_is_not_reduced_is_said() {
    let net = open(11, "product", &[]);
    assert_eq!(net.reduces(DataType::F32, RedOp::Sum), Ok(true));
    assert_eq!(net.reduces(DataType::F32, RedOp::Prod), Ok(false));
    assert_eq!(net.reduces(DataType::F8E4M3, RedOp::Sum), Ok(false));
}

#[test]
fn failures_are_told_in_the_plugins_words_with_device_and_head() {
    let _deadline = Deadline::start("failures_are_told_in_the_plugins_words_with_device_and_head", LIMIT);
    let file = PluginFile::build(Tables::Coll, 10, "init", &[]);
    // The second user must not take the plugin for initialised because the first one tried.
    for _ in 0..2 {
        let error = plugin::open_coll(file.name()).expect_err("it was built to fail").to_string();
        assert!(error.contains("init") && error.contains("told to fail in version 10"), "{error}");
    }

    let (listeners, handles) = gather(&open(12, "connect", &[]), 2);
    for (index, listener) in (0..).zip(listeners) {
        let mut joining = listener.join(&handles, index).expect("there is a handle");
        let error = until("a refusal", || joining.poll_join().err());
        let text = error.to_string();
        let head = format!("coll0 (head {index} of 2): connect");
        assert!(text.contains(&head) && text.contains("told to fail"), "{text}");
        assert_eq!(joining.poll_join().err(), Some(error));
    }

    let mut ends = heads(&open(9, "allreduce", &["-DFAULT_AT=1"]), 2);
    let what = What::all_reduce(1, DataType::F32, RedOp::Sum);
    assert_eq!(ends[1].post(&what, &[0; 4], 4), Ok(true));
    let error = ends[1].post(&what, &[0; 4], 4).expect_err("the second fails");
    let text = error.to_string();
    assert!(text.contains("coll0 (head 1 of 2): iallreduce") && text.contains("told to fail"), "{text}");
    assert_eq!(ends[1].oldest(), Err(error));
}

#[test]
fn a_handle_of_another_network_is_refused_in_the_plugins_words() {
    let _deadline = Deadline::start("a_handle_of_another_network_is_refused_in_the_plugins_words", LIMIT);
    let (mut listeners, mut handles) = gather(&open(12, "", &[]), 2);
    handles[1] = oxccl::net::NetHandle([7; 128]);
    let mut joining = listeners.remove(0).join(&handles, 0).expect("there is a handle");
    let error = until("a refusal", || joining.poll_join().err()).to_string();
    assert!(error.contains("head 1's handle is of another network"), "{error}");
}

/// This plugin detects operations that differ; its message becomes the error.
#[test]
fn operations_that_differ_are_told_in_the_plugins_words() {
    let _deadline = Deadline::start("operations_that_differ_are_told_in_the_plugins_words", LIMIT);
    let mut ends = heads(&open(11, "", &[]), 2);
    for (end, op) in ends.iter_mut().zip([RedOp::Sum, RedOp::Max]) {
        assert_eq!(end.post(&What::all_reduce(1, DataType::F32, op), &[0; 4], 4), Ok(true));
    }
    let error = until("an error", || ends[0].oldest().err()).to_string();
    assert!(error.contains("head 1 does another operation"), "{error}");
}

/// One library has both tables, and either is found in it. `NCCL_NET_PLUGIN` names the libraries.
#[test]
fn the_library_of_the_net_plugin_is_looked_into() {
    let _deadline = Deadline::start("the_library_of_the_net_plugin_is_looked_into", LIMIT);
    let chosen = |plugins: &str| {
        let config = NetConfig { plugins: PluginConfig::parse(plugins), ..NetConfig::default() };
        find(&config).map(|net| net.name().to_owned())
    };
    for version in VERSIONS {
        let both = PluginFile::build(Tables::Both, version, "", &[]);
        assert_eq!(chosen(both.name()).as_deref(), Ok("Coll"));
        let net = plugin::find(both.name()).and_then(plugin::Found::open).expect("the other table");
        assert_eq!(net.name(), "Plug");
    }
    let only_net = PluginFile::build(Tables::Net, 12, "", &[]);
    let empty = PluginFile::build(Tables::Coll, 12, "devices", &[]);
    let good = PluginFile::build(Tables::Coll, 12, "", &[]);
    let all = format!("{},{},{}", only_net.name(), empty.name(), good.name());
    assert_eq!(chosen(&all).as_deref(), Ok("Coll"));
    let none = format!("{},{}", only_net.name(), empty.name());
    let Err(NetError::Absent { reason, .. }) = chosen(&none) else { panic!("neither reduces") };
    assert!(
        reason.contains("none of ncclCollNetPlugin_v8") && reason.contains("Coll has no device"),
        "{reason}"
    );

    let own = plugin::open_coll(good.name()).expect("a plugin that works");
    let coll = CollConfig { own: Some(own), ..CollConfig::default() };
    let config = NetConfig { coll, plugins: PluginConfig::parse("none"), ..NetConfig::default() };
    assert_eq!(find(&config).map(|net| net.name().to_owned()).as_deref(), Ok("Coll"));
}
