//! Layer: xtask / ptx.
//! Takes: the name of an entry, `oxccl_<func>_<algo>_<proto>_<dtype>`, where all but the function may be missing.
//! Gives: the module that it goes into: one of its own, but for the kernels by Simple of a function and a type, which go into
//! `<func>_simple_<dtype>`, or `<func>_simple` if they move bytes of any type.
//! Never: drops an entry: a name of another shape is a module of its own.
//!
//! A module is what the library loads at once, and what the driver compiles at once where there is no machine code: 0.3 s for each kernel.
//! So modules are small. Kernels by Simple stay together since most of their code is the moving of slots, which they share: apart, the
//! PTX would be half as long again.

use oxccl_shared::abi::Protocol;
use oxccl_shared::algo::registry::SPECS;

/// Whether a word starts the rest of the name after the function: an algorithm, maybe with a number of ranks, or a protocol.
fn is_after_func(word: &str) -> bool {
    let is_algorithm = |name: &str| {
        word.strip_prefix(name).is_some_and(|ranks| ranks.bytes().all(|byte| byte.is_ascii_digit()))
    };
    SPECS.iter().any(|spec| is_algorithm(spec.name())) || Protocol::from_name(word).is_some()
}

/// The module of an entry.
pub fn module_of(entry: &str) -> String {
    let Some(name) = entry.strip_prefix("oxccl_") else { return entry.into() };
    let words: Vec<&str> = name.split('_').collect();
    let proto = words.iter().position(|word| Protocol::from_name(word) == Some(Protocol::Simple));
    let Some(proto) = proto else { return name.into() };
    let func_end = words.iter().skip(1).position(|word| is_after_func(word)).map_or(proto, |at| at + 1);
    [&words[..func_end], &words[proto..]].concat().join("_")
}

#[cfg(test)]
mod tests {
    use super::module_of;

    #[test]
    fn a_module_for_each_kernel_and_one_for_those_by_simple() {
        for (entry, module) in [
            ("oxccl_all_reduce_ring_simple_f32", "all_reduce_simple_f32"),
            ("oxccl_all_reduce_tree_simple_f32", "all_reduce_simple_f32"),
            ("oxccl_all_reduce_tree_ll128_f8e4m3", "all_reduce_tree_ll128_f8e4m3"),
            ("oxccl_reduce_scatter_oneshot4_ll_bf16", "reduce_scatter_oneshot4_ll_bf16"),
            ("oxccl_all_gather_ring_ll", "all_gather_ring_ll"),
            ("oxccl_all_gather_ring_simple", "all_gather_simple"),
            ("oxccl_send_recv_ll", "send_recv_ll"),
            ("oxccl_send_recv_simple", "send_recv_simple"),
            ("oxccl_all_to_all", "all_to_all"),
            ("probe_load", "probe_load"),
        ] {
            assert_eq!(module_of(entry), module);
        }
    }
}
