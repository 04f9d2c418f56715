//! Debian packages, fetched and unpacked without being installed.
//!
//! apt checks what it fetches against the signed lists of its sources. Where the machine has no lists, or stale ones, a
//! private copy is made below the cache, which needs no rights.

use crate::cmd::Cmd;
use crate::tools::root;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the guest runs, beside the kernel. The libraries are those of iproute2 and of libibverbs; a bare host lacks some.
/// `linux-image-cloud-amd64` would be smaller, but has no rdma_rxe.
const GUEST_PACKAGES: &str = "busybox-static iproute2 libbpf1 libelf1 libmnl0 libbsd0 libmd0 libcap2 zlib1g \
    libibverbs1 ibverbs-providers libnl-3-200 libnl-route-3-200";
const KERNEL_PACKAGE: &str = "linux-image-amd64";
const QEMU_PACKAGE: &str = "qemu-system-x86";
const FETCH_DEADLINE: Duration = Duration::from_secs(240);

/// apt, with the machine's lists of packages or with private ones.
pub struct Apt {
    options: Vec<String>,
}

impl Apt {
    /// With the lists that the machine has.
    pub fn of_machine() -> Apt {
        Apt { options: Vec::new() }
    }

    /// With fresh lists below `dir`.
    pub fn private(dir: &Path) -> Result<Apt> {
        let (lists, cache) = (dir.join("lists"), dir.join("cache"));
        fs::create_dir_all(lists.join("partial"))?;
        fs::create_dir_all(cache.join("archives/partial"))?;
        let options = [("Dir::State::Lists", lists), ("Dir::Cache", cache)]
            .into_iter()
            .flat_map(|(name, path)| ["-o".to_owned(), format!("{name}={}", path.display())])
            .collect();
        let apt = Apt { options };
        let output = apt.command("apt-get", "-q update").run(&root())?;
        if !output.success {
            bail!("apt-get cannot fetch lists of packages: is a Debian mirror reachable?");
        }
        Ok(apt)
    }

    fn command(&self, program: &str, line: &str) -> Cmd {
        let command = Cmd::new(program).env("LC_ALL", "C").deadline(FETCH_DEADLINE);
        self.options.iter().fold(command, |command, option| command.arg(option)).args(line)
    }

    /// The kernel and everything else for the guest, unpacked below `guest`.
    pub fn fetch_guest(&self, guest: &Path, debs: &Path) -> Result<()> {
        let depends = self
            .command("apt-cache", &format!("depends {KERNEL_PACKAGE}"))
            .probe(&root())
            .with_context(|| format!("apt knows no package {KERNEL_PACKAGE}"))?;
        let kernel = kernel_of(&depends)
            .with_context(|| format!("apt's {KERNEL_PACKAGE} depends on no kernel:\n{depends}"))?;
        self.fetch(&format!("{kernel} {GUEST_PACKAGES}"), guest, debs)
    }

    /// QEMU and those of its libraries that this machine lacks, unpacked below `qemu`.
    pub fn fetch_qemu(&self, qemu: &Path, debs: &Path) -> Result<()> {
        let line = format!("install --simulate --no-install-recommends {QEMU_PACKAGE}");
        let plan = self
            .command("apt-get", &line)
            .probe(&root())
            .with_context(|| format!("apt cannot plan: apt-get {line}"))?;
        let packages = planned(&plan);
        if packages.is_empty() {
            bail!("{QEMU_PACKAGE} is installed, but there is no qemu-system-x86_64 on the path");
        }
        self.fetch(&packages.join(" "), qemu, debs)
    }

    fn fetch(&self, packages: &str, to: &Path, debs: &Path) -> Result<()> {
        fs::create_dir_all(debs)?;
        fs::create_dir_all(to)?;
        let download = self.command("apt-get", &format!("-q download {packages}"));
        if !download.quiet().run(debs)?.success {
            bail!("apt-get cannot download: {packages}");
        }
        for deb in files(debs)? {
            let unpack = Cmd::new("dpkg-deb").arg("-x").arg(text(&deb)?).arg(text(to)?);
            if unpack.probe(&root()).is_none() {
                bail!("dpkg-deb cannot unpack {}", deb.display());
            }
        }
        Ok(fs::remove_dir_all(debs)?)
    }
}

/// The kernel that a meta package depends on.
fn kernel_of(depends: &str) -> Option<&str> {
    let mut names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.find(|name| name.starts_with("linux-image-"))
}

/// What a simulated installation would install.
fn planned(plan: &str) -> Vec<&str> {
    plan.lines().filter_map(|line| line.strip_prefix("Inst ")?.split_whitespace().next()).collect()
}

fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect()
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not text", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_and_the_plan_are_found_in_what_apt_says() {
        let depends =
            "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n  Conflicts: linux-image-x\n";
        assert_eq!(kernel_of(depends), Some("linux-image-6.1.0-56-amd64"));
        assert_eq!(kernel_of("linux-image-amd64\n  Depends: linux-base\n"), None);
        let plan = "Reading...\nInst libfdt1 (1.6.1-4+b1 Debian:12 [amd64])\nInst seabios (1 all)\nConf seabios (1)\n";
        assert_eq!(planned(plan), ["libfdt1", "seabios"]);
    }
}
