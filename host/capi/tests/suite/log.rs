//! `NCCL_DEBUG` and its siblings, as a program of several ranks meets them.

use super::fake;
use super::programs::{library_folder, said, scratch};
use super::states::program;
use std::process::Command;

/// What the log holds after a case.
fn log_of(case: &str, environment: &[(&str, &str)]) -> String {
    let text = said(&fake::run(program(), &[case], environment));
    text.lines().filter(|line| !line.ends_with(": ok")).map(|line| format!("{line}\n")).collect()
}

/// What the library's own notes say.
fn build_id() -> String {
    let library = library_folder().join("libnccl.so.2");
    said(&Command::new("readelf").arg("-n").arg(library).output().unwrap())
}

/// `host:pid:tid [gpu] NCCL `
fn is_headed(line: &str) -> bool {
    let Some((head, rest)) = line.split_once(" [") else { return false };
    let numbers: Vec<&str> = head.rsplit(':').take(2).collect();
    let numbered = numbers.len() == 2 && numbers.iter().all(|number| number.parse::<u32>().is_ok());
    let Some((device, text)) = rest.split_once("] ") else { return false };
    numbered && device.parse::<i32>().is_ok() && text.contains("NCCL ")
}

#[test]
fn a_healthy_run_is_silent_unless_asked() {
    assert_eq!(log_of("init_split_and_destroy_in_groups", &[("NCCL_DEBUG", "")]), "");
    assert_eq!(log_of("finalize", &[]), "");
}

/// They are read before the log begins, whose own settings are among them. The warnings were lost.
#[test]
fn warnings_of_settings_are_in_the_log() {
    let settings = [("NCCL_DEBUG", "WARN"), ("OXCCL_TIMEOUTT", "5"), ("OXCCL_AGGREGATOR", "127.0.0.1:5")];
    let text = log_of("finalize", &settings);
    assert!(text.contains("is OXCCL_TIMEOUT meant?"), "{text}");
    assert!(text.contains("set NCCL_COLLNET_ENABLE=1"), "{text}");
}

/// Scripts have them, and vLLM sets the first: NCCL starts. Every communicator was refused.
#[test]
fn values_that_are_none_are_warnings() {
    let settings = [
        ("NCCL_DEBUG", "WARN"),
        ("NCCL_NTHREADS", "1"),
        ("NCCL_DEBUG_SUBSYS", "NONE"),
        ("NCCL_IB_TIMEOUT", "50"),
        ("NCCL_ALGO", "NVLS"),
        ("NCCL_SHM_DISABLE", "2"),
        ("NCCL_TOPO_FILE", "/nowhere/topo.xml"),
        ("NCCL_MIN_NCHANNELS", "32"),
        ("NCCL_MAX_NCHANNELS", "16"),
    ];
    let text = log_of("init_split_and_destroy_in_groups", &settings);
    for part in [
        "NCCL_NTHREADS=1: 64 to 512 threads were expected, a multiple of 32; it is ignored",
        "NCCL_DEBUG_SUBSYS=NONE: ",
        "NCCL_IB_TIMEOUT=50: 1 to 31 was expected; it is taken as 31",
        "NCCL_ALGO=NVLS: ",
        "NCCL_SHM_DISABLE=2: 0 or 1 was expected; it is taken as 1",
        "NCCL_TOPO_FILE=/nowhere/topo.xml: there is no such file; it is ignored",
        "32 channels at least, and 16 at most: both are taken as 16",
    ] {
        assert_eq!(text.matches(part).count(), 1, "{part}: {text}");
    }
    log_of("init_split_and_destroy_in_groups", &[("NCCL_DEBUG", "ERROR")]);
}

#[test]
fn files_of_settings_are_read() {
    let file = scratch("conf").join("nccl.conf");
    std::fs::write(&file, "# a comment\nNCCL_DEBUG=VERSION\n").unwrap();
    let named = ("NCCL_CONF_FILE", file.to_str().unwrap());
    assert!(log_of("finalize", &[named]).contains("NCCL version 2.32.3"));
    assert_eq!(log_of("finalize", &[named, ("NCCL_DEBUG", "NONE")]), "", "the environment wins");
}

#[test]
fn the_version_alone() {
    let text = log_of("init_split_and_destroy_in_groups", &[("NCCL_DEBUG", "VERSION")]);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("NCCL version 2.32.3 (OxCCL ") && is_headed(text.trim_end()), "{text}");
    let build = text.split("build ").nth(1).and_then(|rest| rest.split(',').next()).unwrap_or_default();
    assert!(build_id().contains(&format!("Build ID: {build}")) && build.len() >= 16, "{text}");
}

#[test]
fn information_says_what_a_communicator_is_made_of() {
    let settings = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "ALL"), ("NCCL_ALGO", "ring")];
    let text = log_of("init_split_and_destroy_in_groups", &settings);
    assert!(text.lines().all(is_headed), "{text}");
    for part in [
        "NCCL version 2.32.3",
        "NCCL INFO Kernels ",
        "[0] NCCL INFO Channel 00/",
        "NCCL INFO rank 1 - rank 0 via ",
        // The GPU of rank 1, as NCCL names it; the test's driver puts it on bus 2, and there is no NVML.
        "NCCL INFO rank 1 nranks 2 cudaDev 1 nvmlDev -1 busId 2000,",
        "Init COMPLETE in ",
        "NCCL INFO all_reduce (float32): ring/",
        "NCCL INFO NCCL_ALGO set by environment to ring",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text =
        log_of("init_split_and_destroy_in_groups", &[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "NET")]);
    assert!(!text.contains("Init COMPLETE"), "{text}");
}

#[test]
fn warnings_name_the_function_and_go_to_a_file() {
    let folder = scratch(&format!("log-{}", std::process::id()));
    let file = folder.join("%h.%p.log");
    let settings = [("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", file.to_str().unwrap())];
    assert_eq!(log_of("finalize", &settings), "");
    let made: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [path] = made.as_slice() else { panic!("{made:?}") };
    let text = std::fs::read_to_string(path).unwrap();
    assert!(
        text.lines().all(is_headed) && text.contains(" NCCL WARN ncclAllReduce: comm was finalized"),
        "{text}"
    );
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(text.starts_with(name.split('.').next().unwrap()), "{name}: {text}");
}
