//! The plugin's tables, read by the library as NCCL would read them, in each version: they keep the contracts of networks and of networks
//! that reduce. And what NCCL never passes: null, garbage, closed objects.

use nccl_net_oxccl as plugin;
use oxccl::Config;
use oxccl::bootstrap::Cancel;
use oxccl::net::aggregate::{Server, ServerConfig};
use oxccl::net::plugin::abi::{Code, Opaque};
use oxccl::net::plugin::coll_abi::{CollTable8, Sge};
use oxccl::net::plugin::{find, open_coll, open_tables};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::net::{CASES, coll, run};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Once;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);

/// A server of this process, which the environment names.
fn aggregator() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let set = |name: &str, value: &str| {
            // SAFETY: the test has no other thread yet that looks at the environment.
            unsafe { std::env::set_var(name, value) };
        };
        set("OXCCL_COMM_SECRET", "a test of the plugin");
        set("OXCCL_AGGREGATOR", "127.0.0.1:1");
        set("NCCL_SOCKET_IFNAME", "lo");
        // What NCCL takes and this library would refuse: the plugin does not read it.
        set("NCCL_ALGO", "allreduce:collnetchain;reducescatter:collnetdirect");
        set("NCCL_NTHREADS", "7");
        let of_networks = |name: &str| if name.starts_with("OXCCL_") { Config::variable(name) } else { None };
        let settings = Config::from_lookup(&of_networks).unwrap().net.coll.aggregators.unwrap();
        let server = ServerConfig::new("127.0.0.1:0".parse().unwrap(), settings.secret.unwrap());
        let server = Server::bind(server).unwrap();
        set("OXCCL_AGGREGATOR", &server.local_addr().to_string());
        std::thread::spawn(move || server.serve(&Cancel::default()));
    });
}

fn tables() -> [(u32, Opaque, Opaque); 5] {
    macro_rules! of {
        ($version:literal, $net:ident, $coll:ident) => {
            (
                $version,
                (&raw const plugin::$net).cast_mut().cast(),
                (&raw const plugin::$coll).cast_mut().cast(),
            )
        };
    }
    [
        of!(8, ncclNetPlugin_v8, ncclCollNetPlugin_v8),
        of!(9, ncclNetPlugin_v9, ncclCollNetPlugin_v9),
        of!(10, ncclNetPlugin_v10, ncclCollNetPlugin_v10),
        of!(11, ncclNetPlugin_v11, ncclCollNetPlugin_v11),
        of!(12, ncclNetPlugin_v12, ncclCollNetPlugin_v12),
    ]
}

#[test]
fn every_version_keeps_the_contracts() {
    let _deadline = Deadline::start("every_version_keeps_the_contracts", LIMIT);
    aggregator();
    for (version, net, coll) in tables() {
        // SAFETY: (1) they are of that version, and statics.
        let (net, reducing) = unsafe { open_tables(version, net, coll) }.unwrap();
        assert_eq!((net.name(), reducing.name()), ("OxCCL", "OxCCL"));
        // NCCL joins a device of each table to one NIC by its name.
        assert_eq!(net.devices(), reducing.devices());
        for device in 0..net.devices() {
            let [here, there] = [net.properties(device).unwrap(), reducing.properties(device).unwrap()];
            assert_eq!((&here.name, here.guid, here.port), (&there.name, there.guid, there.port));
        }
        // What a handle must be is between the plugin and itself; the library, which loads it, cannot tell.
        let cases = CASES.iter().filter(|(what, _)| !what.contains("garbage"));
        run(cases, &format!("version {version}"), &net);
        run(coll::CASES, &format!("version {version}"), &reducing);
        coll::windows(&reducing, 12, version.into());
    }
}

/// What NCCL never passes to gathers and scatters: each is refused with its reason, and the communicator goes on.
#[test]
fn parts_that_are_no_window_are_errors() {
    const INVALID_ARGUMENT: Code = 4;
    aggregator();
    // SAFETY: a static of this type.
    let coll = unsafe { &*tables()[0].2.cast::<CollTable8>() };
    let mut handle = [0u8; 128];
    let mut memory = [7u8; 64];
    let start: Opaque = memory.as_mut_ptr().cast();
    let (mut listener, mut comm, mut mr, mut request) = (null_mut(), null_mut(), null_mut(), null_mut());
    // SAFETY: objects of the plugin, and memory that is longer than what is asked for and outlives them.
    unsafe {
        assert_eq!(coll.listen.unwrap()(0, handle.as_mut_ptr().cast(), &mut listener), 0);
        let mut handles = [handle.as_mut_ptr().cast()];
        assert_eq!(coll.connect.unwrap()(handles.as_mut_ptr(), 1, 0, listener, &mut comm), 0);
        assert_eq!(coll.reg_mr.unwrap()(comm, start, 64, 1, &mut mr), 0);
        let mut gather = |nparts, handle, size, offset, window, mr| {
            let mut part = Sge::<u32> { handle, address: start, size };
            coll.iallgather.unwrap()(comm, start, nparts, &mut part, 16, offset, window, mr, &mut request)
        };
        assert_eq!(gather(0, mr, 16, 0, 16, mr), INVALID_ARGUMENT);
        assert_eq!(gather(2, mr, 16, 0, 16, mr), INVALID_ARGUMENT);
        assert_eq!(gather(1, mr, 15, 0, 16, mr), INVALID_ARGUMENT);
        assert_eq!(gather(1, null_mut(), 16, 0, 16, mr), INVALID_ARGUMENT);
        assert_eq!(gather(1, mr, 16, 0, 16, null_mut()), INVALID_ARGUMENT);
        assert_ne!(gather(1, mr, 16, 4, 16, mr), 0);
        assert_eq!(gather(1, mr, 16, 0, 16, mr), 0);
        let scatter = |nparts, size, dtype, mr| {
            let mut part = Sge::<u32> { handle: mr, address: start, size };
            let mut other = null_mut();
            coll.ireduce_scatter.unwrap()(comm, nparts, &mut part, start, 16, 0, 16, dtype, 0, mr, &mut other)
        };
        assert_eq!(scatter(1, 16, 99, mr), INVALID_ARGUMENT);
        assert_eq!(scatter(3, 16, 2, mr), INVALID_ARGUMENT);
        assert_eq!(scatter(1, 12, 2, mr), INVALID_ARGUMENT);
        assert_eq!(scatter(1, 16, 2, null_mut()), INVALID_ARGUMENT);
        let none = coll.iallgather.unwrap()(comm, start, 1, null_mut(), 16, 0, 16, mr, &mut null_mut());
        assert_eq!(none, INVALID_ARGUMENT);
        let (mut done, mut size) = (0, 0);
        while done == 0 {
            assert_eq!(coll.test.unwrap()(request, &mut done, &mut size), 0);
        }
        assert_eq!((size, memory), (16, [7; 64]));
        assert_eq!(coll.close_coll.unwrap()(comm), 0);
        assert_eq!(coll.close_listen.unwrap()(listener), 0);
    }
}

#[test]
fn the_library_is_found_as_nccl_finds_it() {
    aggregator();
    let this = std::env::current_exe().unwrap();
    let file = this.parent().unwrap().join("libnccl_net_oxccl.so");
    let file = file.to_str().unwrap();
    assert_eq!(find(file).unwrap().name(), "OxCCL");
    let coll = open_coll(file).unwrap();
    assert!(format!("{coll:?}").contains("ncclCollNetPlugin_v12"), "{coll:?}");
}

#[test]
fn null_garbage_and_closed_objects_are_errors() {
    const INVALID_ARGUMENT: Code = 4;
    aggregator();
    let [(.., net, coll), ..] = tables();
    let table = net.cast::<oxccl::net::plugin::abi::Table8>();
    let coll = coll.cast::<oxccl::net::plugin::coll_abi::CollTable8>();
    // SAFETY: statics of this type.
    let (table, coll) = unsafe { (&*table, &*coll) };
    let mut nothing = [0u8; 128];
    let garbage: Opaque = nothing.as_mut_ptr().cast();
    let (mut out, mut number) = (null_mut(), 0);
    for object in [null_mut(), garbage, without_provenance_mut(1)] {
        // SAFETY: what is not null can be read; nothing is freed.
        unsafe {
            assert_eq!(table.accept.unwrap()(object, &mut out, null_mut()), INVALID_ARGUMENT);
            assert_eq!(table.test.unwrap()(object, &mut number, null_mut()), INVALID_ARGUMENT);
            assert_eq!(table.close_send.unwrap()(object), INVALID_ARGUMENT);
            assert_eq!(table.reg_mr.unwrap()(object, garbage, 8, 1, &mut out), INVALID_ARGUMENT);
            assert_eq!(table.dereg_mr.unwrap()(object, null_mut()), INVALID_ARGUMENT);
            assert_eq!(table.isend.unwrap()(object, garbage, 8, 0, garbage, &mut out), INVALID_ARGUMENT);
            assert_eq!(coll.close_coll.unwrap()(object), INVALID_ARGUMENT);
            let mut handles = [garbage];
            let joined = coll.connect.unwrap()(handles.as_mut_ptr(), 1, 0, object, &mut out);
            assert_eq!(joined, INVALID_ARGUMENT);
        }
    }
    // SAFETY: null is what is asked for.
    unsafe {
        assert_eq!(table.devices.unwrap()(null_mut()), INVALID_ARGUMENT);
        assert_eq!(table.get_properties.unwrap()(-1, null_mut()), INVALID_ARGUMENT);
        assert_eq!(table.listen.unwrap()(0, null_mut(), &mut out), INVALID_ARGUMENT);
        assert_eq!(table.connect.unwrap()(0, null_mut(), &mut out, null_mut()), INVALID_ARGUMENT);
        // A handle of zeroes is nobody's.
        assert_eq!(table.connect.unwrap()(0, garbage, &mut out, null_mut()), INVALID_ARGUMENT);
        let mut handle = [0u8; 128];
        assert_eq!(table.listen.unwrap()(0, handle.as_mut_ptr().cast(), &mut out), 0);
        // A listener is neither a connection nor a request.
        assert_eq!(table.isend.unwrap()(out, garbage, 8, 0, garbage, &mut null_mut()), INVALID_ARGUMENT);
        assert_eq!(table.test.unwrap()(out, &mut number, null_mut()), INVALID_ARGUMENT);
        assert_eq!(table.close_listen.unwrap()(out), 0);
    }
}
