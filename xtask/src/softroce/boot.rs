//! One guest, from QEMU's start to its end.

use super::job::{Ended, Job};
use super::store::{Store, library_path};
use crate::cmd::Cmd;
use crate::tools::root;
use anyhow::{Result, bail};
use std::path::Path;
use std::time::Instant;

const KERNEL_LINE: &str =
    "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off nokaslr random.trust_cpu=on";
const MARK: &str = "softroce-status:";

/// Runs `job` in a guest of its own.
pub fn boot(store: &Store, initramfs: &Path, job: &Job) -> Result<Ended> {
    let start = Instant::now();
    let output = qemu(store, initramfs, job).unnamed().deadline(job.limit).run(&root())?;
    let took = start.elapsed();
    match status(&output.text) {
        Some(Ok(status)) => Ok(Ended { status, took, text: output.text }),
        Some(Err(step)) => bail!("the guest could not be set up: it failed at `{step}`"),
        None => bail!("the guest ended without a status: its kernel panicked or QEMU failed (see above)"),
    }
}

fn qemu(store: &Store, initramfs: &Path, job: &Job) -> Cmd {
    let memory_mb = job.memory_mb.to_string();
    let cmd = match &store.qemu {
        None => Cmd::new("qemu-system-x86_64"),
        Some(tree) => Cmd::new(tree.join("usr/bin/qemu-system-x86_64").to_string_lossy())
            .env("LD_LIBRARY_PATH", library_path(tree))
            .env("QEMU_MODULE_DIR", tree.join("usr/lib/x86_64-linux-gnu/qemu").to_string_lossy())
            .arg("-L")
            .arg(tree.join("usr/share/qemu").to_string_lossy())
            .arg("-L")
            .arg(tree.join("usr/share/seabios").to_string_lossy()),
    };
    cmd.args("-nodefaults -no-user-config -display none -no-reboot -serial stdio -monitor none")
        // Emulation only: a machine of CI has no KVM, and one that has gives the same results.
        .args("-M q35 -accel tcg,thread=multi -cpu max -smp 2 -m")
        .arg(memory_mb)
        .args("-device isa-debug-exit,iobase=0xf4,iosize=1")
        .arg("-kernel")
        .arg(store.kernel.to_string_lossy())
        .arg("-initrd")
        .arg(initramfs.to_string_lossy())
        .arg("-append")
        .arg(KERNEL_LINE)
}

/// The status that init wrote, or the step at which it failed.
fn status(text: &str) -> Option<Result<u8, String>> {
    let said = text.rsplit_once(MARK)?.1.split(':').next()?;
    Some(said.parse().map_err(|_| said.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_status_counts() {
        assert_eq!(status("hello\nsoftroce-status:3:\nx\nsoftroce-status:134:\n"), Some(Ok(134)));
        assert_eq!(status("softroce-status:insmod veth.ko:\n"), Some(Err("insmod veth.ko".into())));
        assert_eq!(status("Kernel panic"), None);
    }
}
