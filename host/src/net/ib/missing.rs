//! Explains why libibverbs finds no device: the library itself returns only an error number.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

/// The advice that always applies.
const WITHOUT: &str = "NCCL_NET=Socket does without";

/// Why there is no device, judging by `sys` and `dev`. `failed`: the error of the device list, if any.
pub(super) fn why(sys: &Path, dev: &Path, failed: Option<&io::Error>) -> String {
    let mut said = found(sys, dev);
    if let Some(error) = failed {
        let _ = write!(said, " (ibv_get_device_list: {error})");
    }
    let _ = write!(said, "; {WITHOUT}");
    said
}

fn found(sys: &Path, dev: &Path) -> String {
    let devices = names(&sys.join("class/infiniband"));
    if devices.is_empty() && !sys.join("class/infiniband_verbs").exists() {
        return "the kernel has no RDMA: there is no /sys/class/infiniband_verbs. If this host has an RDMA card, load the module \
                ib_uverbs and the card's own (mlx5_ib, bnxt_re, irdma, ...); for RoCE over any interface, rdma_rxe and rdma link add"
            .to_owned();
    }
    if devices.is_empty() {
        return "the kernel has RDMA but no device: /sys/class/infiniband is empty. Load the card's module (mlx5_ib, bnxt_re, irdma, \
                ...), see the kernel's log for why it found no card, or give the device to this container or virtual machine"
            .to_owned();
    }
    let devices = devices.join(", ");
    if !names(&dev.join("infiniband")).iter().any(|name| name.starts_with("uverbs")) {
        return format!(
            "the kernel has {devices}, but there is no /dev/infiniband/uverbs*: load the module ib_uverbs; in a container, pass \
             --device=/dev/infiniband"
        );
    }
    format!(
        "the kernel has {devices}, but libibverbs cannot use any: is its driver there (Debian's package is ibverbs-providers), and may \
         this user open /dev/infiniband/uverbs*?"
    )
}

/// A directory's entries; none if it does not exist.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_part_is_named_with_its_remedy() {
        let root = tempfile::tempdir().unwrap();
        let (sys, dev) = (root.path().join("sys"), root.path().join("dev"));
        let no_calls = io::Error::from_raw_os_error(libc::ENOSYS);
        let make = |path: &Path| fs::create_dir_all(path).unwrap();

        let said = why(&sys, &dev, Some(&no_calls));
        assert!(said.contains("ib_uverbs") && said.contains("/sys/class/infiniband_verbs"), "{said}");
        assert!(said.contains("ibv_get_device_list") && said.contains("NCCL_NET=Socket"), "{said}");

        make(&sys.join("class/infiniband_verbs"));
        let said = why(&sys, &dev, None);
        assert!(said.contains("/sys/class/infiniband is empty") && !said.contains("ibv_get"), "{said}");

        make(&sys.join("class/infiniband/mlx5_0"));
        let said = why(&sys, &dev, None);
        assert!(said.contains("mlx5_0") && said.contains("--device=/dev/infiniband"), "{said}");

        make(&dev.join("infiniband"));
        fs::write(dev.join("infiniband/uverbs0"), "").unwrap();
        let said = why(&sys, &dev, None);
        assert!(said.contains("mlx5_0") && said.contains("ibverbs-providers"), "{said}");
    }
}
