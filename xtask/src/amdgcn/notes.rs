//! Layer: xtask / amdgcn.
//! Takes: assembly, whose end says what each kernel uses.
//! Gives: that, for each kernel.
//! Never: guesses: notes whose form changed are an error.

use anyhow::{Context, Result, ensure};
use serde::Serialize;

/// A kernel and what it uses.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Kernel {
    pub name: String,
    /// Of its descriptor.
    pub symbol: String,
    /// Scalar registers of a wavefront.
    pub sgprs: u32,
    /// Vector registers of each thread.
    pub vgprs: u32,
    /// Scalar registers that were spilled, to lanes of vector registers as a rule.
    pub sgpr_spills: u32,
    /// Vector registers that were spilled, to memory.
    pub vgpr_spills: u32,
    /// Memory of each thread, for spills and calls.
    pub private_bytes: u32,
    /// Threads that execute an instruction together.
    pub wave_threads: u32,
}

/// The kernels of an assembly's notes, sorted by name.
pub fn kernels(assembly: &str) -> Result<Vec<Kernel>> {
    let notes = assembly.split_once(".amdgpu_metadata").context("no notes")?.1;
    let notes = notes.split_once("amdhsa.kernels:").context("no kernels")?.1;
    let notes = notes.split("\namdhsa.").next().unwrap_or(notes);
    // A kernel's first key stands behind the list's dash, two columns in; its arguments are a list further in.
    let mut kernels = notes.split("\n  - ").skip(1).map(kernel).collect::<Result<Vec<Kernel>>>()?;
    ensure!(!kernels.is_empty(), "the notes list no kernel");
    kernels.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(kernels)
}

fn kernel(notes: &str) -> Result<Kernel> {
    let text = |key: &str| {
        let mut values = notes.lines().filter_map(|line| line.trim().strip_prefix(key)?.strip_prefix(':'));
        values.next().map(|value| value.trim().to_string()).with_context(|| format!("no `{key}` in {notes}"))
    };
    let number = |key: &str| text(key)?.parse().with_context(|| format!("`{key}` is no number in {notes}"));
    Ok(Kernel {
        name: text(".name")?,
        symbol: text(".symbol")?,
        sgprs: number(".sgpr_count")?,
        vgprs: number(".vgpr_count")?,
        sgpr_spills: number(".sgpr_spill_count")?,
        vgpr_spills: number(".vgpr_spill_count")?,
        private_bytes: number(".private_segment_fixed_size")?,
        wave_threads: number(".wavefront_size")?,
    })
}

/// One line for people.
pub fn summary(kernels: &[Kernel]) -> String {
    let most = |of: fn(&Kernel) -> u32| kernels.iter().map(of).max().unwrap_or(0);
    let spill = kernels.iter().filter(|kernel| kernel.vgpr_spills > 0).count();
    format!(
        "at most {} vector registers and {} bytes of private memory, {spill} kernels spill vector registers",
        most(|kernel| kernel.vgprs),
        most(|kernel| kernel.private_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTES: &str = "\
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .address_space:  generic
        .size:           8
    .name:           b
    .private_segment_fixed_size: 56
    .sgpr_count:     106
    .sgpr_spill_count: 3
    .symbol:         b.kd
    .vgpr_count:     115
    .vgpr_spill_count: 1
    .wavefront_size: 64
  - .agpr_count:     0
    .name:           a
    .private_segment_fixed_size: 0
    .sgpr_count:     8
    .sgpr_spill_count: 0
    .symbol:         a.kd
    .vgpr_count:     2
    .vgpr_spill_count: 0
    .wavefront_size: 64
amdhsa.target:   amdgcn-amd-amdhsa--gfx942
";

    #[test]
    fn notes_of_two_kernels() {
        let kernels = kernels(NOTES).unwrap();
        assert_eq!([&*kernels[0].name, &*kernels[1].symbol], ["a", "b.kd"]);
        assert_eq!((kernels[1].vgprs, kernels[1].private_bytes, kernels[1].sgpr_spills), (115, 56, 3));
        assert!(summary(&kernels).contains("115 vector registers and 56 bytes"));
        assert!(summary(&kernels).contains("1 kernels spill"));
    }

    #[test]
    fn changed_notes_are_refused() {
        let error = kernels(&NOTES.replace(".vgpr_count", ".vgprs")).unwrap_err();
        assert!(error.to_string().contains(".vgpr_count"), "{error}");
        assert!(kernels("nothing").is_err());
    }
}
