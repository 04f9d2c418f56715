//! Layer: xtask / ptx.
//! Takes: the name of an entry, `oxccl_<func>_<algo>_<proto>_<dtype>`, where all but the function may be missing.
//! Gives: the module that it goes into: `<func>_<dtype>`, or `<func>` for kernels that move bytes of any type.
//! Never: drops an entry: a name of another shape is a module of its own.

/// What starts the rest of the name after the function.
const AFTER_FUNC: &[&str] = &[
    "ring", "tree", "collnet", "oneshot", "oneshot2", "oneshot4", "twoshot", "twoshot2", "twoshot4",
    "pairwise", "nvls", "simple", "ll", "ll128",
];

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
        .position(|word| AFTER_FUNC.contains(word) || DTYPES.contains(word))
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
