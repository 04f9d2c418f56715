//! Layer: xtask / ptx.
//! Takes: the name of an entry, `oxccl_<func>_<algo>_<proto>_<dtype>`, where all but the function may be missing.
//! Gives: the module that it goes into: `<func>_<dtype>`, or `<func>` for kernels that move bytes of any type.
//! Never: drops an entry: a name of another shape is a module of its own.

use oxccl_shared::abi::Protocol;
use oxccl_shared::algo::registry::SPECS;

/// Whether a word starts the rest of the name after the function: an algorithm, maybe with a number of ranks, or a protocol.
fn is_after_func(word: &str) -> bool {
    let is_algorithm = |name: &str| {
        word.strip_prefix(name).is_some_and(|ranks| ranks.bytes().all(|byte| byte.is_ascii_digit()))
    };
    SPECS.iter().any(|spec| is_algorithm(spec.name())) || Protocol::from_name(word).is_some()
}

/// As `DataType` of the library spells them, and the common short forms.
const DTYPES: &[&str] =
    &["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64", "f8e4m3", "f8e5m2"];

/// The module of an entry.
pub fn module_of(entry: &str) -> String {
    let Some(name) = entry.strip_prefix("oxccl_") else { return entry.into() };
    let words: Vec<&str> = name.split('_').collect();
    let dtype = words.iter().skip(1).rfind(|word| DTYPES.contains(word));
    let func_end = words
        .iter()
        .skip(1)
        .position(|word| is_after_func(word) || DTYPES.contains(word))
        .map_or(words.len(), |at| at + 1);
    let func = words[..func_end].join("_");
    dtype.map_or(func.clone(), |dtype| format!("{func}_{dtype}"))
}

#[cfg(test)]
mod tests {
    use super::module_of;

    #[test]
    fn one_module_per_function_and_type() {
        for (entry, module) in [
            ("oxccl_all_reduce_ring_simple_f32", "all_reduce_f32"),
            ("oxccl_all_reduce_tree_ll128_f8e4m3", "all_reduce_f8e4m3"),
            ("oxccl_reduce_scatter_oneshot_ll_bf16", "reduce_scatter_bf16"),
            ("oxccl_reduce_ring_ll_f32_sum", "reduce_f32"),
            ("oxccl_reduce_u8", "reduce_u8"),
            ("oxccl_all_gather_ring_ll", "all_gather"),
            ("oxccl_send_recv_simple", "send_recv"),
            ("oxccl_all_to_all", "all_to_all"),
            ("probe_load", "probe_load"),
        ] {
            assert_eq!(module_of(entry), module);
        }
    }
}
