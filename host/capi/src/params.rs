//! Settings by name: the variables of the environment that the library knows, with their values.

use crate::pointer::{Out, Text};
use crate::registry::Handle;
use crate::result::{Failure, Outcome, give};
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::OnceLock;

/// A variable, and what it is without being set; empty where there is no such value.
struct Param {
    key: &'static str,
    default: &'static str,
}

const fn param(key: &'static str, default: &'static str) -> Param {
    Param { key, default }
}

/// In alphabetical order; docs/env-vars.md says what they mean.
const PARAMS: [Param; 39] = [
    param("NCCL_ALGO", ""),
    param("NCCL_BUFFSIZE", ""),
    param("NCCL_CGA_CLUSTER_SIZE", ""),
    param("NCCL_COLLNET_ENABLE", "0"),
    param("NCCL_COLLNET_NODE_THRESHOLD", "2"),
    param("NCCL_COMM_BLOCKING", "1"),
    param("NCCL_CROSS_NIC", "2"),
    param("NCCL_CTA_POLICY", "0"),
    param("NCCL_CUMEM_ENABLE", "1"),
    param("NCCL_DEBUG", ""),
    param("NCCL_DEBUG_FILE", ""),
    param("NCCL_DEBUG_SUBSYS", "INIT,ENV,BOOTSTRAP"),
    param("NCCL_DMABUF_ENABLE", "1"),
    param("NCCL_GRAPH_FILE", ""),
    param("NCCL_HOSTID", ""),
    param("NCCL_IB_DISABLE", "0"),
    param("NCCL_IB_GID_INDEX", "-1"),
    param("NCCL_IB_HCA", ""),
    param("NCCL_IB_TIMEOUT", "20"),
    param("NCCL_MAX_CTAS", ""),
    param("NCCL_MIN_CTAS", ""),
    param("NCCL_NET", ""),
    param("NCCL_NET_GDR_LEVEL", ""),
    param("NCCL_NET_PLUGIN", ""),
    param("NCCL_NTHREADS", ""),
    param("NCCL_P2P_DISABLE", "0"),
    param("NCCL_P2P_LEVEL", ""),
    param("NCCL_PROTO", ""),
    param("NCCL_RUNTIME_CONNECT", "1"),
    param("NCCL_SHM_DISABLE", "0"),
    param("NCCL_SOCKET_FAMILY", ""),
    param("NCCL_SOCKET_IFNAME", ""),
    param("NCCL_TOPO_FILE", ""),
    param("OXCCL_BOOTSTRAP_TIMEOUT", "1800"),
    param("OXCCL_DETERMINISTIC", "0"),
    param("OXCCL_OUTAGE", "30"),
    param("OXCCL_PTX_PATH", ""),
    param("OXCCL_STALL_WARN", "10"),
    param("OXCCL_TIMEOUT", "86400"),
];

/// Handles are the table's places, counted from one and spread, so that small numbers and addresses are none.
const FIRST: usize = 0x0cc1_7000;
const STEP: usize = 16;

impl Param {
    fn value(&self) -> String {
        let set = oxccl::Config::variable(self.key).filter(|value| !value.is_empty());
        set.unwrap_or_else(|| self.default.to_owned())
    }

    fn by_key(key: &Text) -> Outcome<usize> {
        let key = key.get().ok_or_else(|| Failure::null("key"))?;
        PARAMS.iter().position(|param| param.key == key).ok_or_else(|| {
            Failure::invalid_argument(format!("key is {key:?}: ncclParamGetAllParameterKeys lists the keys"))
        })
    }

    fn by_handle(handle: Handle) -> Outcome<&'static Param> {
        let at = handle.0.checked_sub(FIRST).filter(|at| at.is_multiple_of(STEP)).map(|at| at / STEP);
        at.and_then(|at| PARAMS.get(at)).ok_or_else(|| match handle {
            Handle::NULL => Failure::null("h"),
            Handle(number) => Failure::invalid_argument(format!("h ({number:#x}) is not from ncclParamBind")),
        })
    }
}

/// `ncclParamBind`.
pub fn bind(out: Out<Handle>, key: Text) -> Outcome {
    out.check("out")?;
    out.write(Handle(FIRST + Param::by_key(&key)? * STEP), "out")
}

/// `ncclParamGetI8` and its siblings.
pub fn get_number<T: TryFrom<i128>>(handle: Handle, out: Out<T>) -> Outcome {
    let param = Param::by_handle(handle)?;
    out.check("out")?;
    let value = param.value();
    let number: i128 = value.trim().parse().map_err(|_| {
        Failure::invalid_usage(format!(
            "{} is {value:?}, which is no whole number: ncclParamGetStr gives it",
            param.key
        ))
    })?;
    let fits = T::try_from(number).map_err(|_| {
        let bits = 8 * size_of::<T>();
        Failure::invalid_argument(format!("{} is {number}, which does not fit {bits} bits", param.key))
    })?;
    out.write(fits, "out")
}

/// `ncclParamGetStr`.
pub fn get_text(handle: Handle, out: Out<*const c_char>) -> Outcome {
    let param = Param::by_handle(handle)?;
    out.check("out")?;
    out.write(give(param.value()), "out")
}

/// `ncclParamGet`: the text with its terminating zero, as bytes.
pub fn get_bytes(handle: Handle, out: Out<u8>, room: c_int, len: Out<c_int>) -> Outcome {
    let param = Param::by_handle(handle)?;
    out.check("out")?;
    let mut bytes = param.value().into_bytes();
    bytes.push(0);
    len.write(bytes.len() as c_int, "len")?;
    if usize::try_from(room).map_or(true, |room| room < bytes.len()) {
        let text = format!("maxLen is {room}, and {} has {} bytes", param.key, bytes.len());
        return Err(Failure::invalid_argument(text));
    }
    bytes.into_iter().enumerate().try_for_each(|(at, byte)| out.write_at(at, byte, "out"))
}

/// `ncclParamGetParameter`.
pub fn get_by_key(key: Text, out: Out<*const c_char>, len: Out<c_int>) -> Outcome {
    let param = &PARAMS[Param::by_key(&key)?];
    out.check("value")?;
    let value = param.value();
    len.write(value.len() as c_int, "valueLen")?;
    out.write(give(value), "value")
}

/// The keys as C reads them, for the life of the process.
struct Keys {
    _texts: Vec<CString>,
    table: Vec<usize>,
}

/// `ncclParamGetAllParameterKeys`.
pub fn keys(out: Out<*const c_void>, len: Out<c_int>) -> Outcome {
    static KEYS: OnceLock<Keys> = OnceLock::new();
    let keys = KEYS.get_or_init(|| {
        let texts: Vec<CString> =
            PARAMS.iter().map(|param| CString::new(param.key).unwrap_or_default()).collect();
        let table = texts.iter().map(|text| text.as_ptr().expose_provenance()).collect();
        Keys { _texts: texts, table }
    });
    len.write(keys.table.len() as c_int, "tableLen")?;
    out.write(keys.table.as_ptr().cast(), "table")
}

/// `ncclParamDumpAll`.
pub fn dump() {
    for param in &PARAMS {
        tracing::info!(target: "oxccl::env", "{} = {}", param.key, param.value());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sorted_and_documented() {
        assert!(PARAMS.is_sorted_by_key(|param| param.key));
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
        let read = |name: &str| std::fs::read_to_string(format!("{page}/{name}")).unwrap();
        let pages = [read("env-vars.md"), read("infiniband.md"), read("topology.md")].concat();
        for Param { key, .. } in &PARAMS {
            assert!(pages.contains(key), "{key}");
        }
    }
}
