//! Layer: xtask, beside `ptx` and `amdgcn`.
//! Takes: the registry of algorithms (`oxccl_shared::algo::kernels`) and what a machine can do.
//! Gives: the list of kernels that the device crate makes its entries from.
//! Never: names a kernel that the registry does not have.

use anyhow::{Context, Result, ensure};
use oxccl_shared::abi::{DataType, Protocol};
use oxccl_shared::algo::kernels::{Kernel, kernels, type_name};
use std::path::PathBuf;

/// The variable that tells the device crate where its list is.
pub const VARIABLE: &str = "OXCCL_KERNELS";

/// What a machine can do, of which its kernels depend.
#[derive(Clone, Copy, Debug)]
pub struct Abilities<'a> {
    /// Its protocols.
    pub protocols: &'a [Protocol],
    /// Whether it has an engine for bulk copies.
    pub has_bulk_copies: bool,
}

/// Writes the list for `machine`: of all kernels whose names contain a part of `only`. Returns where it is.
pub fn write_list(machine: &str, abilities: Abilities<'_>, only: &str) -> Result<PathBuf> {
    let list: String = wanted(abilities, only).map(|kernel| row(&kernel)).collect();
    ensure!(!list.is_empty(), "no kernel of {machine} has a name that contains '{only}'");
    let path = crate::tools::target_dir().join(format!("kernels/{machine}.rs"));
    std::fs::create_dir_all(path.parent().context("a file lies in a folder")?)?;
    // A list that stays as it is must not look new to cargo.
    if std::fs::read_to_string(&path).ok().as_ref() != Some(&list) {
        std::fs::write(&path, &list).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(path)
}

/// The kernels of a machine, those whose names contain a part of `only`.
pub fn wanted(abilities: Abilities<'_>, only: &str) -> impl Iterator<Item = Kernel> {
    kernels().filter(move |kernel| {
        let name = kernel.to_string();
        let is_able = abilities.has_bulk_copies || !matches!(kernel, Kernel::Symmetric { .. });
        is_able
            && abilities.protocols.contains(&kernel.protocol())
            && only.split(',').any(|only| name.contains(only))
    })
}

fn row(kernel: &Kernel) -> String {
    let protocol = match kernel.protocol() {
        Protocol::LL => "crate::prims::Ll<1>, false",
        Protocol::LL128 => "crate::prims::Ll128, false",
        Protocol::Simple => "crate::prims::Simple, POSTER",
    };
    let entry = format!("{kernel} of {}", kernel.threads_max());
    match kernel {
        Kernel::Messages { .. } => format!("messages! {{ {entry} = [{protocol}] }}\n"),
        Kernel::Symmetric { func, dtype } => {
            let elements = dtype.map_or("u8".into(), rust_type);
            format!("symmetric! {{ {entry} = [{elements}]({func:?}) }}\n")
        }
        Kernel::Collective { func, algorithm, dtype, .. } => {
            let elements = dtype.map_or("u8".into(), rust_type);
            let peers = kernel.peers().map_or(String::new(), |peers| format!(", {peers}"));
            let walk = algorithm.name();
            format!("collective! {{ {entry} = {walk}[{elements}, {protocol}{peers}]({func:?}) }}\n")
        }
    }
}

/// The type of elements in Rust.
fn rust_type(dtype: DataType) -> String {
    let name = type_name(dtype);
    match dtype {
        DataType::F16 | DataType::BF16 => format!("oxccl_shared::reduce::{name}"),
        DataType::F8E4M3 | DataType::F8E5M2 => format!("oxccl_shared::reduce::{}", name.to_uppercase()),
        _ => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_names_the_walk_and_what_it_is_compiled_for() {
        let rows: Vec<String> = kernels().map(|kernel| row(&kernel)).collect();
        for expected in [
            "{ oxccl_all_reduce_ring_simple_f32 of 512 = ring[f32, crate::prims::Simple, POSTER](AllReduce) }",
            "{ oxccl_all_gather_oneshot4_ll of 384 = oneshot[u8, crate::prims::Ll<1>, false, 3](AllGather) }",
            "{ oxccl_reduce_ring_ll_f8e4m3 of 384 = ring[oxccl_shared::reduce::F8E4M3, crate::prims::Ll<1>, false](Reduce) }",
            "{ oxccl_send_recv_ll of 384 = [crate::prims::Ll<1>, false] }",
            "symmetric! { oxccl_reduce_scatter_symmetric_i8 of 512 = [i8](ReduceScatter) }",
            "symmetric! { oxccl_all_gather_symmetric of 512 = [u8](AllGather) }",
        ] {
            assert!(rows.iter().any(|row| row.contains(expected)), "{expected}");
        }
    }
}
