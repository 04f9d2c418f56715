//! Environment variables come from users, scripts and launchers of every version.

use oxccl::api::Config;
use oxccl::api::launcher::LaunchEnv;
use std::collections::HashMap;

/// The variables that are read, so that the fuzzer need not guess their names.
const VARIABLES: &[&str] = &[
    "OXCCL_RANK",
    "OXCCL_NRANKS",
    "OXCCL_COMM_ID",
    "NCCL_COMM_ID",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_ID",
    "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_NODELIST",
    "SLURM_NODELIST",
    "SLURM_LOCALID",
    "PMI_RANK",
    "PMI_SIZE",
    "OXCCL_TIMEOUT",
    "OXCCL_BOOTSTRAP_TIMEOUT",
    "OXCCL_TRANSPORT",
    "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_FAMILY",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_BUFFSIZE",
    "NCCL_HOSTID",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_NTHREADS",
    "OXCCL_TUNE_FILE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_COLLNET_NODE_THRESHOLD",
    "OXCCL_STALL_WARN",
    "OXCCL_STATUS",
    "OXCCL_FLIGHT_FILE",
    "OXCCL_FLIGHT_SIGNAL",
    "OXCCL_DETERMINISTIC",
    "OXCCL_OUTAGE",
    "NCCL_RAS_ADDR",
    "NCCL_RAS_ENABLE",
];

/// Any values are refused with an error message, or give a rank below its number of ranks and a rendezvous address.
/// One line of text a variable: its index as a character from `0`, then its value.
pub fn environment(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut variables = HashMap::new();
    for line in text.lines() {
        let mut chars = line.chars();
        let Some(first) = chars.next() else { continue };
        if let Some(name) = (first as usize).checked_sub('0' as usize).and_then(|i| VARIABLES.get(i)) {
            variables.insert(*name, chars.as_str().to_string());
        }
    }
    let lookup = |name: &str| variables.get(name).cloned();
    match LaunchEnv::detect(&lookup) {
        Ok(Some(launch)) => {
            assert!(launch.rank < launch.nranks);
            assert_eq!(launch.rendezvous.is_some(), launch.nranks > 1);
            if let Some(point) = &launch.rendezvous {
                assert!(!point.host.is_empty() && point.port != 0, "{}:{}", point.host, point.port);
            }
        }
        Ok(None) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match Config::from_lookup(&lookup) {
        Ok(config) => assert!(!config.timeout.is_zero()),
        Err(error) => assert!(error.to_string().contains(error.variable)),
    }
    // NCCL's variables never keep a library in its place from starting.
    if let Err(error) = Config::from_lookup_as_nccl(&lookup) {
        assert!(!error.variable.starts_with("NCCL_"), "{error}");
    }
}
